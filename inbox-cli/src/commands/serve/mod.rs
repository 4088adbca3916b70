//! `inbox serve`: webhooks, the JSON API and handlers in one process, for those who do not write Rust.

mod accept;
mod config;
mod custom;
mod dashboard;
mod metrics;
mod notify;
mod plan;
mod receivers;
pub(super) mod secret;
pub(super) mod server;
mod source;
mod values;
mod warnings;
mod webhooks;
mod work;

use std::{
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use clap::Args;
use inbox::{BacklogGate, CancellationToken, HandlerName};
use serde_json::json;

use self::plan::Plan;
use crate::{
    args::{self, Global},
    commands::{process, receive},
    exit::{self, Exit},
    interrupt,
    observe::{Metrics, Parts},
    output, store,
};

pub(crate) const HELP: &str = "\
Examples:
  inbox serve --config inbox.toml --check
  inbox serve --config inbox.toml
  INBOX_TOKEN=… inbox serve --token-env INBOX_TOKEN
  inbox serve --webhook /github --provider github --secret-env GITHUB_SECRET -- ./handle

Every key of the configuration is in `inbox-cli/inbox.example.toml`, and docs/serve.md has more: the
JSON API, and workers in other languages. Secrets stand in environment variables or files, never in
the configuration.

GET /healthz answers 200 while the process lives and its loops turn, GET /readyz while the store can
be reached and the process was not told to end. On SIGTERM or Ctrl-C /readyz answers 503, and claims
are answered without messages, for as long as handlers of its own still run, within `grace`; then,
or at once if there are none, it accepts no more connections, and requests under way have the rest
of `grace`.

Relative paths of the configuration, and of commands, count from the working directory. Commands do
not inherit the environment variables that are named as secrets. Exit code 2 is also that of a wrong
configuration. See `inbox process --help` for what a handler is given and how it answers.";

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Read the configuration in this file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Check the configuration, with its secrets, certificates and commands, print its warnings, and
    /// end. The store is not asked
    #[arg(long)]
    pub(crate) check: bool,
    /// Listen at this address [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS", value_parser = args::address)]
    pub(crate) listen: Option<SocketAddr>,
    /// Answer GET /metrics, for Prometheus, at an address of its own, without a token
    #[arg(long, value_name = "ADDRESS", value_parser = args::address)]
    pub(crate) metrics_listen: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) flags: Flags,
}

/// A small configuration without a file.
#[derive(Debug, Args)]
#[command(next_help_heading = "Without a configuration")]
pub(crate) struct Flags {
    /// Serve the JSON API to those who show the token in this environment variable; repeat it for
    /// several tokens
    #[arg(long, value_name = "VARIABLE", conflicts_with = "config")]
    pub(crate) token_env: Vec<String>,
    /// Receive webhooks at this path
    #[arg(
        long,
        value_name = "PATH",
        conflicts_with = "config",
        requires = "provider"
    )]
    pub(crate) webhook: Option<String>,
    /// Whose webhooks they are: github, stripe, slack, shopify, standard-webhooks, cloudevents
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with = "config",
        requires = "webhook"
    )]
    pub(crate) provider: Option<String>,
    /// The environment variable with the secret that they are signed with; repeat it for several
    #[arg(
        long,
        value_name = "VARIABLE",
        conflicts_with = "config",
        requires = "webhook"
    )]
    pub(crate) secret_env: Vec<String>,
    /// Store webhooks for this handler, and process its messages
    #[arg(
        long,
        value_name = "NAME",
        default_value = "default",
        conflicts_with = "config"
    )]
    pub(crate) handler: HandlerName,
    /// POST each message to this URL
    #[arg(
        long,
        value_name = "URL",
        conflicts_with = "config",
        group = "serve_target"
    )]
    pub(crate) post: Option<String>,
    /// Run this command for each message
    #[arg(
        last = true,
        value_name = "COMMAND",
        conflicts_with = "config",
        group = "serve_target"
    )]
    pub(crate) command: Vec<String>,
}

/// How much longer than the grace the end may take: settling, handing back, leaving brokers. The documentation promises
/// eight seconds; the rest of them is for the closing of the store.
const END: Duration = Duration::from_secs(6);

