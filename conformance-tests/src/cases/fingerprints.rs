//! Same key, other content: what a duplicate says of itself.

use std::time::Duration;

use inbox_api::{
    Begun, Bytes, Due, Edit, Fingerprint, Kind, Message, Page, PurgeRequest, Receipt, Recorded,
    State, StoreExt,
};

use crate::{
    check::{CaseResult, Unmet, same},
    needs::Need,
    test_inbox::{Context, LONG, TestInbox, message, processed, terms},
};

/// The message with another payload.
fn altered(sent: &Message) -> Message {
    let (handler, id) = (sent.handler().clone(), sent.id().clone());
    Message::new(handler, id, sent.kind().clone(), "altered")
}

async fn copy_differs(inbox: &TestInbox, copy: &Message, differs: bool, what: &str) -> CaseResult {
    same(
        &format!("receipt of {what}"),
        &inbox.receive_one(copy).await?,
        &Receipt::Duplicate { differs },
    )
}

pub(crate) async fn a_duplicate_says_whether_it_differs(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let states = [
        State::Pending,
        State::Leased,
        State::Processed,
        State::Dead,
        State::Discarded,
    ];
    for state in states {
        let plain = message(state.as_str())?;
        inbox.accept(&plain).await?;
        match state {
            State::Pending => {}
            State::Discarded => {
                let _ = inbox.discard(plain.key()).await?;
            }
            _ => {
                let leased = inbox.claim_up_to(1, 10 * LONG).await?;
                for leased in leased.iter().filter(|_| state.is_final()) {
                    let outcome = match state {
                        State::Dead => crate::test_inbox::dead("gave up"),
                        _ => processed(),
                    };
                    inbox.finish(leased, outcome).await?;
                }
            }
        }
        let (handler, id) = (plain.handler().clone(), plain.id().clone());
        let kind = Message::new(handler, id, Kind::new("other")?, plain.payload().clone());
        let same_content = plain
            .clone()
            .with_header("attempt", "2")?
            .with_content_type(inbox_api::ContentType::new("text/plain")?)
            .with_due(Due::After(LONG));
        let of = |what| format!("{what}, of a message that is {state}");
        copy_differs(&inbox, &plain, false, &of("the same message")).await?;
        copy_differs(&inbox, &altered(&plain), true, &of("another payload")).await?;
        copy_differs(&inbox, &kind, true, &of("another kind")).await?;
        let what = of("other headers, content type and due time");
        copy_differs(&inbox, &same_content, false, &what).await?;
        // Out of the way of the next one.
        let _ = inbox.discard(plain.key()).await?;
    }
    Ok(())
}

/// Whatever 64 bits are given.
pub(crate) async fn a_given_fingerprint_decides(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let numbers = [
        0,
        1,
        -1,
        i64::MIN,
        i64::MAX,
        1 << 53,
        (1 << 53) + 1,
        -(1 << 53) - 1,
    ];
    let given = |number| Fingerprint::new(number);
    for number in numbers {
        let plain = message(&format!("{number}"))?;
        let sent = plain.clone().with_fingerprint(given(number));
        inbox.accept(&sent).await?;
        let record = inbox.record(sent.key()).await?;
        same(
            "fingerprint of the record",
            &record.fingerprint,
            &given(number),
        )?;
        let same_print = altered(&plain).with_fingerprint(given(number));
        copy_differs(
            &inbox,
            &same_print,
            false,
            "another payload, given the same",
        )
        .await?;
        for other in numbers.into_iter().filter(|other| *other != number) {
            let copy = plain.clone().with_fingerprint(given(other));
            let what = format!("the same payload, given {other} rather than {number}");
            copy_differs(&inbox, &copy, true, &what).await?;
        }
        copy_differs(&inbox, &plain, true, "the same payload, given none").await?;
    }
    Ok(())
}

pub(crate) async fn a_batch_is_compared_with_its_first_copy(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let (known, new) = (message("known")?, message("new")?);
    inbox.accept(&known).await?;
    let batch = [
        altered(&new),
        altered(&known),
        new.clone(),
        known.clone(),
        message("other")?,
        altered(&new),
        altered(&known),
    ];
    let duplicate = |differs| Receipt::Duplicate { differs };
    let expected = vec![
        Receipt::Accepted,
        duplicate(true),
        duplicate(true),
        duplicate(false),
        Receipt::Accepted,
        duplicate(false),
        duplicate(true),
    ];
    same("receipts", &inbox.receive(&batch).await?, &expected)?;
    copy_differs(&inbox, &new, true, "what came second in its batch").await?;
    copy_differs(
        &inbox,
        &altered(&new),
        false,
        "what came first in its batch",
    )
    .await
}

