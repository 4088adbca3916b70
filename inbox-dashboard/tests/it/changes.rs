//! Replays, edits, discards, reschedules and pauses from the pages.

use std::{
    io,
    sync::{Arc, LazyLock, Mutex, atomic::Ordering::SeqCst},
    time::{Duration, Instant},
};

use axum::{
    body::Body,
    http::{HeaderName, Request, StatusCode},
};
use inbox::{Filter, Headers, Inbox, Key, MessageId, Record, State};
use inbox_dashboard::{
    command_pauses::{self, PausingCommand},
    dashboard,
};

use crate::{hooked::Hooked, support::*};

async fn record(store: &dyn Inbox, name: &str, id: &str) -> Record {
    let key = Key::new(handler(name), MessageId::new(id).unwrap());
    store.get(&key).await.unwrap().unwrap()
}

async fn count(store: &dyn Inbox, state: State) -> u64 {
    let filter = Filter {
        states: vec![state],
        ..Filter::default()
    };
    store.count(&filter).await.unwrap()
}

#[tokio::test]
async fn one_message_is_replayed_discarded_and_rescheduled() {
    let folder = tempfile::tempdir().unwrap();
    for store in [memory().await, sqlite(&folder).await] {
        filled(store.as_ref()).await;
        let router = dashboard(store.clone()).into_router();
        let replayed = submit(&router, "/replay", &[("key", "mail/dead-1")]).await;
        let change = page(&router, &format!("/{}", location(&replayed))).await;
        change.has(&["1 message replayed", "done", "mail/dead-1", "anonymous"]);
        assert_eq!(
            record(store.as_ref(), "mail", "dead-1").await.state,
            State::Pending
        );
        let discarded = submit(&router, "/discard", &[("key", "mail/dead-2")]).await;
        page(&router, &format!("/{}", location(&discarded)))
            .await
            .has(&["1 message discarded"]);
        assert_eq!(
            record(store.as_ref(), "mail", "dead-2").await.state,
            State::Discarded
        );
        let moved = submit(
            &router,
            "/reschedule",
            &[("key", "mail/later-1"), ("after", "0s")],
        )
        .await;
        page(&router, &format!("/{}", location(&moved)))
            .await
            .has(&["1 message rescheduled"]);
        let record = record(store.as_ref(), "mail", "later-1").await;
        assert!(record.due_at <= std::time::SystemTime::now() + std::time::Duration::from_secs(60));
        page(&router, "/changes").await.has(&["#1", "#2", "#3"]);
    }
}

#[tokio::test]
async fn what_cannot_be_changed_is_told() {
    let store = memory().await;
    filled(store.as_ref()).await;
    let router = dashboard(store.clone()).into_router();
    let fields = [
        ("key", "bill/done-1"),
        ("key", "bill/held-1"),
        ("key", "bill/nowhere"),
        ("key", "mail/dead-1"),
    ];
    let answer = submit(&router, "/replay", &fields).await;
    let change = page(&router, &format!("/{}", location(&answer))).await;
    change.has(&[
        "1 message replayed",
        "3 refused",
        "happen a second time",
        "it is leased",
        "there is no such message",
    ]);
    assert_eq!(
        record(store.as_ref(), "bill", "done-1").await.state,
        State::Processed
    );
    let again = [("key", "bill/done-1"), ("also_processed", "true")];
    submit(&router, "/replay", &again).await;
    assert_eq!(
        record(store.as_ref(), "bill", "done-1").await.state,
        State::Pending
    );
    let page = page(&router, "/message?handler=bill&id=held-1").await;
    page.has(&["A worker holds it"]);
}

