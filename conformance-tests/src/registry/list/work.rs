//! Keys, receives, claims and settlements.

macro_rules! work {
    ($d:tt) => {
        operators! { $d
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
            the_longest_time_limit_is_taken: "A time limit beyond all measure is taken, and nothing is late by it.",
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
        fingerprints (fingerprints) {
            a_duplicate_says_whether_it_differs:
                "A duplicate says whether kind or payload differ from the first copy's, in every state; nothing else counts.",
            a_given_fingerprint_decides:
                "A fingerprint that is given decides, whatever its 64 bits, in place of that of kind and payload.",
            a_batch_is_compared_with_its_first_copy:
                "Copies within a batch are compared with the first one of the batch, or with the one that is stored.",
            a_refused_copy_is_no_first_copy: "What is refused is no first copy to compare others with.",
            it_outlives_edits_and_payloads:
                "The fingerprint stays through edits, replays and a dropped payload.",
            it_goes_with_its_key: "A key that was purged has the fingerprint of its new life.",
            begin_keeps_it: "begin keeps the fingerprint of the message that it stores.",
            listings_show_it: "A record shows the fingerprint, by get and in listings.",
            transactions_keep_it:
                "What is recorded or received in a transaction has its fingerprint, and is compared.",
        }
        concurrency (concurrency) {
            one_key_is_accepted_once:
                "Over any number of concurrent receives of one key, one is Accepted.",
            overlapping_batches_accept_each_key_once:
                "Overlapping batches in any order accept each key once, without an error that is not retryable.",
            a_renewal_during_a_settlement_changes_nothing:
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
            a_stale_lease_next_to_its_newest_is_lost:
                "Of two leases of a message in one batch, the stale one is lost and the newest is settled.",
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
            a_record_shows_when_it_was_leased:
                "A record shows when its last attempt was leased, by the store's clock, whatever follows.",
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
        history (history) {
            errors_are_kept_in_order:
                "A record has its attempts that ended with an error: number, worker, times, end and text, in order.",
            what_has_no_error_is_not_kept:
                "Attempts that were processed, released, deferred without an error or lost are not in the history.",
            a_crash_is_a_missing_number: "An attempt that vanished leaves its number out of the history.",
            a_repetition_adds_nothing:
                "A settlement adds one past attempt, however often it is repeated, in whatever process.",
            a_stale_settlement_adds_nothing: "A settlement with a stale token adds no past attempt.",
            the_newest_are_kept: "Of more past attempts than are kept the oldest go.",
            it_outlives_replays_and_edits:
                "Replays and edits leave the history, and each past attempt tells how many replays were before it.",
            it_outlives_a_discard_and_its_payload: "A discarded message whose payload was dropped keeps its history.",
            it_goes_with_its_key: "A purged or cleared key that is accepted again has no history.",
            each_of_a_batch_has_its_own:
                "Settlements of one batch each add to the history of their own message, or add nothing.",
            long_errors_are_cut: "Errors of past attempts are cut to their limit at a character, and without NUL.",
            inline_attempts_are_kept: "Attempts that were begun inline are in the history like those that were claimed.",
            signed_interventions_are_kept: "What a handle that signs does to a message is kept: what, when and by whom.",
            unsigned_and_refused_ones_are_not: "What another handle does leaves no note, nor does what is refused.",
            slices_sign_what_they_change: "A slice signs each message that it changes, and no other.",
            the_newest_of_both_are_kept: "Of attempts and interventions together the newest are kept.",
            listings_have_it_with_payloads: "Listings have histories where they have payloads, and for archives.",
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
        runs (runs) {
            who_does_not_ask_gets_one_at_a_time: "Without a run limit, one message of an ordering key is claimed at a time.",
            who_asks_gets_the_order: "Runs of an ordering key keep the order of acceptance, and runs of one are runs.",
            runs_stand_together: "The messages of a run stand together in the answer, in their order.",
            a_run_keeps_to_both_limits: "A run keeps to the limit of runs and to that of the claim.",
            handlers_have_runs_of_their_own: "One ordering key of two handlers gives two runs.",
            what_is_not_due_ends_a_run: "A message that is not due ends a run.",
            what_blocks_ends_a_run: "A dead message that blocks ends a run.",
            final_messages_are_no_part_of_a_run: "A run passes over messages that are final.",
            each_of_a_run_tells_its_replays: "Each message of a run tells how often it was replayed.",
            a_key_is_held_until_its_run_is_over: "Nothing else of an ordering key is claimed until the last of a run is settled.",
            a_run_is_settled_in_one_call_or_several: "A run is settled in one call, or message by message.",
            an_attempt_counts_when_its_turn_comes: "Behind the first of a run, an attempt counts when its turn comes.",
            a_retry_hands_the_rest_back: "A run whose middle is tried again is handed out again from there.",
            a_deferral_hands_the_rest_back: "A run whose first message is deferred is handed out again with it.",
            a_run_that_is_handed_back_is_untouched: "A run that is handed back is as it was.",
            a_run_that_is_handed_back_in_any_order_comes_again: "A run that is settled in a wrong order leaves nothing stuck.",
            a_run_that_ran_out_comes_one_by_one: "A run whose leases ran out is handed out again, one message at a time.",
            a_claim_of_its_first_ends_a_run:
                "When the first of a run that ran out is claimed, the leases behind it are lost, and keep no turn.",
            a_beginning_of_its_first_ends_a_run:
                "When the first of a run that ran out is begun, the leases behind it are lost, and keep no turn.",
            another_due_time_of_its_first_ends_a_run:
                "When the first of a run that ran out is rescheduled, the leases behind it are lost, and keep no turn.",
            another_due_time_within_a_run_ends_it_from_there:
                "When one within a run that ran out is rescheduled, the leases behind it are lost, and keep no turn.",
            another_due_time_of_all_ends_a_run:
                "When all of a run that ran out are rescheduled together, they are pending, and their leases are lost.",
            a_claim_that_has_no_room_leaves_a_run_alone:
                "A claim that has no room for the first of a run that ran out leaves the leases behind it.",
            a_replay_comes_before_what_is_left_of_a_run:
                "A message that is replayed comes before what is left of a run behind it, once its leases are lost.",
            any_of_a_run_that_ran_out_can_be_revived:
                "Each lease of a run that ran out can be revived until the run is claimed, the first extended or not.",
            a_crash_counts_where_it_happened: "A crash counts for the first of a run that was not settled.",
            what_has_crashed_is_alone: "A message that has crashed its worker is handed out alone.",
            a_run_that_ran_out_can_be_settled: "A run whose leases ran out can be settled while nobody has claimed it since.",
            a_run_is_extended: "The leases of a run are extended together.",
            begin_respects_a_run: "begin runs nothing of a run, and of one that ran out its first message only.",
            operators_leave_a_run_alone: "What is leased in a run cannot be discarded, replayed or rescheduled.",
            a_replay_waits_for_the_run_behind_it: "A message that is replayed in front of a run waits until the run is over.",
            a_run_that_ran_out_can_be_discarded: "A message of a run that ran out can be discarded, and the others go on.",
            a_run_is_counted_as_leased: "All messages of a run count as leased.",
            order_holds_among_many_workers_with_runs: "The order holds among many workers with runs and retries.",
            a_run_is_settled_in_a_transaction: "A run is settled in a transaction as a whole, or not at all.",
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
        }
    };
}
