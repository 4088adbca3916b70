//! Leases: they hide a message, and they end.

use std::time::{Duration, SystemTime};

use inbox_api::{
    Edit, ErrorKind, Extended, Filter, LeaseTerms, Outcome, State, StoreExt, WorkerName,
};

use crate::{
    check::{CaseResult, Unmet, ensure, same},
    test_inbox::{Context, HANDLER, LONG, dead, ids, message, numbered, processed, retry, terms},
    times::about,
};

pub(crate) async fn a_lease_hides_its_message(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let leased = inbox.claim_one().await?;
    inbox.nothing_due("its only message is leased").await?;
    let record = inbox.record(sent.key()).await?;
    same("state", &record.state, &State::Leased)?;
    same(
        "worker",
        &record.worker,
        &Some(WorkerName::new("worker-1")?),
    )?;
    same(
        "end of the lease",
        &record.lease_until,
        &Some(leased.lease.until),
    )
}

/// Defect: no recovery of messages whose worker vanished.
pub(crate) async fn a_vanished_worker_gives_its_message_back(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    inbox.claim_single(inbox.brief()).await?;
    inbox.nothing_due("the lease has not run out").await?;
    inbox.pass(inbox.brief()).await?;
    same(
        "claimed",
        &ids(&inbox.claim_up_to(10, LONG).await?),
        &vec!["1".into()],
    )
}

pub(crate) async fn a_lease_that_ran_out_is_shown_as_pending(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    let record = inbox.record(sent.key()).await?;
    same("state by get", &record.state, &State::Pending)?;
    let with = |state| Filter {
        states: vec![state],
        ..Filter::default()
    };
    same(
        "count of pending",
        &inbox.count(&with(State::Pending)).await?,
        &1,
    )?;
    same(
        "count of leased",
        &inbox.count(&with(State::Leased)).await?,
        &0,
    )?;
    let page = inbox_api::Page::first(10);
    same(
        "listed as pending",
        &inbox
            .list(&with(State::Pending), &page)
            .await?
            .records
            .len(),
        &1,
    )?;
    same(
        "listed as leased",
        &inbox.list(&with(State::Leased), &page).await?.records.len(),
        &0,
    )?;
    let statistics = inbox.statistics().await?;
    same(
        "pending in the statistics",
        &statistics.count(State::Pending),
        &1,
    )?;
    same(
        "leased in the statistics",
        &statistics.count(State::Leased),
        &0,
    )
}

pub(crate) async fn a_lease_that_ran_out_has_no_end(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let leased = inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    let page = inbox_api::Page::first(10);
    let listing = inbox.list(&Filter::default(), &page).await?;
    let mut shown: Vec<_> = listing.records.into_iter().collect();
    shown.push(inbox.record(sent.key()).await?);
    for record in &shown {
        same(
            "end of the lease and who held it, when it has run out",
            &(record.lease_until, &record.worker),
            &(None, &Some(crate::test_inbox::worker()?)),
        )?;
    }
    same("records listed", &(shown.len() - 1), &1)?;
    // It is still the newest, and can be revived.
    let revived = inbox.extend_one(&leased.lease, LONG).await?;
    let until = inbox.record(sent.key()).await?.lease_until;
    same(
        "end of the lease, revived",
        &until.map(Extended::Until),
        &Some(revived),
    )
}

/// Defect: one worker's lost heartbeat frees everything, or nothing.
pub(crate) async fn leases_run_out_one_by_one(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_all(&numbered(3)?).await?;
    inbox.claim_single(LONG * 10).await?;
    inbox.claim_single(inbox.brief()).await?;
    inbox.claim_single(LONG * 10).await?;
    inbox.pass(inbox.brief()).await?;
    same(
        "claimed",
        &ids(&inbox.claim_up_to(10, LONG).await?),
        &vec!["00002".into()],
    )
}

pub(crate) async fn an_extension_lengthens_the_lease(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    let leased = inbox.claim_single(inbox.brief()).await?;
    let answer = inbox.extend_one(&leased.lease, LONG * 10).await?;
    let until = inbox.record(&leased.lease.key).await?.lease_until;
    same("answer", &Some(answer), &until.map(Extended::Until))?;
    inbox.pass(inbox.brief()).await?;
    inbox.nothing_due("its lease was extended").await?;
    inbox.finish(&leased, processed()).await
}