/// Others may have replayed what an operator still sees as dead, and a worker has finished it.
#[tokio::test]
async fn what_others_have_replayed_meanwhile_does_not_happen_again() {
    let store = memory().await;
    receive(&*store, &[message("mail", "1", "x")]).await;
    end_all(&*store, "mail", dead("no")).await;
    let hooked = Hooked::new(store.clone());
    let router = dashboard(hooked.clone()).into_router();
    hooked.hooks.is_overtaken.store(true, SeqCst);
    let answer = submit(&router, "/replay", &[("key", "mail/1")]).await;
    let change = page(&router, &format!("/{}", location(&answer))).await;
    change.has(&["0 messages replayed", "1 refused", "happen a second time"]);
    let left = record(&*store, "mail", "1").await;
    assert_eq!((left.state, left.replays), (State::Processed, 1));
}

#[tokio::test]
async fn many_that_are_named_are_replayed_in_few_steps() {
    let store = memory().await;
    let ids: Vec<String> = (0..600).map(|n| format!("m{n}")).collect();
    let sent = ids.iter().map(|id| message("many", id, "x"));
    receive(&*store, &sent.collect::<Vec<_>>()).await;
    end_all(&*store, "many", dead("no")).await;
    let discarded = Key::new(handler("many"), MessageId::new("m7").unwrap());
    let done = store.discard(&discarded).await.unwrap();
    assert_eq!(done, inbox::Intervention::Done);
    let hooked = Hooked::new(store.clone());
    let router = dashboard(hooked.clone()).into_router();
    let mut keys: Vec<_> = ids.iter().map(|id| ("many", id.as_str())).collect();
    keys.extend([("many", "nowhere"), ("other", "m1")]);
    let keys: Vec<_> = keys
        .into_iter()
        .map(|(handler, id)| serde_json::json!({"handler": handler, "id": id}))
        .collect();
    let body = serde_json::json!({"keys": keys, "wait_seconds": 60});
    let change = post_json(&router, "/api/replay", body).await.json();
    assert_eq!(change["changed"], 600, "{change}");
    assert_eq!(change["refused"], 2, "{change}");
    assert_eq!(count(store.as_ref(), State::Pending).await, 600);
    // Those of each state of 500 together.
    assert_eq!(hooked.hooks.slices.lock().unwrap().len(), 3);
}

/// Each step goes on where the one before has ended.
#[tokio::test]
async fn a_group_is_replayed_in_one_pass() {
    let store = memory().await;
    let sent = (0..1200).map(|n| message("many", &format!("m{n}"), "x"));
    receive(&*store, &sent.collect::<Vec<_>>()).await;
    end_all(&*store, "many", dead("plain")).await;
    let hooked = Hooked::new(store.clone());
    let router = dashboard(hooked.clone()).into_router();
    let body = serde_json::json!({
        "filter": {"handler": "many", "error_shape": "plain"},
        "wait_seconds": 60,
    });
    let change = post_json(&router, "/api/replay", body).await.json();
    assert_eq!(change["changed"], 1200, "{change}");
    let slices = hooked.hooks.slices.lock().unwrap().clone();
    let began: Vec<bool> = slices.iter().map(|slice| slice.after.is_some()).collect();
    assert_eq!(began, [false, true, true]);
}

