use super::*;
use inbox_api::{Edit, HandlerName, MessageId};

const START: i64 = 1_000_000;

fn token(number: i64) -> FencingToken {
    FencingToken::new(number)
}

fn terms() -> LeaseTerms {
    LeaseTerms::new(Duration::from_micros(1_000), WorkerName::new("w").unwrap()).unwrap()
}

fn message() -> Message {
    Message::new(
        HandlerName::new("h").unwrap(),
        MessageId::new("1").unwrap(),
        Kind::new("k").unwrap(),
        "payload",
    )
    .with_ordering_key(OrderingKey::new("o").unwrap())
}

fn pending() -> Entry {
    Entry::accept(7, &message(), START)
}

/// Leased at `START` under token 5, until `START + 1_000`.
fn leased() -> Entry {
    let mut entry = pending();
    let _lease = entry.lease(token(5), &terms(), START);
    entry
}

fn settled(outcome: &Outcome) -> Entry {
    let mut entry = leased();
    assert_eq!(
        entry.settle(token(5), outcome, false, START + 10),
        Settled::Done
    );
    entry
}

fn processed() -> Entry {
    settled(&Outcome::Processed {
        result: Some(Bytes::from_static(b"result")),
    })
}

fn dead(after: AfterDead) -> Entry {
    settled(&Outcome::Dead {
        reason: "poison".into(),
        after,
    })
}

fn discarded() -> Entry {
    let mut entry = pending();
    assert_eq!(
        entry.discard(token(0), None, START + 10),
        Intervention::Done
    );
    entry
}

#[test]
fn a_lease_counts_the_attempt_and_runs_out() {
    let mut entry = pending();
    let lease = entry.lease(token(5), &terms(), START);
    assert_eq!(lease.lease.token, token(5));
    assert_eq!(lease.lease.locator, 7);
    assert_eq!(lease.lease.until, from_micros(START + 1_000));
    assert_eq!(lease.message, message());
    assert_eq!((lease.attempts.started, lease.attempts.finished), (1, 0));
    assert_eq!(entry.visible_state(START + 999), State::Leased);
    assert_eq!(entry.visible_state(START + 1_000), State::Pending);
    assert_eq!(
        entry.standing,
        Standing::Leased {
            until: START + 1_000
        }
    );
}

#[test]
fn processed_keeps_the_result_and_the_last_error() {
    let mut entry = settled(&Outcome::Retry {
        after: Duration::ZERO,
        error: "first".into(),
    });
    let _lease = entry.lease(token(6), &terms(), START + 20);
    let outcome = Outcome::Processed {
        result: Some(Bytes::from_static(b"r")),
    };
    assert_eq!(
        entry.settle(token(6), &outcome, false, START + 30),
        Settled::Done
    );
    assert_eq!(entry.final_state(), Some((State::Processed, START + 30)));
    assert_eq!(entry.result(), Some(Bytes::from_static(b"r")));
    assert_eq!(entry.last_error.as_deref(), Some("first"));
    assert_eq!((entry.attempts.started, entry.attempts.finished), (2, 2));
    assert!(entry.payload.is_some());
}

#[test]
fn a_payload_is_dropped_only_after_processing() {
    let retry = Outcome::Retry {
        after: Duration::ZERO,
        error: String::new(),
    };
    let mut entry = leased();
    assert_eq!(entry.settle(token(5), &retry, true, START), Settled::Done);
    assert!(entry.payload.is_some());
    let mut entry = leased();
    let done = Outcome::Processed { result: None };
    assert_eq!(entry.settle(token(5), &done, true, START), Settled::Done);
    assert_eq!(entry.payload, None);
    assert_eq!(entry.record(true, START).payload_bytes, None);
}

#[test]
fn retry_waits_and_keeps_the_error() {
    let entry = settled(&Outcome::Retry {
        after: Duration::from_micros(500),
        error: "later\0".into(),
    });
    assert_eq!(entry.standing, Standing::Pending);
    assert_eq!(entry.due_at, START + 510);
    assert_eq!(entry.last_error.as_deref(), Some("later "));
    assert_eq!((entry.attempts.started, entry.attempts.finished), (1, 1));
}

#[test]
fn the_longest_retry_does_not_overflow() {
    let entry = settled(&Outcome::Retry {
        after: Duration::MAX,
        error: String::new(),
    });
    assert!(entry.due_at > START);
}

#[test]
fn dead_blocks_only_when_told_to_and_with_an_ordering_key() {
    assert!(!dead(AfterDead::Continue).is_open());
    let entry = dead(AfterDead::Block);
    assert!(entry.is_open());
    assert_eq!(entry.last_error.as_deref(), Some("poison"));
    assert!(entry.record(false, START).blocks_ordering_key);

    let mut entry = leased();
    entry.ordering_key = None;
    let outcome = Outcome::Dead {
        reason: "poison".into(),
        after: AfterDead::Block,
    };
    assert_eq!(
        entry.settle(token(5), &outcome, false, START),
        Settled::Done
    );
    assert!(!entry.is_open());
}

#[test]
fn release_takes_the_attempt_back_and_keeps_the_place() {
    let entry = settled(&Outcome::Release);
    assert_eq!(entry.standing, Standing::Pending);
    assert_eq!(entry.due_at, START);
    assert_eq!(entry.attempts, Attempts::default());
    assert_eq!(entry.worker, Some(WorkerName::new("w").unwrap()));
}

