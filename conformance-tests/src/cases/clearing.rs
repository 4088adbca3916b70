//! Clearing a handler, and removing an inbox.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use inbox_api::{
    ErrorKind, Extended, Filter, HandlerName, Receipt, Settled, Slice, State, StoreExt,
};

use super::concurrency::persist;
use crate::{
    check::{CaseResult, Unmet, ensure, same},
    needs::SchemaVariant,
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, dead_blocking, ids, message, message_for, ordered,
        processed,
    },
};

async fn clear(inbox: &TestInbox, handler: &str, limit: u32) -> CaseResult<u64> {
    let (handler, mut after, mut changed) = (HandlerName::new(handler)?, None, 0);
    for _ in 0..20 {
        let progress = inbox.clear_slice(&handler, &Slice { after, limit }).await?;
        ensure!(
            progress.changed <= u64::from(limit),
            "a slice of {limit} cleared {}",
            progress.changed
        );
        changed += progress.changed;
        match progress.next {
            Some(next) => after = Some(next),
            None => return Ok(changed),
        }
    }
    Err(Unmet::Failed(
        "slices over a few messages: saw no end".into(),
    ))
}

/// Defect: what is being worked on is deleted under its worker, or what is not is left.
pub(crate) async fn all_but_leased_ones_go(cx: Context) -> CaseResult {
    for limit in [1, 2, 100] {
        let inbox = cx.fresh().await?;
        let other = message_for("other", "1")?;
        inbox.accept(&other).await?;
        for state in [State::Processed, State::Dead, State::Discarded] {
            inbox.accept_in(&message(state.as_str())?, state).await?;
        }
        inbox.accept(&message("leased")?).await?;
        let leased = inbox.claim_one().await?;
        for id in ["1", "2"] {
            inbox.accept(&message(id)?).await?;
        }
        same("cleared", &clear(&inbox, HANDLER, limit).await?, &5)?;
        same("left", &inbox.count(&Filter::default()).await?, &2)?;
        inbox.has_state(other.key(), State::Pending).await?;
        let counts = inbox.statistics().await?;
        let of_orders = counts
            .handlers
            .iter()
            .find(|h| h.handler.as_str() == HANDLER);
        same(
            "pending, leased, processed, dead, discarded and blocking of the handler",
            &of_orders.map(|h| {
                (
                    h.pending,
                    h.leased,
                    h.processed,
                    h.dead,
                    h.discarded,
                    h.blocking,
                )
            }),
            &Some((0, 1, 0, 0, 0, 0)),
        )?;
        inbox.finish(&leased, processed()).await?;
        for id in ["processed", "dead", "1"] {
            inbox.accept(&message(id)?).await?;
        }
        same(
            "cleared of an unknown handler",
            &clear(&inbox, "unknown", limit).await?,
            &0,
        )?;
    }
    Ok(())
}

pub(crate) async fn a_slice_of_nothing_clears_nothing(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    let slice = Slice {
        after: None,
        limit: 0,
    };
    let progress = inbox
        .clear_slice(&HandlerName::new(HANDLER)?, &slice)
        .await?;
    same("cleared", &(progress.changed, progress.next), &(0, None))?;
    inbox.has_state(message("1")?.key(), State::Pending).await
}

pub(crate) async fn a_lease_that_ran_out_is_cleared(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let leased = inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    same("cleared", &clear(&inbox, HANDLER, 10).await?, &1)?;
    same(
        "settling with its lease",
        &inbox.settle_one(&leased.lease, processed()).await?,
        &Settled::LeaseLost,
    )?;
    same(
        "extending its lease",
        &inbox.extend_one(&leased.lease, LONG).await?,
        &Extended::LeaseLost,
    )?;
    inbox.accept(&sent).await?;
    let again = inbox.claim_one().await?;
    ensure!(
        again.lease.token > leased.lease.token,
        "token in the new life: expected more than {}, saw {}",
        leased.lease.token,
        again.lease.token
    );
    inbox.finish(&again, processed()).await
}

/// Defect: the head of an ordering key goes, and what waited behind it waits for ever.
pub(crate) async fn an_ordering_key_moves_on(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    for id in ["1", "2", "3"] {
        inbox.accept(&ordered(id, "k")?).await?;
    }
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, dead_blocking("gave up")).await?;
    inbox
        .nothing_due("a dead one blocks its ordering key")
        .await?;
    let one = Slice {
        after: None,
        limit: 1,
    };
    let handler = HandlerName::new(HANDLER)?;
    same(
        "cleared",
        &inbox.clear_slice(&handler, &one).await?.changed,
        &1,
    )?;
    same(
        "claimed",
        &ids(&inbox.claim_up_to(5, LONG).await?),
        &vec!["2".into()],
    )?;
    // The third waits behind one that is leased, and goes.
    same("cleared", &clear(&inbox, HANDLER, 10).await?, &1)?;
    inbox.accept(&ordered("4", "k")?).await?;
    inbox.nothing_due("one of its ordering key is leased").await
}

