//! What operators do, and setting up.

macro_rules! operators {
    ($d:tt $($before:tt)*) => {
        faults! { $d $($before)*
        replay (replay) {
            a_dead_message_can_be_replayed:
                "A dead message can be replayed: pending, due, nothing left of its end.",
            a_processed_message_can_be_replayed: "A processed message can be replayed.",
            a_discarded_message_can_be_replayed: "A discarded message can be replayed.",
            a_replay_resets_the_attempts: "A replay resets the attempts.",
            a_lease_tells_how_often_its_message_was_replayed:
                "A claim and a begin tell how often their message was replayed, whatever became of earlier leases.",
            a_replay_clears_the_result: "A replay clears the result of the earlier run, and its error.",
            a_record_keeps_its_last_worker:
                "A record keeps who held it last, and has a time of its end just while it is final.",
            unfinished_messages_cannot_be_replayed:
                "Pending and leased messages cannot be replayed, and unknown ones are not found.",
            a_replay_can_edit_the_payload:
                "A replay can edit the payload; all else of the message stays.",
            an_edited_payload_keeps_to_the_limit:
                "An edited payload over the limit is invalid and changes nothing.",
            an_empty_payload_can_be_given: "A replay can give an empty payload, which is a payload.",
            a_dropped_payload_needs_a_new_one:
                "A message whose payload was dropped can be replayed only with a new one.",
            two_replays_at_once_count_once:
                "Of two operators who replay at once, one wins and the other is told so.",
            a_replay_during_its_attempt_counts_once:
                "A replay and a settlement at the same time cannot both win.",
            slices_cover_everything_once: "Slices cover every matching message once and end.",
            slices_end_although_messages_die_again:
                "A loop over all slices ends although messages die again behind it.",
            messages_that_die_meanwhile_stay_dead:
                "A message that dies again behind a bulk replay stays dead rather than lost.",
            slices_mean_dead_messages_by_default:
                "Without states in the filter, slices mean dead messages.",
            slices_pass_over_what_they_must_not_change:
                "Slices pass over messages whose state does not allow it.",
            slices_keep_to_their_filter: "Slices change only what their filter means.",
            a_slice_of_nothing_changes_nothing:
                "A slice with the limit 0 changes nothing, and has no next.",
        }
        discard (replay) {
            a_pending_or_dead_message_can_be_discarded:
                "A pending or dead message can be discarded, and is not worked on.",
            other_states_cannot_be_discarded:
                "Leased, processed and discarded messages cannot be discarded.",
            a_discard_is_a_new_end:
                "A dead message that is discarded finished when it was discarded.",
            an_expired_lease_can_be_discarded: "A message whose lease ran out can be discarded.",
        }
        edits (edits) {
            headers_are_replaced_whole: "An edit of headers replaces all of them, byte for byte.",
            headers_can_be_taken_away: "An edit can take all headers away.",
            what_is_not_edited_stays:
                "What an edit does not name stays, and what it names stays edited.",
            a_refused_edit_changes_nothing: "An edit of a message that cannot be replayed changes nothing.",
        }
        rescheduling (rescheduling) {
            later_and_sooner: "A reschedule sets the due time of a pending message, and nothing else.",
            a_moment_is_kept_to_the_microsecond:
                "A reschedule takes any moment, keeps it to the microsecond, and takes the past for now.",
            it_comes_when_it_should: "A rescheduled message is claimable when it is due, and not before.",
            a_retry_can_be_brought_forward:
                "What waits for a retry or a deferral can be rescheduled; attempts and error stay.",
            only_pending_messages_are_rescheduled:
                "Messages that are not pending are not rescheduled, and a lease stands.",
            a_lease_that_ran_out_is_lost: "A reschedule takes a lease that ran out away.",
            a_repeated_settlement_is_done: "A settlement that was done is done after a reschedule, too.",
            its_place_stays: "A rescheduled message keeps its place in its ordering key.",
            what_waits_behind_another_goes_on_waiting:
                "A reschedule lets no message pass one before it: leased, put off or blocking.",
            slices_reschedule_what_is_pending: "A slice reschedules the pending messages of its filter.",
            a_reschedule_wakes: "A reschedule to now wakes.",
            another_process_is_woken_by_a_reschedule: "A reschedule to now wakes other processes.",
            counts_and_lag_follow: "Counts and lag follow a reschedule.",
            of_a_claim_and_a_reschedule_one_wins: "Of a claim and a reschedule at once one has the message.",
        }
        pauses (pauses) {
            a_pause_stops_claims: "A paused handler's messages are not handed out; others' are.",
            a_lease_that_runs_out_stays_paused:
                "A lease that runs out while its handler is paused is not handed out.",
            all_but_claims_go_on:
                "While a handler is paused its messages are received, begun, extended, settled and discarded.",
            a_resume_hands_out_in_the_old_order: "A resume hands out what waited, in its order.",
            pauses_are_listed_and_can_be_repeated:
                "Pauses are listed in order of name, compared byte for byte, and set and ended any number of times.",
            every_process_is_paused: "A pause holds for every process at once.",
            a_pause_under_load_is_final: "A claim that begins after a pause was answered takes nothing.",
            statistics_show_it: "Statistics show who is paused, and what is due is lag as ever.",
            a_resume_wakes: "A resume wakes.",
            another_process_is_woken_by_a_resume: "A resume wakes other processes.",
            a_pause_outlives_its_messages: "A pause needs no messages, and outlives them.",
        }
        retention (retention) {
            a_purge_takes_final_messages: "A purge takes processed, dead and discarded messages.",
            a_purge_never_takes_unfinished_messages:
                "A purge never takes pending or leased messages, whatever their age.",
            a_purge_leaves_younger_messages:
                "A purge takes only what has been final for the given age; younger keys go on refusing duplicates.",
            a_purge_takes_only_the_given_state: "A purge takes only the given state.",
            a_purge_is_bounded_and_takes_the_oldest:
                "A purge is bounded by its limit and takes the longest-finished first.",
            a_purged_key_is_new_again: "A purged key is new again.",
            a_replayed_message_is_not_purged: "A replayed message is not purged.",
            what_would_be_purged_can_be_had_first:
                "What a purge would delete can be had first, with payloads and results.",
            what_is_expired_keeps_to_its_limit:
                "A listing of what would be purged keeps to its limit, the longest finished first.",
            what_is_expired_has_no_next_page:
                "A listing of what would be purged has no next page: what was purged makes room.",
            only_what_was_archived_is_purged:
                "Nothing is deleted that the archiver has not taken, or that has changed since.",
            a_key_that_is_archived_twice_is_purged_once:
                "A key that is named twice among the archived ones is purged and counted once.",
            what_changed_since_it_was_archived_is_not_purged:
                "What was replayed, ended again or received again since it was archived is not purged.",
            two_purgers_share_the_work:
                "Several purgers at once share the work, without errors and without counting twice.",
            a_purge_during_traffic_disturbs_nothing: "A purge during live traffic disturbs nothing.",
            what_is_purged_meanwhile_spoils_no_listing:
                "What is purged while it is listed, with payloads or for an archiver, is left out, and no error.",
        }
        dropping (dropping) {
            a_purge_of_a_handler_leaves_the_others:
                "A purge of one handler takes its messages, the longest-finished first, and no others.",
            the_archived_of_a_handler_are_purged:
                "A purge of the archived with a handler takes that handler's, and no others.",
            a_dropped_payload_leaves_the_rest:
                "A payload that is dropped leaves the key, the state and all else; a replay brings a new one.",
            a_result_goes_with_the_payload: "A result is dropped with its payload, once.",
            a_result_without_a_payload_is_dropped: "A result without a payload is dropped, too.",
            the_longest_finished_go_first_and_once:
                "Payloads are dropped of the longest-finished first, each once, up to the limit.",
            only_what_is_asked_for_is_dropped:
                "Payloads are dropped of the state and handler asked for, never of unfinished messages.",
            a_payload_stays_until_its_age: "A payload stays until its message has been final for long enough.",
        }
        clearing (clearing) {
            all_but_leased_ones_go: "Clearing a handler deletes its messages in any state but leased, and no others.",
            a_slice_of_nothing_clears_nothing: "A slice of nothing clears nothing.",
            a_lease_that_ran_out_is_cleared:
                "A message whose lease ran out is cleared, and the lease is lost to the key's next life.",
            an_ordering_key_moves_on: "An ordering key moves on when what blocks it is cleared.",
            a_removed_inbox_is_gone:
                "A removed inbox is gone, whole and alone, and can be set up again; removing it twice is harmless.",
            many_can_remove_at_once: "Many processes can remove an inbox at once.",
            a_removal_can_be_watched: "Whether an inbox is there can be asked while it is removed and set up again.",
            whatever_is_this_builds_is_removed: "A missing, incomplete or older inbox can be removed.",
            what_is_newer_is_not_removed: "A newer inbox is not removed.",
            what_is_foreign_is_not_removed: "What is not an inbox is not removed.",
            the_query_is_text: "The query for a complete inbox is text, never empty.",
        }
        selection (selection) {
            by_ids: "A filter by ids selects these, byte for byte, of any handler.",
            by_correlation_id: "A filter by correlation id compares that header byte for byte.",
            by_attempts: "A filter by attempts counts those that were started.",
            by_what_blocks: "A filter by what blocks selects dead messages that hold up their ordering key.",
            by_due_time: "Filters by due time compare what was asked for last, at any distance.",
            by_time_of_the_end: "Filters by the time of the end select final messages, by that time.",
            by_error_type: "A filter by error type selects errors that begin with exactly this type.",
            a_summary_groups_them: "A summary counts by handler, kind and error type, with first and last times.",
            a_summary_stops_at_its_limit: "A summary stops at its limit, with the latest, and says so.",
        }
        look (look) {
            a_record_shows_everything: "A record shows all that the store knows about a message.",
            listings_are_in_order_of_acceptance: "Listings are in order of acceptance, or the reverse.",
            pages_cover_everything_once: "Pages cover everything once, and the last one says so.",
            pages_are_stable_while_rows_change: "Pages neither skip nor repeat while messages change.",
            a_page_without_room_is_empty:
                "A page of 0 is empty and the last; the largest limit is taken.",
            payloads_are_listed_when_asked_for:
                "Listings have payloads and results when asked for, lengths always.",
            a_listing_agrees_with_get: "A listing and get show the same record.",
            filters_narrow: "Filters by state, handler and kind narrow lists and counts.",
            ages_narrow: "Filters by age narrow lists and counts.",
            error_texts_are_found_byte_for_byte: "Error texts are searched byte for byte.",
            ordering_keys_narrow: "Filters by ordering key narrow lists and counts.",
            a_foreign_cursor_is_invalid: "A cursor that is not this store's is invalid.",
            a_cursor_outlives_its_message: "A cursor is good although its message is gone.",
        }
        invariants (invariants) {
            what_is_kept_twice_agrees_after_every_step:
                "What a store keeps in several places at once agrees, after every operation.",
        }
        statistics (statistics) {
            an_empty_inbox_has_none: "An empty inbox counts nothing.",
            counts_are_by_handler_and_state:
                "Statistics count by handler, in order of name, and by state.",
            counts_follow_every_change: "Statistics agree with counting after every kind of change.",
            lag_and_age_grow_with_waiting: "Lag and age are those of the longest-due message.",
            a_leased_message_is_no_lag: "A leased message is no lag until its lease runs out.",
            a_deferred_message_is_no_lag: "A deferred message is pending, and no lag until it is due.",
            a_blocked_message_is_no_lag: "A message behind another of its ordering key is no lag.",
            a_blocked_key_shows: "Dead messages that hold up their ordering key have a number of their own.",
            a_blocked_key_shows_until_it_goes_on:
                "That number falls when they are replayed, discarded or purged, one by one or many.",
            what_is_due_is_counted: "What a claim would take now is counted, paused or not.",
            what_falls_due_is_counted: "So is what was scheduled, retried or lost by its worker, once it is due.",
            what_waits_for_its_key_is_not_due: "Of each ordering key the first is due, if it is free.",
            due_is_counted_up_to_a_bound: "What is due is counted up to a bound, not the whole backlog.",
            a_finished_backlog_has_no_lag: "Final messages are neither backlog nor lag.",
        }
        schema (schema) {
            a_fresh_inbox_is_complete: "An inbox that is set up exists, in the expected version.",
            the_statements_are_text:
                "The statements of the set-up are never empty text: where there are none, a comment says so.",
            setting_up_twice_changes_nothing: "Setting up twice is harmless.",
            a_missing_inbox_is_told: "Where there is no inbox, operations say so and set nothing up.",
            create_sets_up: "create sets an inbox up that works.",
            migrate_sets_up: "migrate sets an inbox up where there is none.",
            many_can_set_up_at_once:
                "Setting up many times at once is harmless, from several processes where there can be several.",
            an_incomplete_inbox_is_refused:
                "exists is true only for a complete inbox; create refuses an incomplete one.",
            an_older_inbox_is_migrated: "An older inbox is refused by create and upgraded by migrate.",
            many_can_migrate_at_once:
                "Workers that are upgraded together migrate an inbox, whichever of them is first.",
            a_kept_inbox_answers_as_it_did:
                "What an earlier build of this version has stored means the same to this one.",
            a_newer_inbox_is_refused:
                "A newer inbox is refused with an error that names both versions.",
            a_newer_inbox_that_allows_it_is_used:
                "A newer inbox that says that this build may work with it is used, and left as it is.",
            something_foreign_is_refused: "What is not an inbox is refused.",
        }
        corrupt (corrupt) {
            a_claim_sets_it_aside_and_goes_on:
                "A corrupt row is reported once and set aside, never a reason to stop the others.",
            get_says_so: "get fails as corrupt for a corrupt row, and only for it.",
            begin_says_so_and_leaves_it_to_a_claim:
                "begin fails as corrupt where it would hand a corrupt row out, and leaves it for a claim to report.",
            what_is_set_aside_lets_its_ordering_key_go_on:
                "A corrupt row holds its ordering key up until a claim sets it aside, and no longer.",
            a_listing_reports_it_with_the_others:
                "A listing reports corrupt rows together with the readable ones.",
            its_key_still_refuses_duplicates: "A corrupt row's key goes on refusing duplicates.",
            statistics_and_purge_go_on:
                "Statistics, counts and purges do not stumble over a corrupt row.",
        }
        begin (begin) {
            a_new_key_runs: "A new key is stored and runs under a lease.",
            a_processed_key_answers_its_result:
                "A processed key answers with the result that was kept.",
            a_held_key_is_busy: "A held key is busy until its lease ends.",
            an_expired_lease_runs_anew: "A key whose lease ran out runs again.",
            a_retry_is_busy_until_due: "A key that waits for a retry is busy until it is due.",
            a_deferral_is_busy_until_due: "A key that was deferred is busy until it is due.",
            a_delayed_message_is_stored_and_busy:
                "A delayed message is stored, and busy until it is due.",
            what_is_not_due_is_busy_before_it_is_blocked:
                "A message that is neither due nor first of its ordering key is busy until it is due, then blocked.",
            a_dead_key_says_why: "A dead key says why.",
            a_discarded_key_says_so: "A discarded key says so.",
            the_stored_message_runs: "Run carries the message as it is stored.",
            a_received_message_runs_inline: "A message that was received can run inline.",
        }
        slices (slices) {
            a_discard_goes_on_past_messages_that_workers_take:
                "All slices of a discard reach the end although workers take some of their messages.",
            a_replay_goes_on_past_messages_that_others_discard:
                "All slices of a replay reach the end although others discard some of their messages.",
            they_set_free_what_they_unblock:
                "Slices and purges set free the ordering keys that they unblock, and no others.",
            a_discard_of_the_pending_keeps_the_order:
                "Discarding pending messages by slices moves an ordering key on only at its first message.",
            counts_follow_them: "Counts follow slices and purges, of archived keys too.",
            a_dropped_payload_in_the_middle_is_passed_over:
                "A replay by slices passes over messages without a payload and goes on behind them.",
        }
        filters (filters) {
            a_replay_changes_what_its_filter_lists:
                "A replay by slices changes exactly what its filter lists, for every part of the filter.",
            a_reschedule_changes_what_its_filter_lists:
                "A slice reschedules what a listing with its filter shows, state by state, and nothing else.",
            a_discard_changes_what_its_filter_lists:
                "A discard by slices changes exactly what its filter lists, for every part of the filter.",
        }
        }
    };
}
