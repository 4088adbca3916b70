//! Listening, TLS, and the paths.

use std::{
    fmt, io,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use axum::{
    Router,
    extract::{Request, State},
    middleware::{self, Next},
    response::Response,
};
use axum_server::{
    Handle,
    tls_rustls::{RustlsAcceptor, RustlsConfig},
};
use hyper_util::rt::TokioTimer;
use inbox::{BacklogGate, CancellationToken, Inbox, Store};
use inbox_http::{
    BodyBudget,
    api::{self, Api},
    webhooks::{Endpoint, WebhookReceiver},
};
use tokio::time::{Instant, timeout};

use super::{accept::WatchingAcceptor, dashboard, plan::Plan};
use crate::{
    observe::{self, Detail, Metrics, Parts},
    output,
};

/// How long a connection may take for the head of a request, and be idle.
const HEAD: Duration = Duration::from_secs(30);

/// What became of the requests.
#[derive(Debug, Default)]
pub(super) struct Counts {
    requests: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
}

/// The same at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    pub(super) requests: u64,
    /// Answered with a status of 400 to 499.
    pub(super) refused: u64,
    /// Answered with a status of 500 or more.
    pub(super) failed: u64,
}

impl Counts {
    fn add(&self, response: &Response) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if response.status().is_client_error() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        } else if response.status().is_server_error() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn figures(&self) -> Figures {
        Figures {
            requests: self.requests.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&output::count_of(self.requests, "request"))?;
        for (number, what) in [(self.refused, "refused"), (self.failed, "failed")] {
            if number > 0 {
                write!(f, ", {} {what}", output::count(number))?;
            }
        }
        Ok(())
    }
}

/// What all that is served and done has in common.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    pub(super) store: &'a Arc<dyn Inbox>,
    pub(super) token: &'a CancellationToken,
    pub(super) gate: Option<&'a BacklogGate>,
    pub(super) metrics: Option<&'a Metrics>,
    pub(super) parts: &'a Parts,
}

/// All paths of the service. Those of supervisors are not counted.
pub(super) fn router(
    plan: &Plan,
    shared: &Shared<'_>,
    counts: Arc<Counts>,
) -> Result<(Router, Option<Api>)> {
    let Shared {
        store, token, gate, ..
    } = *shared;
    let mut router = Router::new();
    let budget = BodyBudget::new(plan.body_budget);
    let api = plan.api.as_ref().map(|planned| {
        let mut api = Api::builder(Arc::clone(store))
            .body_budget(budget.clone())
            .retry(planned.retry.clone())
            .after_dead(planned.after_dead)
            .shutdown(token.clone());
        if let Some(limit) = planned.body_limit {
            api = api.body_limit(limit);
        }
        if let Some(gate) = gate {
            api = api.backlog_gate(gate.clone());
        }
        for token in &planned.tokens {
            api = api.token(token.clone());
        }
        api.build()
    });
    if let Some(api) = &api {
        router = router.merge(api.router());
    }
    if !plan.webhooks.is_empty() {
        router = router.merge(webhooks(plan, store, gate, budget)?);
    }
    if let Some(pages) = &plan.dashboard {
        let pages = pages.on(Arc::clone(store), &plan.store);
        router = router.nest_service(dashboard::PATH, pages.into_router());
    }
    let probes = observe::probes(store, token, shared.parts, Detail::Brief);
    let mut router = router
        .fallback(api::not_found)
        .layer(middleware::from_fn_with_state(counts, count))
        .merge(probes);
    if let (Some(planned), Some(metrics)) = (&plan.metrics, shared.metrics)
        && planned.listen.is_none()
    {
        router = router.merge(metrics.router(planned.guard()));
    }
    Ok((router, api))
}

/// Serves the metrics at an address of their own, with probes that give their reasons, until the service ends.
pub(super) async fn measure(
    plan: &Plan,
    shared: &Shared<'_>,
    listener: Option<TcpListener>,
    drained: &CancellationToken,
) -> Result<()> {
    let (Some(planned), Some(metrics), Some(listener)) = (&plan.metrics, shared.metrics, listener)
    else {
        return Ok(());
    };
    let end = End {
        token: shared.token.clone(),
        drained: drained.clone(),
        grace: plan.grace,
    };
    let probes = observe::probes(shared.store, shared.token, shared.parts, Detail::Reasons);
    let router = metrics.router(planned.guard()).merge(probes);
    serve(listener, None, router, end).await
}

