//! What is the same, what is replayed, and what is refused.

use std::time::Duration;

use axum::{
    Extension, Router,
    body::Bytes,
    extract::Path,
    http::{HeaderMap, HeaderName, Method, StatusCode},
    response::IntoResponse,
    routing::{any, get, post},
};
use inbox::{Operate as _, PurgeRequest, State};
use inbox_http::{
    IdempotencyLayer,
    idempotency::{Demand, IdempotencyKey, OnConflict},
};
use tokio::sync::Notify;

use super::{Runs, layer};
use crate::{
    places::{Place, on_each_store},
    server::Site,
};

on_each_store!(
    the_first_response_is_replayed_byte_for_byte,
    another_request_with_the_key_is_refused,
    a_key_is_demanded_where_the_layer_says_so,
    malformed_keys_are_refused,
    keys_of_callers_methods_and_routes_are_apart,
    a_copy_meanwhile_is_refused_or_waits,
    statuses_decide_what_is_kept,
    stripes_rules_are_a_preset,
    of_many_copies_at_once_one_runs,
    a_purged_key_is_new,
    what_no_route_has_is_no_affair_of_a_layer_on_routes,
    any_path_that_can_be_sent_is_let_through,
);

/// Answers with its number, as it counts.
fn counting(runs: &Runs) -> axum::routing::MethodRouter {
    let runs = runs.clone();
    any(move || async move { format!("run {}", runs.count()) })
}

async fn the_first_response_is_replayed_byte_for_byte<P: Place>(place: P) {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move |Extension(key): Extension<IdempotencyKey>| async move {
            assert_eq!(key.as_str(), "8e03978e");
            let mut headers = HeaderMap::new();
            headers.insert("content-type", "application/octet-stream".parse().unwrap());
            headers.insert("set-cookie", "session=secret".parse().unwrap());
            headers.append("x-receipt", "1".parse().unwrap());
            headers.append("x-receipt", "2".parse().unwrap());
            let body = vec![0, 255, 13, 10, u8::try_from(runs.count()).unwrap()];
            (StatusCode::CREATED, headers, body)
        }
    };
    let app = Router::new()
        .route("/pay", post(handler))
        .layer(layer(place.inbox()));
    let site = Site::serve(app).await;
    let first = site.with_key("/pay", "\"8e03978e\"", "{}").await;
    assert_eq!(first.status, 201);
    assert!(!first.is_replay());
    assert_eq!(first.header("set-cookie"), Some("session=secret"));
    // A bare token is the same key.
    for key in ["\"8e03978e\"", "8e03978e"] {
        let again = site.with_key("/pay", key, "{}").await;
        assert_eq!(again.status, 201);
        assert!(again.is_replay());
        assert_eq!(again.body, first.body);
        let of = |answer: &HeaderMap, name: &str| -> Vec<_> {
            answer.get_all(name).iter().cloned().collect()
        };
        for name in ["content-type", "content-length", "x-receipt"] {
            assert_eq!(of(&again.headers, name), of(&first.headers, name), "{name}");
        }
        assert_eq!(again.header("set-cookie"), None);
    }
    assert_eq!(runs.so_far(), 1);
    let messages = place.messages().await;
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].state, State::Processed);
    assert_eq!(messages[0].kind.as_str(), "POST /pay");
}

async fn another_request_with_the_key_is_refused<P: Place>(place: P) {
    let runs = Runs::default();
    let layer = layer(place.inbox()).fingerprint_headers([HeaderName::from_static("x-version")]);
    let app = Router::new()
        .route("/pay/{to}", counting(&runs))
        .layer(layer);
    let site = Site::serve(app).await;
    let key = ("idempotency-key", "k");
    let (user, version) = (("authorization", "Bearer a"), ("x-version", "1"));
    let all = [key, user, version];
    assert_eq!(site.post("/pay/7", &all, "{}").await.text(), "run 1");
    let others = [
        site.post("/pay/7", &all, "{ }").await,
        site.post("/pay/8", &all, "{}").await,
        site.post("/pay/7?x=1", &all, "{}").await,
        site.post(
            "/pay/7",
            &[key, ("authorization", "Bearer b"), version],
            "{}",
        )
        .await,
        site.post("/pay/7", &[key, version], "{}").await,
        site.post("/pay/7", &[key, user, ("x-version", "2")], "{}")
            .await,
    ];
    for other in others {
        assert_eq!(other.status, 422);
        assert_eq!(other.problem(), "key-reused");
        assert!(!other.is_replay());
    }
    let same = [key, user, version, ("x-other", "1")];
    assert_eq!(site.post("/pay/7", &same, "{}").await.text(), "run 1");
    assert_eq!(runs.so_far(), 1);

    // What is the same can be said otherwise.
    let layer =
        super::layer(place.inbox()).fingerprint(|_, body| body.slice(..1.min(body.len())).to_vec());
    let app = Router::new().route("/rough", counting(&runs)).layer(layer);
    let site = Site::serve(app).await;
    let first = site.with_key("/rough", "k", "a1").await;
    assert_eq!(site.with_key("/rough", "k", "a2").await.body, first.body);
    assert_eq!(
        site.with_key("/rough", "k", "b1").await.problem(),
        "key-reused"
    );
    // Who asks counts all the same, unless there is a caller.
    let as_user = async |site: &Site, user: &str| {
        let headers = [("idempotency-key", "u"), ("authorization", user)];
        site.post("/rough", &headers, "a").await
    };
    let first = as_user(&site, "Bearer a").await;
    assert_eq!(as_user(&site, "Bearer a").await.body, first.body);
    assert_eq!(as_user(&site, "Bearer b").await.problem(), "key-reused");
    assert_eq!(
        site.with_key("/rough", "u", "a").await.problem(),
        "key-reused"
    );
    let layer = super::layer(place.inbox())
        .fingerprint(|_, body| body.to_vec())
        .caller(|_| Some("one".into()));
    let app = Router::new().route("/rough", counting(&runs)).layer(layer);
    let site = Site::serve(app).await;
    let first = as_user(&site, "Bearer a").await;
    assert_eq!(as_user(&site, "Bearer b").await.body, first.body);
}

