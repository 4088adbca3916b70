//! What comes in goes out byte for byte: nothing is normalised, trimmed, folded or matched by a part.

use bytes::Bytes;
use inbox_api::{
    Begun, ContentType, Filter, HandlerName, Kind, Message, MessageId, OrderingKey, Page,
};

use crate::{
    check::{CaseResult, Unmet, same, same_bytes},
    test_inbox::{Context, HANDLER, LONG, TestInbox, ids, message, terms},
};

/// Payloads that a parser would give back in another form.
const PAYLOADS: [&[u8]; 14] = [
    b"{\"b\":1,\"a\":2}",
    b"{ \"a\" : 1 }",
    b"{\"a\":1,\"a\":2}",
    b"{\"n\":1.0,\"e\":1e3,\"big\":123456789012345678901234567890}",
    b"{\"u\":\"\\u0041\\/\"}",
    b"[]\n",
    b"\n\n{}\r\n",
    b" leading and trailing ",
    b"line\r\nline\nline\rline",
    b"\xef\xbb\xbfwith a byte order mark",
    b"\xff\xfeU\0T\0F\0",
    b"e\xcc\x81 is not \xc3\xa9",
    b"\"text\"",
    b"null",
];

/// Texts that differ in what a sloppy comparison overlooks.
const ALIKE: [&str; 8] = [
    "order.placed",
    "Order.placed",
    " order.placed",
    "order.placed ",
    "order.placed\u{a0}",
    "order.placed.v2",
    "order.place",
    "order_placed",
];

fn with_payload(id: &str, payload: &'static [u8]) -> CaseResult<Message> {
    Ok(Message::new(
        HandlerName::new(HANDLER)?,
        MessageId::new(id)?,
        Kind::new("order.placed")?,
        Bytes::from_static(payload),
    ))
}

pub(crate) async fn a_payload_keeps_every_byte(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for content_type in ["application/json", "text/plain; charset=utf-8"] {
        for (n, payload) in PAYLOADS.into_iter().enumerate() {
            let id = format!("{n} as {content_type}");
            let sent =
                with_payload(&id, payload)?.with_content_type(ContentType::new(content_type)?);
            let about = String::from_utf8_lossy(payload);
            inbox.accept(&sent).await?;
            let leased = inbox.claim_one().await?;
            let what = format!("the payload {about:?} as claimed, sent as {content_type}");
            same_bytes(&what, Some(leased.message.payload()), sent.payload())?;
            let record = inbox.record(sent.key()).await?;
            let what = format!("the payload {about:?} as get shows it, sent as {content_type}");
            same_bytes(&what, record.payload.as_ref(), sent.payload())?;
            same(
                "the payload's length",
                &record.payload_bytes,
                &Some(payload.len() as u64),
            )?;
        }
    }
    let page = Page {
        with_payload: true,
        ..Page::first(100)
    };
    let listed = inbox.list(&Filter::default(), &page).await?.records;
    for (n, record) in listed.iter().enumerate() {
        let expected = Bytes::from_static(PAYLOADS[n % PAYLOADS.len()]);
        same_bytes("a payload as listed", record.payload.as_ref(), &expected)?;
    }
    Ok(())
}

pub(crate) async fn begin_keeps_all_of_a_message(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for (n, payload) in PAYLOADS.into_iter().enumerate() {
        let mut sent = with_payload(&n.to_string(), payload)?
            .with_content_type(ContentType::new("application/json")?)
            .with_header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-01")?
            .with_header(" spaced ", " value\r\n")?;
        if inbox.capabilities().ordering {
            sent = sent.with_ordering_key(OrderingKey::new(format!(" key {n} "))?);
        }
        let Begun::Run(leased) = inbox.begin(&sent, &terms(LONG)?).await? else {
            return Err(Unmet::Failed(
                "begin of a new key: expected that it runs".into(),
            ));
        };
        let stored = inbox.record(sent.key()).await?;
        for (what, seen) in [
            ("that begin hands out", Some(leased.message)),
            ("that begin stored", stored.message()),
        ] {
            let Some(seen) = seen else {
                return Err(Unmet::Failed(format!("the message {what} is not there")));
            };
            same(&format!("kind {what}"), &seen.kind(), &sent.kind())?;
            same(
                &format!("content type {what}"),
                &seen.content_type(),
                &sent.content_type(),
            )?;
            same(&format!("headers {what}"), &seen.headers(), &sent.headers())?;
            same(
                &format!("ordering key {what}"),
                &seen.ordering_key(),
                &sent.ordering_key(),
            )?;
            let what = format!("the payload {what}");
            same_bytes(&what, Some(seen.payload()), sent.payload())?;
        }
    }
    Ok(())
}