/// GitHub's own limit, which is the largest of all providers'.
pub(super) const WEBHOOK_LIMIT: usize = 25 * 1024 * 1024;

fn webhooks(
    plan: &Plan,
    inbox: &Arc<dyn Inbox>,
    gate: Option<&BacklogGate>,
    budget: BodyBudget,
) -> Result<Router> {
    let store: Arc<dyn Store> = Arc::<dyn Inbox>::clone(inbox);
    let mut receiver = WebhookReceiver::new(store)
        .body_limit(WEBHOOK_LIMIT)
        .body_budget(budget);
    if let Some(gate) = gate {
        receiver = receiver.backlog_gate(gate.clone());
    }
    for planned in &plan.webhooks {
        let webhook = &planned.webhook;
        let mut endpoint = Endpoint::new(planned.provider.clone(), &webhook.handlers)?;
        endpoint = endpoint.id_prefix(&webhook.id_prefix);
        if let Some(field) = &webhook.ordering {
            endpoint = endpoint.ordering_field(&field.0);
        }
        receiver = receiver.endpoint(&webhook.path.0, endpoint)?;
    }
    Ok(receiver.into_router())
}

async fn count(State(counts): State<Arc<Counts>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    counts.add(&response);
    response
}

/// Takes the address before anything else is begun.
pub(in crate::commands) fn bind(address: SocketAddr) -> Result<TcpListener> {
    let listener =
        TcpListener::bind(address).with_context(|| format!("cannot listen at {address}"))?;
    listener.set_nonblocking(true).context("cannot listen")?;
    Ok(listener)
}

/// The certificate and its key, in PEM, as the server uses them.
pub(in crate::commands) async fn tls(
    certificate: Vec<u8>,
    key: Vec<u8>,
) -> io::Result<RustlsConfig> {
    // Fails only when another part of the process has installed one; then that one serves.
    let _ = rustls::crypto::ring::default_provider().install_default();
    RustlsConfig::from_pem(certificate, key).await
}

/// When a server ends.
pub(in crate::commands) struct End {
    /// It is told to.
    pub(in crate::commands) token: CancellationToken,
    /// The service's own handlers have come to their end.
    pub(in crate::commands) drained: CancellationToken,
    /// How long handlers and requests may take for that together.
    pub(in crate::commands) grace: Duration,
}

/// Serves until `end`: those who ask whether this is ready must hear that it ends while its handlers
/// still run. Then accepts no more connections, and leaves requests that are under way for what is
/// left of the time.
pub(in crate::commands) async fn serve(
    listener: TcpListener,
    tls: Option<RustlsConfig>,
    router: Router,
    end: End,
) -> Result<()> {
    let handle = Handle::new();
    let ending = {
        let handle = handle.clone();
        async move {
            end.token.cancelled().await;
            let told = Instant::now();
            let _ = timeout(end.grace, end.drained.cancelled()).await;
            let rest = end.grace.saturating_sub(told.elapsed());
            handle.graceful_shutdown(Some(rest));
            std::future::pending::<()>().await;
        }
    };
    let service = router.into_make_service();
    let serving = async {
        match tls {
            Some(tls) => {
                let mut server = axum_server::from_tcp(listener)?
                    .acceptor(RustlsAcceptor::new(tls).acceptor(WatchingAcceptor))
                    .handle(handle)
                    .first_request_timeout(HEAD);
                limit(server.http_builder());
                server.serve(service).await
            }
            None => {
                let mut server = axum_server::from_tcp(listener)?
                    .acceptor(WatchingAcceptor)
                    .handle(handle)
                    .first_request_timeout(HEAD);
                limit(server.http_builder());
                server.serve(service).await
            }
        }
    };
    tokio::select! {
        served = serving => served.context("cannot serve"),
        () = ending => Ok(()),
    }
}

/// Limits that keep clients from holding connections for nothing.
fn limit<E>(builder: &mut hyper_util::server::conn::auto::Builder<E>) {
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(HEAD)
        .max_concurrent_streams(250);
}