async fn a_key_is_demanded_where_the_layer_says_so<P: Place>(place: P) {
    let runs = Runs::default();
    let layer = layer(place.inbox())
        .optional([Method::PUT])
        .route(Method::POST, "/search/{what}", Demand::Ignored)
        .route(Method::DELETE, "/all", Demand::Required)
        .documentation("https://docs.example.com/keys")
        .unwrap();
    let app = Router::new()
        .route("/all", counting(&runs))
        .route("/search/{what}", counting(&runs))
        .layer(layer);
    let site = Site::serve(app).await;
    for method in [Method::POST, Method::PATCH, Method::DELETE] {
        let missing = site.send(method, "/all", &[], "").await;
        assert_eq!(
            (missing.status.as_u16(), missing.problem().as_str()),
            (400, "key-missing")
        );
        assert_eq!(missing.json()["type"], "https://docs.example.com/keys");
        let link = "<https://docs.example.com/keys>; rel=\"describedby\"";
        assert_eq!(missing.header("link"), Some(link));
    }
    assert_eq!(runs.so_far(), 0);
    let key = [("idempotency-key", "k")];
    for number in [1, 2] {
        let text = format!("run {number}");
        assert_eq!(site.send(Method::PUT, "/all", &[], "").await.text(), text);
    }
    for _ in 0..2 {
        assert_eq!(
            site.send(Method::PUT, "/all", &key, "").await.text(),
            "run 3"
        );
        assert_eq!(
            site.send(Method::DELETE, "/all", &key, "").await.status,
            200
        );
    }
    // Here a key means nothing.
    assert_eq!(site.post("/search/x", &key, "").await.text(), "run 5");
    assert_eq!(site.post("/search/x", &key, "").await.text(), "run 6");
    assert_eq!(
        site.send(Method::GET, "/all", &key, "").await.text(),
        "run 7"
    );
    assert!(layer_without_url(&place).is_err());
}

fn layer_without_url<P: Place>(place: &P) -> Result<IdempotencyLayer, inbox::Invalid> {
    layer(place.inbox()).documentation("no url>\n")
}

async fn malformed_keys_are_refused<P: Place>(place: P) {
    let runs = Runs::default();
    let app = Router::new()
        .route("/", counting(&runs))
        .layer(layer(place.inbox()));
    let site = Site::serve(app).await;
    let long = "x".repeat(256);
    for key in ["", "\"\"", "\"open", "a b", "a, b", &long] {
        let refused = site.with_key("/", key, "").await;
        assert_eq!(refused.status, 400, "{key}");
        assert_eq!(refused.problem(), "key-malformed", "{key}");
    }
    let two = [("idempotency-key", "a"), ("idempotency-key", "a")];
    assert_eq!(site.post("/", &two, "").await.problem(), "key-malformed");
    assert_eq!(runs.so_far(), 0);
    assert_eq!(site.with_key("/", &long[1..], "").await.text(), "run 1");
    assert_eq!(site.with_key("/", &long[1..], "").await.text(), "run 1");
}

