//! Transactions, races, failures, and random sequences.

macro_rules! faults {
    ($d:tt $($before:tt)*) => {
        register! { $d $($before)*
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
            settling_with_the_commit_is_all_or_nothing:
                "Settling with the commit makes all durable, or nothing unless every answer is done.",
            a_lost_lease_is_not_committed:
                "Settling with the commit commits nothing where one lease of several is lost.",
            a_cancelled_settlement_and_commit_is_all_or_nothing:
                "Settling with the commit that is dropped at any await point leaves all or nothing.",
            a_settlement_in_a_transaction_is_the_same:
                "Settling in a transaction, or with the commit, leaves the same record as settling outside of one.",
            a_new_message_waits_its_turn:
                "Recording a key that is not known keeps its ordering key's order and its due time.",
            what_breaks_a_rule_is_refused:
                "What breaks a rule of the store is refused in a transaction as it is outside of one.",
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
        kept_results (kept_results) {
            a_result_is_kept_with_the_work:
                "A result that is kept in a transaction, the last one of several, is what duplicates get.",
            a_result_is_rolled_back_with_the_work: "A result that is kept in a transaction is rolled back with it.",
            a_result_over_the_limit_leaves_its_transaction_usable:
                "A result over the limit is refused in a transaction, which can be committed without it.",
            a_result_is_kept_only_of_what_is_processed:
                "A result is kept in a transaction of a message that is processed, and of no other.",
            a_kept_result_without_a_payload_is_dropped:
                "A result that is kept in a transaction is dropped in its time, where payloads go when they are processed.",
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
            a_record_during_a_death_keeps_the_order:
                "A record next to a transaction in which the message before it dies and blocks is not its turn.",
            two_new_messages_of_a_key_leave_it_whole:
                "Two transactions that record new messages of one ordering key leave it in order.",
        }
        races (races) {
            a_settlement_or_a_take_over_wins:
                "Of a late settlement and a claim or begin at the same time exactly one wins.",
            a_late_retry_hands_out_nothing_twice:
                "A late retry during claims hands no message out twice, and loses none.",
            what_is_taken_again_at_once_was_handed_back:
                "What a settlement hands back is done although a lease of its batch is lost and another worker takes it at once.",
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
            a_drop_of_payloads_or_a_replay_wins:
                "Of a drop of payloads and a replay, by key or by slices, at the same time exactly one wins.",
            a_clearing_or_a_claim_wins:
                "Of a clearing of a handler and a claim at the same time exactly one wins.",
            a_copy_during_a_purge_is_new_or_a_duplicate:
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
            a_purge_that_it_cuts_short_says_so:
                "A purge that an outage cuts short does not say that it changed nothing.",
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
            each_answer_is_on_the_disk:
                "Each write is on the disk when it is answered, not with another one after it.",
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
    };
}
