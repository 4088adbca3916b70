//! Every broken store, and the case that catches it.

pub(crate) mod operators;

/// Hands the table to a macro. Those of `waits` need real time and several threads; for those of
/// `at_once` one thread is enough, whose waits end as soon as nothing else can happen.
macro_rules! table {
    ($callback:ident) => {
        broken::table::operators::operators! {
            $callback
            waits {
                check_then_insert: broken::CheckThenInsert => "concurrency::one_key_is_accepted_once",
                key_without_handler: broken::KeyWithoutHandler::default()
                    => "identity::a_second_handler_is_independent",
                collation_that_folds_case: broken::FoldsCase => "identity::case_distinguishes",
                collation_that_pads: broken::FoldsTrailingSpace => "identity::trailing_space_distinguishes",
                lost_batch_member: broken::LosesBatchMember
                    => "duplicates::every_accepted_member_of_a_batch_is_stored",
                duplicate_that_fails_its_batch: broken::DuplicateFailsBatch
                    => "duplicates::a_duplicate_does_not_fail_its_batch",
                status_in_the_key: broken::StatusInKey => "duplicates::after_processed",
                put_that_overwrites: broken::Overwrites => "duplicates::the_first_copy_stands",
                unfenced_settle: broken::UnfencedSettle::default()
                    => "fencing::a_stale_settlement_changes_nothing",
                worker_name_as_fence: broken::WorkerNameAsFence::default()
                    => "fencing::the_same_worker_name_is_no_fence",
                unfenced_extend: broken::UnfencedExtend::default()
                    => "fencing::a_stale_extension_changes_nothing",
                lease_by_local_clock: broken::LocalClock => "time::leases_run_by_the_stores_clock",
                no_recovery: broken::NoRecovery => "leases::a_vanished_worker_gives_its_message_back",
                crash_not_counted: broken::CrashNotCounted => "poison::a_crash_counts_as_an_attempt",
                retry_at_once: broken::RetryAtOnce => "retry::a_retry_waits",
                overtaking_within_an_ordering_key: broken::Overtakes => "ordering::a_retry_is_not_overtaken",
                two_beginners: broken::TwoBeginners::default() => "concurrency::of_many_begins_one_runs",
                purge_that_takes_pending: broken::PurgeTakesPending
                    => "retention::a_purge_never_takes_unfinished_messages",
                purge_that_forgets_early: broken::PurgeForgetsEarly
                    => "retention::a_purge_leaves_younger_messages",
                replay_that_keeps_attempts: broken::ReplayKeepsAttempts::default()
                    => "replay::a_replay_resets_the_attempts",
                slices_that_loop: broken::LoopingSlices => "replay::slices_end_although_messages_die_again",
                slices_that_end_early: broken::SlicesEndEarly
                    => "slices::a_discard_goes_on_past_messages_that_workers_take",
                paging_by_offset: broken::PagingByOffset => "look::pages_are_stable_while_rows_change",
                lease_early: broken::OtherLeases(broken::early) => "moments::a_lease_runs_to_its_end_and_no_further",
                lease_in_whole_seconds: broken::OtherLeases(broken::in_seconds) => "moments::a_lease_runs_to_its_end_and_no_further",
                lease_of_an_hour_at_most: broken::OtherLeases(broken::capped) => "moments::a_lease_runs_to_its_end_and_no_further",
                extension_early: broken::OtherExtensions(broken::early) => "moments::an_extension_runs_to_its_end_and_no_further",
                extension_in_whole_seconds: broken::OtherExtensions(broken::in_seconds) => "moments::an_extension_runs_to_its_end_and_no_further",
                extension_of_an_hour_at_most: broken::OtherExtensions(broken::capped) => "moments::an_extension_runs_to_its_end_and_no_further",
                delay_early: broken::OtherDelays(broken::early) => "moments::a_delay_ends_when_it_should",
                delay_in_whole_seconds: broken::OtherDelays(broken::in_seconds) => "moments::a_delay_ends_when_it_should",
                delay_of_an_hour_at_most: broken::OtherDelays(broken::capped) => "moments::a_delay_ends_when_it_should",
                retry_early: broken::OtherRetries(broken::early) => "moments::a_retry_comes_when_it_should",
                retry_in_whole_seconds: broken::OtherRetries(broken::in_seconds) => "moments::a_retry_comes_when_it_should",
                retry_of_an_hour_at_most: broken::OtherRetries(broken::capped) => "moments::a_retry_comes_when_it_should",
                purge_early: broken::OtherAges(broken::early) => "moments::retention_counts_from_the_end",
                payloads_parsed_as_json: broken::Rewrites(broken::parsed_json)
                    => "texts::a_payload_keeps_every_byte",
                payloads_without_byte_order_mark: broken::Rewrites(broken::without_byte_order_mark)
                    => "texts::a_payload_keeps_every_byte",
                payloads_with_plain_line_ends: broken::Rewrites(broken::with_plain_line_ends)
                    => "texts::a_payload_keeps_every_byte",
                trimmed_payloads: broken::Rewrites(broken::trimmed)
                    => "texts::a_payload_keeps_every_byte",
                headers_in_lower_case: broken::Rewrites(broken::with_headers_in_lower_case)
                    => "texts::headers_are_not_trimmed_or_folded",
                trimmed_headers: broken::Rewrites(broken::with_trimmed_headers)
                    => "texts::headers_are_not_trimmed_or_folded",
                trimmed_kinds: broken::Rewrites(broken::with_a_trimmed_kind)
                    => "texts::kinds_are_compared_whole",
                kinds_in_lower_case: broken::Rewrites(broken::with_a_kind_in_lower_case)
                    => "texts::kinds_are_compared_whole",
                kinds_by_their_beginning: broken::KindByPrefix
                    => "texts::kinds_are_compared_whole",
                ordering_keys_cut_at_64_bytes: broken::Rewrites(broken::with_a_short_ordering_key)
                    => "texts::ordering_keys_are_compared_whole",
                begin_without_content_type: broken::BeginRewrites(broken::without_content_type)
                    => "texts::begin_keeps_all_of_a_message",
                begin_that_parses_json: broken::BeginRewrites(broken::parsed_json)
                    => "texts::begin_keeps_all_of_a_message",
                begin_that_trims_headers: broken::BeginRewrites(broken::with_trimmed_headers)
                    => "texts::begin_keeps_all_of_a_message",
                empty_payload_taken_for_none: broken::EmptyIsNone => "replay::an_empty_payload_can_be_given",
                listing_of_the_expired_without_limit: broken::ExpiredWithoutLimit
                    => "retention::what_is_expired_keeps_to_its_limit",
                claims_by_handler: broken::ClaimsByHandler => "leases::a_handler_named_twice_is_one",
                settle_whose_errors_do_not_name_it: broken::Unnamed("settle") => "outage::every_operation_says_so",
                claim_that_is_blind_to_an_outage: broken::Blind("claim") => "outage::every_operation_says_so",
                extend_that_is_blind_to_an_outage: broken::Blind("extend") => "outage::every_operation_says_so",
                settle_that_is_blind_to_an_outage: broken::Blind("settle") => "outage::every_operation_says_so",
                get_that_is_blind_to_an_outage: broken::Blind("get") => "outage::every_operation_says_so",
                list_that_is_blind_to_an_outage: broken::Blind("list") => "outage::every_operation_says_so",
                count_that_is_blind_to_an_outage: broken::Blind("count") => "outage::every_operation_says_so",
                statistics_that_is_blind_to_an_outage: broken::Blind("statistics") => "outage::every_operation_says_so",
                replay_that_is_blind_to_an_outage: broken::Blind("replay") => "outage::every_operation_says_so",
                replay_slice_that_is_blind_to_an_outage: broken::Blind("replay_slice") => "outage::every_operation_says_so",
                discard_that_is_blind_to_an_outage: broken::Blind("discard") => "outage::every_operation_says_so",
                discard_slice_that_is_blind_to_an_outage: broken::Blind("discard_slice") => "outage::every_operation_says_so",
                purge_that_is_blind_to_an_outage: broken::Blind("purge") => "outage::every_operation_says_so",
                expired_that_is_blind_to_an_outage: broken::Blind("expired") => "outage::every_operation_says_so",
                purge_archived_that_is_blind_to_an_outage: broken::Blind("purge_archived") => "outage::every_operation_says_so",
                blocked_keys_counted_once_and_for_all: broken::NeverUnblocked::default()
                    => "statistics::a_blocked_key_shows_until_it_goes_on",
                outage_as_duplicate: broken::OutageAsDuplicate => "outage::an_outage_is_never_a_duplicate",
            }
            at_once {
                deaf_to_receives: broken::waking::deaf_to("receive") => "wakeups::a_receive_wakes",
                deaf_to_release: broken::waking::deaf_to("release")
                    => "wakeups::work_that_comes_back_wakes",
                deaf_to_retry: broken::waking::deaf_to("retry") => "wakeups::work_that_comes_back_wakes",
                deaf_to_deferrals: broken::waking::deaf_to("defer") => "wakeups::work_that_comes_back_wakes",
                deaf_to_replay: broken::waking::deaf_to("replay")
                    => "wakeups::work_that_comes_back_wakes",
                deaf_to_processed_ones: broken::waking::deaf_to("processed")
                    => "wakeups::the_next_of_an_ordering_key_wakes",
                deaf_to_dead_ones: broken::waking::deaf_to("dead")
                    => "wakeups::the_next_of_an_ordering_key_wakes",
                deaf_to_what_was_begun_and_release: broken::waking::deaf_to("release")
                    => "wakeups::what_was_begun_and_comes_back_wakes",
                deaf_to_what_was_begun_and_processed: broken::waking::deaf_to("processed")
                    => "wakeups::what_was_begun_and_comes_back_wakes",
                deaf_to_a_replay_that_unblocks: broken::waking::deaf_to("replay")
                    => "wakeups::what_an_operator_sets_free_wakes",
                deaf_to_a_discard_that_unblocks: broken::waking::deaf_to("discard")
                    => "wakeups::what_an_operator_sets_free_wakes",
                deaf_to_a_replay_slice: broken::waking::deaf_to("replay_slice")
                    => "wakeups::what_slices_set_free_wakes",
                deaf_to_a_discard_slice: broken::waking::deaf_to("discard_slice")
                    => "wakeups::what_slices_set_free_wakes",
                deaf_to_a_purge: broken::waking::deaf_to("purge")
                    => "wakeups::a_purge_of_what_blocked_wakes",
                deaf_to_a_purge_archived: broken::waking::deaf_to("purge_archived")
                    => "wakeups::a_purge_of_what_blocked_wakes",
                signal_before_a_receive: broken::waking::early_at("receive")
                    => "wakeups::who_is_woken_finds_the_cause",
                signal_before_a_release: broken::waking::early_at("release")
                    => "wakeups::who_is_woken_finds_the_cause",
                signal_before_a_replay_slice: broken::waking::early_at("replay_slice")
                    => "wakeups::who_is_woken_finds_the_cause",
                signal_lost_with_its_wait: broken::waking::lossy()
                    => "wakeups::a_signal_to_a_wait_that_is_dropped_is_kept",
                signals_gathered_and_forgotten: broken::waking::Gathers
                    => "wakeups::a_signal_to_a_wait_that_is_dropped_is_kept",
                hears_of_the_first_handler: broken::waking::HearsOf(broken::waking::the_first)
                    => "wakeups::every_handler_of_a_subscription_wakes",
                hears_of_the_last_handler: broken::waking::HearsOf(broken::waking::the_last)
                    => "wakeups::every_handler_of_a_subscription_wakes",
                looks_at_the_first_of_a_batch: broken::waking::looks_at_the_first()
                    => "wakeups::any_member_of_a_batch_wakes",
                looks_at_the_last_of_a_batch: broken::waking::LooksAt::default()
                    => "wakeups::any_member_of_a_batch_wakes",
                silent_about_corrupt_rows: broken::waking::silent_about_corrupt_rows()
                    => "wakeups::what_a_corrupt_row_held_up_wakes",
                corrupt_row_that_blocks_its_ordering_key: broken::corrupting::Mistaken(broken::corrupting::Mistake::ClaimBlocks)
                    => "wakeups::what_a_corrupt_row_held_up_wakes",
                corrupt_row_claim_fails: broken::corrupting::Mistaken(broken::corrupting::Mistake::ClaimFails)
                    => "corrupt::a_claim_sets_it_aside_and_goes_on",
                corrupt_row_claim_hands_it_out: broken::corrupting::Mistaken(broken::corrupting::Mistake::ClaimHandsItOut)
                    => "corrupt::a_claim_sets_it_aside_and_goes_on",
                corrupt_row_claim_is_silent: broken::corrupting::Mistaken(broken::corrupting::Mistake::ClaimIsSilent)
                    => "corrupt::a_claim_sets_it_aside_and_goes_on",
                corrupt_row_claim_discards: broken::corrupting::Mistaken(broken::corrupting::Mistake::ClaimDiscards)
                    => "corrupt::a_claim_sets_it_aside_and_goes_on",
                corrupt_row_claim_comes_back: broken::corrupting::Mistaken(broken::corrupting::Mistake::ClaimComesBack)
                    => "corrupt::a_claim_sets_it_aside_and_goes_on",
                corrupt_row_get_says_nothing: broken::corrupting::Mistaken(broken::corrupting::Mistake::GetSaysNothing)
                    => "corrupt::get_says_so",
                corrupt_row_get_says_other: broken::corrupting::Mistaken(broken::corrupting::Mistake::GetSaysOther)
                    => "corrupt::get_says_so",
                corrupt_row_list_fails: broken::corrupting::Mistaken(broken::corrupting::Mistake::ListFails)
                    => "corrupt::a_listing_reports_it_with_the_others",
                corrupt_row_list_is_silent: broken::corrupting::Mistaken(broken::corrupting::Mistake::ListIsSilent)
                    => "corrupt::a_listing_reports_it_with_the_others",
                corrupt_row_expired_fails: broken::corrupting::Mistaken(broken::corrupting::Mistake::ExpiredFails)
                    => "corrupt::statistics_and_purge_go_on",
                corrupt_row_claim_discards_and_is_not_counted: broken::corrupting::Mistaken(broken::corrupting::Mistake::ClaimDiscards)
                    => "corrupt::statistics_and_purge_go_on",
                corrupt_row_whose_key_is_forgotten: broken::corrupting::ForgetsCorruptKeys
                    => "corrupt::its_key_still_refuses_duplicates",
                receive_leaks_a_connection: broken::leaking::leaky("receive", broken::leaking::Class::Connection)
                    => "leaks::receiving_and_claiming_leave_nothing",
                claim_leaks_a_lock: broken::leaking::leaky("claim", broken::leaking::Class::Lock)
                    => "leaks::receiving_and_claiming_leave_nothing",
                begin_leaks_a_turn: broken::leaking::leaky("begin", broken::leaking::Class::Turn)
                    => "leaks::receiving_and_claiming_leave_nothing",
                settle_leaks_a_connection: broken::leaking::leaky("settle", broken::leaking::Class::Connection)
                    => "leaks::settling_and_extending_leave_nothing",
                settle_leaks_a_turn: broken::leaking::leaky("settle", broken::leaking::Class::Turn)
                    => "leaks::settling_and_extending_leave_nothing",
                extend_leaks_a_lock: broken::leaking::leaky("extend", broken::leaking::Class::Lock)
                    => "leaks::settling_and_extending_leave_nothing",
                replay_leaks_a_connection: broken::leaking::leaky("replay", broken::leaking::Class::Connection)
                    => "leaks::interventions_leave_nothing",
                discard_leaks_a_lock: broken::leaking::leaky("discard", broken::leaking::Class::Lock)
                    => "leaks::interventions_leave_nothing",
                replay_slice_leaks_a_turn: broken::leaking::leaky("replay_slice", broken::leaking::Class::Turn)
                    => "leaks::interventions_leave_nothing",
                discard_slice_leaks_a_connection: broken::leaking::leaky("discard_slice", broken::leaking::Class::Connection)
                    => "leaks::interventions_leave_nothing",
                purge_leaks_a_lock: broken::leaking::leaky("purge", broken::leaking::Class::Lock)
                    => "leaks::purging_leaves_nothing",
                purge_archived_leaks_a_connection: broken::leaking::leaky("purge_archived", broken::leaking::Class::Connection)
                    => "leaks::purging_leaves_nothing",
                get_leaks_a_connection: broken::leaking::leaky("get", broken::leaking::Class::Connection)
                    => "leaks::looking_leaves_nothing",
                list_leaks_a_connection: broken::leaking::leaky("list", broken::leaking::Class::Connection)
                    => "leaks::looking_leaves_nothing",
                count_leaks_a_turn: broken::leaking::leaky("count", broken::leaking::Class::Turn)
                    => "leaks::looking_leaves_nothing",
                statistics_leaks_a_lock: broken::leaking::leaky("statistics", broken::leaking::Class::Lock)
                    => "leaks::looking_leaves_nothing",
                expired_leaks_a_turn: broken::leaking::leaky("expired", broken::leaking::Class::Turn)
                    => "leaks::looking_leaves_nothing",
                version_leaks_a_connection: broken::leaking::leaky("version", broken::leaking::Class::Connection)
                    => "leaks::setting_up_leaves_nothing",
                exists_leaks_a_connection: broken::leaking::leaky("exists", broken::leaking::Class::Connection)
                    => "leaks::setting_up_leaves_nothing",
                create_leaks_a_lock: broken::leaking::leaky("create", broken::leaking::Class::Lock)
                    => "leaks::setting_up_leaves_nothing",
                migrate_leaks_a_turn: broken::leaking::leaky("migrate", broken::leaking::Class::Turn)
                    => "leaks::setting_up_leaves_nothing",
                subscribe_leaks_a_connection: broken::leaking::leaky("subscribe", broken::leaking::Class::Connection)
                    => "leaks::subscriptions_leave_nothing",
                subscribe_leaks_a_turn: broken::leaking::leaky("subscribe", broken::leaking::Class::Turn)
                    => "leaks::subscriptions_leave_nothing",
                receive_in_steps: broken::leaking::ReceivesInSteps => "cancellation::receive",
                batch_in_steps: broken::leaking::ReceivesInSteps
                    => "cancellation::receive_of_a_whole_batch",
                claim_in_steps: broken::leaking::LeasesInSteps => "cancellation::claim",
                begin_in_steps: broken::leaking::LeasesInSteps => "cancellation::begin",
                settlement_in_steps: broken::leaking::SettlesInSteps => "cancellation::settle",
                settle_checks_first_a_settlement_or_a_take_over_wins: broken::racing::checks_first("settle")
                    => "races::a_settlement_or_a_take_over_wins",
                looks_behind_a_settlement: broken::racing::LooksBehind
                    => "races::what_is_taken_again_at_once_was_handed_back",
                settle_checks_first_a_late_retry_hands_out_nothing_twice: broken::racing::checks_first("settle")
                    => "races::a_late_retry_hands_out_nothing_twice",
                extend_checks_first_an_extension_or_a_take_over_wins: broken::racing::checks_first("extend")
                    => "races::an_extension_or_a_take_over_wins",
                discard_checks_first_a_discard_or_a_claim_wins: broken::racing::checks_first("discard")
                    => "races::a_discard_or_a_claim_wins",
                discard_slice_checks_first_a_discard_or_a_claim_wins: broken::racing::checks_first("discard_slice")
                    => "races::a_discard_or_a_claim_wins",
                settle_checks_first_a_discard_or_a_late_settlement_wins: broken::racing::checks_first("settle")
                    => "races::a_discard_or_a_late_settlement_wins",
                discard_slice_checks_first_a_discard_or_a_late_settlement_wins: broken::racing::checks_first("discard_slice")
                    => "races::a_discard_or_a_late_settlement_wins",
                purge_checks_first_a_purge_or_a_replay_wins: broken::racing::checks_first("purge")
                    => "races::a_purge_or_a_replay_wins",
                replay_checks_first_a_purge_or_a_replay_wins: broken::racing::checks_first("replay")
                    => "races::a_purge_or_a_replay_wins",
                replay_slice_checks_first_a_purge_or_a_replay_wins: broken::racing::checks_first("replay_slice")
                    => "races::a_purge_or_a_replay_wins",
                purge_archived_checks_first_a_purge_of_the_archived_or_a_replay_wins: broken::racing::checks_first("purge_archived")
                    => "races::a_purge_of_the_archived_or_a_replay_wins",
                replay_checks_first_a_purge_of_the_archived_or_a_replay_wins: broken::racing::checks_first("replay")
                    => "races::a_purge_of_the_archived_or_a_replay_wins",
                replay_checks_first_a_drop_of_payloads_or_a_replay_wins: broken::racing::checks_first("replay")
                    => "races::a_drop_of_payloads_or_a_replay_wins",
                drop_payloads_checks_first_a_drop_of_payloads_or_a_replay_wins: broken::racing::checks_first("drop_payloads")
                    => "races::a_drop_of_payloads_or_a_replay_wins",
                clear_slice_checks_first_a_clearing_or_a_claim_wins: broken::racing::checks_first("clear_slice")
                    => "races::a_clearing_or_a_claim_wins",
                purge_in_steps: broken::racing::PurgesInSteps("purge")
                    => "races::a_copy_during_a_purge_is_new_or_a_duplicate",
                purge_archived_in_steps: broken::racing::PurgesInSteps("purge_archived")
                    => "races::a_copy_during_a_purge_is_new_or_a_duplicate",
                every_settlement_counted: broken::racing::Repeats::default()
                    => "races::of_two_outcomes_one_counts",
                every_settlement_leaves_its_error: broken::racing::repeats_errors()
                    => "races::of_two_outcomes_one_counts",
                discards_any_state: broken::bulk::discards(broken::bulk::any_state)
                    => "filters::a_discard_changes_what_its_filter_lists",
                replays_only_the_first_state: broken::bulk::replays(broken::bulk::only_the_first_state)
                    => "filters::a_replay_changes_what_its_filter_lists",
                discards_only_the_first_state: broken::bulk::discards(broken::bulk::only_the_first_state)
                    => "filters::a_discard_changes_what_its_filter_lists",
                replays_any_handler: broken::bulk::replays(broken::bulk::any_handler)
                    => "filters::a_replay_changes_what_its_filter_lists",
                discards_any_handler: broken::bulk::discards(broken::bulk::any_handler)
                    => "filters::a_discard_changes_what_its_filter_lists",
                replays_any_kind: broken::bulk::replays(broken::bulk::any_kind)
                    => "filters::a_replay_changes_what_its_filter_lists",
                discards_any_kind: broken::bulk::discards(broken::bulk::any_kind)
                    => "filters::a_discard_changes_what_its_filter_lists",
                replays_any_ordering_key: broken::bulk::replays(broken::bulk::any_ordering_key)
                    => "filters::a_replay_changes_what_its_filter_lists",
                discards_any_ordering_key: broken::bulk::discards(broken::bulk::any_ordering_key)
                    => "filters::a_discard_changes_what_its_filter_lists",
                replays_of_any_age: broken::bulk::replays(broken::bulk::of_any_age)
                    => "filters::a_replay_changes_what_its_filter_lists",
                discards_of_any_age: broken::bulk::discards(broken::bulk::of_any_age)
                    => "filters::a_discard_changes_what_its_filter_lists",
                replays_however_old: broken::bulk::replays(broken::bulk::however_old)
                    => "filters::a_replay_changes_what_its_filter_lists",
                discards_however_old: broken::bulk::discards(broken::bulk::however_old)
                    => "filters::a_discard_changes_what_its_filter_lists",
                replays_with_any_error: broken::bulk::replays(broken::bulk::with_any_error)
                    => "filters::a_replay_changes_what_its_filter_lists",
                discards_with_any_error: broken::bulk::discards(broken::bulk::with_any_error)
                    => "filters::a_discard_changes_what_its_filter_lists",
                replays_without_text_for_none: broken::bulk::replays(broken::bulk::without_text_for_none)
                    => "filters::a_replay_changes_what_its_filter_lists",
                discards_without_text_for_none: broken::bulk::discards(broken::bulk::without_text_for_none)
                    => "filters::a_discard_changes_what_its_filter_lists",
                key_that_stays_blocked_after_a_replay_slice: broken::bulk::sticks_after("replay_slice")
                    => "slices::they_set_free_what_they_unblock",
                key_that_stays_blocked_after_a_discard_slice: broken::bulk::sticks_after("discard_slice")
                    => "slices::they_set_free_what_they_unblock",
                key_that_stays_blocked_after_a_purge: broken::bulk::sticks_after("purge")
                    => "slices::they_set_free_what_they_unblock",
                key_that_stays_blocked_after_a_purge_archived: broken::bulk::sticks_after("purge_archived")
                    => "slices::they_set_free_what_they_unblock",
                key_that_stays_blocked_after_one_replay: broken::bulk::sticks_after("replay")
                    => "ordering::a_replay_unblocks_in_order",
                key_that_stays_blocked_after_one_discard: broken::bulk::sticks_after("discard")
                    => "ordering::a_discard_unblocks",
                discard_that_lifts_every_block: broken::decided::LiftsEveryBlock
                    => "ordering::a_discard_lifts_no_other_block",
                key_that_stays_blocked_after_one_purge: broken::bulk::sticks_after("purge")
                    => "ordering::a_purge_unblocks",
                discard_that_spares_what_waits: broken::bulk::SparesWhatWaits
                    => "slices::a_discard_of_the_pending_keeps_the_order",
                discard_that_lets_go: broken::bulk::DiscardsLetGo::default()
                    => "slices::a_discard_of_the_pending_keeps_the_order",
                receive_not_counted: broken::bulk::miscounts("receive")
                    => "statistics::counts_follow_every_change",
                settle_not_counted: broken::bulk::miscounts("settle")
                    => "statistics::counts_follow_every_change",
                replay_not_counted: broken::bulk::miscounts("replay")
                    => "statistics::counts_follow_every_change",
                discard_not_counted: broken::bulk::miscounts("discard")
                    => "statistics::counts_follow_every_change",
                purge_not_counted: broken::bulk::miscounts("purge")
                    => "statistics::counts_follow_every_change",
                replay_slice_not_counted_by_many: broken::bulk::miscounts("replay_slice")
                    => "slices::counts_follow_them",
                discard_slice_not_counted_by_many: broken::bulk::miscounts("discard_slice")
                    => "slices::counts_follow_them",
                purge_not_counted_by_many: broken::bulk::miscounts("purge")
                    => "slices::counts_follow_them",
                purge_archived_not_counted_by_many: broken::bulk::miscounts("purge_archived")
                    => "slices::counts_follow_them",
                slice_that_ends_at_a_dropped_payload: broken::bulk::AtDropped::Ends
                    => "slices::a_dropped_payload_in_the_middle_is_passed_over",
                slice_that_fails_at_a_dropped_payload: broken::bulk::AtDropped::Fails
                    => "slices::a_dropped_payload_in_the_middle_is_passed_over",
                slice_that_counts_at_a_dropped_payload: broken::bulk::AtDropped::Counts
                    => "slices::a_dropped_payload_in_the_middle_is_passed_over",
                archived_purged_whatever_they_are: broken::archiving::Archived::WhateverTheyAre
                    => "retention::what_changed_since_it_was_archived_is_not_purged",
                archived_purged_in_any_final_state: broken::archiving::Archived::InAnyFinalState
                    => "retention::what_changed_since_it_was_archived_is_not_purged",
                archived_purged_of_any_age: broken::archiving::Archived::OfAnyAge
                    => "retention::what_changed_since_it_was_archived_is_not_purged",
                archived_purged_also_pending: broken::archiving::Archived::AlsoPending
                    => "retention::what_changed_since_it_was_archived_is_not_purged",
                archived_purged_of_any_age_at_once: broken::archiving::Archived::OfAnyAge
                    => "retention::only_what_was_archived_is_purged",
                archived_purged_up_to_the_limit_at_once: broken::archiving::Archived::UpToTheLimit
                    => "retention::only_what_was_archived_is_purged",
                archived_counted_by_keys: broken::archiving::Archived::CountedByKeys
                    => "retention::a_key_that_is_archived_twice_is_purged_once",
                archived_counted_twice: broken::archiving::Archived::CountedTwice
                    => "retention::a_key_that_is_archived_twice_is_purged_once",
                processed_forgotten_after_300_days: broken::horizons::Forgets(inbox_api::State::Processed)
                    => "horizons::a_copy_after_400_days_is_a_duplicate",
                dead_forgotten_after_300_days: broken::horizons::Forgets(inbox_api::State::Dead)
                    => "horizons::a_copy_after_400_days_is_a_duplicate",
                discarded_forgotten_after_300_days: broken::horizons::Forgets(inbox_api::State::Discarded)
                    => "horizons::a_copy_after_400_days_is_a_duplicate",
                pending_forgotten_after_300_days: broken::horizons::Forgets(inbox_api::State::Pending)
                    => "horizons::a_copy_after_400_days_is_a_duplicate",
                processed_without_payload_forgotten_after_300_days: broken::horizons::Forgets(inbox_api::State::Processed)
                    => "horizons::a_copy_after_400_days_is_a_duplicate_without_its_payload",
                dead_without_payload_forgotten_after_300_days: broken::horizons::Forgets(inbox_api::State::Dead)
                    => "horizons::a_copy_after_400_days_is_a_duplicate_without_its_payload",
                attempts_that_wraps: broken::horizons::Counter(broken::horizons::that_wraps)
                    => "horizons::three_hundred_attempts_are_counted",
                replays_that_wraps: broken::horizons::Counter(broken::horizons::that_wraps)
                    => "horizons::three_hundred_replays_are_counted",
                attempts_that_stays: broken::horizons::Counter(broken::horizons::that_stays)
                    => "horizons::three_hundred_attempts_are_counted",
                replays_that_stays: broken::horizons::Counter(broken::horizons::that_stays)
                    => "horizons::three_hundred_replays_are_counted",
                counting_ends_in_count: broken::horizons::CountsPages::Count
                    => "horizons::a_row_more_than_a_page_holds_is_counted",
                counting_ends_in_statistics: broken::horizons::CountsPages::Statistics
                    => "horizons::a_row_more_than_a_page_holds_is_counted",
                counting_ends_in_next: broken::horizons::CountsPages::Next
                    => "horizons::a_row_more_than_a_page_holds_is_counted",
                counting_ends_in_limit: broken::horizons::CountsPages::Limit
                    => "horizons::a_row_more_than_a_page_holds_is_counted",
                own_tokens_across_processes: broken::horizons::OwnTokens::default()
                    => "horizons::tokens_grow_across_processes",
                tokens_of_attempts_across_processes: broken::horizons::tokens_of_attempts()
                    => "horizons::tokens_grow_across_processes",
                own_tokens_across_restarts: broken::horizons::OwnTokens::default()
                    => "horizons::tokens_grow_across_restarts",
                tokens_of_attempts_across_restarts: broken::horizons::tokens_of_attempts()
                    => "horizons::tokens_grow_across_restarts",
                tokens_of_attempts: broken::horizons::tokens_of_attempts()
                    => "fencing::tokens_grow_across_a_replay",
                record_with_no_content_type: broken::looking::Shows(broken::looking::no_content_type)
                    => "look::a_record_shows_everything",
                record_with_no_headers: broken::looking::Shows(broken::looking::no_headers)
                    => "look::a_record_shows_everything",
                record_with_no_worker: broken::looking::Shows(broken::looking::no_worker)
                    => "look::a_record_shows_everything",
                record_with_no_finished_at: broken::looking::Shows(broken::looking::no_finished_at)
                    => "look::a_record_shows_everything",
                record_with_no_result: broken::looking::Shows(broken::looking::no_result)
                    => "look::a_record_shows_everything",
                record_with_no_error: broken::looking::Shows(broken::looking::no_error)
                    => "retry::the_last_error_is_kept",
                record_with_short_errors: broken::looking::Shows(broken::looking::short_errors)
                    => "hostile::long_error_texts_are_cut",
                record_with_no_finished_attempts: broken::looking::Shows(broken::looking::no_finished_attempts)
                    => "poison::an_error_counts_as_finished",
                record_with_attempts_in_one: broken::looking::Shows(broken::looking::attempts_in_one)
                    => "poison::crashes_and_errors_are_told_apart",
                record_with_no_replays: broken::looking::Shows(broken::looking::no_replays)
                    => "replay::a_dead_message_can_be_replayed",
                record_with_no_lease_end: broken::looking::Shows(broken::looking::no_lease_end)
                    => "leases::a_lease_hides_its_message",
                record_with_no_blocking: broken::looking::Shows(broken::looking::no_blocking)
                    => "ordering::a_dead_message_can_block_its_key",
                record_with_due_when_accepted: broken::looking::Shows(broken::looking::due_when_accepted)
                    => "begin::a_retry_is_busy_until_due",
                list_any_state: broken::looking::lists(broken::bulk::any_state)
                    => "look::filters_narrow",
                list_any_handler: broken::looking::lists(broken::bulk::any_handler)
                    => "look::filters_narrow",
                list_any_kind: broken::looking::lists(broken::bulk::any_kind) => "look::filters_narrow",
                list_of_any_age: broken::looking::lists(broken::bulk::of_any_age) => "look::ages_narrow",
                list_however_old: broken::looking::lists(broken::bulk::however_old)
                    => "look::ages_narrow",
                list_any_ordering_key: broken::looking::lists(broken::bulk::any_ordering_key)
                    => "look::ordering_keys_narrow",
                list_with_any_error: broken::looking::lists(broken::bulk::with_any_error)
                    => "look::error_texts_are_found_byte_for_byte",
                list_that_folds_errors: broken::looking::FoldsErrors
                    => "look::error_texts_are_found_byte_for_byte",
                page_always_with_payload: broken::looking::pages(broken::looking::always_with_payload)
                    => "look::payloads_are_listed_when_asked_for",
                page_never_with_payload: broken::looking::pages(broken::looking::never_with_payload)
                    => "look::payloads_are_listed_when_asked_for",
                page_always_earliest_first: broken::looking::pages(broken::looking::always_earliest_first)
                    => "look::listings_are_in_order_of_acceptance",
                page_of_one_at_least: broken::looking::pages(broken::looking::of_one_at_least)
                    => "look::a_page_without_room_is_empty",
                page_from_the_start_at_nonsense: broken::looking::pages(broken::looking::from_the_start_at_nonsense)
                    => "look::a_foreign_cursor_is_invalid",
                statistics_with_latest_name_first: broken::looking::Counts(|handlers| handlers.reverse())
                    => "statistics::counts_are_by_handler_and_state",
                statistics_with_leased_as_pending: broken::looking::Counts(broken::looking::leased_as_pending)
                    => "statistics::counts_are_by_handler_and_state",
                statistics_with_discarded_as_dead: broken::looking::Counts(broken::looking::discarded_as_dead)
                    => "statistics::counts_are_by_handler_and_state",
                statistics_with_age_for_lag: broken::looking::Counts(broken::looking::age_for_lag)
                    => "statistics::lag_and_age_grow_with_waiting",
                statistics_with_lag_for_age: broken::looking::Counts(broken::looking::lag_for_age)
                    => "statistics::lag_and_age_grow_with_waiting",
                statistics_with_no_lag_of_nothing: broken::looking::Counts(broken::looking::no_lag_of_nothing)
                    => "statistics::a_finished_backlog_has_no_lag",
                statistics_with_all_dead_block: broken::looking::Counts(broken::looking::all_dead_block)
                    => "statistics::a_blocked_key_shows",
                statistics_with_all_pending_due: broken::looking::Counts(broken::looking::all_pending_due)
                    => "statistics::what_is_due_is_counted",
                statistics_with_paused_not_due: broken::looking::Counts(broken::looking::paused_not_due)
                    => "statistics::what_is_due_is_counted",
                statistics_that_count_the_backlog: broken::looking::Counts(broken::looking::backlog_counted)
                    => "statistics::due_is_counted_up_to_a_bound",
                statistics_with_empty_handlers: broken::looking::Counts(broken::looking::empty_handlers)
                    => "statistics::an_empty_inbox_has_none",
                begin_without_a_result: broken::looking::Begins(broken::looking::without_a_result)
                    => "begin::a_processed_key_answers_its_result",
                begin_without_a_reason: broken::looking::Begins(broken::looking::without_a_reason)
                    => "begin::a_dead_key_says_why",
                begin_discarded_for_processed: broken::looking::Begins(broken::looking::discarded_for_processed)
                    => "begin::a_discarded_key_says_so",
                begin_blocked_for_busy: broken::looking::Begins(broken::looking::blocked_for_busy)
                    => "begin::a_held_key_is_busy",
                begin_what_was_sent: broken::looking::Begins(broken::looking::what_was_sent)
                    => "begin::the_stored_message_runs",
                settle_no_empty_results: broken::looking::Keeps(broken::looking::no_empty_results)
                    => "hostile::an_empty_result_is_a_result",
                settle_deaths_that_block: broken::looking::Keeps(broken::looking::deaths_that_block)
                    => "ordering::a_dead_message_lets_the_next_through",
                settle_deaths_that_never_block: broken::looking::Keeps(broken::looking::deaths_that_never_block)
                    => "ordering::a_dead_message_can_block_its_key",
                settle_releases_that_are_retries: broken::looking::Keeps(broken::looking::releases_that_are_retries)
                    => "release::a_release_does_not_count",
                settle_retries_that_are_releases: broken::looking::Keeps(broken::looking::retries_that_are_releases)
                    => "poison::an_error_counts_as_finished",
                refusal_that_fails_its_batch: broken::looking::RefusalFailsBatch
                    => "hostile::an_oversized_message_is_refused_alone",
                limit_that_is_out: broken::looking::LimitIsOut
                    => "hostile::the_payload_limit_is_inclusive",
                error_that_quotes_payloads: broken::looking::QuotesPayloads
                    => "hostile::errors_do_not_show_payloads",
                second_of_two_equal_leases_lost: broken::looking::OneLeaseEach { fails: false }
                    => "leases::a_lease_that_is_named_twice_is_extended",
                second_of_two_equal_leases_fails: broken::looking::OneLeaseEach { fails: true }
                    => "leases::a_lease_that_is_named_twice_is_extended",
                claim_of_one_more: broken::looking::one_more() => "leases::a_claim_keeps_to_its_limit",
                claim_in_the_opposite_order: broken::looking::the_youngest_first()
                    => "time::the_longest_due_come_first",
                claim_for_the_first_handler_only: broken::looking::the_first_handler_only()
                    => "leases::a_claim_serves_several_handlers",
                set_up_sets_up_on_receive: broken::schema::SetsUp(broken::schema::Mistake::SetsUpOnReceive)
                    => "schema::a_missing_inbox_is_told",
                set_up_missing_is_away: broken::schema::SetsUp(broken::schema::Mistake::MissingIsAway)
                    => "schema::a_missing_inbox_is_told",
                set_up_always_exists: broken::schema::SetsUp(broken::schema::Mistake::AlwaysExists)
                    => "schema::an_incomplete_inbox_is_refused",
                set_up_create_takes_anything: broken::schema::SetsUp(broken::schema::Mistake::CreateTakesAnything)
                    => "schema::an_incomplete_inbox_is_refused",
                set_up_create_fails_the_second_time: broken::schema::SetsUp(broken::schema::Mistake::CreateFailsTheSecondTime)
                    => "schema::setting_up_twice_changes_nothing",
                set_up_create_loses_a_race: broken::schema::SetsUp(broken::schema::Mistake::CreateLosesARace)
                    => "schema::many_can_set_up_at_once",
                set_up_migrate_loses_a_race: broken::schema::SetsUp(broken::schema::Mistake::MigrateLosesARace)
                    => "schema::many_can_migrate_at_once",
                set_up_migrates_down: broken::schema::SetsUp(broken::schema::Mistake::MigratesDown)
                    => "schema::a_newer_inbox_is_refused",
                set_up_changes_the_layout: broken::schema::SetsUp(broken::schema::Mistake::ChangesTheLayout)
                    => "schema::a_kept_inbox_answers_as_it_did",
                set_up_refuses_what_is_newer: broken::schema::SetsUp(broken::schema::Mistake::RefusesWhatIsNewer)
                    => "schema::a_newer_inbox_that_allows_it_is_used",
                set_up_versions_are_not_named: broken::schema::SetsUp(broken::schema::Mistake::VersionsAreNotNamed)
                    => "schema::a_newer_inbox_is_refused",
                set_up_migration_hides_what_was: broken::schema::SetsUp(broken::schema::Mistake::MigrationHidesWhatWas)
                    => "schema::an_older_inbox_is_migrated",
                set_up_create_takes_anything_older: broken::schema::SetsUp(broken::schema::Mistake::CreateTakesAnything)
                    => "schema::an_older_inbox_is_migrated",
                set_up_migrate_needs_an_inbox: broken::schema::SetsUp(broken::schema::Mistake::MigrateNeedsAnInbox)
                    => "schema::migrate_sets_up",
                sweeper_that_gives_leases_back: broken::corners::Sweeps::default()
                    => "ordering::a_turn_outlasts_its_lease",
                claims_by_due_time_alone: broken::corners::OrdersByDueTime
                    => "time::the_longest_due_come_first",
                lag_that_goes_on_through_leases: broken::corners::LagThroughLeases
                    => "statistics::a_leased_message_is_no_lag",
                release_that_changes_the_due_time: broken::corners::DueAnew::default()
                    => "release::a_release_leaves_the_due_time",
                begin_blocked_before_busy: broken::corners::BlockedBeforeBusy
                    => "begin::what_is_not_due_is_busy_before_it_is_blocked",
                begin_early: broken::corners::BeginsEarly
                    => "moments::begin_waits_as_a_claim_does",
                token_judged_before_the_size: broken::corners::TokenBeforeSize
                    => "fencing::a_result_over_the_limit_is_refused_whatever_the_token",
                settlements_known_to_the_process: broken::corners::SettledHere::default()
                    => "fencing::a_repetition_in_another_process_is_done",
                length_unchecked_without_leases: broken::corners::LengthUnchecked
                    => "leases::a_length_is_checked_without_a_lease",
                corrupt_row_begin_hands_it_out: broken::corrupting::Mistaken(broken::corrupting::Mistake::BeginSaysNothing)
                    => "corrupt::begin_says_so_and_leaves_it_to_a_claim",
                corrupt_row_begin_says_other: broken::corrupting::Mistaken(broken::corrupting::Mistake::BeginSaysOther)
                    => "corrupt::begin_says_so_and_leaves_it_to_a_claim",
                corrupt_row_set_aside_that_blocks: broken::corrupting::Mistaken(broken::corrupting::Mistake::ClaimBlocks)
                    => "corrupt::what_is_set_aside_lets_its_ordering_key_go_on",
                expired_ones_in_pages: broken::corners::ExpiredHasPages
                    => "retention::what_is_expired_has_no_next_page",
                replay_that_forgets_the_worker: broken::looking::Shows(broken::corners::no_worker_after_a_replay)
                    => "replay::a_record_keeps_its_last_worker",
                replay_that_keeps_the_end: broken::looking::Shows(broken::corners::an_end_after_a_replay)
                    => "replay::a_record_keeps_its_last_worker",
                finished_when_accepted: broken::looking::Shows(broken::corners::finished_when_accepted)
                    => "moments::stamps_are_of_the_call",
                slices_keep_times: broken::corners::SlicesKeepTimes::default()
                    => "moments::stamps_of_slices_are_of_the_call",
                lag_in_whole_seconds: broken::looking::Counts(broken::corners::lag_in_seconds)
                    => "moments::lag_and_age_are_to_the_moment",
                age_in_whole_seconds: broken::looking::Counts(broken::corners::age_in_seconds)
                    => "moments::lag_and_age_are_to_the_moment",
                lease_of_a_second_at_least: broken::OtherLeases(broken::at_least_a_second)
                    => "moments::a_lease_runs_to_its_end_and_no_further",
                extension_of_a_second_at_least: broken::OtherExtensions(broken::at_least_a_second)
                    => "moments::an_extension_runs_to_its_end_and_no_further",
                delay_of_a_second_at_least: broken::OtherDelays(broken::at_least_a_second)
                    => "moments::a_delay_ends_when_it_should",
                retry_of_a_second_at_least: broken::OtherRetries(broken::at_least_a_second)
                    => "moments::a_retry_comes_when_it_should",
                due_times_in_whole_seconds: broken::DueInSeconds => "moments::a_due_time_is_kept",
                expired_early: broken::OtherAgesOf("expired", broken::early)
                    => "moments::retention_counts_from_the_end",
                archived_purged_early: broken::OtherAgesOf("purge_archived", broken::early)
                    => "moments::retention_of_the_archived_counts_from_the_end",
                counted_early: broken::OtherAgesOf("count", broken::early)
                    => "moments::ages_count_from_acceptance",
                listed_early: broken::OtherAgesOf("list", broken::early)
                    => "moments::slices_by_age_count_from_acceptance",
                replays_early: broken::OtherAgesOf("replay_slice", broken::early)
                    => "moments::slices_by_age_count_from_acceptance",
                discards_early: broken::OtherAgesOf("discard_slice", broken::early)
                    => "moments::slices_by_age_count_from_acceptance",
                outage_as_something_else: broken::AwayAs(inbox_api::ErrorKind::Other)
                    => "outage::every_operation_says_so",
                outage_as_a_missing_schema: broken::AwayAs(inbox_api::ErrorKind::SchemaMissing)
                    => "outage::every_operation_says_so",
                version_that_is_blind_to_an_outage: broken::Blind("version") => "outage::every_operation_says_so",
                exists_that_is_blind_to_an_outage: broken::Blind("exists") => "outage::every_operation_says_so",
                deaf_after_an_outage: broken::waking::DeafAfterAnOutage
                    => "outage::a_subscription_outlives_it",
                record_that_sees_no_other_transaction: broken::skewed::Transactional(broken::skewed::Mistake::RecordsBehind)
                    => "skew::two_records_of_a_key_keep_the_order",
                death_that_moves_on_before_its_commit: broken::skewed::Transactional(broken::skewed::Mistake::MovesOnEarly)
                    => "skew::a_record_during_a_death_keeps_the_order",
                roll_back_that_leaves_keys_held: broken::skewed::Transactional(broken::skewed::Mistake::LeavesKeysHeld)
                    => "skew::two_new_messages_of_a_key_leave_it_whole",
                first_of_two_results: broken::skewed::Transactional(broken::skewed::Mistake::KeepsFirstResult)
                    => "kept_results::a_result_is_kept_with_the_work",
                result_that_ends_its_message_early: broken::skewed::Transactional(broken::skewed::Mistake::KeepsEarly)
                    => "kept_results::a_result_is_rolled_back_with_the_work",
                result_over_the_limit_that_passes: broken::skewed::Transactional(broken::skewed::Mistake::KeepsAnything)
                    => "kept_results::a_result_over_the_limit_leaves_its_transaction_usable",
                result_of_what_is_not_processed: broken::skewed::Transactional(broken::skewed::Mistake::KeepsAnything)
                    => "kept_results::a_result_is_kept_only_of_what_is_processed",
                kept_result_that_retention_does_not_find: broken::skewed::LeavesResults
                    => "kept_results::a_kept_result_without_a_payload_is_dropped",
                settlement_whose_commit_is_forgotten: broken::skewed::Transactional(broken::skewed::Mistake::SettlesWithoutCommit)
                    => "transactions::settling_with_the_commit_is_all_or_nothing",
                commit_next_to_a_lost_lease: broken::skewed::Transactional(broken::skewed::Mistake::CommitsTheRest)
                    => "transactions::a_lost_lease_is_not_committed",
                settlement_that_loses_its_result_in_a_transaction: broken::skewed::Transactional(broken::skewed::Mistake::SettlesWithoutResults)
                    => "transactions::a_settlement_in_a_transaction_is_the_same",
                record_of_a_new_message_before_its_turn: broken::skewed::Transactional(broken::skewed::Mistake::RecordsBehind)
                    => "transactions::a_new_message_waits_its_turn",
                record_with_a_result_of_any_size: broken::skewed::Transactional(broken::skewed::Mistake::RecordsAnyResult)
                    => "transactions::what_breaks_a_rule_is_refused",
                receive_that_is_written_behind: broken::behind::writes_behind("receive")
                    => "outage::each_answer_is_on_the_disk",
                pause_that_is_written_behind: broken::behind::writes_behind("pause")
                    => "outage::each_answer_is_on_the_disk",
                pause_that_ends_with_a_restart: broken::pausing::PauseOfTheProcess::default()
                    => "outage::a_restart_loses_nothing",
                receive_that_scans_the_history: broken::scanning::the_history("receive")
                    => "scale::the_history_costs_nothing",
                claim_that_scans_the_history: broken::scanning::the_history("claim")
                    => "scale::the_history_costs_nothing",
                settle_that_scans_the_history: broken::scanning::the_history("settle")
                    => "scale::the_history_costs_nothing",
                extend_that_scans_the_history: broken::scanning::the_history("extend")
                    => "scale::the_history_costs_nothing",
                begin_that_scans_the_history: broken::scanning::the_history("begin")
                    => "scale::the_history_costs_nothing",
                get_that_scans_the_history: broken::scanning::the_history("get")
                    => "scale::the_history_costs_nothing",
                list_that_scans_the_history: broken::scanning::the_history("list")
                    => "scale::the_history_costs_nothing",
                statistics_that_scans_the_history: broken::scanning::the_history("statistics")
                    => "scale::the_history_costs_nothing",
                expired_that_scans_the_history: broken::scanning::the_history("expired")
                    => "scale::the_history_costs_nothing",
                purge_that_scans_the_history: broken::scanning::the_history("purge")
                    => "scale::the_history_costs_nothing",
                receive_that_scans_the_backlog: broken::scanning::the_backlog("receive")
                    => "scale::the_backlog_costs_nothing",
                claim_that_scans_the_backlog: broken::scanning::the_backlog("claim")
                    => "scale::the_backlog_costs_nothing",
                begin_that_scans_the_backlog: broken::scanning::the_backlog("begin")
                    => "scale::the_backlog_costs_nothing",
                list_that_scans_the_backlog: broken::scanning::the_backlog("list")
                    => "scale::the_backlog_costs_nothing",
                statistics_that_scans_the_backlog: broken::scanning::the_backlog("statistics")
                    => "scale::the_backlog_costs_nothing",
                set_up_has_no_statements: broken::schema::SetsUp(broken::schema::Mistake::NoStatements)
                    => "schema::the_statements_are_text",
                set_up_foreign_is_taken: broken::schema::SetsUp(broken::schema::Mistake::ForeignIsTaken)
                    => "schema::something_foreign_is_refused",
                slices_of_nothing_that_go_on: broken::decided::SlicesOfNothingGoOn
                    => "replay::a_slice_of_nothing_changes_nothing",
                discard_that_keeps_the_time_of_death: broken::decided::KeepsTimeOfDeath::default()
                    => "discard::a_discard_is_a_new_end",
                record_with_the_end_of_a_lease_that_ran_out: broken::looking::Shows(broken::decided::the_end_of_a_lease_that_ran_out)
                    => "leases::a_lease_that_ran_out_has_no_end",
                replay_that_keeps_the_result: broken::looking::Shows(broken::decided::a_result_after_a_replay)
                    => "replay::a_replay_clears_the_result",
                replay_that_keeps_the_error: broken::looking::Shows(broken::decided::an_error_after_a_replay)
                    => "replay::a_replay_clears_the_result",
                success_that_forgets_the_error: broken::looking::Shows(broken::decided::no_error_after_success)
                    => "retry::the_last_error_is_kept",
                death_that_blocks_without_a_key: broken::looking::Shows(broken::decided::a_block_without_a_key)
                    => "ordering::blocking_without_a_key_has_no_effect",
                expired_ones_as_accepted: broken::decided::ExpiredAsAccepted
                    => "retention::what_is_expired_keeps_to_its_limit",
                interventions_draw_tokens: broken::decided::InterventionsDrawTokens
                    => "fencing::a_repetition_after_an_intervention_is_done",
                oversized_copy_that_is_a_duplicate: broken::decided::KnownBeforeSize
                    => "hostile::a_copy_over_the_limit_is_refused",
                oversized_copy_that_begins: broken::decided::BeginsKnownBeforeSize
                    => "hostile::a_copy_over_the_limit_is_refused",
                ordering_keys_refused_too_late: broken::minimal::Minimal(broken::minimal::Keys::RefusedTooLate)
                    => "ordering::keys_are_honoured_or_refused",
                ordering_keys_lost_by_receive: broken::minimal::Minimal(broken::minimal::Keys::TakenByReceive)
                    => "ordering::keys_are_honoured_or_refused",
                ordering_keys_lost_by_begin: broken::minimal::Minimal(broken::minimal::Keys::TakenByBegin)
                    => "ordering::keys_are_honoured_or_refused",
                refusals_of_which_it_is_not_sure: broken::decided::NeverSure
                    => "hostile::a_refusal_has_no_effect",
                commit_that_is_blind_to_an_outage: broken::skewed::Transactional(broken::skewed::Mistake::CommitsBlindly)
                    => "outage::a_commit_says_so",
                commit_that_is_done_and_denied: broken::skewed::Transactional(broken::skewed::Mistake::CommitsAndDenies)
                    => "outage::a_commit_says_so",
                receive_that_is_done_and_denied: broken::decided::DoneAndDenied("receive") => "outage::every_operation_says_so",
                claim_that_is_done_and_denied: broken::decided::DoneAndDenied("claim") => "outage::every_operation_says_so",
                extend_that_is_done_and_denied: broken::decided::DoneAndDenied("extend") => "outage::every_operation_says_so",
                settle_that_is_done_and_denied: broken::decided::DoneAndDenied("settle") => "outage::every_operation_says_so",
                begin_that_is_done_and_denied: broken::decided::DoneAndDenied("begin") => "outage::every_operation_says_so",
                replay_that_is_done_and_denied: broken::decided::DoneAndDenied("replay") => "outage::every_operation_says_so",
                replay_slice_that_is_done_and_denied: broken::decided::DoneAndDenied("replay_slice") => "outage::every_operation_says_so",
                discard_that_is_done_and_denied: broken::decided::DoneAndDenied("discard") => "outage::every_operation_says_so",
                discard_slice_that_is_done_and_denied: broken::decided::DoneAndDenied("discard_slice") => "outage::every_operation_says_so",
                purge_that_is_done_and_denied: broken::decided::DoneAndDenied("purge") => "outage::every_operation_says_so",
                purge_archived_that_is_done_and_denied: broken::decided::DoneAndDenied("purge_archived") => "outage::every_operation_says_so",
                deferrals_that_are_releases: broken::looking::Keeps(broken::deferring::that_are_releases) => "defer::a_deferred_message_waits",
                deferrals_that_are_lag: broken::looking::Keeps(broken::deferring::that_are_releases) => "statistics::a_deferred_message_is_no_lag",
                deferrals_by_nothing_that_are_releases: broken::looking::Keeps(broken::deferring::of_nothing_that_are_releases) => "defer::a_deferral_by_nothing_is_due_at_once",
                deferrals_by_a_second_at_least: broken::OtherDeferrals(broken::at_least_a_second) => "defer::a_deferral_by_nothing_is_due_at_once",
                deferrals_that_are_retries: broken::looking::Keeps(broken::deferring::that_are_retries) => "defer::a_deferral_does_not_count",
                deferrals_without_errors: broken::looking::Keeps(broken::deferring::without_errors) => "defer::the_error_of_a_deferral_is_kept",
                deferrals_that_clear_the_error: broken::looking::Keeps(broken::deferring::that_clear_the_error) => "defer::the_error_of_a_deferral_is_kept",
                deferrals_with_short_errors: broken::looking::Shows(broken::looking::short_errors) => "defer::errors_of_deferrals_are_cut",
                deferrals_known_to_the_process: broken::deferring::KnownToTheProcess::default() => "defer::a_deferral_waits_for_every_process",
                deferrals_only_in_time: broken::deferring::OnlyInTime => "defer::a_lease_that_ran_out_can_be_deferred",
                deferrals_early: broken::OtherDeferrals(broken::early) => "moments::a_deferral_ends_when_it_should",
                deferrals_in_whole_seconds: broken::OtherDeferrals(broken::in_seconds) => "moments::a_deferral_ends_when_it_should",
                deferrals_by_an_hour_at_most: broken::OtherDeferrals(broken::capped) => "moments::a_deferral_ends_when_it_should",
                deferrals_that_are_overtaken: broken::Overtakes => "ordering::a_deferral_is_not_overtaken",
                deferrals_with_due_when_accepted: broken::looking::Shows(broken::looking::due_when_accepted) => "begin::a_deferral_is_busy_until_due",
                deferrals_by_whatever_lease: broken::UnfencedSettle::default() => "fencing::a_stale_deferral_changes_nothing",
                one_outcome_for_a_batch: broken::OneOutcome => "fencing::outcomes_of_one_batch_are_each_done",
                replays_untold: broken::claiming::ReplaysToldOf(0)
                    => "replay::a_lease_tells_how_often_its_message_was_replayed",
                replays_untold_inline: broken::claiming::ReplaysUntoldInline
                    => "replay::a_lease_tells_how_often_its_message_was_replayed",
                replays_of_the_first_only: broken::claiming::ReplaysToldOf(1)
                    => "runs::each_of_a_run_tells_its_replays",
                runs_unasked: broken::runs::OtherRunLimits(|limit| limit.max(2)) => "runs::who_does_not_ask_gets_one_at_a_time",
                runs_of_one: broken::runs::OtherRunLimits(|_| 1) => "runs::who_asks_gets_the_order",
                runs_without_a_limit: broken::runs::OtherRunLimits(|_| 100) => "runs::a_run_keeps_to_both_limits",
                runs_backwards: broken::runs::RunsInOrderOf(|leased| leased.reverse()) => "runs::who_asks_gets_the_order",
                runs_mixed: broken::runs::RunsInOrderOf(|leased| leased.sort_by_key(|one| one.lease.locator))
                    => "runs::runs_stand_together",
                runs_revived_from_their_first_only: broken::runs::RevivesTheFirstOnly::default()
                    => "runs::any_of_a_run_that_ran_out_can_be_revived",
                a_list_of_the_dead_that_only_grows: broken::inconsistent::DeadStayListed::default()
                    => "invariants::what_is_kept_twice_agrees_after_every_step",
                a_list_of_the_dead_with_what_was_replayed: broken::inconsistent::DeadStayListed::default()
                    => "replay::a_replay_resets_the_attempts",
            }
        }
    };
}
pub(crate) use table;
