//! Requests, through the services that applications mount. Nothing listens.

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{Router, body::Body, routing::post};
use http::{
    HeaderName, HeaderValue, Method, Request, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, SET_COOKIE},
};
use http_body_util::BodyExt as _;
use inbox::{
    HandlerName, Inbox, Kind, Message, MessageId, Outcome, StoreExt as _, WorkerName,
    memory::MemoryStore,
};
use inbox_http::{
    Endpoint, IdempotencyLayer, Provider, Token, WebhookReceiver,
    api::Api,
    webhooks::{Delivery, Verify, VerifyError},
};
use tokio::runtime::Runtime;
use tower::ServiceExt as _;

use super::sure;
use crate::{Target, first_line, head, uncounted};

/// After so many requests the store is a new one: what was stored is not to be counted for ever.
const REQUESTS: u32 = 1_000;

/// The most headers of a request that the server takes.
const HEADERS: usize = 100;

/// An application on a store, made again now and then.
struct App {
    runtime: Runtime,
    make: fn(&Runtime) -> Served,
    served: RefCell<Served>,
    requests: Cell<u32>,
}

struct Served {
    router: Router,
    /// What a browser was given: a cookie, and the secret of forms.
    cookie: String,
}

impl From<Router> for Served {
    fn from(router: Router) -> Self {
        Self {
            router,
            cookie: String::new(),
        }
    }
}

impl App {
    fn new(make: fn(&Runtime) -> Served) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        let runtime = sure(runtime);
        Self {
            served: RefCell::new(make(&runtime)),
            make,
            runtime,
            requests: Cell::new(0),
        }
    }

    fn cookie(&self) -> String {
        self.served.borrow().cookie.clone()
    }

    /// The answer's status is no failure of the server, and its body has an end.
    fn answer(&self, request: Request<Body>) -> Result<(), String> {
        let requests = self.requests.get() + 1;
        self.requests.set(requests % REQUESTS);
        if requests == REQUESTS {
            uncounted(|| {
                self.served.replace((self.make)(&self.runtime));
            });
        }
        let router = self.served.borrow().router.clone();
        let path = request.uri().path().to_owned();
        self.runtime.block_on(async {
            let Ok(response) = router.oneshot(request).await;
            let status = response.status();
            let body = response.into_body().collect().await;
            let body = body.map_err(|_| "an answer breaks off")?.to_bytes();
            match status.as_u16() {
                500.. => Err(format!(
                    "an answer of {status}\n{path}: {}",
                    body.escape_ascii()
                )),
                _ => Ok(()),
            }
        })
    }
}

/// The request that an input means, where there is one: `METHOD PATH` in its first line, then headers, an empty line, and
/// the body.
fn request(input: &[u8]) -> Option<Request<Body>> {
    let (first, rest) = first_line(input);
    let mut words = first.splitn(2, |byte| *byte == b' ');
    let method = Method::from_bytes(words.next()?).ok()?;
    let uri = Uri::try_from(words.next()?).ok()?;
    let (headers, body) = head(rest);
    let mut request = Request::new(Body::from(body.to_vec()));
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    for (name, value) in headers.into_iter().take(HEADERS) {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        {
            request.headers_mut().append(name, value);
        }
    }
    Some(request)
}

async fn in_memory() -> Arc<dyn Inbox> {
    let store: Arc<dyn Inbox> = Arc::new(MemoryStore::new());
    sure(store.create().await);
    store
}

struct Anybody;

impl Verify for Anybody {
    fn verify(&self, _: Delivery<'_>, _: SystemTime) -> Result<(), VerifyError> {
        Ok(())
    }
}

fn endpoints(runtime: &Runtime) -> Served {
    let secrets = ["secret"];
    let anybody = || Provider::new("anybody", Anybody);
    let providers = [
        (
            "/standard",
            Provider::standard_webhooks(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]),
        ),
        ("/github", Provider::github(secrets)),
        ("/stripe", Provider::stripe(secrets)),
        ("/slack", Provider::slack(secrets)),
        ("/shopify", Provider::shopify(secrets)),
        ("/twilio", Provider::twilio(secrets, "https://a.example")),
        ("/signed", Provider::cloud_events(secrets)),
        ("/open", Ok(Provider::cloud_events_from_anybody())),
        ("/json", Ok(anybody())),
        (
            "/form",
            Ok(anybody().with_forms().id_field("a").kind_field("b")),
        ),
        (
            "/any",
            Ok(anybody()
                .with_any_content_type()
                .id_header(HeaderName::from_static("x-id"))
                .kind_field("/a/b")),
        ),
    ];
    let mut webhooks = WebhookReceiver::new(runtime.block_on(in_memory()));
    for (path, provider) in providers {
        let endpoint = sure(Endpoint::new(sure(provider), ["one", "two"]));
        let endpoint = endpoint.ordering_field("/a/0").id_prefix("p-");
        webhooks = sure(webhooks.endpoint(path, endpoint));
    }
    webhooks.into_router().into()
}