/// There is no inbox any more, or an empty one where there always is one.
async fn is_removed(inbox: &TestInbox) -> CaseResult {
    if inbox.exists().await? {
        return same(
            "messages after a removal",
            &inbox.count(&Filter::default()).await?,
            &0,
        );
    }
    same("version after a removal", &inbox.version().await?, &None)?;
    let error = inbox.receive_one(&message("1")?).await.err();
    same(
        "kind of the error of a receive after a removal",
        &error.map(|error| error.kind()),
        &Some(ErrorKind::SchemaMissing),
    )
}

/// Defect: a removal that leaves a part, by which the next set-up or the next life stumbles.
pub(crate) async fn a_removed_inbox_is_gone(cx: Context) -> CaseResult {
    let (inbox, neighbour) = (cx.fresh().await?, cx.fresh().await?);
    let sent = message("1")?;
    for inbox in [&inbox, &neighbour] {
        inbox.accept_in(&sent, State::Processed).await?;
        inbox.accept(&message("2")?).await?;
        inbox.pause(&HandlerName::new("paused")?).await?;
    }
    for _ in 0..2 {
        inbox.remove().await?;
        is_removed(&inbox).await?;
    }
    neighbour.has_state(sent.key(), State::Processed).await?;
    same(
        "paused in another inbox",
        &neighbour.paused().await?.len(),
        &1,
    )?;
    inbox.create().await?;
    same("exists after a new set-up", &inbox.exists().await?, &true)?;
    same("paused in the new one", &inbox.paused().await?, &Vec::new())?;
    same(
        "handlers in the new one",
        &inbox.statistics().await?.handlers,
        &Vec::new(),
    )?;
    same(
        "receipt in the new one",
        &inbox.receive_one(&sent).await?,
        &Receipt::Accepted,
    )?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, processed()).await
}

pub(crate) async fn whatever_is_this_builds_is_removed(cx: Context) -> CaseResult {
    for variant in [
        SchemaVariant::Missing,
        SchemaVariant::Incomplete,
        SchemaVariant::Older,
    ] {
        let inbox = match cx.variant(variant).await {
            Err(Unmet::NotChecked(_)) if variant != SchemaVariant::Missing => continue,
            other => other?,
        };
        inbox.remove().await?;
        same(
            &format!("exists after {variant:?} is removed"),
            &inbox.exists().await?,
            &false,
        )?;
        same("version after that", &inbox.version().await?, &None)?;
        inbox.create().await?;
        inbox.accept(&message("1")?).await?;
        let leased = inbox.claim_one().await?;
        inbox.finish(&leased, processed()).await?;
    }
    Ok(())
}

pub(crate) async fn what_is_newer_is_not_removed(cx: Context) -> CaseResult {
    refuses_to_remove(&cx, SchemaVariant::Newer).await
}

pub(crate) async fn what_is_foreign_is_not_removed(cx: Context) -> CaseResult {
    refuses_to_remove(&cx, SchemaVariant::Foreign).await
}

async fn refuses_to_remove(cx: &Context, variant: SchemaVariant) -> CaseResult {
    let inbox = cx.variant(variant).await?;
    let found = |inbox: &TestInbox| {
        let store = Arc::clone(&inbox.store);
        async move {
            let create = store.create().await.err().map(|error| error.kind());
            (store.version().await.ok(), create)
        }
    };
    let before = found(&inbox).await;
    let error = inbox.remove().await.err();
    same(
        "kind of the error of remove",
        &error.as_ref().map(inbox_api::Error::kind),
        &Some(ErrorKind::SchemaVersion),
    )?;
    same(
        "version and what create says afterwards",
        &found(&inbox).await,
        &before,
    )
}

/// Processes that remove one inbox at once.
pub(crate) async fn many_can_remove_at_once(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_in(&message("1")?, State::Processed).await?;
    let mut tasks = tokio::task::JoinSet::new();
    for connection in inbox.connections(4).await? {
        tasks.spawn(async move { persist(|| connection.remove()).await });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    is_removed(&inbox).await?;
    inbox.create().await?;
    inbox.accept(&message("1")?).await
}

/// Defect: between two steps of a removal, what is left of the inbox is told as an error, which a set-up
/// or a probe that runs at that moment ends with.
pub(crate) async fn a_removal_can_be_watched(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let ended = Arc::new(AtomicBool::new(false));
    let mut watchers = tokio::task::JoinSet::new();
    for connection in inbox.connections(2).await? {
        let ended = Arc::clone(&ended);
        watchers.spawn(async move {
            while !ended.load(Ordering::SeqCst) {
                persist(|| connection.exists()).await?;
                persist(|| connection.version()).await?;
            }
            Ok::<_, inbox_api::Error>(())
        });
    }
    for _ in 0..5 {
        persist(|| inbox.remove()).await?;
        persist(|| inbox.create()).await?;
    }
    ended.store(true, Ordering::SeqCst);
    while let Some(watcher) = watchers.join_next().await {
        watcher??;
    }
    inbox.accept(&message("1")?).await
}

pub(crate) async fn the_query_is_text(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let query = inbox.exists_query();
    ensure!(
        !query.trim().is_empty(),
        "exists_query: expected a query, or a comment that there is none, saw {query:?}"
    );
    same("exists_query, asked again", &inbox.exists_query(), &query)
}
