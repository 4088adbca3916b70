//! Names, payloads, errors and headers that were chosen to do harm.

use axum::http::StatusCode;
use inbox::{
    AfterDead, ContentType, HandlerName, Kind, Message, MessageId, OrderingKey, Outcome, StoreExt,
    WorkerName,
};
use inbox_dashboard::dashboard;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::support::*;

/// Ends texts, attributes, tags and scripts, begins others, and turns the direction.
const EVIL: &str = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}&lt;\u{202e}";

#[tokio::test]
async fn nothing_from_outside_is_markup() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(&folder).await;
    let evil = HandlerName::new(EVIL).unwrap();
    let hostile = Message::new(
        evil.clone(),
        MessageId::new(EVIL).unwrap(),
        Kind::new(EVIL).unwrap(),
        format!("{{\"{}\": \"</pre>{}\"}}", "a", "<script>alert(3)</script>"),
    )
    .with_ordering_key(OrderingKey::new(EVIL).unwrap())
    .with_content_type(ContentType::new(EVIL).unwrap())
    .with_header(EVIL, EVIL)
    .unwrap()
    .with_header("traceparent", "00-\"><script>alert(4)</script>-1-01")
    .unwrap();
    receive(store.as_ref(), &[hostile]).await;
    let worker = WorkerName::new(EVIL).unwrap();
    let claimed = store
        .claim_for(&evil, 1, std::time::Duration::from_secs(60), &worker)
        .await
        .unwrap();
    let router = dashboard(store.clone())
        .title(EVIL.trim_end_matches('\u{202e}'))
        .place(EVIL.trim_end_matches('\u{202e}'))
        .trace_link("https://t.example/{trace_id}".parse().unwrap())
        .into_router();
    let query = form_urlencoded::Serializer::new(String::new())
        .append_pair("handler", EVIL)
        .append_pair("id", EVIL)
        .finish();
    let while_leased = ["/workers".to_owned(), format!("/message?{query}")];
    for path in &while_leased {
        harmless(path, &page(&router, path).await.text());
    }
    let reason = EVIL.to_owned();
    let outcome = Outcome::Dead {
        reason,
        after: AfterDead::Block,
    };
    let settled = store.settle_one(&claimed.leased[0].lease, outcome).await;
    assert_eq!(settled.unwrap(), inbox::Settled::Done);
    store.pause(&evil).await.unwrap();
    for path in [
        "/overview".to_owned(),
        "/messages".to_owned(),
        format!("/messages?{query}&state=dead&error=%3Cscript%3E"),
        format!("/message?{query}"),
        format!("/edit?{query}"),
        "/dead".to_owned(),
        "/keys".to_owned(),
        format!("/confirm?action=discard&{query}"),
    ] {
        let text = page(&router, &path).await.text();
        assert!(text.contains("&lt;script&gt;"), "{path}: {text}");
        harmless(&path, &text);
    }
    page(&router, &format!("/message?{query}"))
        .await
        .has(&["&lt;/pre&gt;&lt;script&gt;alert(3)"]);
    // What is said back of a request is harmless, too.
    for path in [
        "/%3Cscript%3Ealert(1)%3C/script%3E",
        "/messages?%22%3E%3Cscript%3Ealert(1)%3C/script%3E=1",
        "/messages?state=%22%3E%3Cscript%3Ealert(1)%3C/script%3E",
        "/messages?older_than=%22%3E%3Cscript%3E",
        "/messages?error_type=%22%3E%3Cscript%3E",
    ] {
        let answer = look(&router, path).await;
        assert!(answer.status.is_client_error(), "{path}");
        harmless(path, &answer.text());
    }
    let key = format!(
        "{}/{}",
        form_urlencoded::byte_serialize(EVIL.as_bytes()).collect::<String>(),
        form_urlencoded::byte_serialize(EVIL.as_bytes()).collect::<String>()
    );
    let ticked = [("action", "replay"), ("key", key.as_str())];
    harmless(
        "confirm",
        &submit(&router, "/confirm", &ticked).await.text(),
    );
    let replayed = submit(&router, "/replay", &[("key", &key)]).await;
    let change = page(&router, &format!("/{}", location(&replayed))).await;
    change.has(&["1 message replayed"]);
    harmless("change", &change.text());
}