#[tokio::test]
async fn what_is_ticked_is_confirmed_and_changed() {
    let store = memory().await;
    filled(store.as_ref()).await;
    let router = dashboard(store.clone()).into_router();
    let page_keys = [
        ("page_key", "mail/dead-1"),
        ("page_key", "mail/dead-2"),
        ("page_key", "mail/dead-3"),
    ];
    let mut ticked = vec![("action", "discard"), ("key", "mail/dead-2")];
    ticked.extend(page_keys);
    let confirm = submit(&router, "/confirm", &ticked).await;
    confirm.has(&["1 message would be discarded", "value=\"mail/dead-2\""]);
    confirm.lacks(&["dead-1", "dead-3"]);
    assert_eq!(count(store.as_ref(), State::Discarded).await, 0);
    ticked.push(("page", "true"));
    let confirm = submit(&router, "/confirm", &ticked).await;
    confirm.has(&[
        "3 messages would be discarded",
        "mail/dead-1",
        "mail/dead-3",
    ]);
    let none = submit(&router, "/confirm", &[("action", "discard"), page_keys[0]]).await;
    assert_eq!(none.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_group_is_replayed_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    for store in [memory().await, sqlite(&folder).await] {
        // The same ids twice, for two handlers, so that an id alone is not enough.
        for name in ["one", "two"] {
            for n in 0..1200 {
                let id = format!("m{n}");
                receive(store.as_ref(), &[message(name, &id, "x")]).await;
                if n % 300 == 299 {
                    let error = if n > 700 { "plain" } else { "a::Error: typed" };
                    end_all(store.as_ref(), name, dead(error)).await;
                }
            }
        }
        let router = dashboard(store.clone()).into_router();
        for (query, fields) in [
            (
                "error_type=a::Error",
                [("handler", "one"), ("error_type", "a::Error")],
            ),
            (
                "error_shape=plain",
                [("handler", "one"), ("error_shape", "plain")],
            ),
        ] {
            let dry = whole_page(
                &router,
                &format!("/confirm?action=replay&handler=one&{query}"),
            )
            .await;
            dry.has(&["600 messages would be replayed"]);
            let before = count(store.as_ref(), State::Dead).await;
            let mut all = vec![("all", "true"), ("state", "dead")];
            all.extend(fields);
            let answer = submit(&router, "/replay", &all).await;
            let change = location(&answer).to_owned();
            let mut shown = page(&router, &format!("/{change}")).await;
            for _ in 0..200 {
                if !shown.text().contains("under way") {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                shown = page(&router, &format!("/{change}")).await;
            }
            shown.has(&["600 messages replayed", "done"]);
            let replayed = record(store.as_ref(), "one", "m0").await.interventions;
            let kinds: Vec<_> = replayed.iter().map(|note| note.kind.as_str()).collect();
            assert_eq!(kinds, ["replayed"]);
            assert_eq!(before - count(store.as_ref(), State::Dead).await, 600);
        }
        let rest = page(&router, "/confirm?action=replay&handler=two").await;
        rest.has(&["1,200 messages would be replayed"]);
    }
}

#[tokio::test]
async fn a_message_is_edited_and_replayed() {
    let store = memory().await;
    filled(store.as_ref()).await;
    let router = dashboard(store.clone()).into_router();
    let wrong = [
        ("handler", "mail"),
        ("id", "dead-2"),
        ("payload", "{\"a\": SECRET}"),
        ("headers", "{}"),
        ("json", "true"),
    ];
    let refused = submit(&router, "/edit", &wrong).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    // What was typed is there again.
    refused.has(&["not JSON (line 1, column 7)", "{&quot;a&quot;: SECRET}"]);
    let wrong = [
        ("handler", "mail"),
        ("id", "dead-2"),
        ("payload", "{}"),
        ("headers", "[1]"),
    ];
    let refused = submit(&router, "/edit", &wrong).await;
    refused.has(&["the headers are not a JSON object of texts"]);
    assert_eq!(
        record(store.as_ref(), "mail", "dead-2").await.state,
        State::Dead
    );
    let good = [
        ("handler", "mail"),
        ("id", "dead-2"),
        ("payload", "{\r\n\"a\": 1}"),
        ("headers", "{\"x\": \"y\"}"),
        ("json", "true"),
    ];
    let answer = submit(&router, "/edit", &good).await;
    page(&router, &format!("/{}", location(&answer)))
        .await
        .has(&["1 message edited and replayed"]);
    let edited = record(store.as_ref(), "mail", "dead-2").await;
    assert_eq!(edited.state, State::Pending);
    assert_eq!(edited.payload.unwrap(), "{\n\"a\": 1}");
    let mut headers = Headers::new();
    headers.insert("x", "y").unwrap();
    assert_eq!(edited.headers, headers);
    let [note] = edited.interventions.as_slice() else {
        panic!("{:?}", edited.interventions);
    };
    assert_eq!(
        (note.kind.as_str(), note.by.as_str()),
        ("edited", "anonymous")
    );
    page(&router, "/message?handler=mail&id=dead-2")
        .await
        .has(&["<h2>Interventions</h2>", "by anonymous"]);
}

/// What a browser makes of a text in a form is no edit of the operator's.
#[tokio::test]
async fn what_a_browser_does_to_a_payload_is_no_edit() {
    let texts = [
        ("mixed", "a\r\nb\nc", "a\r\nb\r\nc"),
        ("cr", "a\rb", "a\r\nb"),
        ("ends-with-cr", "a\n\r", "a\r\n\r\n"),
        ("nul", "a\0b\n", "a\u{fffd}b\r\n"),
        ("crlf", "a\r\nb\r\n", "a\r\nb\r\n"),
        ("lf", "a\nb\n", "a\r\nb\r\n"),
    ];
    let store = memory().await;
    for (id, text, _) in texts {
        receive(&*store, &[message("mail", id, text)]).await;
    }
    end_all(&*store, "mail", dead("no")).await;
    let router = dashboard(store.clone()).into_router();
    let edit = |id: &'static str, payload: String, headers: &'static str| {
        let router = router.clone();
        async move {
            let fields = [
                ("handler", "mail"),
                ("id", id),
                ("payload", payload.as_str()),
                ("headers", headers),
            ];
            submit(&router, "/edit", &fields).await
        }
    };
    for (id, text, _) in &texts[..4] {
        let refused = edit(id, format!("{text}, edited"), "{}").await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{id}");
        refused.has(&["`inbox replay --payload FILE` replaces it"]);
        let kept = record(store.as_ref(), "mail", id).await;
        assert_eq!(kept.state, State::Dead, "{id}");
    }
    for (id, text, sent) in texts {
        let answer = edit(id, sent.to_owned(), "{\"x\": \"y\"}").await;
        page(&router, &format!("/{}", location(&answer)))
            .await
            .has(&["1 message edited and replayed"]);
        let edited = record(store.as_ref(), "mail", id).await;
        assert_eq!(edited.state, State::Pending, "{id}");
        assert_eq!(edited.payload.as_deref(), Some(text.as_bytes()), "{id}");
        assert_eq!(edited.headers.get("x"), Some("y"), "{id}");
    }
}

#[tokio::test]
async fn a_handler_is_paused_and_resumed() {
    let store = memory().await;
    filled(store.as_ref()).await;
    let router = dashboard(store.clone()).into_router();
    let paused = submit(&router, "/pause", &[("handler", "mail")]).await;
    assert_eq!(location(&paused), "overview");
    page(&router, "/overview")
        .await
        .has(&["Resume mail", "Pause bill"]);
    assert_eq!(store.paused().await.unwrap(), [handler("mail")]);
    submit(&router, "/resume", &[("handler", "mail")]).await;
    assert!(store.paused().await.unwrap().is_empty());
}

/// Defect: the command refused to resume such a handler, and the page did it.
#[tokio::test]
async fn what_a_command_has_paused_is_not_resumed() {
    let store = memory().await;
    filled(store.as_ref()).await;
    let router = dashboard(store.clone()).into_router();
    let mail = handler("mail");
    let mark = PausingCommand::ImportKeys.mark(&mail).unwrap();
    let resume = [("handler", "mail")];
    store.pause(&mark).await.unwrap();
    store.pause(&mail).await.unwrap();
    let refused = submit(&router, "/resume", &resume).await;
    assert_eq!(refused.status, StatusCode::CONFLICT);
    refused.has(&["`inbox import-keys` has paused `mail`", mark.as_str()]);
    let body = serde_json::json!({"handler": "mail"});
    let refused = post_json(&router, "/api/resume", body).await;
    assert_eq!(refused.status, StatusCode::CONFLICT);
    assert_eq!(refused.json()["code"], "paused-by-command");
    assert!(store.paused().await.unwrap().contains(&mail));
    // Who gives it up says so.
    submit(&router, "/resume", &[("handler", mark.as_str())]).await;
    let resumed = submit(&router, "/resume", &resume).await;
    assert_eq!(location(&resumed), "overview");
    assert!(store.paused().await.unwrap().is_empty());
}

/// Defect: the end of the command ended the operator's pause, too.
#[tokio::test]
async fn a_pause_while_a_command_works_is_there_behind_it() {
    let store = memory().await;
    filled(store.as_ref()).await;
    let router = dashboard(store.clone()).into_router();
    let (mail, command) = (handler("mail"), PausingCommand::Copy);
    command.begin(store.as_ref(), &mail).await.unwrap();
    submit(&router, "/pause", &[("handler", "mail")]).await;
    let overview = page(&router, "/overview").await;
    overview.has(&["Resume mail", command.mark(&mail).unwrap().as_str()]);
    overview.lacks(&["inbox-kept"]);
    command.end(store.as_ref(), &mail).await.unwrap();
    assert_eq!(store.paused().await.unwrap(), [mail]);
    submit(&router, "/resume", &[("handler", "mail")]).await;
    assert!(store.paused().await.unwrap().is_empty());
}

/// Defect: the one did not see the other, and the command's end ended the operator's pause.
#[tokio::test]
async fn a_pause_that_is_made_while_a_command_begins_is_there_behind_it() {
    let (mail, command) = (handler("mail"), PausingCommand::Copy);
    for is_operator_within in [true, false] {
        let store = memory().await;
        let hooked = Hooked::new(store.clone());
        hooked.hooks.pauses.add_permits(9);
        let (within, of) = (store.clone(), mail.clone());
        *hooked.hooks.meanwhile.lock().unwrap() = Some(Box::pin(async move {
            let done = match is_operator_within {
                true => command_pauses::pause(&*within, &of).await,
                false => command.begin(&*within, &of).await,
            };
            done.unwrap();
        }));
        let done = match is_operator_within {
            true => command.begin(&*hooked, &mail).await,
            false => command_pauses::pause(&*hooked, &mail).await,
        };
        done.unwrap();
        let paused = store.paused().await.unwrap();
        let pause = command_pauses::of_command(&paused, &mail);
        assert_eq!(pause.unwrap().command, command);
        command.end(store.as_ref(), &mail).await.unwrap();
        assert_eq!(store.paused().await.unwrap(), std::slice::from_ref(&mail));
    }
}

/// Defect: the handler worked while the command did.
#[tokio::test]
async fn a_command_that_begins_while_another_ends_has_its_handler_paused() {
    let (copy, import) = (PausingCommand::Copy, PausingCommand::ImportKeys);
    let (store, mail) = (memory().await, handler("mail"));
    copy.begin(store.as_ref(), &mail).await.unwrap();
    let hooked = Hooked::new(store.clone());
    hooked.hooks.pauses.add_permits(9);
    let (within, of) = (store.clone(), mail.clone());
    *hooked.hooks.meanwhile.lock().unwrap() = Some(Box::pin(async move {
        import.begin(within.as_ref(), &of).await.unwrap();
    }));
    copy.end(&*hooked, &mail).await.unwrap();
    let paused = store.paused().await.unwrap();
    let pause = command_pauses::of_command(&paused, &mail);
    assert_eq!(pause.unwrap().command, import);
    import.end(store.as_ref(), &mail).await.unwrap();
    assert!(store.paused().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_change_in_an_outage_says_that_it_failed() {
    let store = memory().await;
    filled(store.as_ref()).await;
    let router = dashboard(store.clone()).into_router();
    // Its secret is asked for before the store is away.
    let opened = page(&router, "/overview").await;
    let cookie = opened.headers["set-cookie"].to_str().unwrap();
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let token = cookie.split('=').nth(1).unwrap();
    store.close().await;
    let request = axum::extract::Request::post("/replay")
        .header("cookie", &cookie)
        .body(format!("form_token={token}&key=mail/dead-1").into());
    let answer = send(&router, request.unwrap()).await;
    let change = page(&router, &format!("/{}", location(&answer))).await;
    change.has(&["failed", "store unavailable", "0 messages replayed"]);
}

/// Collects what is logged, by all tests: a subscriber of one thread misses what another one has met first.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

static LOG: LazyLock<Log> = LazyLock::new(|| {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    log
});

fn logged() -> String {
    String::from_utf8(LOG.0.lock().unwrap().clone()).unwrap()
}

/// The lines of the audit log of this operator, as soon as there are so many.
async fn audit(operator: &str, number: usize) -> Vec<String> {
    let since = Instant::now();
    loop {
        let lines: Vec<String> = logged()
            .lines()
            .filter(|line| line.contains("inbox::audit") && line.contains(operator))
            .map(str::to_owned)
            .collect();
        if lines.len() >= number {
            return lines;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "{lines:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn by_operator(name: &str, path: &str, body: impl Into<Body>) -> Request<Body> {
    let request = Request::post(path)
        .header("x-operator", name)
        .header("content-type", "application/json");
    request.body(body.into()).unwrap()
}

#[tokio::test]
async fn the_audit_log_says_who_did_what_and_no_payload() {
    LazyLock::force(&LOG);
    let store = memory().await;
    filled(store.as_ref()).await;
    let operator = HeaderName::from_static("x-operator");
    let router = dashboard(store).operator_header(operator).into_router();
    let body = r#"{"handler":"mail","id":"dead-1","payload":"SECRET","headers":{"a":"SECRET"}}"#;
    let request = by_operator("ada-of-the-log", "/api/edit", body);
    let answer = send(&router, request).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let audit = audit("ada-of-the-log", 2).await;
    assert_eq!(audit.len(), 2, "{audit:?}");
    assert!(
        audit[0].contains("begun") && audit[1].contains("ended"),
        "{audit:?}"
    );
    assert!(audit[1].contains("changed=1"), "{audit:?}");
    for line in audit {
        for part in [
            "operator=ada-of-the-log",
            "action=\"edit and replay\"",
            "messages=mail/dead-1",
        ] {
            assert!(line.contains(part), "{line}");
        }
    }
    assert!(!logged().contains("SECRET"));
}

#[tokio::test]
async fn the_audit_log_names_each_message() {
    LazyLock::force(&LOG);
    let store = memory().await;
    let operator = HeaderName::from_static("x-operator");
    let router = dashboard(store).operator_header(operator).into_router();
    let keys = (0..120).map(|n| serde_json::json!({"handler": "many", "id": format!("m{n}")}));
    let body = serde_json::json!({"keys": keys.collect::<Vec<_>>()}).to_string();
    let request = by_operator("lin-of-the-keys", "/api/discard", body);
    let answer = send(&router, request).await;
    assert_eq!(answer.json()["refused"], 120);
    let audit = audit("lin-of-the-keys", 5).await;
    assert!(audit[0].contains("begun") && audit[0].contains("messages=120 messages"));
    for n in 0..120 {
        let key = format!("\"many/m{n}\"");
        assert!(audit.iter().any(|line| line.contains(&key)), "{key}");
    }
    assert!(audit.iter().all(|line| line.len() < 2_000), "{audit:?}");
}

#[tokio::test]
async fn a_pause_is_told_when_it_begins_and_goes_on_without_its_request() {
    LazyLock::force(&LOG);
    let hooked = Hooked::new(memory().await);
    let operator = HeaderName::from_static("x-operator");
    let router = dashboard(hooked.clone())
        .operator_header(operator)
        .into_router();
    let request = by_operator("eve-of-the-pause", "/api/pause", r#"{"handler":"mail"}"#);
    let asked = tokio::spawn(async move { send(&router, request).await });
    let begun = audit("eve-of-the-pause", 1).await;
    assert!(begun[0].contains("begun") && begun[0].contains("handler=mail"));
    asked.abort();
    assert!(asked.await.unwrap_err().is_cancelled());
    assert!(hooked.store.paused().await.unwrap().is_empty());
    hooked.hooks.pauses.add_permits(1);
    let told = audit("eve-of-the-pause", 2).await;
    assert!(told[1].contains("ended"), "{told:?}");
    assert_eq!(hooked.store.paused().await.unwrap(), [handler("mail")]);
}
