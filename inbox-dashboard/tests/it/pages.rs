//! What the pages show.

use std::{collections::BTreeSet, sync::atomic::Ordering::SeqCst, time::Duration};

use axum::http::StatusCode;
use inbox::{Due, OrderingKey, Outcome};
use inbox_dashboard::dashboard;

use crate::{hooked::Hooked, support::*};

#[tokio::test]
async fn each_page_shows_what_there_is_on_each_store() {
    let folder = tempfile::tempdir().unwrap();
    for store in [memory().await, sqlite(&folder).await] {
        filled(store.as_ref()).await;
        let router = dashboard(store)
            .title("Orders")
            .place("db.example")
            .trace_link("https://trace.example/{trace_id}".parse().unwrap())
            .into_router();
        let overview = page(&router, "/overview").await;
        overview.has(&[
            "<title>Overview · Orders</title>",
            "db.example",
            "Pause mail",
        ]);
        overview.has(&[
            "href=\"dead?handler=mail\">3</a>",
            "href=\"keys?handler=mail\">1</a>",
        ]);
        let messages = page(&router, "/messages").await;
        messages.has(&[
            "7 shown of 7 messages",
            "held by worker-2",
            "blocks its ordering key",
        ]);
        let some = page(&router, "/messages?state=dead&handler=mail&error=mailbox").await;
        some.has(&["1 shown", "dead-1", "smtp::Refused: mailbox full"]);
        some.lacks(&["dead-2"]);
        let dead = page(&router, "/dead").await;
        dead.has(&["smtp::Refused", "such as: ", "exit code 1", "exit code #"]);
        dead.has(&[
            "messages?state=dead&amp;handler=mail&amp;kind=order.placed&amp;error_shape=exit+code+%23\">2</a>",
        ]);
        let untyped = page(
            &router,
            "/messages?state=dead&handler=mail&error_shape=exit+code+%23",
        )
        .await;
        untyped.has(&["2 shown", "dead-2", "dead-3"]);
        untyped.lacks(&["dead-1"]);
        page(&router, "/scheduled")
            .await
            .has(&["order.placed", "no_error=true\">1</a>"]);
        page(&router, "/keys")
            .await
            .has(&["customer-7", "smtp::Refused: mailbox full"]);
        page(&router, "/keys?handler=bill")
            .await
            .has(&["No ordering key is held up"]);
        page(&router, "/workers").await.has(&["worker-2", "held-1"]);
        page(&router, "/changes").await.has(&["None so far"]);
        let one = page(&router, "/message?handler=mail&id=dead-1").await;
        one.has(&[
            "smtp::Refused:\n  mailbox full",
            "{\n  &quot;to&quot;: &quot;ada&quot;\n}",
        ]);
        one.has(&[
            "https://trace.example/0af7651916cd43dd8448eb211c80319c",
            "Edit and replay",
        ]);
        let behind = page(&router, "/message?handler=mail&id=behind-1").await;
        behind.has(&["behind 1 message", "id=dead-1"]);
        let payload = page(&router, "/payload?handler=mail&id=dead-1").await;
        assert_eq!(payload.text(), r#"{"to":"ada"}"#);
        assert_eq!(payload.headers["content-type"], "application/octet-stream");
        assert_eq!(
            payload.headers["content-disposition"],
            "attachment; filename=\"payload\""
        );
        assert_eq!(
            page(&router, "/result?handler=bill&id=done-1").await.text(),
            "the result"
        );
        let missing = look(&router, "/message?handler=mail&id=nowhere").await;
        assert_eq!(missing.status, StatusCode::NOT_FOUND);
        let none = look(&router, "/result?handler=mail&id=dead-1").await;
        assert_eq!(none.status, StatusCode::NOT_FOUND);
        page(&router, "/edit?handler=mail&id=dead-1")
            .await
            .has(&["<textarea", "Replay with these"]);
        page(&router, "/confirm?action=replay&handler=mail")
            .await
            .has(&["3 messages would be replayed"]);
    }
}

/// The ids on a page, and the link to the next one.
fn ids_and_next(text: &str) -> (Vec<String>, Option<String>) {
    let rows = text.split("<th scope=\"row\">").skip(1);
    let id = |row: &str| {
        let (_, behind) = row.split_once("id=").unwrap();
        behind.split('"').next().unwrap().to_owned()
    };
    let next = text.split("<a href=\"").find_map(|part| {
        let (link, rest) = part.split_once('"')?;
        rest.starts_with(" rel=\"next\"")
            .then(|| format!("/{}", link.replace("&amp;", "&")))
    });
    (rows.map(id).collect(), next)
}

#[tokio::test]
async fn paging_meets_each_of_many_once() {
    let folder = tempfile::tempdir().unwrap();
    for store in [memory().await, sqlite(&folder).await] {
        for batch in 0..10 {
            let messages = (0..250).map(|n| message("many", &format!("m{}", batch * 250 + n), "x"));
            receive(store.as_ref(), &messages.collect::<Vec<_>>()).await;
        }
        let router = dashboard(store.clone()).into_router();
        for order in ["newest", "oldest"] {
            let mut seen = BTreeSet::new();
            let mut next = Some(format!("/messages?handler=many&limit=333&order={order}"));
            let mut pages = 0;
            while let Some(path) = next {
                let (ids, behind) = ids_and_next(&page(&router, &path).await.text());
                for id in ids {
                    assert!(seen.insert(id.clone()), "{id} twice");
                }
                // New ones do not shift the others.
                if order == "newest" {
                    receive(
                        store.as_ref(),
                        &[message("many", &format!("late-{pages}"), "x")],
                    )
                    .await;
                }
                pages += 1;
                next = behind;
            }
            let late = if order == "oldest" { 8 } else { 0 };
            assert_eq!((seen.len(), pages), (2500 + late, 8), "{order}");
        }
        let export = page(&router, "/export?handler=many").await;
        assert_eq!(export.headers["content-type"], "application/x-ndjson");
        let text = export.text();
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 2508);
        assert!(lines.iter().all(|line| line.get("payload").is_none()));
        let whole = page(&router, "/export?handler=many&payloads=true")
            .await
            .text();
        assert_eq!(whole.lines().count(), 2508);
        assert!(whole.lines().all(|line| line.contains("\"payload\":\"x\"")));
    }
}