#[track_caller]
fn harmless(path: &str, text: &str) {
    // The only scripts are ours, and they have no content.
    let scripts = text.matches("<script").count();
    let ours = text.matches("<script src=\"htmx.js").count();
    assert_eq!((scripts, ours), (1, 1), "{path}: {text}");
    assert!(text.contains("></script>"));
    for never in [
        "<img",
        "onerror=alert(2)>\"",
        "<style",
        " style=\"",
        "href=\"javascript",
    ] {
        assert!(!text.contains(never), "{never:?} at {path}: {text}");
    }
    // Attributes of ours that are code.
    for tag in text.split('<').skip(1) {
        let tag = tag.split('>').next().unwrap();
        let outside: String = tag.split('"').step_by(2).collect();
        assert!(!outside.contains(" on"), "{path}: {tag}");
    }
    // Nothing turns the direction but in a form, whose content is sent back as it is.
    if !path.contains("edit") && !text.contains("value=\"&quot;'") && !text.contains("<input") {
        assert!(!text.contains('\u{202e}'), "{path}: {text}");
    }
}

#[tokio::test]
async fn odd_payloads_are_shown() {
    let store = memory().await;
    let deep = "[".repeat(100_000);
    let payloads: [(&str, Vec<u8>); 6] = [
        ("empty", vec![]),
        ("binary", (0..=255).collect()),
        ("deep", deep.into_bytes()),
        ("long", "ä".repeat(2_000_000).into_bytes()),
        ("nul", b"a\0b".to_vec()),
        ("number", b"1e999999".to_vec()),
    ];
    let messages = payloads
        .iter()
        .map(|(id, payload)| message("h", id, payload.clone()));
    receive(store.as_ref(), &messages.collect::<Vec<_>>()).await;
    let router = dashboard(store).into_router();
    for (id, payload) in payloads {
        let shown = page(&router, &format!("/message?handler=h&id={id}")).await;
        assert!(shown.body.len() < 300_000, "{id}: {}", shown.body.len());
        let whole = page(&router, &format!("/payload?handler=h&id={id}")).await;
        assert_eq!(whole.body, payload, "{id}");
        let edited = look(&router, &format!("/edit?handler=h&id={id}")).await;
        let expected = match id {
            "binary" | "long" => StatusCode::BAD_REQUEST,
            _ => StatusCode::OK,
        };
        assert_eq!(edited.status, expected, "{id}");
    }
}

#[tokio::test]
async fn too_large_and_broken_bodies_are_refused() {
    let router = dashboard(memory().await).body_limit(1000).into_router();
    let long = "x".repeat(2000);
    let answer = submit(&router, "/discard", &[("key", &long)]).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    let body = serde_json::json!({"handler": "h", "id": "1", "payload": long});
    let answer = post_json(&router, "/api/edit", body).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(answer.json()["code"], "too-large");
    for fields in [
        &[("key", "a")][..],
        &[][..],
        &[("all", "1"), ("key", "a/1")],
        &[("all", "1"), ("state", "processed")],
        &[("all", "1"), ("nonsense", "1")],
    ] {
        let answer = submit(&router, "/discard", fields).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{fields:?}");
    }
}

/// A browser sends the whole form before it reads.
#[tokio::test]
async fn who_sends_a_form_that_is_too_large_is_told_so() {
    let router = dashboard(memory().await).body_limit(1000).into_router();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    let mut stream = TcpStream::connect(address).await.unwrap();
    let large = vec![b'x'; 4_000_000];
    let head = format!(
        "POST /discard HTTP/1.1\r\nhost: a\r\nsec-fetch-site: same-origin\r\n\
         content-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        large.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let (begin, rest) = large.split_at(10_000);
    stream.write_all(begin).await.unwrap();
    stream.readable().await.unwrap();
    stream.write_all(rest).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    server.abort();
}