pub(super) fn webhooks() -> Target {
    let app = App::new(endpoints);
    let corpus = include_str!("../../corpus/webhooks.txt");
    Target::new("webhooks", corpus, move |input| match request(input) {
        Some(request) => app.answer(request),
        None => Ok(()),
    })
    .limit(192, 128 * 1024)
}

fn idempotent(runtime: &Runtime) -> Served {
    let store = runtime.block_on(in_memory());
    let draft = sure(IdempotencyLayer::new(store.clone(), "draft")).draft();
    let stripe = sure(IdempotencyLayer::new(store, "stripe")).stripe();
    let echo = || post(async |body: String| body);
    let strict = Router::new().route("/draft", echo()).layer(draft);
    let lenient = Router::new().route("/stripe", echo()).layer(stripe);
    strict.merge(lenient).into()
}

pub(super) fn idempotency() -> Target {
    let app = App::new(idempotent);
    let corpus = include_str!("../../corpus/idempotency.txt");
    Target::new("idempotency", corpus, move |input| match request(input) {
        Some(request) => app.answer(request),
        None => Ok(()),
    })
    .limit(64, 128 * 1024)
}

const TOKEN: &str = "a-token-of-at-least-some-length-0123456789";

fn json_api(runtime: &Runtime) -> Served {
    let store = runtime.block_on(in_memory());
    let api = Api::builder(store).token(sure(Token::new(TOKEN))).build();
    api.router().into()
}

pub(super) fn api() -> Target {
    let app = App::new(json_api);
    let corpus = include_str!("../../corpus/api.txt");
    let shown = sure(HeaderValue::from_str(&format!("Bearer {TOKEN}")));
    Target::new("api", corpus, move |input| {
        let Some(mut request) = request(input) else {
            return Ok(());
        };
        // A claim that waits would wait for the whole of its time.
        let path = request.uri().path();
        if path == "/v1/claim" && input.windows(4).any(|part| part == b"wait") {
            return Ok(());
        }
        let headers = request.headers_mut();
        if !headers.contains_key(AUTHORIZATION) {
            headers.insert(AUTHORIZATION, shown.clone());
        }
        app.answer(request)
    })
    .limit(192, 128 * 1024)
}

async fn filled() -> Arc<dyn Inbox> {
    let store = in_memory().await;
    let handler = sure(HandlerName::new("mail"));
    let worker = sure(WorkerName::new("w"));
    for id in ["dead", "leased", "pending"] {
        let message = Message::new(
            handler.clone(),
            sure(MessageId::new(id)),
            sure(Kind::new("k")),
            r#"{"a":[1,"b"]}"#,
        );
        let _ = sure(store.receive_one(&message).await);
        if id == "pending" {
            continue;
        }
        let claimed = store
            .claim_for(&handler, 1, Duration::from_secs(3_600), &worker)
            .await;
        for leased in sure(claimed).leased {
            if id == "dead" {
                let outcome = Outcome::Dead {
                    reason: "smtp::Refused: full".into(),
                    after: inbox::AfterDead::Block,
                };
                let _ = sure(store.settle_one(&leased.lease, outcome).await);
            }
        }
    }
    store
}

fn operator(runtime: &Runtime) -> Served {
    runtime.block_on(async {
        let router = inbox_dashboard::dashboard(filled().await).into_router();
        let page = Request::get("/overview").body(Body::empty());
        let Ok(page) = router.clone().oneshot(sure(page)).await;
        let cookie = page.headers().get(SET_COOKIE);
        let cookie = cookie.and_then(|cookie| cookie.to_str().ok());
        let cookie = cookie.and_then(|cookie| cookie.split(';').next());
        Served {
            router,
            cookie: cookie.unwrap_or_default().to_owned(),
        }
    })
}

pub(super) fn dashboard() -> Target {
    let app = App::new(operator);
    let corpus = include_str!("../../corpus/dashboard.txt");
    Target::new("dashboard", corpus, move |input| {
        let Some(mut request) = request(input) else {
            return Ok(());
        };
        // A form that a page has given, as far as the secret goes.
        let cookie = app.cookie();
        if !request.headers().contains_key(CONTENT_TYPE) && request.method() == Method::POST {
            let (_, secret) = cookie.split_once('=').unwrap_or_default();
            let (_, body) = head(first_line(input).1);
            let form = [b"form_token=", secret.as_bytes(), b"&", body].concat();
            *request.body_mut() = Body::from(form);
        }
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            request.headers_mut().insert(COOKIE, cookie);
        }
        app.answer(request)
    })
    .limit(512, 1024 * 1024)
}
