//! Keys: what makes two messages the same.

use inbox_api::{Key, MessageId, Receipt, State, StoreExt};

use crate::{
    check::{CaseResult, same},
    test_inbox::{Context, LONG, TestInbox, claim, ids, message, message_for, processed},
};

/// Receives one message per id, all of which must be new, and finds each under its own id.
async fn all_distinct(inbox: &TestInbox, distinct: &[&str]) -> CaseResult {
    for id in distinct {
        inbox.accept(&message(id)?).await?;
    }
    for id in distinct {
        let record = inbox.record(message(id)?.key()).await?;
        same("message id as stored", &record.key.id.as_str(), id)?;
        same(
            "payload stored under the id",
            &record.payload.as_deref(),
            &Some(id.as_bytes()),
        )?;
    }
    let leased = inbox.claim_up_to(100, LONG).await?;
    same(
        "claimed",
        &ids(&leased),
        &distinct.iter().map(|id| (*id).into()).collect(),
    )
}

/// Defect: the key is the message id alone, so that the second handler is taken for a duplicate.
/// The second handler's message must be *found* afterwards, not only answered well.
pub(crate) async fn a_second_handler_is_independent(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let billing = message_for("billing", "evt-1")?;
    let shipping = message_for("shipping", "evt-1")?;
    inbox.accept_in(&billing, State::Processed).await?;
    inbox.accept(&shipping).await?;
    let leased = claim(&*inbox.store, "shipping", 10, LONG).await?;
    same(
        "claimed for the second handler",
        &ids(&leased),
        &vec!["evt-1".into()],
    )?;
    for leased in &leased {
        inbox.finish(leased, processed()).await?;
    }
    inbox.has_state(shipping.key(), State::Processed).await?;
    inbox.has_state(billing.key(), State::Processed).await?;
    inbox
        .refuses_copy(&shipping, "for the second handler")
        .await
}

/// Defect: a handler's fan-out in one batch is taken for duplicates within the batch.
pub(crate) async fn one_batch_serves_several_handlers(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let batch = [
        message_for("a", "1")?,
        message_for("b", "1")?,
        message_for("c", "1")?,
    ];
    inbox.accept_all(&batch).await?;
    for message in &batch {
        let leased = claim(&*inbox.store, message.handler().as_str(), 10, LONG).await?;
        same("claimed of the fan-out", &ids(&leased), &vec!["1".into()])?;
    }
    Ok(())
}

/// Defect: a folding collation.
pub(crate) async fn case_distinguishes(cx: Context) -> CaseResult {
    all_distinct(
        &cx.fresh().await?,
        &["order-a", "order-A", "ORDER-A", "straße", "STRASSE"],
    )
    .await
}

/// Defect: a padding collation.
pub(crate) async fn trailing_space_distinguishes(cx: Context) -> CaseResult {
    all_distinct(&cx.fresh().await?, &["a", "a ", "a  ", " a", "a\u{a0}"]).await
}

/// Defect: a collation that normalises or ignores accents.
pub(crate) async fn unicode_forms_distinguish(cx: Context) -> CaseResult {
    let distinct = [
        "\u{e1}",
        "a\u{301}",
        "a",
        "\u{ff41}",
        "\u{1f980}",
        "\u{fb01}",
        "fi",
    ];
    all_distinct(&cx.fresh().await?, &distinct).await
}

/// Defect: identifiers that are compared as numbers.
pub(crate) async fn leading_zeros_distinguish(cx: Context) -> CaseResult {
    all_distinct(
        &cx.fresh().await?,
        &["1", "01", "001", "1.0", "1e0", "+1", "0x1"],
    )
    .await
}

/// Defect: a folding collation on the handler's column.
pub(crate) async fn handler_names_are_compared_byte_for_byte(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let handlers = [
        "billing",
        "Billing",
        "billing ",
        "b\u{ed}lling",
        "bi\u{301}lling",
    ];
    for handler in handlers {
        inbox.accept(&message_for(handler, "1")?).await?;
    }
    for handler in handlers {
        let leased = claim(&*inbox.store, handler, 10, LONG).await?;
        let claimed: Vec<_> = leased
            .iter()
            .map(|l| l.message.handler().as_str())
            .collect();
        same("handlers of what was claimed", &claimed, &vec![handler])?;
    }
    Ok(())
}

/// Defect: an index on a prefix, or a column that cuts.
pub(crate) async fn the_longest_names_are_kept_whole(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let handler = "h".repeat(128);
    for tail in ["a", "b", "ä"] {
        let id = format!("{}{tail}", "i".repeat(255 - tail.len()));
        let message = message_for(&handler, &id)?;
        inbox.accept(&message).await?;
        same(
            "id as stored",
            &inbox.record(message.key()).await?.key.id.as_str(),
            &id.as_str(),
        )?;
    }
    let leased = claim(&*inbox.store, &handler, 10, LONG).await?;
    same(
        "claimed with 128-byte handler and 255-byte ids",
        &leased.len(),
        &3,
    )
}

/// Defect: handler and id joined into one text without a safe separator.
pub(crate) async fn the_halves_of_a_key_do_not_run_together(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for (handler, id) in [
        ("a", "b/c"),
        ("a/b", "c"),
        ("a", "b:c"),
        ("a:b", "c"),
        ("ab", "c"),
        ("a", "bc"),
        ("a}", "{c"),
        ("a", "}{c"),
    ] {
        let message = message_for(handler, id)?;
        inbox.accept(&message).await?;
        let leased = claim(&*inbox.store, handler, 10, LONG).await?;
        same(
            &format!("claimed for {handler}"),
            &ids(&leased),
            &vec![id.to_owned()],
        )?;
    }
    Ok(())
}

/// Defect: one inbox's keys leak into another's.
pub(crate) async fn two_inboxes_are_independent(cx: Context) -> CaseResult {
    let one = cx.fresh().await?;
    let other = cx.fresh().await?;
    let message = message("1")?;
    one.accept_in(&message, State::Processed).await?;
    same(
        "get in the other inbox",
        &other.get(message.key()).await?.is_some(),
        &false,
    )?;
    other.accept(&message).await?;
    other.has_state(message.key(), State::Pending).await?;
    one.has_state(message.key(), State::Processed).await
}

/// The answer to a key that is not known is not an error.
pub(crate) async fn an_unknown_key_is_not_found(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    let unknown = Key::new(message("1")?.handler().clone(), MessageId::new("2")?);
    same(
        "get of an unknown key",
        &inbox.get(&unknown).await?.is_none(),
        &true,
    )?;
    same(
        "receipt of the unknown key",
        &inbox.receive_one(&message("2")?).await?,
        &Receipt::Accepted,
    )
}
