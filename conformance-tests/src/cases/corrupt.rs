//! A row that does not read back as what was written.

use inbox_api::{
    Begun, ClaimRequest, ErrorKind, Filter, Message, Page, PurgeRequest, State, Store,
};
use std::time::Duration;

use crate::{
    check::{CaseResult, Unmet, ensure, same},
    needs::Corruption,
    test_inbox::{Context, HANDLER, LONG, TestInbox, ids, numbered, processed, sequence, terms},
};

/// Three messages, the second of which is spoilt.
async fn spoilt(cx: &Context) -> CaseResult<(TestInbox, Vec<Message>)> {
    let inbox = cx.fresh().await?;
    let all = numbered(3)?;
    inbox.accept_all(&all).await?;
    inbox
        .fixture
        .corrupt(all[1].key(), Corruption::Headers)
        .await?;
    Ok((inbox, all))
}

async fn claim(inbox: &TestInbox) -> CaseResult<inbox_api::Claims> {
    let request = ClaimRequest {
        handlers: vec![inbox_api::HandlerName::new(HANDLER)?],
        limit: 10,
        terms: terms(LONG)?,
        run_limit: 1,
    };
    Ok(Store::claim(&*inbox.store, &request).await?)
}

/// One corrupt row is never a reason to stop the others.
pub(crate) async fn a_claim_sets_it_aside_and_goes_on(cx: Context) -> CaseResult {
    let (inbox, _) = spoilt(&cx).await?;
    let claims = claim(&inbox).await?;
    same(
        "claimed",
        &ids(&claims.leased),
        &vec!["00001".into(), "00003".into()],
    )?;
    same("reported as corrupt", &claims.corrupt.len(), &1)?;
    let dead = inbox.statistics().await?.count(State::Dead);
    same("dead in the statistics", &dead, &1)?;
    for leased in &claims.leased {
        inbox.finish(leased, processed()).await?;
    }
    same("reported again", &claim(&inbox).await?.corrupt.len(), &0)
}

pub(crate) async fn get_says_so(cx: Context) -> CaseResult {
    let (inbox, all) = spoilt(&cx).await?;
    let Err(error) = inbox.get(all[1].key()).await else {
        return Err(Unmet::Failed(
            "get of a corrupt row: expected an error, saw an answer".into(),
        ));
    };
    same("kind of the error", &error.kind(), &ErrorKind::Corrupt)?;
    inbox.has_state(all[0].key(), State::Pending).await
}

pub(crate) async fn a_listing_reports_it_with_the_others(cx: Context) -> CaseResult {
    let (inbox, _) = spoilt(&cx).await?;
    let listing = inbox.list(&Filter::default(), &Page::first(10)).await?;
    same(
        "records and corrupt rows",
        &(listing.records.len(), listing.corrupt.len()),
        &(2, 1),
    )?;
    let row = &listing.corrupt[0];
    ensure!(
        !row.place.is_empty() && !row.reason.is_empty(),
        "expected the corrupt row's place and reason, saw {row:?}"
    );
    let (mut page, mut seen) = (Page::first(1), 0);
    for _ in 0..5 {
        let listing = inbox.list(&Filter::default(), &page).await?;
        seen += listing.records.len() + listing.corrupt.len();
        page.after = listing.next;
        if page.after.is_none() {
            break;
        }
    }
    same("rows seen page by page", &seen, &3)
}

pub(crate) async fn its_key_still_refuses_duplicates(cx: Context) -> CaseResult {
    let (inbox, all) = spoilt(&cx).await?;
    inbox
        .refuses_copy(&all[1], "while its row is corrupt")
        .await?;
    let _ = claim(&inbox).await?;
    inbox
        .refuses_copy(&all[1], "after its row was set aside")
        .await
}

pub(crate) async fn statistics_and_purge_go_on(cx: Context) -> CaseResult {
    let (inbox, _) = spoilt(&cx).await?;
    same(
        "pending",
        &inbox.statistics().await?.count(State::Pending),
        &3,
    )?;
    same("count", &inbox.count(&Filter::default()).await?, &3)?;
    let claims = claim(&inbox).await?;
    for leased in &claims.leased {
        inbox.finish(leased, processed()).await?;
    }
    for (state, expected) in [(State::Processed, 2), (State::Dead, 1)] {
        let expired = PurgeRequest::new(state, Duration::ZERO, 10)?;
        let listing = inbox.expired(&expired).await?;
        let found = (listing.records.len() + listing.corrupt.len()) as u64;
        same(&format!("expired of {state}"), &found, &expected)?;
        same(
            &format!("purged of {state}"),
            &inbox.purge(&expired).await?,
            &expected,
        )?;
    }
    Ok(())
}

/// Defect: begin hands the row out, takes the copy that came along for it, or fails as if the store
/// did.
pub(crate) async fn begin_says_so_and_leaves_it_to_a_claim(cx: Context) -> CaseResult {
    let (inbox, all) = spoilt(&cx).await?;
    let length = inbox.brief();
    let begun = inbox.begin(&all[1], &terms(length)?).await;
    let kind = begun.err().map(|error| error.kind());
    same(
        "error of begin of a corrupt row",
        &kind,
        &Some(ErrorKind::Corrupt),
    )?;
    // It may be leased now.
    inbox.pass(length).await?;
    same(
        "reported as corrupt by a claim afterwards",
        &claim(&inbox).await?.corrupt.len(),
        &1,
    )?;
    let dead = inbox.statistics().await?.count(State::Dead);
    same("dead in the statistics", &dead, &1)
}

pub(crate) async fn what_is_set_aside_lets_its_ordering_key_go_on(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    let all = sequence(3, "k")?;
    inbox.accept_all(&all).await?;
    inbox
        .fixture
        .corrupt(all[0].key(), Corruption::Headers)
        .await?;
    let begun = inbox.begin(&all[1], &terms(LONG)?).await?;
    same(
        "begin behind a corrupt row that was not set aside",
        &begun,
        &Begun::Blocked,
    )?;
    let (mut claimed, mut corrupt) = (Vec::new(), 0);
    for _ in 0..3 {
        let claims = claim(&inbox).await?;
        corrupt += claims.corrupt.len();
        claimed.extend(ids(&claims.leased));
        for leased in &claims.leased {
            inbox.finish(leased, processed()).await?;
        }
    }
    same("reported as corrupt", &corrupt, &1)?;
    same(
        "claimed behind the corrupt row",
        &claimed,
        &vec!["2".into(), "3".into()],
    )?;
    same(
        "dead messages that block",
        &inbox.statistics().await?.blocking(),
        &0,
    )
}