pub(crate) async fn run(global: &Global, args: ServeArgs) -> Result<Exit> {
    let plan = match plan::read(global, &args).await {
        Ok(plan) => plan,
        Err(wrong) => {
            output::note(format_args!("inbox: {wrong:#}"));
            std::process::exit(exit::USAGE.into());
        }
    };
    if args.check {
        if !global.quiet {
            warn(&plan);
            output::line(format!("the configuration is good: {}", plan.sentence()))?;
        }
        return Ok(Exit::Ok);
    }
    let listener = server::bind(plan.listen)?;
    let metrics_listener = plan.metrics_listen().map(server::bind).transpose()?;
    let store = store::open_or_create(&plan.store).await?;
    let token = interrupt::token()?;
    let metrics = match &plan.metrics {
        Some(_) => Some(Metrics::begin(&store, &token)?),
        None => None,
    };
    let parts = Parts::default();
    let counts = Arc::new(server::Counts::default());
    let gate = match plan.backlog_limit {
        Some(limit) => Some(BacklogGate::builder(Arc::clone(&store), limit).build()?),
        None => None,
    };
    let shared = server::Shared {
        store: &store,
        token: &token,
        gate: gate.as_ref(),
        metrics: metrics.as_ref(),
        parts: &parts,
    };
    let (router, api) = server::router(&plan, &shared, Arc::clone(&counts))?;
    let address = listener.local_addr().context("cannot listen")?;
    if !global.quiet {
        announce(&plan, address, metrics_listener.as_ref());
    }
    let drained = CancellationToken::new();
    let end = server::End {
        token: token.clone(),
        drained: drained.clone(),
        grace: plan.grace,
    };
    let serving = async {
        let served = server::serve(listener, plan.tls.clone(), router, end).await;
        if let Some(api) = api {
            // What it hands back for callers that have gone; their leases run out otherwise.
            let _ = tokio::time::timeout(END, api.finish()).await;
        }
        served
    };
    let working = work::run(&plan, &shared, &drained);
    let receiving = receivers::run(&plan, &shared, plan.grace + END);
    let notifying = async {
        match &plan.notify {
            Some(notify) => {
                let store = Arc::clone(&store);
                notify.clone().run(store, token.clone()).await
            }
            None => Ok(()),
        }
    };
    let measuring = server::measure(&plan, &shared, metrics_listener, &drained);
    let (served, worked, received, measured, notified) = tokio::join!(
        cancelling(&token, serving),
        cancelling(&token, working),
        cancelling(&token, receiving),
        cancelling(&token, measuring),
        cancelling(&token, notifying)
    );
    let worked = worked?;
    served?;
    measured?;
    notified?;
    let received = received?;
    let figures = counts.figures();
    if global.json {
        let mut all = process::figures(&worked.summary);
        all["requests"] = json!(figures.requests);
        all["refused"] = json!(figures.refused);
        all["failed"] = json!(figures.failed);
        if !plan.receivers.is_empty() {
            all["receivers"] = receive::figures(&received.summary);
        }
        output::json(&all)?;
    } else if !global.quiet {
        let worked = process::sentence(&worked.summary);
        output::line(match plan.receivers.len() {
            0 => format!("{figures}; {worked}"),
            _ => format!(
                "{figures}; from brokers, {}; {worked}",
                receive::sentence(&received.summary)
            ),
        })?;
    }
    let left = worked.summary.abandoned + received.summary.abandoned();
    let is_orderly = worked.is_orderly && left == 0 && !received.is_cut_short;
    Ok(interrupt::exit_of_service(&token, is_orderly, Exit::Ok))
}

/// Does `work`, and asks everything else to end if it has failed.
async fn cancelling<T>(
    token: &CancellationToken,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let done = work.await;
    if done.is_err() {
        token.cancel();
    }
    done
}

/// Says what is served, and what is deleted.
fn announce(plan: &Plan, address: SocketAddr, metrics: Option<&TcpListener>) {
    let scheme = if plan.tls.is_some() { "https" } else { "http" };
    output::note(format_args!("listening on {scheme}://{address}"));
    if let Some(address) = metrics.and_then(|listener| listener.local_addr().ok()) {
        output::note(format_args!("  metrics at http://{address}/metrics"));
    }
    for line in plan.lines() {
        output::note(format_args!("  {line}"));
    }
    warn(plan);
}

fn warn(plan: &Plan) {
    for warning in plan.warnings() {
        output::note(format_args!("warning: {warning}"));
    }
}