async fn keys_of_callers_methods_and_routes_are_apart<P: Place>(place: P) {
    let runs = Runs::default();
    let layer = layer(place.inbox()).caller(|request| {
        let user = request.headers.get("x-user")?;
        Some(user.to_str().ok()?.to_owned())
    });
    let app = Router::new()
        .route("/a", counting(&runs))
        .route("/b", counting(&runs))
        .layer(layer);
    let site = Site::serve(app).await;
    let key = ("idempotency-key", "k");
    for _ in 0..2 {
        assert_eq!(
            site.post("/a", &[key, ("x-user", "1")], "").await.text(),
            "run 1"
        );
        assert_eq!(
            site.post("/a", &[key, ("x-user", "2")], "").await.text(),
            "run 2"
        );
        assert_eq!(site.post("/a", &[key], "").await.text(), "run 3");
        assert_eq!(site.post("/b", &[key], "").await.text(), "run 4");
        let patch = site.send(Method::PATCH, "/a", &[key], "").await;
        assert_eq!(patch.text(), "run 5");
    }
    // With a caller, a token that was renewed changes nothing.
    let renewed = [key, ("x-user", "1"), ("authorization", "Bearer new")];
    assert_eq!(site.post("/a", &renewed, "").await.text(), "run 1");
}

async fn a_copy_meanwhile_is_refused_or_waits<P: Place>(place: P) {
    let (runs, gate) = (Runs::default(), std::sync::Arc::new(Notify::new()));
    let handler = {
        let (runs, gate) = (runs.clone(), gate.clone());
        move || async move {
            let number = runs.count();
            gate.notified().await;
            format!("run {number}")
        }
    };
    let refusing = layer(place.inbox());
    let waiting = refusing
        .clone()
        .on_conflict(OnConflict::Wait(Duration::from_secs(60)));
    let impatient = refusing
        .clone()
        .on_conflict(OnConflict::Wait(Duration::from_millis(50)));
    let route = |path: &str, layer| {
        Router::new()
            .route("/pay", post(handler.clone()))
            .layer(layer)
            .route(path, get(|| async {}))
    };
    let site = Site::serve(route("/1", refusing)).await;
    let (patient, impatient) = (
        Site::serve(route("/2", waiting)).await,
        Site::serve(route("/3", impatient)).await,
    );
    let first = async { site.with_key("/pay", "k", "").await };
    let others = async {
        crate::server::until(async || runs.so_far() == 1).await;
        for (site, body) in [(&site, ""), (&impatient, ""), (&site, "another")] {
            let refused = site.with_key("/pay", "k", body).await;
            assert_eq!(refused.status, 409);
            assert_eq!(refused.problem(), "in-progress");
            assert_eq!(refused.header("retry-after"), Some("1"));
        }
        let waits = async { patient.with_key("/pay", "k", "").await };
        let another_waits = async { patient.with_key("/pay", "k", "another").await };
        let opens = async { gate.notify_one() };
        tokio::join!(waits, another_waits, opens)
    };
    let (first, (waited, another, ())) = tokio::join!(first, others);
    assert_eq!(first.text(), "run 1");
    assert_eq!(waited.text(), "run 1");
    assert!(waited.is_replay());
    assert_eq!(another.problem(), "key-reused");
    assert_eq!(runs.so_far(), 1);
}

/// Answers with the status that the request asks for.
fn answering(runs: &Runs) -> axum::routing::MethodRouter {
    let runs = runs.clone();
    post(move |Path(status): Path<u16>, _: Bytes| async move {
        let number = runs.count();
        (StatusCode::from_u16(status).unwrap(), number.to_string()).into_response()
    })
}

async fn runs_again(site: &Site, status: u16) -> bool {
    let (path, key) = (format!("/{status}"), status.to_string());
    let first = site.with_key(&path, &key, "").await;
    let second = site.with_key(&path, &key, "").await;
    assert_eq!(
        (first.status.as_u16(), second.status.as_u16()),
        (status, status)
    );
    first.body != second.body
}

async fn statuses_decide_what_is_kept<P: Place>(place: P) {
    let runs = Runs::default();
    let app = Router::new()
        .route("/{status}", answering(&runs))
        .layer(layer(place.inbox()));
    let site = Site::serve(app).await;
    for status in [200, 201, 302, 400, 402, 404, 409, 422] {
        assert!(!runs_again(&site, status).await, "{status}");
    }
    for status in [408, 425, 429, 500, 502, 503] {
        assert!(runs_again(&site, status).await, "{status}");
    }
    // What may run again is still one request.
    let other = site.with_key("/500", "500", "other").await;
    assert_eq!(other.problem(), "key-reused");
    assert_eq!(site.with_key("/500", "500", "").await.status, 500);

    let picky = layer(place.inbox()).keep_status(|status| status == StatusCode::OK);
    let app = Router::new()
        .route("/x/{status}", answering(&runs))
        .layer(picky);
    let site = Site::serve(app).await;
    let first = site.with_key("/x/404", "p", "").await;
    assert_ne!(site.with_key("/x/404", "p", "").await.body, first.body);
}