pub(crate) async fn an_extension_can_shorten_the_lease(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    let leased = inbox.claim_single(LONG * 10).await?;
    let _ = inbox.extend_one(&leased.lease, inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    same(
        "claimed",
        &ids(&inbox.claim_up_to(10, LONG).await?),
        &vec!["1".into()],
    )
}

pub(crate) async fn an_extension_revives_an_unclaimed_lease(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    let leased = inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    let answer = inbox.extend_one(&leased.lease, LONG).await?;
    ensure!(
        matches!(answer, Extended::Until(_)),
        "extending a lease that ran out unclaimed: expected Until, saw {answer:?}"
    );
    inbox.nothing_due("its lease was revived").await?;
    inbox.finish(&leased, processed()).await
}

pub(crate) async fn a_settled_lease_cannot_be_extended(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_all(&numbered(2)?).await?;
    let leased = inbox.claim_up_to(2, LONG).await?;
    for (leased, outcome) in leased.iter().zip([processed(), retry(LONG)]) {
        inbox.finish(leased, outcome).await?;
        let answer = inbox.extend_one(&leased.lease, LONG).await?;
        same("extending after settling", &answer, &Extended::LeaseLost)?;
    }
    Ok(())
}

pub(crate) async fn extensions_are_answered_one_by_one(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_all(&numbered(3)?).await?;
    let leased = inbox.claim_up_to(3, LONG).await?;
    if let Some(second) = leased.get(1) {
        inbox.finish(second, processed()).await?;
    }
    let leases: Vec<_> = leased.iter().map(|l| l.lease.clone()).collect();
    let answers = inbox.extend(&leases, LONG).await?;
    let lost: Vec<bool> = answers.iter().map(|a| *a == Extended::LeaseLost).collect();
    same(
        "answers that are LeaseLost",
        &lost,
        &vec![false, true, false],
    )
}

/// Defect: a batch taken for a set, so that the second of two equal leases is lost, or fails it.
pub(crate) async fn a_lease_that_is_named_twice_is_extended(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_all(&numbered(2)?).await?;
    let leased = inbox.claim_up_to(2, LONG).await?;
    let leases: Vec<_> = leased.iter().map(|l| l.lease.clone()).collect();
    let twice = [leases[0].clone(), leases[1].clone(), leases[0].clone()];
    let answers = inbox.extend(&twice, 2 * LONG).await?;
    ensure!(
        answers.len() == 3
            && answers[0] == answers[2]
            && answers.iter().all(|a| matches!(a, Extended::Until(_))),
        "extending two leases, the first of them twice: expected three new ends, saw {answers:?}"
    );
    inbox.finish(&leased[0], processed()).await
}

pub(crate) async fn lengths_out_of_range_are_invalid(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    let leased = inbox.claim_one().await?;
    for length in [
        Duration::ZERO,
        Duration::from_micros(999),
        LeaseTerms::MAX + Duration::from_nanos(1),
        Duration::MAX,
    ] {
        let Err(error) = inbox.extend_one(&leased.lease, length).await else {
            return Err(Unmet::Failed(format!(
                "extending for {length:?}: expected an error, saw an answer"
            )));
        };
        same("kind of the error", &error.kind(), &ErrorKind::Invalid)?;
    }
    let until = inbox.record(&leased.lease.key).await?.lease_until;
    same(
        "end of the lease after refused extensions",
        &until,
        &Some(leased.lease.until),
    )?;
    for length in [LeaseTerms::MAX, LeaseTerms::MIN] {
        let answer = inbox.extend_one(&leased.lease, length).await?;
        ensure!(
            answer != Extended::LeaseLost,
            "extending for {length:?}: saw LeaseLost"
        );
    }
    Ok(())
}

pub(crate) async fn each_lease_has_its_own_length(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let now = inbox.now().await?;
    inbox.accept_all(&numbered(2)?).await?;
    for length in [LONG, LONG * 60] {
        let leased = inbox.claim_single(length).await?;
        about(
            &format!("end of a lease of {length:?}"),
            leased.lease.until,
            now + length,
        )?;
    }
    Ok(())
}

pub(crate) async fn a_claim_serves_several_handlers(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for (handler, id) in [("a", "1"), ("b", "2"), ("c", "3"), ("a", "4")] {
        inbox
            .accept(&crate::test_inbox::message_for(handler, id)?)
            .await?;
    }
    let request = inbox_api::ClaimRequest {
        handlers: ["a", "b"]
            .into_iter()
            .map(inbox_api::HandlerName::new)
            .collect::<Result<_, _>>()?,
        limit: 10,
        terms: terms(LONG)?,
        run_limit: 1,
    };
    let claims = inbox_api::Store::claim(&*inbox.store, &request).await?;
    let mut claimed = ids(&claims.leased);
    claimed.sort();
    same(
        "claimed for a and b",
        &claimed,
        &vec!["1".into(), "2".into(), "4".into()],
    )
}

pub(crate) async fn a_handler_named_twice_is_one(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_all(&numbered(5)?).await?;
    let handler = inbox_api::HandlerName::new(HANDLER)?;
    let mut claimed = Vec::new();
    for expected in [3, 2, 0] {
        let request = inbox_api::ClaimRequest {
            handlers: vec![handler.clone(); 3],
            limit: 3,
            terms: terms(LONG)?,
            run_limit: 1,
        };
        let claims = inbox_api::Store::claim(&*inbox.store, &request).await?;
        same(
            "how many a claim of 3 took that names one handler three times",
            &claims.leased.len(),
            &expected,
        )?;
        claimed.extend(ids(&claims.leased));
    }
    let expected: Vec<_> = numbered(5)?.iter().map(|m| m.id().to_string()).collect();
    same("claimed in all", &claimed, &expected)
}

pub(crate) async fn a_claim_keeps_to_its_limit(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_all(&numbered(5)?).await?;
    same(
        "first",
        &ids(&inbox.claim_up_to(2, LONG).await?),
        &vec!["00001".into(), "00002".into()],
    )?;
    same(
        "then",
        &ids(&inbox.claim_up_to(2, LONG).await?),
        &vec!["00003".into(), "00004".into()],
    )?;
    same(
        "last",
        &ids(&inbox.claim_up_to(2, LONG).await?),
        &vec!["00005".into()],
    )
}

pub(crate) async fn a_length_is_checked_without_a_lease(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for length in [Duration::ZERO, LeaseTerms::MAX + Duration::from_nanos(1)] {
        let kind = inbox.extend(&[], length).await.err().map(|e| e.kind());
        same(
            &format!("error of extending no leases for {length:?}"),
            &kind,
            &Some(ErrorKind::Invalid),
        )?;
    }
    same(
        "extending no leases",
        &inbox.extend(&[], LONG).await?,
        &Vec::new(),
    )
}

pub(crate) async fn a_record_shows_when_it_was_leased(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    let leased_at = async || -> CaseResult<Option<SystemTime>> {
        Ok(inbox.record(sent.key()).await?.leased_at)
    };
    inbox.accept(&sent).await?;
    same(
        "leased_at before the first claim",
        &leased_at().await?,
        &None,
    )?;
    inbox.pass(inbox.brief()).await?;
    let now = inbox.now().await?;
    let leased = inbox.claim_one().await?;
    let first = leased_at().await?;
    about("leased_at", first, now)?;
    let extended = inbox.extend_one(&leased.lease, 2 * LONG).await?;
    ensure!(
        matches!(extended, Extended::Until(_)),
        "extend: expected a new end, saw {extended:?}"
    );
    same(
        "leased_at of an extended lease",
        &leased_at().await?,
        &first,
    )?;
    inbox.finish(&leased, Outcome::Release).await?;
    same("leased_at after a release", &leased_at().await?, &first)?;
    inbox.pass(inbox.brief()).await?;
    let now = inbox.now().await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, dead("gave up")).await?;
    let second = leased_at().await?;
    about("leased_at of a second lease", second, now)?;
    ensure!(
        second > first,
        "leased_at of a second lease: expected it later than {first:?}, saw {second:?}"
    );
    let _ = inbox.replay(sent.key(), &Edit::default()).await?;
    same("leased_at after a replay", &leased_at().await?, &second)?;
    inbox.claim_single(inbox.brief()).await?;
    let third = leased_at().await?;
    inbox.pass(inbox.brief()).await?;
    same(
        "leased_at after a lease that ran out",
        &leased_at().await?,
        &third,
    )?;
    let _ = inbox.discard(sent.key()).await?;
    same("leased_at after a discard", &leased_at().await?, &third)
}
