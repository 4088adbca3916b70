//! Those of what operators tell a store to keep, to put off, to stop and to forget.

/// Adds them to the table, and hands it to the macro that it is for.
macro_rules! operators {
    ($callback:ident waits { $($waits:tt)* } at_once { $($at_once:tt)* }) => {
        $callback! {
            waits {
                $($waits)*
            }
            at_once {
                $($at_once)*
                history_with_repetitions: broken::history::keeps_repetitions()
                    => "history::a_repetition_adds_nothing",
                history_without_end: broken::history::keeps(broken::history::all)
                    => "history::the_newest_are_kept",
                history_of_the_oldest: broken::history::keeps(broken::history::the_oldest)
                    => "history::the_newest_are_kept",
                history_that_outlives_its_key: broken::history::keeps(broken::history::all)
                    => "history::it_goes_with_its_key",
                history_that_goes_with_a_replay: broken::looking::Shows(broken::history::of_this_life)
                    => "history::it_outlives_replays_and_edits",
                history_with_the_replays_of_now: broken::looking::Shows(broken::history::with_the_replays_of_now)
                    => "history::it_outlives_replays_and_edits",
                history_that_goes_with_a_discard: broken::looking::Shows(broken::history::not_of_the_discarded)
                    => "history::it_outlives_a_discard_and_its_payload",
                history_that_goes_with_the_payload: broken::looking::Shows(broken::history::not_without_payload)
                    => "history::it_outlives_a_discard_and_its_payload",
                history_with_the_processed: broken::looking::Shows(broken::history::with_the_processed)
                    => "history::what_has_no_error_is_not_kept",
                interventions_forgotten: broken::looking::Shows(broken::history::without_interventions)
                    => "history::signed_interventions_are_kept",
                interventions_latest_first: broken::looking::Shows(broken::history::latest_intervention_first)
                    => "history::signed_interventions_are_kept",
                interventions_that_call_edits_replays: broken::looking::Shows(broken::history::edits_as_replays)
                    => "history::signed_interventions_are_kept",
                interventions_until_the_next_attempt: broken::looking::Shows(broken::history::until_the_next_attempt)
                    => "history::signed_interventions_are_kept",
                interventions_of_unsigned_handles: broken::history::SignsAnyway
                    => "history::unsigned_and_refused_ones_are_not",
                history_without_deferrals: broken::looking::Shows(broken::history::without_deferrals)
                    => "history::errors_are_kept_in_order",
                history_without_the_dead: broken::looking::Shows(broken::history::without_the_dead)
                    => "history::errors_are_kept_in_order",
                history_numbered_after_the_deferral: broken::looking::Shows(broken::history::numbered_after_the_deferral)
                    => "history::errors_are_kept_in_order",
                history_with_the_last_worker: broken::looking::Shows(broken::history::with_the_last_worker)
                    => "history::errors_are_kept_in_order",
                history_of_no_length: broken::looking::Shows(broken::history::in_no_time)
                    => "history::errors_are_kept_in_order",
                history_newest_first: broken::looking::Shows(broken::history::newest_first)
                    => "history::errors_are_kept_in_order",
                history_numbered_by_place: broken::looking::Shows(broken::history::numbered_by_place)
                    => "history::a_crash_is_a_missing_number",
                history_with_whole_errors: broken::looking::Shows(broken::history::with_whole_errors)
                    => "history::long_errors_are_cut",
                history_by_whatever_lease: broken::UnfencedSettle::default()
                    => "history::a_stale_settlement_adds_nothing",
                history_of_another_in_the_batch: broken::history::ShiftedInABatch::default()
                    => "history::each_of_a_batch_has_its_own",
                history_of_claims_alone: broken::history::NotInline::default()
                    => "history::inline_attempts_are_kept",
                listing_with_history_always: broken::history::Lists { always: true }
                    => "history::listings_have_it_with_payloads",
                listing_with_history_never: broken::history::Lists { always: false }
                    => "history::listings_have_it_with_payloads",
                archive_without_history: broken::history::ExpiredWithout
                    => "history::listings_have_it_with_payloads",
                leased_at_of_an_extension: broken::history::LeasedWhenExtended::default()
                    => "leases::a_record_shows_when_it_was_leased",
                leased_at_of_the_first_lease: broken::history::LeasedOnce::default()
                    => "leases::a_record_shows_when_it_was_leased",
                leased_at_that_ends_with_the_lease: broken::looking::Shows(broken::history::leased_while_it_is)
                    => "leases::a_record_shows_when_it_was_leased",
                leased_at_before_a_lease: broken::looking::Shows(broken::history::leased_from_the_start)
                    => "leases::a_record_shows_when_it_was_leased",
                differs_never: broken::telling::Differs(false)
                    => "fingerprints::a_duplicate_says_whether_it_differs",
                differs_always: broken::telling::Differs(true)
                    => "fingerprints::a_duplicate_says_whether_it_differs",
                fingerprint_without_the_kind: broken::telling::Fingerprints(broken::telling::of_the_payload)
                    => "fingerprints::a_duplicate_says_whether_it_differs",
                fingerprint_of_the_headers: broken::telling::Fingerprints(broken::telling::of_the_headers)
                    => "fingerprints::a_duplicate_says_whether_it_differs",
                fingerprint_that_was_given_and_ignored: broken::telling::Fingerprints(broken::telling::of_the_content)
                    => "fingerprints::a_given_fingerprint_decides",
                fingerprint_in_a_float: broken::telling::Fingerprints(broken::telling::in_a_float)
                    => "fingerprints::a_given_fingerprint_decides",
                copies_of_a_batch_that_are_not_compared: broken::telling::BatchesAreNotCompared
                    => "fingerprints::a_batch_is_compared_with_its_first_copy",
                edit_that_loses_the_fingerprint: broken::telling::EditsAreAccepted::default()
                    => "fingerprints::it_outlives_edits_and_payloads",
                begin_that_loses_the_fingerprint: broken::telling::BegunFingerprints(broken::telling::of_the_content)
                    => "fingerprints::begin_keeps_it",
                edit_without_headers: broken::telling::Edits(broken::telling::without_headers)
                    => "edits::headers_are_replaced_whole",
                edit_that_merges_headers: broken::telling::Edits(broken::telling::with_the_old_headers)
                    => "edits::headers_are_replaced_whole",
                edit_to_no_headers_that_edits_nothing: broken::telling::Edits(broken::telling::with_some_headers)
                    => "edits::headers_can_be_taken_away",
                edit_of_the_payload_that_clears_headers: broken::telling::Edits(broken::telling::with_no_other_headers)
                    => "edits::what_is_not_edited_stays",
                edit_of_headers_without_a_payload: broken::telling::EmptyForDropped
                    => "edits::a_refused_edit_changes_nothing",
                pause_forgotten: broken::pausing::PauseForgotten
                    => "pauses::a_pause_stops_claims",
                pause_of_all_handlers: broken::pausing::PauseOfAll
                    => "pauses::a_pause_stops_claims",
                pause_forgotten_when_a_lease_runs_out: broken::pausing::PauseForgotten
                    => "pauses::a_lease_that_runs_out_stays_paused",
                pause_of_one_process: broken::pausing::PauseOfTheProcess::default()
                    => "pauses::every_process_is_paused",
                pause_that_stops_begin: broken::pausing::PauseStopsBegin
                    => "pauses::all_but_claims_go_on",
                pauses_the_wrong_way_round: broken::pausing::PausedTheWrongWayRound
                    => "pauses::pauses_are_listed_and_can_be_repeated",
                pause_that_fails_the_second_time: broken::pausing::PauseOnce
                    => "pauses::pauses_are_listed_and_can_be_repeated",
                pause_that_folds_case: broken::pausing::PauseFoldsCase
                    => "pauses::pauses_are_listed_and_can_be_repeated",
                pause_that_needs_messages: broken::pausing::PauseWithMessages
                    => "pauses::pauses_are_listed_and_can_be_repeated",
                pause_that_ends_with_a_clearing: broken::pausing::ClearResumes
                    => "pauses::a_pause_outlives_its_messages",
                pause_that_does_not_show: broken::pausing::PauseInStatistics { shows: false, lags: true }
                    => "pauses::statistics_show_it",
                pause_that_is_no_lag: broken::pausing::PauseInStatistics { shows: true, lags: false }
                    => "pauses::statistics_show_it",
                resume_without_a_word: broken::pausing::PauseOfTheProcess::default()
                    => "pauses::a_resume_wakes",
                reschedule_that_replays: broken::rescheduling::RescheduleReplays
                    => "rescheduling::later_and_sooner",
                reschedule_by_half: broken::rescheduling::Reschedules(broken::rescheduling::by_half)
                    => "rescheduling::it_comes_when_it_should",
                reschedule_to_the_second: broken::rescheduling::Reschedules(broken::rescheduling::to_the_second)
                    => "rescheduling::a_moment_is_kept_to_the_microsecond",
                reschedule_of_no_retries: broken::rescheduling::RescheduleOnlyFirst
                    => "rescheduling::a_retry_can_be_brought_forward",
                reschedule_of_what_is_leased: broken::rescheduling::RescheduleSaysDone
                    => "rescheduling::only_pending_messages_are_rescheduled",
                reschedule_that_leaves_leases: broken::rescheduling::RescheduleLeavesLeases
                    => "rescheduling::a_lease_that_ran_out_is_lost",
                reschedule_that_means_the_dead: broken::rescheduling::RescheduleMeansDead
                    => "rescheduling::slices_reschedule_what_is_pending",
                reschedule_of_other_handlers: broken::rescheduling::RescheduleForgets(|filter| filter.handler = None)
                    => "rescheduling::slices_reschedule_what_is_pending",
                reschedule_of_other_ids: broken::rescheduling::RescheduleForgets(|filter| filter.ids.clear())
                    => "filters::a_reschedule_changes_what_its_filter_lists",
                reschedule_of_other_correlation_ids: broken::rescheduling::RescheduleForgets(|filter| filter.correlation_id = None)
                    => "filters::a_reschedule_changes_what_its_filter_lists",
                reschedule_of_other_due_times: broken::rescheduling::RescheduleForgets(|filter| filter.due_later_than = None)
                    => "filters::a_reschedule_changes_what_its_filter_lists",
                ids_forgotten: broken::rescheduling::CountForgets(|filter| filter.ids.clear())
                    => "selection::by_ids",
                correlation_id_forgotten: broken::rescheduling::CountForgets(|filter| filter.correlation_id = None)
                    => "selection::by_correlation_id",
                attempts_forgotten: broken::rescheduling::CountForgets(|filter| filter.min_started = None)
                    => "selection::by_attempts",
                most_attempts_forgotten: broken::rescheduling::CountForgets(|filter| filter.max_started = None)
                    => "selection::by_attempts",
                blocking_forgotten: broken::rescheduling::CountForgets(|filter| filter.blocking = false)
                    => "selection::by_what_blocks",
                reschedule_of_what_blocks_nothing: broken::rescheduling::RescheduleForgets(|filter| filter.blocking = false)
                    => "filters::a_reschedule_changes_what_its_filter_lists",
                schedule_forgotten: broken::rescheduling::CountForgets(broken::rescheduling::scheduled_is_all)
                    => "selection::by_due_time",
                due_time_forgotten: broken::rescheduling::CountForgets(|filter| filter.due_within = None)
                    => "selection::by_due_time",
                time_of_the_end_forgotten: broken::rescheduling::CountForgets(|filter| filter.finished_longer_ago = None)
                    => "selection::by_time_of_the_end",
                end_within_forgotten: broken::rescheduling::CountForgets(|filter| filter.finished_within = None)
                    => "selection::by_time_of_the_end",
                error_type_forgotten: broken::rescheduling::CountForgets(|filter| filter.error_type = None)
                    => "selection::by_error_type",
                error_type_anywhere: broken::rescheduling::CountForgets(broken::rescheduling::types_anywhere)
                    => "selection::by_error_type",
                purge_of_all_handlers: broken::retaining::Retains(broken::retaining::Of::Purge, broken::retaining::of_all_handlers)
                    => "dropping::a_purge_of_a_handler_leaves_the_others",
                expired_of_all_handlers: broken::retaining::Retains(broken::retaining::Of::Expired, broken::retaining::of_all_handlers)
                    => "dropping::a_purge_of_a_handler_leaves_the_others",
                archived_of_all_handlers: broken::retaining::Retains(broken::retaining::Of::Archived, broken::retaining::of_all_handlers)
                    => "dropping::the_archived_of_a_handler_are_purged",
                payloads_dropped_of_all_handlers: broken::retaining::Retains(broken::retaining::Of::Drop, broken::retaining::of_all_handlers)
                    => "dropping::only_what_is_asked_for_is_dropped",
                payloads_dropped_at_any_age: broken::retaining::Retains(broken::retaining::Of::Drop, broken::retaining::of_any_age)
                    => "dropping::a_payload_stays_until_its_age",
                payloads_dropped_with_their_keys: broken::retaining::DropPurges
                    => "dropping::a_dropped_payload_leaves_the_rest",
                payloads_dropped_again_and_again: broken::retaining::DropRescans
                    => "dropping::the_longest_finished_go_first_and_once",
                purge_in_slices_that_denies_the_first: broken::retaining::PurgesInSlices
                    => "outage::a_purge_that_it_cuts_short_says_so",
                clearing_that_takes_leased: broken::retaining::ClearTakesLeased::default()
                    => "clearing::all_but_leased_ones_go",
                clearing_that_leaves_the_history: broken::retaining::ClearLeavesHistory
                    => "clearing::all_but_leased_ones_go",
                clearing_of_other_handlers: broken::retaining::ClearTakesOthers
                    => "clearing::all_but_leased_ones_go",
                clearing_without_a_limit: broken::retaining::ClearSlices(broken::retaining::at_once, broken::retaining::as_it_is)
                    => "clearing::all_but_leased_ones_go",
                clearing_that_ends_early: broken::retaining::ClearSlices(broken::retaining::as_asked, broken::retaining::to_the_end)
                    => "clearing::all_but_leased_ones_go",
                removal_of_nothing: broken::schema::SetsUp(broken::schema::Mistake::RemovesNothing)
                    => "clearing::a_removed_inbox_is_gone",
                removal_that_is_seen: broken::schema::SetsUp(broken::schema::Mistake::RemovalIsSeen)
                    => "clearing::a_removal_can_be_watched",
                removal_that_needs_an_inbox: broken::schema::SetsUp(broken::schema::Mistake::RemoveNeedsAnInbox)
                    => "clearing::whatever_is_this_builds_is_removed",
                removal_of_what_is_newer: broken::schema::SetsUp(broken::schema::Mistake::RemovesAnything)
                    => "clearing::what_is_newer_is_not_removed",
                removal_of_what_is_foreign: broken::schema::SetsUp(broken::schema::Mistake::RemovesAnything)
                    => "clearing::what_is_foreign_is_not_removed",
                query_that_says_nothing: broken::schema::SetsUp(broken::schema::Mistake::NoStatements)
                    => "clearing::the_query_is_text",
            }
        }
    };
}
pub(crate) use operators;
