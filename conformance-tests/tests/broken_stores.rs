//! The suite is tested itself: each broken store must be caught by the case that names its
//! defect, and the same wrapper without a defect must pass everything.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests are tests as well"
)]

mod broken;

use std::sync::Arc;

use broken::{Correct, Defect, Workshop};
use conformance_tests::{Harness, Verdict, run};

fn workshop<D: Defect>(name: &'static str, defect: fn() -> D) -> Arc<dyn Harness> {
    Arc::new(Workshop { name, defect })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_correct_store_passes_everything() {
    let report = run(workshop("correct", || Correct), "").await;
    assert!(report.is_conformant(), "{report}");
    assert!(report.passed > 200, "{report}");
}

/// The case that names the defect fails. What else does is of no interest.
async fn is_caught(harness: Arc<dyn Harness>, id: &str) {
    let report = run(harness, id).await;
    let case = report
        .cases
        .iter()
        .find(|case| format!("{}::{}", case.group, case.name) == id)
        .unwrap_or_else(|| panic!("there is no case {id}"));
    assert!(
        matches!(&case.verdict, Verdict::Failed { seen } if !seen.is_empty()),
        "{id} did not catch the broken store\n{report}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_finds_a_short_sequence_and_its_seed() {
    // Begin and settle, or receive, claim and settle: nothing shorter shows the defect. A single
    // search can end at a detour, of which each step is needed beside the others, and a single
    // round of sequences can miss the defect; ten cannot.
    let mut found = Vec::new();
    for _ in 0..10 {
        let report = run(workshop("retry at once", || broken::RetryAtOnce), "model::").await;
        if let Some(Verdict::Failed { seen }) = report.cases.first().map(|case| &case.verdict) {
            assert!(seen.contains("INBOX_CONFORMANCE_SEED="), "{seen}");
            let steps = seen
                .lines()
                .filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
            if (2..=3).contains(&steps.count()) {
                return;
            }
            found.push(seen.clone());
        }
    }
    panic!(
        "no short sequence for the broken store\n{}",
        found.join("\n\n")
    );
}

macro_rules! caught {
    ($($test:ident: $defect:expr => $id:literal,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                is_caught(workshop(stringify!($test), || $defect), $id).await;
            }
        )*

        /// A case is renamed or removed together with what is proven by it.
        #[test]
        fn there_are_enough_broken_stores() {
            let ids = [$($id,)*];
            assert!(ids.len() >= 60, "{ids:?}");
        }
    };
}

caught! {
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