async fn stripes_rules_are_a_preset<P: Place>(place: P) {
    let runs = Runs::default();
    let app = Router::new()
        .route("/{status}", answering(&runs))
        .layer(layer(place.inbox()).stripe());
    let site = Site::serve(app).await;
    for status in [200, 402, 404, 500, 503] {
        assert!(!runs_again(&site, status).await, "{status}");
    }
    for status in [400, 401, 409, 429] {
        assert!(runs_again(&site, status).await, "{status}");
    }
    let replay = site.with_key("/200", "200", "").await;
    assert_eq!(replay.header("idempotent-replayed"), Some("true"));
    let other = site.with_key("/200", "200", "amount=7").await;
    assert_eq!(
        (other.status.as_u16(), other.problem().as_str()),
        (400, "key-reused")
    );
    let before = runs.so_far();
    for _ in 0..2 {
        assert_eq!(site.post("/200", &[], "").await.status, 200);
    }
    assert_eq!(runs.so_far(), before + 2);
}

/// Two layers are two processes.
async fn of_many_copies_at_once_one_runs<P: Place>(place: P) {
    let runs = Runs::default();
    let app = || {
        Router::new()
            .route("/", counting(&runs))
            .layer(layer(place.inbox()))
    };
    let (one, other) = (Site::serve(app()).await, Site::serve(app()).await);
    for key in ["a", "b", "c"] {
        let before = runs.so_far();
        let copies = (0..20).map(|number| {
            let site = if number % 2 == 0 { &one } else { &other };
            site.with_key("/", key, "")
        });
        let answers = futures_util::future::join_all(copies).await;
        assert_eq!(runs.so_far(), before + 1);
        let text = format!("run {}", before + 1);
        for answer in answers {
            match answer.status.as_u16() {
                200 => assert_eq!(answer.text(), text),
                _ => assert_eq!(answer.problem(), "in-progress"),
            }
        }
        assert_eq!(one.with_key("/", key, "").await.text(), text);
    }
}

async fn a_purged_key_is_new<P: Place>(place: P) {
    let runs = Runs::default();
    let app = Router::new()
        .route("/", counting(&runs))
        .layer(layer(place.inbox()));
    let site = Site::serve(app).await;
    assert_eq!(site.with_key("/", "k", "").await.text(), "run 1");
    let request = PurgeRequest::new(State::Processed, Duration::ZERO, 100).unwrap();
    crate::server::until(async || place.store().purge(&request).await.unwrap() == 1).await;
    assert_eq!(site.with_key("/", "k", "other").await.text(), "run 2");
}

async fn what_no_route_has_is_no_affair_of_a_layer_on_routes<P: Place>(place: P) {
    let runs = Runs::default();
    let refuse = {
        let runs = runs.clone();
        move || async move { (StatusCode::NOT_FOUND, format!("run {}", runs.count())) }
    };
    let app = Router::new()
        .route("/pay", post(refuse.clone()))
        .route_layer(layer(place.inbox()))
        .fallback(refuse);
    let site = Site::serve(app).await;
    // Of the fallback nothing is kept, nor is a key demanded.
    for number in 1..3 {
        let answer = site.with_key("/elsewhere", "k", "").await;
        assert_eq!(answer.text(), format!("run {number}"));
        assert!(!answer.is_replay());
    }
    assert_eq!(site.post("/elsewhere", &[], "").await.text(), "run 3");
    // What a handler answers is kept, whatever it says.
    for number in 0..2 {
        let answer = site.with_key("/pay", "k", "").await;
        assert_eq!((answer.text(), answer.is_replay()), ("run 4", number > 0));
    }
    // A method that the route does not have is the route's answer.
    let key = [("idempotency-key", "m")];
    for number in 0..2 {
        let answer = site.send(Method::PATCH, "/pay", &key, "").await;
        assert_eq!(
            (answer.status.as_u16(), answer.is_replay()),
            (405, number > 0)
        );
    }
    let messages = place.messages().await;
    let kinds: Vec<_> = messages
        .iter()
        .map(|message| message.kind.as_str())
        .collect();
    assert_eq!(kinds, ["POST /pay", "PATCH /pay"]);
}

/// A path may have the bytes of a control character of Unicode, which the name of a kind may not have.
async fn any_path_that_can_be_sent_is_let_through<P: Place>(place: P) {
    use axum::{body::Body, http::Request};
    use tower::ServiceExt as _;

    let runs = Runs::default();
    let app = Router::new()
        .fallback(counting(&runs))
        .layer(layer(place.inbox()));
    for path in [&b"/\xc2\x85"[..], b"/a"] {
        let uri = axum::http::Uri::try_from(path).unwrap();
        let request = Request::post(uri).header("idempotency-key", "k");
        let request = request.body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 200);
    }
    assert_eq!(runs.so_far(), 2);
}