/// A copy over the limit is refused as before, and is no first copy of anything.
pub(crate) async fn a_refused_copy_is_no_first_copy(cx: Context) -> CaseResult {
    let settings = crate::needs::Settings {
        payload_limit: Some(1000),
        ..Default::default()
    };
    let inbox = cx.fresh_with(&settings).await?;
    let sent = message("1")?;
    let (handler, id) = (sent.handler().clone(), sent.id().clone());
    let over = Message::new(handler, id, sent.kind().clone(), vec![0; 1001]);
    let receipts = inbox.receive(&[over, sent.clone(), sent.clone()]).await?;
    same(
        "receipts behind the refused one",
        &receipts.get(1..),
        &Some([Receipt::Accepted, Receipt::Duplicate { differs: false }].as_slice()),
    )
}

pub(crate) async fn it_outlives_edits_and_payloads(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    let check = async |what: &str| -> CaseResult {
        copy_differs(&inbox, &sent, false, &format!("the first content {what}")).await?;
        copy_differs(
            &inbox,
            &altered(&sent),
            true,
            &format!("another content {what}"),
        )
        .await?;
        let record = inbox.record(sent.key()).await?;
        same(
            &format!("fingerprint of the record {what}"),
            &record.fingerprint,
            &sent.fingerprint(),
        )
    };
    inbox.accept_in(&sent, State::Processed).await?;
    let edit = Edit {
        payload: Some(Bytes::from_static(b"altered")),
        ..Edit::default()
    };
    let _ = inbox.replay(sent.key(), &edit).await?;
    check("after an edit").await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, processed()).await?;
    check("after the edited one was processed").await?;
    let all = PurgeRequest::new(State::Processed, Duration::ZERO, 10)?;
    same("payloads dropped", &inbox.drop_payloads(&all).await?, &1)?;
    check("after its payload was dropped").await
}

pub(crate) async fn it_goes_with_its_key(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept_in(&sent, State::Processed).await?;
    let all = PurgeRequest::new(State::Processed, Duration::ZERO, 10)?;
    same("purged", &inbox.purge(&all).await?, &1)?;
    inbox.accept(&altered(&sent)).await?;
    copy_differs(
        &inbox,
        &altered(&sent),
        false,
        "the content of the new life",
    )
    .await?;
    copy_differs(&inbox, &sent, true, "the content of the old life").await
}

pub(crate) async fn begin_keeps_it(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let plain = message("1")?;
    let sent = plain.clone().with_fingerprint(Fingerprint::new(7));
    let begun = inbox.begin(&sent, &terms(LONG)?).await?;
    let Begun::Run(leased) = begun else {
        return Err(Unmet::Failed(format!("begin: expected Run, saw {begun:?}")));
    };
    copy_differs(&inbox, &sent, false, "what was begun").await?;
    copy_differs(&inbox, &plain, true, "the same without its fingerprint").await?;
    inbox.finish(&leased, processed()).await?;
    // A begin with another content is answered as ever, and changes nothing.
    let begun = inbox.begin(&plain, &terms(LONG)?).await?;
    same("begin again", &begun, &Begun::Processed { result: None })?;
    copy_differs(&inbox, &sent, false, "what was begun first").await
}

pub(crate) async fn listings_show_it(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?.with_fingerprint(Fingerprint::new(-3));
    inbox.accept_in(&sent, State::Dead).await?;
    let all = PurgeRequest::new(State::Dead, Duration::ZERO, 10)?;
    let listed = inbox
        .list(&inbox_api::Filter::default(), &Page::first(10))
        .await?;
    let expired = inbox.expired(&all).await?;
    for (what, listing) in [("list", listed), ("expired", expired)] {
        let prints: Vec<Fingerprint> = listing.records.iter().map(|r| r.fingerprint).collect();
        same(what, &prints, &vec![Fingerprint::new(-3)])?;
    }
    Ok(())
}

pub(crate) async fn transactions_keep_it(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    if !inbox.capabilities().transactions {
        return Err(Unmet::NotChecked(Need::Transactions));
    }
    let transactions = inbox.fixture.transactions()?;
    let print = Fingerprint::new(i64::MIN);
    let (recorded, received) = (message("recorded")?, message("received")?);
    let with = |plain: &Message| plain.clone().with_fingerprint(print);
    let mut transaction = transactions.open().await?;
    same(
        "record",
        &transaction.record(&with(&recorded), None).await?,
        &Recorded::First,
    )?;
    let batch = [with(&received), received.clone(), with(&received)];
    let receipts = transaction.receive(&batch).await?;
    let duplicate = |differs| Receipt::Duplicate { differs };
    let expected = vec![Receipt::Accepted, duplicate(true), duplicate(false)];
    same("receipts in a transaction", &receipts, &expected)?;
    transaction.commit().await?;
    for plain in [&recorded, &received] {
        copy_differs(&inbox, &with(plain), false, "the same message").await?;
        copy_differs(&inbox, plain, true, "one with another fingerprint").await?;
    }
    let mut transaction = transactions.open().await?;
    let receipts = transaction
        .receive(&[recorded.clone(), with(&received)])
        .await?;
    same(
        "receipts of duplicates in a transaction",
        &receipts,
        &vec![duplicate(true), duplicate(false)],
    )?;
    transaction.commit().await.map_err(Unmet::from)
}
