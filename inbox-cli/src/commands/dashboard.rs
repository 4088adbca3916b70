//! `inbox dashboard`: the pages and the admin API, without an application around them.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use axum_server::tls_rustls::RustlsConfig;
use clap::Args;
use inbox::{CancellationToken, Inbox};
use inbox_dashboard::{Dashboard, TraceLink, dashboard};
use inbox_http::{Guard, Token};

use super::serve::{secret::Secret, server};
use crate::{
    args::{self, Global, wrong_usage},
    exit::Exit,
    interrupt,
    notify::{self, Notify},
    observe::{self, Detail, Metrics, Parts},
    output, store,
};

pub(crate) const HELP: &str = "\
Examples:
  inbox dashboard
  inbox dashboard --read-only --hide-payloads
  inbox dashboard --listen 0.0.0.0:8090 --token-file token --certificate cert.pem --key key.pem

A browser asks for a name and a password: the password is the token, and the name is what the audit
log on standard error has of who changed what. The admin API, described at /api/openapi.json, takes
the token as `Authorization: Bearer …` too. Without a token it is served to this machine alone, and
only under the names localhost, 127.0.0.1 and [::1].

GET /metrics, for Prometheus, takes the token as `Authorization: Bearer …`; GET /healthz and
/readyz, for probes, take none.";

#[derive(Debug, Args)]
pub(crate) struct DashboardArgs {
    /// Listen at this address; other machines can reach it only with a token
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8090", value_parser = args::address)]
    pub(crate) listen: SocketAddr,
    /// Refuse every change
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Show no payloads, no results and no values of headers
    #[arg(long)]
    pub(crate) hide_payloads: bool,
    /// Admit those only who show the token in this file; repeat it for several tokens
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Vec<PathBuf>,
    /// The same with the token in this environment variable
    #[arg(long, value_name = "VARIABLE")]
    pub(crate) token_env: Vec<String>,
    /// The certificate chain in this PEM file, to serve over TLS
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) certificate: Option<PathBuf>,
    /// The certificate's private key in this PEM file
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) key: Option<PathBuf>,
    /// What the pages are called
    #[arg(long, value_name = "TEXT", default_value = "Inbox")]
    pub(crate) title: String,
    /// Link messages to their traces, such as https://jaeger.example/trace/{trace_id}
    #[arg(long, value_name = "URL")]
    pub(crate) trace_link: Option<TraceLink>,
    /// Tell the webhook whose URL is in this environment variable of dead letters, of lag and of the
    /// store's outages, and when they are over
    #[arg(long, value_name = "VARIABLE")]
    pub(crate) notify_env: Option<String>,
    /// Tell it of a lag over this
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = args::duration, requires = "notify_env")]
    pub(crate) notify_max_lag: Duration,
}

/// How long requests may go on at the end.
const GRACE: Duration = Duration::from_secs(5);

/// What a browser on this machine calls it.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

pub(crate) async fn run(global: &Global, args: DashboardArgs) -> Result<Exit> {
    let tokens = tokens(&args).unwrap_or_else(|reason| wrong_usage(reason));
    let is_local = args.listen.ip().is_loopback();
    let is_open = tokens.is_empty();
    if is_open && !is_local {
        wrong_usage(format_args!(
            "{} can be reached from other machines: give a token with --token-file, or listen at 127.0.0.1",
            args.listen
        ));
    }
    let notify = notify(&args).unwrap_or_else(|reason| wrong_usage(reason));
    let tls = tls(&args).await?;
    let listener = server::bind(args.listen)?;
    let store = store::open(&global.store).await?;
    let token = interrupt::token()?;
    let metrics = Metrics::begin(&store, &token)?;
    let mut guard = Guard::default();
    for token in &tokens {
        guard.add_token(token.clone());
    }
    if is_open {
        for name in LOCAL {
            guard.add_host(name);
        }
    }
    let metrics = metrics.router(guard);
    let probes = observe::probes(&store, &token, &Parts::default(), Detail::Brief);
    if let Some(notify) = notify {
        tokio::spawn(notify.run(Arc::clone(&store), token.clone()));
    }
    let mut pages = Pages {
        title: args.title,
        read_only: args.read_only,
        hide_payloads: args.hide_payloads,
        trace_link: args.trace_link,
        tokens,
    }
    .on(store, &global.store);
    if is_open {
        for name in LOCAL {
            pages = pages.host(name);
        }
    }
    let address = listener.local_addr().context("cannot listen")?;
    if !global.quiet {
        let scheme = if tls.is_some() { "https" } else { "http" };
        output::note(format_args!("the dashboard is at {scheme}://{address}"));
        if tls.is_none() && !is_local {
            output::note(
                "warning: without --certificate, tokens and messages are readable on the network; have \
                 a proxy in front that encrypts",
            );
        }
    }
    let end = server::End {
        token: token.clone(),
        drained: CancellationToken::new(),
        grace: GRACE,
    };
    // There are no handlers to wait for.
    end.drained.cancel();
    let router = pages.into_router().merge(metrics).merge(probes);
    server::serve(listener, tls, router, end).await?;
    Ok(interrupt::exit_of_service(&token, true, Exit::Ok))
}

/// What the pages are to be like, said on the command line or in a configuration.
pub(super) struct Pages {
    pub(super) title: String,
    pub(super) read_only: bool,
    pub(super) hide_payloads: bool,
    pub(super) trace_link: Option<TraceLink>,
    pub(super) tokens: Vec<Token>,
}

impl Pages {
    /// Such pages of the inbox that this URL names.
    pub(super) fn on(&self, store: Arc<dyn Inbox>, url: &str) -> Dashboard {
        let mut pages = dashboard(store)
            .title(&self.title)
            .place(store::without_password(url));
        if self.read_only {
            pages = pages.read_only();
        }
        if self.hide_payloads {
            pages = pages.hide_payloads();
        }
        if let Some(link) = &self.trace_link {
            pages = pages.trace_link(link.clone());
        }
        for token in &self.tokens {
            pages = pages.token(token.clone());
        }
        pages
    }
}

fn notify(args: &DashboardArgs) -> Result<Option<Notify>, String> {
    let Some(variable) = &args.notify_env else {
        return Ok(None);
    };
    let url = Secret::Env(variable.clone()).read();
    let url = url.and_then(|url| notify::url(&url));
    let url = url.map_err(|reason| format!("--notify-env {variable}: {reason}"))?;
    Ok(Some(Notify {
        url,
        max_lag: args.notify_max_lag,
        interval: Notify::INTERVAL,
        pause: Notify::PAUSE,
        title: args.title.clone(),
    }))
}

fn tokens(args: &DashboardArgs) -> Result<Vec<Token>, String> {
    let files = args.token_file.iter().cloned().map(Secret::File);
    let variables = args.token_env.iter().cloned().map(Secret::Env);
    let read = |secret: Secret| {
        let token = secret.read()?;
        Token::new(&token).map_err(|invalid| format!("the token cannot be used: {invalid}"))
    };
    files.chain(variables).map(read).collect()
}

async fn tls(args: &DashboardArgs) -> Result<Option<RustlsConfig>> {
    let (Some(certificate), Some(key)) = (&args.certificate, &args.key) else {
        return Ok(None);
    };
    let tls = server::tls(read(certificate)?, read(key)?).await;
    tls.map(Some)
        .context("the certificate and its key cannot be used")
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
