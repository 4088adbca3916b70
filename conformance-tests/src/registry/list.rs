//! The one list of all cases.

use super::Case;

register! { $
    identity (identity) {
        a_second_handler_is_independent:
            "The key is handler and message id together: a second handler of one event has its own state.",
        one_batch_serves_several_handlers:
            "One delivery fans out to several handlers in one batch.",
        case_distinguishes: "Keys compare byte for byte: case distinguishes.",
        trailing_space_distinguishes:
            "Keys compare byte for byte: leading and trailing spaces distinguish.",
        unicode_forms_distinguish:
            "Keys compare byte for byte: Unicode normalisation forms distinguish.",
        leading_zeros_distinguish: "Keys compare byte for byte: leading zeros distinguish.",
        handler_names_are_compared_byte_for_byte: "Handler names compare byte for byte.",
        the_longest_names_are_kept_whole:
            "Message ids of 255 bytes and handler names of 128 are kept and compared whole.",
        the_halves_of_a_key_do_not_run_together:
            "Handler and id are two values: no choice of both makes another pair equal.",
        two_inboxes_are_independent: "Two inboxes are independent.",
        an_unknown_key_is_not_found: "A key that is not known is not found, which is not an error.",
    }
    hostile (hostile) {
        quotes_and_wildcards_are_plain_text:
            "Whatever is legal in a name or header comes back as it was and means nothing to the store.",
        error_texts_are_plain_text: "Whatever is in an error text comes back as it was.",
        binary_payloads_come_back_unchanged:
            "Payloads come back byte-identical, whatever their bytes.",
        an_empty_payload_is_a_payload:
            "An empty payload is legal and stays distinct from a dropped one.",
        an_empty_result_is_a_result: "An empty result is a result, distinct from none.",
        a_payload_of_16_mib_is_kept: "A payload of 16 MiB is kept under the default limit.",
        the_payload_limit_is_inclusive:
            "The payload limit is inclusive; what is over it is refused and not stored.",
        an_oversized_message_is_refused_alone:
            "A message that breaks a rule is refused alone; the rest of its batch goes through.",
        a_copy_of_a_refused_message_is_judged_on_its_own:
            "A later copy of a refused message in its batch is judged on its own.",
        an_oversized_result_is_refused_and_the_lease_stands:
            "A result over the limit is refused and the lease stands.",
        an_oversized_message_cannot_begin:
            "begin fails as invalid for a message over the limit, and stores nothing.",
        a_refusal_has_no_effect:
            "What is refused as invalid or unsupported is refused without effect.",
        a_copy_over_the_limit_is_refused:
            "What is over the limit is refused, whether its key is known or not.",
        headers_come_back_unchanged: "Headers come back byte-identical.",
        the_longest_texts_are_kept_whole:
            "Kind, content type and ordering key are kept whole at their longest.",
        long_error_texts_are_cut:
            "Error texts are cut at 4096 bytes, at a character, and lose NUL.",
        a_due_time_beyond_all_measure_is_kept:
            "Any due time or delay is taken; a far one overflows nothing.",
        empty_input_is_answered: "Empty input is answered, and means nothing.",
        the_largest_limits_are_taken: "Limits and ages of any size are taken.",
        a_batch_of_thousands_is_handled:
            "A batch of thousands is handled whole, with an answer for each.",
        a_batch_of_80_mib_is_stored:
            "A batch of 80 MiB is stored, as receivers that gather by bytes send it.",
        a_made_up_lease_changes_nothing:
            "A lease that was never drawn changes nothing, whatever its numbers.",
        errors_do_not_show_payloads: "An error is one line and never shows a payload.",
    }
    texts (texts) {
        a_payload_keeps_every_byte:
            "A payload is bytes, whatever its content type says: nothing parses it and writes it again.",
        begin_keeps_all_of_a_message:
            "begin stores and hands out all of a message: kind, content type, headers, ordering key and payload.",
        headers_are_not_trimmed_or_folded:
            "Names and values of headers keep spaces, case, line ends and what looks like numbers.",
        kinds_are_compared_whole:
            "Kinds are kept and compared whole: case, spaces and beginnings distinguish.",
        ordering_keys_are_compared_whole:
            "Ordering keys are compared whole: case, spaces and the last of 255 bytes distinguish.",
    }
    duplicates (duplicates) {
        while_pending: "A redelivery of a pending message is a duplicate and changes nothing.",
        while_leased: "A redelivery of a leased message is a duplicate and changes nothing.",
        after_the_lease_ran_out: "A redelivery after the lease ran out is a duplicate.",
        while_waiting_for_a_retry:
            "A redelivery of a message that waits for a retry is a duplicate and does not bring it forward.",
        after_processed:
            "A redelivery after completion is a duplicate: the status is no part of the key.",
        after_dead: "A redelivery of a dead message is a duplicate.",
        after_discarded: "A redelivery of a discarded message is a duplicate.",
        after_a_replay: "A redelivery of a replayed message is a duplicate.",
        after_its_payload_was_dropped:
            "A redelivery is a duplicate although the payload was dropped.",
        inside_one_batch_the_first_copy_wins:
            "Inside one batch the first copy wins and the others are duplicates.",
        a_duplicate_does_not_fail_its_batch:
            "A duplicate is its own answer, never an error of its batch.",
        every_accepted_member_of_a_batch_is_stored:
            "After a receive that returned Ok, every message that was not refused is stored and worked on.",
        the_first_copy_stands:
            "A duplicate with another content changes nothing: the first copy stands.",
        across_connections: "A redelivery to another process is a duplicate.",
        receive_after_begin: "A message that was begun inline is a duplicate for a receiver.",
        begin_after_receive:
            "A message that was received and processed is known to begin, with its result.",
    }
    concurrency (concurrency) {
        one_key_is_accepted_once:
            "Over any number of concurrent receives of one key, one is Accepted.",
        overlapping_batches_accept_each_key_once:
            "Overlapping batches in any order accept each key once, without an error that is not retryable.",
        a_renewal_beside_a_settlement_changes_nothing:
            "A lease that is extended while it is settled is settled once, and counted once.",
        a_replay_of_the_dead_spares_what_was_processed:
            "A slice replays messages only in the states asked for, whatever else happens to them.",
        claims_are_disjoint_and_complete:
            "Concurrent claims never take one message twice, and together take all.",
        of_many_begins_one_runs: "Of many concurrent begins of one key, one runs.",
        begins_and_claims_share_one_lease:
            "A begin and a claim at the same time never both hold a message.",
        nothing_is_lost_or_run_twice_under_load:
            "Under concurrent receives, claims, retries and settlements every message finishes once.",
        settling_in_opposite_orders_does_not_fail:
            "Concurrent settlements of the same leases in any order neither deadlock nor count twice.",
    }
    fencing (fencing) {
        a_stale_settlement_changes_nothing:
            "A late acknowledgement with a stale token changes nothing and reports LeaseLost.",
        a_stale_retry_changes_nothing: "A retry with a stale token changes nothing and reports LeaseLost.",
        a_stale_death_changes_nothing: "A dead-letter with a stale token changes nothing and reports LeaseLost.",
        a_stale_release_changes_nothing: "A release with a stale token changes nothing and reports LeaseLost.",
        the_same_worker_name_is_no_fence:
            "The token fences, not the worker: an earlier lease of the same worker is stale.",
        a_stale_extension_changes_nothing:
            "An extension with a stale token changes nothing and reports LeaseLost.",
        a_stale_deferral_changes_nothing: "A deferral with a stale token changes nothing and reports LeaseLost.",
        tokens_grow: "Every claim of a key draws a greater token.",
        tokens_grow_across_a_replay: "Tokens grow across a replay, although attempts start again.",
        tokens_grow_across_a_purge: "Tokens grow across a purge and a new life of the key.",
        a_repeated_settlement_is_done: "A repeated settlement answers Done and changes nothing.",
        a_repetition_changes_nothing_whatever_it_says:
            "A settlement repeated with whatever outcome answers Done and changes nothing.",
        a_repetition_in_another_process_is_done:
            "A settlement repeated in another process answers Done and changes nothing.",
        a_result_over_the_limit_is_refused_whatever_the_token:
            "A result over the limit is refused before the token is judged: stale or settled.",
        settling_twice_in_one_batch_counts_once: "Of two settlements of one lease in one batch the first counts.",
        a_stale_lease_affects_only_itself: "A stale lease in a batch reports LeaseLost for that message only.",
        outcomes_of_one_batch_are_each_done:
            "Settlements of one batch with different outcomes are each done and answered in their places.",
        a_lease_that_ran_out_unclaimed_can_be_settled:
            "A lease that ran out can still be settled while nobody has claimed the message since.",
        a_discarded_lease_is_lost:
            "A message that was discarded after its lease ran out is lost to the old holder.",
        a_settlement_after_a_replay_changes_nothing:
            "A settlement with a lease from before a replay changes nothing.",
        a_repetition_after_an_intervention_is_done:
            "A settlement that was done is done, whatever an operator has changed since, until a purge.",
    }
    leases (leases) {
        a_lease_hides_its_message:
            "A leased message is not handed out, and shows who holds it until when.",
        a_vanished_worker_gives_its_message_back:
            "A message whose worker vanished becomes claimable when its lease ends.",
        a_lease_that_ran_out_is_shown_as_pending:
            "A message whose lease ran out counts as pending everywhere.",
        a_lease_that_ran_out_has_no_end:
            "A record shows the end of a lease only while it runs; who held it stays.",
        leases_run_out_one_by_one:
            "Each lease ends by itself: one that runs out frees neither everything nor nothing.",
        an_extension_lengthens_the_lease:
            "An extension makes the lease run from now for the new length.",
        an_extension_can_shorten_the_lease: "An extension can shorten a lease.",
        an_extension_revives_an_unclaimed_lease:
            "An extension revives a lease that ran out and that nobody has claimed since.",
        a_settled_lease_cannot_be_extended: "Extending a settled lease reports LeaseLost.",
        extensions_are_answered_one_by_one:
            "Each extension of a batch has its own answer, in order.",
        a_lease_that_is_named_twice_is_extended:
            "A lease that is named twice in one batch has the same new end twice.",
        lengths_out_of_range_are_invalid:
            "A lease length out of range is invalid and changes nothing; the bounds themselves are taken.",
        a_length_is_checked_without_a_lease:
            "A length out of range is invalid also where there is no lease to extend.",
        each_lease_has_its_own_length:
            "A lease runs for the length asked for, from now by the store's clock.",
        a_claim_serves_several_handlers: "One claim serves several handlers and no others.",
        a_handler_named_twice_is_one: "A handler that a claim names twice counts once.",
        a_claim_keeps_to_its_limit: "A claim takes no more than its limit, the longest due first.",
    }
    time (time) {
        leases_run_by_the_stores_clock:
            "Leases are judged by the store's clock: a worker whose clock is an hour off changes nothing.",
        delays_run_by_the_stores_clock: "Due times are judged by the store's clock.",
        stamps_are_by_the_stores_clock: "Recorded times are by the store's clock.",
        a_delayed_message_waits: "A message with a delay is not handed out before it is due.",
        a_message_due_at_a_moment_waits_for_it:
            "A message that is due at a moment is not handed out before, and keeps the moment to the microsecond.",
        a_moment_in_the_past_means_now: "A due time in the past means now.",
        the_longest_due_come_first:
            "Messages are handed out in the order in which they became claimable.",
    }
    moments (moments) {
        a_lease_runs_to_its_end_and_no_further:
            "A lease of any length ends at the moment that was answered: its message is claimable then, and not before.",
        an_extension_runs_to_its_end_and_no_further:
            "An extension of any length ends at the moment that was answered, not before and not after.",
        a_delay_ends_when_it_should:
            "A message with a delay of any length is claimable when that has passed since the call, and not before.",
        a_due_time_is_kept:
            "A message with a due time, however far ahead, is claimable from that moment on, and not before.",
        a_retry_comes_when_it_should:
            "A retry after a delay of any length is claimable when that has passed since the call, and not before.",
        a_deferral_ends_when_it_should:
            "A message that is deferred by any length is claimable when that has passed since the call, and not before.",
        stamps_are_of_the_call: "Times of acceptance, of ends and of replays are those of the call.",
        stamps_of_slices_are_of_the_call: "Times of ends and of replays by slices are those of the call.",
        begin_waits_as_a_claim_does:
            "begin waits for the end of a delay, a retry, a deferral or a lease, and no longer.",
        lag_and_age_are_to_the_moment:
            "Lag is counted from when the longest-due message became due, its age from its acceptance, to the moment.",
        retention_counts_from_the_end:
            "A purge takes a message once it has been final for the given age, counted from its end, and not before.",
        retention_of_the_archived_counts_from_the_end:
            "A purge of the archived takes a message once it has been final for the given age, and not before.",
        ages_count_from_acceptance: "Filters by age count from acceptance, to the moment.",
        slices_by_age_count_from_acceptance: "Slices and listings by age count from acceptance, to the moment.",
    }
    retry (retry) {
        a_retry_waits: "A retry is handed out no sooner than after its delay.",
        a_retry_after_nothing_is_due_at_once: "A retry without a delay is due at once.",
        a_retry_waits_for_every_process: "A retry's delay is persisted: it holds for every process.",
        the_last_error_is_kept: "The last error is kept, also after success.",
        errors_of_retries_are_cut: "The error of a retry is cut and cleaned as the reason of a death is.",
        a_final_message_has_its_reason_and_time: "A dead message keeps its reason and when it died.",
    }
    poison (retry) {
        a_crash_counts_as_an_attempt:
            "Claiming counts the attempt, so a message that kills its worker is seen to.",
        an_error_counts_as_finished: "An attempt that ends with an error is counted as started and finished.",
        success_counts_as_finished: "An attempt that ends well is counted as started and finished.",
        crashes_and_errors_are_told_apart: "Crashes and errors are told apart.",
    }
    release (retry) {
        a_release_is_due_at_once: "A released message is due at once.",
        a_release_does_not_count: "A release does not count as an attempt.",
        a_released_message_keeps_its_place: "A released message keeps its place in the queue.",
        a_release_leaves_the_due_time: "A release leaves the due time as it was.",
    }
    defer (defer) {
        a_deferred_message_waits: "A deferred message is handed out no sooner than after its delay.",
        a_deferral_by_nothing_is_due_at_once: "A deferral by nothing makes a message due from then on.",
        a_deferral_waits_for_every_process: "A deferral is persisted: it holds for every process.",
        a_deferral_does_not_count: "A deferral counts neither as an attempt nor as a crash, and leaves those before it.",
        the_error_of_a_deferral_is_kept: "A deferral's error is kept; without one, the earlier error stays.",
        errors_of_deferrals_are_cut: "The error of a deferral is cut and cleaned as that of a retry is.",
        a_lease_that_ran_out_can_be_deferred: "A lease that ran out unclaimed can be deferred, for the whole delay.",
    }
    ordering (ordering) {
        messages_of_a_key_come_in_order:
            "Messages with one ordering key are handed out in the order of acceptance.",
        one_message_of_a_key_at_a_time: "At most one message of an ordering key is leased at a time.",
        a_retry_is_not_overtaken: "A retry is not overtaken within its ordering key.",
        a_deferral_is_not_overtaken: "A deferred message is not overtaken within its ordering key.",
        an_expired_lease_is_not_overtaken:
            "A message whose lease ran out is not overtaken within its ordering key.",
        a_delayed_message_is_not_overtaken: "A message that is not due is not overtaken within its ordering key.",
        a_released_message_is_not_overtaken: "A released message is not overtaken within its ordering key.",
        keys_do_not_hold_each_other_up: "Ordering keys do not hold each other up, and compare byte for byte.",
        messages_without_a_key_are_not_held_up: "Messages without an ordering key are not held up.",
        handlers_do_not_hold_each_other_up: "One ordering key of two handlers is two keys.",
        a_long_blocked_key_hides_nothing: "However many messages are blocked, a claim finds those that are not.",
        a_dead_message_lets_the_next_through: "A dead message lets the next of its ordering key through.",
        a_dead_message_can_block_its_key: "A dead message blocks its ordering key if asked to.",
        a_replay_unblocks_in_order: "Replaying the blocking message unblocks its ordering key, itself first.",
        a_retried_block_is_lifted:
            "A message that blocked, was replayed and died again blocks only if asked to again.",
        a_discard_unblocks: "Discarding the blocking message unblocks its ordering key.",
        a_discard_lifts_no_other_block:
            "Discarding a dead message that does not block leaves the block of a later one.",
        a_purge_unblocks: "Purging the blocking message unblocks its ordering key.",
        discarding_the_first_moves_on: "Discarding the first message of an ordering key hands the next out.",
        a_replayed_message_returns_to_its_old_place:
            "A replayed message returns to its old place in its ordering key, behind a lease that is held.",
        a_turn_outlasts_its_lease:
            "A message keeps the turn of its ordering key when its lease runs out, also against an earlier one that is replayed.",
        blocking_without_a_key_has_no_effect: "A dead message without ordering key blocks nothing.",
        begin_keeps_the_order: "begin keeps the order of its ordering key.",
        order_holds_among_many_workers: "The order holds among many workers with retries.",
        keys_are_honoured_or_refused:
            "Ordering keys are honoured, or refused before anything is stored, as the capabilities say.",
    }
    replay (replay) {
        a_dead_message_can_be_replayed:
            "A dead message can be replayed: pending, due, nothing left of its end.",
        a_processed_message_can_be_replayed: "A processed message can be replayed.",
        a_discarded_message_can_be_replayed: "A discarded message can be replayed.",
        a_replay_resets_the_attempts: "A replay resets the attempts.",
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
        a_replay_beside_its_worker_counts_once:
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
        a_purge_beside_traffic_disturbs_nothing: "A purge during live traffic disturbs nothing.",
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
        a_newer_inbox_is_refused:
            "A newer inbox is refused with an error that names both versions.",
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
        a_listing_reports_it_beside_the_others:
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
    wakeups (wakeups) {
        a_receive_wakes: "A receive wakes subscribers.",
        a_signal_before_waiting_is_kept: "A signal that comes before waiting began is kept.",
        a_dropped_wait_loses_no_signal: "Dropping a wait loses no signal.",
        work_that_comes_back_wakes: "Retry, release, deferral and replay wake subscribers.",
        the_next_of_an_ordering_key_wakes:
            "What makes the next of an ordering key claimable wakes subscribers.",
        every_subscription_is_woken: "Every subscription is woken.",
        another_process_is_woken: "Wake-ups reach every process.",
        another_process_is_woken_by_work_that_comes_back:
            "Retry, release, deferral, replay and the end of the one before wake every process.",
        who_is_woken_finds_the_cause:
            "A wake-up comes when its cause is visible: a worker that claims then gets it.",
        a_signal_to_a_wait_that_is_dropped_is_kept:
            "A signal that comes while a wait is pending is kept when that wait is dropped.",
        any_member_of_a_batch_wakes:
            "One new or returned message in a batch is enough, wherever it stands.",
        every_handler_of_a_subscription_wakes: "A subscription hears of each of its handlers.",
        what_was_begun_and_comes_back_wakes:
            "What was begun wakes like what was claimed: retry, release, deferral, the next of its ordering key.",
        what_an_operator_sets_free_wakes:
            "A replay or discard that lets an ordering key go on wakes subscribers.",
        what_slices_set_free_wakes:
            "Slices that let an ordering key go on wake subscribers.",
        a_purge_of_what_blocked_wakes:
            "A purge that lets an ordering key go on wakes subscribers, of archived keys too.",
        what_a_corrupt_row_held_up_wakes:
            "Setting a corrupt row aside hands out the next of its ordering key, or wakes subscribers.",
        a_commit_wakes: "What a transaction makes claimable wakes subscribers when it commits.",
        another_process_is_woken_by_operators:
            "Slices and purges that let an ordering key go on wake every process.",
        subscriptions_are_given_or_refused:
            "Subscriptions are given, or refused as unsupported, as the capabilities say.",
    }
    transactions (transactions) {
        a_commit_makes_it_visible:
            "What is recorded in a transaction is visible to others if and only if it commits: the commit.",
        a_roll_back_leaves_nothing:
            "What is recorded in a transaction is visible to others if and only if it commits: the roll-back.",
        a_dropped_transaction_leaves_nothing:
            "A transaction that is dropped is rolled back and its connection is free again.",
        the_business_writes_commit_once:
            "The handler's own writes commit once, however many copies come.",
        a_second_record_sees_the_first:
            "A duplicate is told so, with the result, and leaves its transaction usable.",
        of_two_racing_transactions_one_wins:
            "Of transactions that race on one key exactly one wins; the others then see the duplicate.",
        receiving_commits_or_not: "Receiving in a transaction commits or rolls back with it.",
        settling_commits_or_not: "Settling in a transaction commits or rolls back with it.",
        a_deferral_commits_or_not: "Deferring in a transaction commits or rolls back with it.",
        a_stale_lease_is_lost_in_a_transaction: "A stale lease is lost in a transaction as well.",
        a_settled_lease_is_lost_in_another_transaction:
            "A lease that was settled before is lost in another transaction, whose writes must not commit.",
        a_record_minds_the_state:
            "Recording a known key answers by its state, and completes one that is pending and due.",
        a_record_keeps_the_order: "Recording keeps the order of an ordering key.",
        a_record_takes_an_expired_lease_over:
            "Recording a message whose lease ran out takes it over from its old holder.",
        a_cancelled_step_leaves_all_or_nothing:
            "A transaction whose step is dropped at any await point leaves all or nothing.",
    }
    commit (commit) {
        a_swallowed_failure_commits_all_or_nothing:
            "A commit after a statement that failed and was swallowed is Ok only if all the rest is there.",
        a_roll_back_by_the_server_fails_it:
            "A commit fails when the server has rolled the transaction back under the handler.",
        a_commit_by_the_handler_fails_it:
            "A commit fails when the handler has ended the transaction by a commit of its own.",
        a_roll_back_by_the_handler_fails_it:
            "A commit fails when the handler has rolled the transaction back by itself.",
        a_schema_change_commits_all_or_fails_it:
            "A commit after the handler changed the schema is Ok only if the transaction is whole.",
        a_step_that_waited_in_vain_commits_all_or_nothing:
            "A commit after a step that another transaction kept from its end is Ok only if all of it is there.",
        a_step_that_is_dropped_commits_all_or_nothing:
            "A commit after a step that was dropped at any await point commits all of the step or nothing of it.",
    }
    holding (holding) {
        a_held_message_costs_the_others_nothing:
            "While a transaction holds a message, claims, extensions and settlements of others go on.",
        a_lease_is_measured_from_when_it_is_handed_out:
            "A claim or begin that had to wait hands out leases of the whole length.",
        a_transaction_whose_lease_is_renewed_commits_once:
            "A handler's transaction commits once, however long it takes, while its lease is renewed.",
        a_transaction_may_outlast_an_unclaimed_lease:
            "A handler's transaction that outlasts its lease commits if nobody claimed the message.",
        a_transaction_that_lost_its_lease_is_told:
            "A handler's transaction whose message was claimed meanwhile is told that its lease is lost.",
        a_held_lease_costs_the_others_of_its_batch_no_renewal:
            "While a transaction holds one lease of a batch, an extension answers and extends the others.",
        a_begin_that_waited_for_a_lease_measures_from_its_end:
            "A begin that had to wait for a settlement hands out a lease of the whole length.",
        a_held_lease_keeps_the_others_of_its_batch_from_nothing:
            "While a transaction holds one lease of a batch, the others of the batch are settled.",
    }
    skew (skew) {
        two_records_of_a_key_keep_the_order:
            "Of two transactions that record messages of one ordering key, the later message waits its turn.",
        a_record_beside_a_death_keeps_the_order:
            "A record next to a transaction in which the message before it dies and blocks is not its turn.",
        two_new_messages_of_a_key_leave_it_whole:
            "Two transactions that record new messages of one ordering key leave it in order.",
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
        a_discard_changes_what_its_filter_lists:
            "A discard by slices changes exactly what its filter lists, for every part of the filter.",
    }
    races (races) {
        a_settlement_or_a_take_over_wins:
            "Of a late settlement and a claim or begin at the same time exactly one wins.",
        a_late_retry_hands_out_nothing_twice:
            "A late retry during claims hands no message out twice, and loses none.",
        an_extension_or_a_take_over_wins:
            "Of a late extension and a claim or begin at the same time exactly one wins.",
        a_discard_or_a_claim_wins:
            "Of a discard, by key or by slices, and a claim at the same time exactly one wins.",
        a_discard_or_a_late_settlement_wins:
            "Of a discard, by key or by slices, and a late settlement at the same time exactly one wins.",
        a_purge_or_a_replay_wins:
            "Of a purge and a replay, by key or by slices, at the same time exactly one wins.",
        a_purge_of_the_archived_or_a_replay_wins:
            "Of a purge of archived keys and a replay at the same time exactly one wins.",
        a_copy_beside_a_purge_is_new_or_a_duplicate:
            "A copy that comes during the purge of its key is a duplicate, or new and kept.",
        of_two_outcomes_one_counts:
            "Of two outcomes of one lease at the same time one counts, whole.",
    }
    silence (silence) {
        receive_ends:
            "A receive on a connection that went silent ends as unavailable, and the next one works.",
        work_ends:
            "Claim, extend, begin and settle on silent connections end as unavailable; the next ones work.",
        looking_and_intervening_end:
            "What operators and set-up do on silent connections ends as unavailable; the next one works.",
        transactions_end:
            "A transaction on a connection that went silent ends as unavailable, its outcome told truly.",
    }
    outage (outage) {
        an_outage_is_never_a_duplicate:
            "An outage is never a duplicate, and sending again is safe.",
        writes_fail_as_retryable:
            "During an outage writes fail as retryable, and work again afterwards.",
        every_operation_says_so:
            "During an outage every operation fails as retryable, and what fails without effect has none.",
        a_commit_says_so:
            "A commit during an outage fails as retryable, and is whole or has no effect.",
        a_subscription_outlives_it:
            "A subscription outlives an outage: it wakes once its connection is mended, and goes on.",
        what_was_accepted_before_is_still_there:
            "What was accepted before an outage is worked on after it.",
        a_closed_store_is_unavailable:
            "After close every operation fails as unavailable; closing twice is harmless.",
        closing_one_connection_leaves_the_others: "Closing one connection leaves the others alone.",
        another_process_takes_over:
            "Another process sees what one was answered and takes over when its lease ends.",
        a_restart_loses_nothing: "A restart loses nothing that was answered with Ok.",
        a_killed_server_loses_nothing:
            "A server that is killed loses nothing that was answered with Ok.",
        a_loss_of_power_loses_nothing:
            "What was answered with Ok is on the disk, and not only with the operating system.",
    }
    halves (halves) {
        of_a_receive:
            "A receive that is stopped between two writes stores a message or does not, and the whole batch where the store says so.",
        of_a_begin: "A begin that is stopped between two writes has stored and leased the message, or done nothing.",
        of_a_claim: "A claim that is stopped between two writes has leased a message and counted the attempt, or done nothing.",
        of_an_extension: "An extension that is stopped between two writes leaves the lease to the one who has it.",
        of_a_completion:
            "A completion that is stopped between two writes stores state and result together, or neither.",
        of_a_retry: "A retry that is stopped between two writes ends the lease and sets the due time, or does nothing.",
        of_a_deferral: "A deferral that is stopped between two writes ends the lease and sets the due time, or does nothing.",
        of_a_death: "A death that is stopped between two writes moves the ordering key on with it, or does nothing.",
        of_a_replay: "A replay that is stopped between two writes gives the message its place and payload back, or does nothing.",
        of_a_replay_in_slices: "A slice of replays that is stopped between two writes replays a message or does not.",
        of_a_discard: "A discard that is stopped between two writes moves the ordering key on with it, or does nothing.",
        of_a_discard_in_slices: "A slice of discards that is stopped between two writes discards a message or does not.",
        of_a_purge: "A purge that is stopped between two writes has forgotten a message or knows it.",
    }
    cancellation (cancellation) {
        receive: "A receive dropped at any await point has happened or not; a repetition works.",
        receive_of_a_whole_batch:
            "A dropped receive has stored its whole batch or none of it, where the store says so.",
        claim: "A claim dropped at any await point leaves no lease beyond its end.",
        begin: "A begin dropped at any await point leaves no lease beyond its end.",
        settle:
            "A settlement dropped at any await point has happened or not; a repetition works and counts once.",
        extend: "An extension dropped at any await point harms nothing.",
        replay: "A replay dropped at any await point has happened wholly or not at all.",
        discard: "A discard dropped at any await point has happened or not; the counts stay right.",
        slices: "Replay and discard slices dropped at any await point have happened or not.",
        purge:
            "Purges dropped at any await point have happened or not; the key is sound afterwards.",
        looking: "Looking, dropped at any await point, loses no connection.",
        subscribe: "Subscribing, dropped at any await point, loses nothing.",
        set_up: "Setting up again, dropped at any await point, harms nothing.",
        first_set_up: "A first set-up dropped at any await point can be repeated.",
    }
    leaks (leaks) {
        receiving_and_claiming_leave_nothing:
            "Receives, claims and begins that are dropped 50 times leave no connection, lock or turn behind.",
        settling_and_extending_leave_nothing:
            "Settlements and extensions that are dropped 50 times leave nothing behind.",
        interventions_leave_nothing:
            "Replays and discards, by key and by slices, that are dropped 50 times leave nothing behind.",
        purging_leaves_nothing: "Purges that are dropped 50 times leave nothing behind.",
        looking_leaves_nothing: "Looking, dropped 50 times, leaves nothing behind.",
        setting_up_leaves_nothing: "Setting up, dropped 50 times, leaves nothing behind.",
        subscriptions_leave_nothing:
            "Subscriptions that are dropped 50 times, and subscribing, leave nothing behind.",
        transactions_leave_nothing:
            "Transactions that are dropped 50 times, at every step, leave nothing behind.",
    }
    horizons (horizons) {
        a_copy_after_400_days_is_a_duplicate:
            "A redelivery after 400 days is a duplicate in every state, until its key is purged.",
        a_copy_after_400_days_is_a_duplicate_without_its_payload:
            "A redelivery after 400 days is a duplicate where processed payloads are dropped, too.",
        three_hundred_attempts_are_counted:
            "Three hundred attempts of a message are counted, started and finished.",
        three_hundred_replays_are_counted: "Three hundred replays of a message are counted.",
        a_row_more_than_a_page_holds_is_counted:
            "A row more than the longest page holds is counted, listed and changed by slices.",
        tokens_grow_across_processes:
            "Every claim of a key draws a greater token, by whichever process.",
        tokens_grow_across_restarts:
            "Every claim of a key draws a greater token, also after a restart.",
    }
    model (model) {
        random_sequences_agree_with_the_memory_store:
            "Any sequence of operations of several actors has the answers of the reference model.",
    }
}