pub(crate) async fn headers_are_not_trimmed_or_folded(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let mut sent = message("1")?;
    for name in ALIKE {
        sent = sent.with_header(name, format!("of {name}"))?;
    }
    for (name, value) in [
        ("leading", " x"),
        ("trailing", "x "),
        ("only spaces", "  "),
        ("tab", "\tx\t"),
        ("line ends", "\r\nx\r\n"),
        ("number", "007"),
        ("float", "1.0"),
        ("truth", "True"),
        ("nothing", "null"),
        ("quoted", "\"x\""),
        ("decomposed", "e\u{301}"),
        ("composed", "\u{e9}"),
    ] {
        sent = sent.with_header(name, value)?;
    }
    inbox.accept(&sent).await?;
    let leased = inbox.claim_one().await?;
    same(
        "headers as claimed",
        &leased.message.headers(),
        &sent.headers(),
    )?;
    let record = inbox.record(sent.key()).await?;
    same(
        "headers as get shows them",
        &&record.headers,
        &sent.headers(),
    )
}

async fn of_every_kind(inbox: &TestInbox) -> CaseResult {
    for (n, kind) in ALIKE.into_iter().enumerate() {
        let sent = Message::new(
            HandlerName::new(HANDLER)?,
            MessageId::new(n.to_string())?,
            Kind::new(kind)?,
            "x",
        );
        inbox.accept(&sent).await?;
    }
    Ok(())
}

pub(crate) async fn kinds_are_compared_whole(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    of_every_kind(&inbox).await?;
    for (n, kind) in ALIKE.into_iter().enumerate() {
        let filter = Filter {
            kind: Some(Kind::new(kind)?),
            ..Filter::default()
        };
        same(
            &format!("messages of the kind {kind:?}"),
            &inbox.count(&filter).await?,
            &1,
        )?;
        let listed = inbox.list(&filter, &Page::first(10)).await?.records;
        let listed: Vec<_> = listed
            .iter()
            .map(|record| record.key.id.to_string())
            .collect();
        same(
            &format!("listed of the kind {kind:?}"),
            &listed,
            &vec![n.to_string()],
        )?;
    }
    let leased = inbox.claim_up_to(10, LONG).await?;
    let kinds: Vec<_> = leased.iter().map(|l| l.message.kind().as_str()).collect();
    same("kinds as claimed", &kinds, &ALIKE.to_vec())
}

pub(crate) async fn ordering_keys_are_compared_whole(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    let long = "k".repeat(254);
    let mut keys: Vec<String> = ALIKE.map(String::from).to_vec();
    keys.extend(["a", "b"].map(|last| format!("{long}{last}")));
    keys.extend(["e\u{301}", "\u{e9}"].map(String::from));
    keys.push("k".repeat(64));
    keys.push("k".repeat(65));
    for (n, key) in keys.iter().enumerate() {
        for copy in ["first", "second"] {
            let sent = message(&format!("{n:02} {copy}"))?
                .with_ordering_key(OrderingKey::new(key.clone())?);
            inbox.accept(&sent).await?;
        }
    }
    let mut claimed = ids(&inbox.claim_up_to(100, LONG).await?);
    claimed.sort();
    let expected: Vec<_> = (0..keys.len()).map(|n| format!("{n:02} first")).collect();
    same(
        "claimed: the first of each ordering key",
        &claimed,
        &expected,
    )?;
    for (n, key) in keys.iter().enumerate() {
        let filter = Filter {
            ordering_key: Some(OrderingKey::new(key.clone())?),
            ..Filter::default()
        };
        same(
            &format!("messages of the ordering key number {n}"),
            &inbox.count(&filter).await?,
            &2,
        )?;
    }
    Ok(())
}