/// Large payloads are read few at a time: a piece of the answer is what was in memory.
#[tokio::test]
async fn an_export_takes_no_more_memory_than_a_few_large_payloads() {
    use futures_util::StreamExt as _;
    use tower::ServiceExt as _;

    const BYTES: usize = 2 * 1024 * 1024;
    let store = memory().await;
    for n in 0..30 {
        let large = message("large", &n.to_string(), "x".repeat(BYTES));
        receive(store.as_ref(), &[large]).await;
    }
    let request = axum::extract::Request::get("/export?handler=large&payloads=true");
    let request = request.body(axum::body::Body::empty()).unwrap();
    let router = dashboard(store).into_router();
    let mut pieces = router
        .oneshot(request)
        .await
        .unwrap()
        .into_body()
        .into_data_stream();
    let mut all = 0;
    while let Some(piece) = pieces.next().await {
        let piece = piece.unwrap();
        assert!(piece.len() < 12 * BYTES, "{}", piece.len());
        all += piece.len();
    }
    assert!(all > 30 * BYTES, "{all}");
}

/// Of a group that no filter names, pages are of the group alone, too.
#[tokio::test]
async fn paging_works_where_the_store_cannot_filter() {
    let store = memory().await;
    for n in 0..60 {
        receive(store.as_ref(), &[message("mixed", &format!("m{n}"), "x")]).await;
        let error = if n % 3 == 0 {
            "plain"
        } else {
            "a::Error: typed"
        };
        end_all(store.as_ref(), "mixed", dead(error)).await;
    }
    let router = dashboard(store).into_router();
    let mut next = Some("/messages?handler=mixed&error_shape=plain&limit=7".to_owned());
    let mut seen = Vec::new();
    while let Some(path) = next {
        let (ids, behind) = ids_and_next(&page(&router, &path).await.text());
        assert!(ids.len() <= 7);
        seen.extend(ids);
        next = behind;
    }
    let expected: Vec<_> = (0..60)
        .rev()
        .filter(|n| n % 3 == 0)
        .map(|n| format!("m{n}"))
        .collect();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn what_is_many_is_looked_at_step_by_step() {
    let store = memory().await;
    let key = OrderingKey::new("k").unwrap();
    let blocked = message("many", "first", "x").with_ordering_key(key);
    receive(store.as_ref(), &[blocked]).await;
    end_all(store.as_ref(), "many", dead("a::B: c")).await;
    for batch in 0..3 {
        let messages = (0..1000).map(|n| message("many", &format!("{batch}-{n}"), "x"));
        receive(store.as_ref(), &messages.collect::<Vec<_>>()).await;
    }
    end_all(store.as_ref(), "many", dead("a::B: c")).await;
    let router = dashboard(store.clone()).into_router();
    // One request looks at a thousand; what it links to, at the next thousand.
    for (first, so_far, of_all) in [
        ("/dead", "at least <a", ">3,001</a>"),
        ("/keys", "the newest 1,000 dead messages so far", ">k</a>"),
        (
            "/confirm?action=replay&error_type=a::B",
            "At least 1,000 messages would be replayed",
            "<p>3,001 messages would be replayed",
        ),
    ] {
        let mut answer = page(&router, first).await;
        answer.has(&[so_far]);
        let mut steps = 1;
        while let Some(more) = more_of(&answer) {
            answer = page(&router, &more).await;
            steps += 1;
        }
        answer.has(&[of_all]);
        answer.lacks(&["at least <a"]);
        // What was looked at for one page is good for the next.
        assert_eq!(steps, 4, "{first}");
        // A link to what was over a while ago begins again.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let join = if first.contains('?') { '&' } else { '?' };
        let again = page(&router, &format!("{first}{join}more=true")).await;
        again.has(&[so_far]);
    }
    let confirm = page(&router, "/confirm?action=replay&handler=many").await;
    confirm.has(&["<p>3,001 messages would be replayed"]);
    // However few a filter means, no store is made to look for them among all.
    let rare = page(&router, "/dead?kind=rare&error=none").await;
    rare.has(&["the newest 1,000 dead messages so far"]);
    // A change is seen at once.
    page(&router, "/dead").await.has(&["at least <a"]);
    submit(
        &router,
        "/discard",
        &[("all", "true"), ("handler", "many"), ("state", "dead")],
    )
    .await;
    page(&router, "/dead").await.has(&["No dead messages"]);
}

#[tokio::test]
async fn the_place_in_an_ordering_key_is_told() {
    let store = memory().await;
    let key = OrderingKey::new("k").unwrap();
    let ordered = |n: u32| message("h", &format!("m{n}"), "x").with_ordering_key(key.clone());
    let many: Vec<_> = (0..600).map(ordered).collect();
    receive(store.as_ref(), &many).await;
    let router = dashboard(store).into_router();
    for (id, told) in [
        ("m0", "it has the turn"),
        ("m7", "behind 7 messages"),
        ("m599", "behind more than 500 messages"),
    ] {
        page(&router, &format!("/message?handler=h&id={id}"))
            .await
            .has(&[told]);
    }
}

#[tokio::test]
async fn a_message_is_shown_although_its_place_is_not_found() {
    let store = memory().await;
    filled(store.as_ref()).await;
    let hooked = Hooked::new(store);
    let router = dashboard(hooked.clone()).into_router();
    hooked.hooks.lists_fail.store(true, SeqCst);
    page(&router, "/message?handler=mail&id=behind-1")
        .await
        .has(&["customer-7", "its place could not be found"]);
    // Of one that is final it is not looked for.
    page(&router, "/message?handler=mail&id=dead-1")
        .await
        .lacks(&["its place"]);
}

#[tokio::test]
async fn hidden_payloads_are_nowhere() {
    let store = memory().await;
    let secret = message("h", "1", "SECRET-1")
        .with_header("x-personal", "SECRET-2")
        .unwrap();
    receive(store.as_ref(), std::slice::from_ref(&secret)).await;
    let result = Outcome::Processed {
        result: Some("SECRET-3".into()),
    };
    end_all(store.as_ref(), "h", result).await;
    let second = message("h", "2", "SECRET-1").with_due(Due::Now);
    receive(
        store.as_ref(),
        &[second.with_header("x-personal", "SECRET-2").unwrap()],
    )
    .await;
    end_all(store.as_ref(), "h", dead("e")).await;
    let hiding = dashboard(store.clone()).hide_payloads().into_router();
    let showing = dashboard(store).into_router();
    let mut shown = 0;
    for id in ["1", "2"] {
        for path in [
            "/message",
            "/payload",
            "/result",
            "/edit",
            "/api/message",
            "/messages",
            "/export",
            "/api/export",
            "/api/messages",
            "/dead",
            "/api/dead",
            "/overview",
            "/changes",
            "/workers",
        ] {
            let queries = if path.contains("export") {
                vec![
                    format!("?handler=h&id={id}"),
                    format!("?handler=h&id={id}&payloads=true"),
                ]
            } else if ["/overview", "/changes", "/workers"].contains(&path) {
                vec![String::new()]
            } else {
                vec![format!("?handler=h&id={id}")]
            };
            for query in queries {
                let path = format!("{path}{query}");
                look(&hiding, &path).await.lacks(&["SECRET"]);
                shown += usize::from(look(&showing, &path).await.text().contains("SECRET"));
            }
        }
    }
    // Otherwise this would not tell anything.
    assert_eq!(shown, 19, "pages with payload, result or header");
    // Defect: a digest of the payload was shown, of which a short one is found by trying.
    look(&hiding, "/message?handler=h&id=1")
        .await
        .lacks(&["Fingerprint"]);
    look(&showing, "/message?handler=h&id=1")
        .await
        .has(&["Fingerprint"]);
    let edit = [
        ("handler", "h"),
        ("id", "2"),
        ("payload", "{"),
        ("json", "true"),
    ];
    let refused = submit(&hiding, "/edit", &edit).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    refused.lacks(&["SECRET"]);
}

#[tokio::test]
async fn wrong_questions_are_answered_as_wrong() {
    let router = dashboard(memory().await).into_router();
    for path in [
        "/messages?state=lost",
        "/messages?limit=0",
        "/messages?limit=501",
        "/messages?order=up",
        "/messages?after=x",
        "/messages?older_than=5",
        "/messages?handler=%00",
        "/messages?min_attempts=99999999999",
        "/messages?%ff=%fe",
        "/message",
        "/message?handler=h",
        "/message?handler=h&id=%0a",
        "/change",
        "/change?id=x",
        "/confirm?action=purge",
        "/confirm?action=discard&state=processed",
        "/confirm?action=replay&key=a",
        "/edit?id=1",
        "/export?after=x",
        "/api/messages?limit=1001",
    ] {
        let answer = look(&router, path).await;
        assert_eq!(
            answer.status,
            StatusCode::BAD_REQUEST,
            "{path}: {}",
            answer.text()
        );
    }
    let unknown = look(&router, "/change?id=1").await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn read_only_pages_offer_no_change() {
    let store = memory().await;
    filled(store.as_ref()).await;
    let router = dashboard(store).read_only().into_router();
    for path in [
        "/overview",
        "/messages",
        "/dead",
        "/scheduled",
        "/message?handler=mail&id=dead-1",
        "/message?handler=mail&id=later-1",
        "/message?handler=bill&id=done-1",
    ] {
        page(&router, path)
            .await
            .lacks(&["method=\"post\"", "confirm?", "edit?"]);
    }
    for path in ["/edit?handler=mail&id=dead-1", "/confirm?action=replay"] {
        assert_eq!(look(&router, path).await.status, StatusCode::FORBIDDEN);
    }
}