#[test]
fn defer_waits_and_takes_the_attempt_back() {
    let after = Duration::from_micros(500);
    let error = Some("no\0way".into());
    let entry = settled(&Outcome::Defer { after, error });
    assert_eq!(entry.standing, Standing::Pending);
    assert_eq!(entry.due_at, START + 510);
    assert_eq!(entry.attempts, Attempts::default());
    assert_eq!(entry.last_error.as_deref(), Some("no way"));

    let mut entry = leased();
    entry.last_error = Some("earlier".into());
    let forever = Outcome::Defer {
        after: Duration::MAX,
        error: None,
    };
    assert_eq!(entry.settle(token(5), &forever, true, START), Settled::Done);
    assert!(entry.due_at > START);
    assert_eq!(entry.last_error.as_deref(), Some("earlier"));
    assert!(entry.payload.is_some());
}

#[test]
fn settling_again_changes_nothing() {
    let mut entry = processed();
    let dead = Outcome::Dead {
        reason: "late".into(),
        after: AfterDead::Continue,
    };
    assert_eq!(
        entry.settle(token(5), &dead, false, START + 20),
        Settled::Done
    );
    assert_eq!(entry.final_state(), Some((State::Processed, START + 10)));
    assert_eq!(entry.last_error, None);
}

#[test]
fn a_lease_that_ran_out_can_be_settled_until_another_takes_it() {
    let done = Outcome::Processed { result: None };
    let mut entry = leased();
    assert_eq!(
        entry.settle(token(5), &done, false, START + 5_000),
        Settled::Done
    );
    assert_eq!(entry.final_state(), Some((State::Processed, START + 5_000)));

    let mut entry = leased();
    let _lease = entry.lease(token(6), &terms(), START + 5_000);
    assert_eq!(
        entry.settle(token(5), &done, false, START + 5_001),
        Settled::LeaseLost
    );
    assert_eq!(entry.visible_state(START + 5_001), State::Leased);
}

#[test]
fn extend_needs_the_lease_and_revives_it() {
    let length = Duration::from_micros(200);
    let mut entry = leased();
    assert_eq!(entry.extend(token(4), length, START), Extended::LeaseLost);
    assert_eq!(
        entry.extend(token(5), length, START + 5_000),
        Extended::Until(from_micros(START + 5_200))
    );
    assert_eq!(entry.visible_state(START + 5_100), State::Leased);
    assert_eq!(
        processed().extend(token(5), length, START),
        Extended::LeaseLost
    );
}

#[test]
fn replay_starts_a_final_entry_afresh() {
    for mut entry in [processed(), dead(AfterDead::Block), discarded()] {
        let old_token = entry.token;
        assert_eq!(
            entry.replay(&Edit::default(), None, START + 50),
            Intervention::Done
        );
        assert_eq!(entry.standing, Standing::Pending);
        assert_eq!(entry.due_at, START + 50);
        assert_eq!(entry.attempts, Attempts::default());
        assert_eq!(entry.last_error, None);
        assert_eq!(entry.result(), None);
        assert_eq!(entry.replays, 1);
        assert_eq!(entry.token, old_token);
        assert_eq!(entry.accepted_at, START);
    }
}

#[test]
fn replay_refuses_what_is_not_final() {
    assert_eq!(
        pending().replay(&Edit::default(), None, START),
        Intervention::WrongState(State::Pending)
    );
    assert_eq!(
        leased().replay(&Edit::default(), None, START),
        Intervention::WrongState(State::Leased)
    );
    assert_eq!(
        leased().replay(&Edit::default(), None, START + 1_000),
        Intervention::WrongState(State::Pending)
    );
}

#[test]
fn replay_needs_a_payload() {
    let mut entry = processed();
    entry.payload = None;
    assert_eq!(
        entry.replay(&Edit::default(), None, START),
        Intervention::PayloadDropped
    );
    assert!(entry.final_state().is_some());
    let payload = Bytes::from_static(b"new");
    let edit = Edit {
        payload: Some(payload.clone()),
        ..Edit::default()
    };
    assert_eq!(entry.replay(&edit, None, START), Intervention::Done);
    assert_eq!(entry.payload, Some(payload));
}

#[test]
fn discard_gives_up_pending_and_dead_only() {
    for mut entry in [pending(), dead(AfterDead::Block)] {
        let (old_token, old_error) = (entry.token, entry.last_error.clone());
        assert_eq!(
            entry.discard(token(9), None, START + 50),
            Intervention::Done
        );
        assert_eq!(entry.final_state(), Some((State::Discarded, START + 50)));
        assert_eq!(
            (entry.token, entry.last_error.clone()),
            (old_token, old_error)
        );
        assert!(!entry.is_open());
    }
    for (mut entry, state) in [
        (leased(), State::Leased),
        (processed(), State::Processed),
        (discarded(), State::Discarded),
    ] {
        assert_eq!(
            entry.discard(token(9), None, START + 50),
            Intervention::WrongState(state)
        );
    }
}

#[test]
fn discarding_a_lease_that_ran_out_fences_its_holder() {
    let mut entry = leased();
    assert_eq!(
        entry.discard(token(9), None, START + 1_000),
        Intervention::Done
    );
    let done = Outcome::Processed { result: None };
    assert_eq!(
        entry.settle(token(5), &done, false, START + 1_001),
        Settled::LeaseLost
    );
    assert_eq!(entry.visible_state(START + 1_001), State::Discarded);
}
