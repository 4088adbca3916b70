//! A configuration with all that it names: secrets, certificates, commands.

use std::{
    collections::BTreeSet, fs, net::SocketAddr, num::NonZeroU32, path::PathBuf, sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use axum_server::tls_rustls::RustlsConfig;
use inbox::{AfterDead, Handler, HandlerName, RetryPolicy};
use inbox_http::{
    BodyBudget,
    api::{BODY_LIMIT as API_LIMIT, Token},
};
use toml::Spanned;

use super::{
    Flags, ServeArgs,
    config::{AfterDeadName, Config, HandlerConfig, Janitor, Tls},
    dashboard,
    metrics::{self, PlannedMetrics},
    notify,
    receivers::{self, PlannedReceiver},
    secret::Secret,
    server::{self, WEBHOOK_LIMIT},
    source::{Source, Wrong},
    warnings,
    webhooks::{self, Path, PlannedWebhook, ProviderName, Webhook},
};
use crate::{
    args::Global,
    commands::{
        dashboard::Pages,
        process::{LONGEST_RETRY_DELAY, ProcessingArgs},
    },
    handler::{self, TargetArgs},
    notify::Notify,
    output, store,
};

/// What will be served, ready to begin.
pub(super) struct Plan {
    pub(super) listen: SocketAddr,
    pub(super) store: String,
    pub(super) grace: Duration,
    pub(super) tls: Option<RustlsConfig>,
    pub(super) api: Option<PlannedApi>,
    pub(super) dashboard: Option<Pages>,
    pub(super) metrics: Option<PlannedMetrics>,
    pub(super) notify: Option<Notify>,
    pub(super) backlog_limit: Option<u64>,
    pub(super) body_budget: usize,
    pub(super) webhooks: Vec<PlannedWebhook>,
    pub(super) receivers: Vec<PlannedReceiver>,
    pub(super) handlers: Vec<PlannedHandler>,
    pub(super) janitor: Janitor,
    /// What the configuration itself should say otherwise.
    pub(super) config_warnings: Vec<String>,
}

pub(super) struct PlannedApi {
    pub(super) tokens: Vec<Token>,
    pub(super) retry: RetryPolicy,
    pub(super) after_dead: AfterDead,
    pub(super) body_limit: Option<usize>,
}

pub(super) struct PlannedHandler {
    pub(super) handler: Arc<dyn Handler>,
    pub(super) args: ProcessingArgs,
    pub(super) limit: Option<Duration>,
    /// What it does with a message, without arguments and addresses that may hold secrets.
    what: String,
}

const NOTHING: &str = "nothing to serve: name a configuration (--config inbox.toml), the JSON API's \
                       token (--token-env), webhooks (--webhook) or a handler (--post, -- COMMAND)";

/// What the command line and the configuration that it names ask for.
pub(super) async fn read(global: &Global, args: &ServeArgs) -> Result<Plan> {
    let (source, config) = match &args.config {
        Some(path) => {
            let name = path.display().to_string();
            let text = fs::read_to_string(path);
            let text = text.with_context(|| format!("cannot read the configuration {name}"))?;
            let source = Source::File { name, text };
            let config = source.parse()?;
            (source, config)
        }
        None => (Source::CommandLine, from_flags(&args.flags)?),
    };
    let place = config.store.as_ref().map(Spanned::span);
    let mut plan = Plan::new(&source, config).await?;
    if let Some(address) = args.listen {
        plan.listen = address;
    }
    if let Some(address) = args.metrics_listen {
        plan.metrics.get_or_insert_default().listen = Some(address);
    }
    if let Some(address) = plan.metrics_listen()
        && is_same_place(address, plan.listen)
    {
        return Err(anyhow!(
            "metrics.listen: {address} is where the service itself listens, at {}: leave it out to have /metrics \
             there, or name another port",
            plan.listen
        ));
    }
    match place {
        Some(place) if global.is_default_store => {
            if let Err(reason) = store::understand(&plan.store) {
                return Err(source.wrong("store", place, reason).into());
            }
        }
        _ => {
            plan.store.clone_from(&global.store);
            store::check(&plan.store);
        }
    }
    let has_front = plan.api.is_some() || plan.dashboard.is_some() || !plan.webhooks.is_empty();
    if !has_front && plan.receivers.is_empty() && plan.handlers.is_empty() {
        return Err(match source {
            Source::CommandLine => anyhow!(NOTHING),
            Source::File { name, .. } => {
                anyhow!(
                    "{name}: nothing to serve: there is no [api], [dashboard], [[webhooks]], \
                     [[receivers]] or \
                     [[handlers]]"
                )
            }
        });
    }
    Ok(plan)
}

/// Whether only one can listen there. Port 0 is a free one each time.
fn is_same_place(one: SocketAddr, other: SocketAddr) -> bool {
    let is_same_host = one.ip() == other.ip()
        || (one.is_ipv4() == other.is_ipv4()
            && (one.ip().is_unspecified() || other.ip().is_unspecified()));
    one.port() == other.port() && one.port() != 0 && is_same_host
}

fn from_flags(flags: &Flags) -> Result<Config> {
    let secrets = |variables: &[String]| -> Vec<_> {
        let secret = |name: &String| Spanned::new(0..0, Secret::Env(name.clone()));
        variables.iter().map(secret).collect()
    };
    let mut config = Config::default();
    if !flags.token_env.is_empty() {
        config.api = Some(Spanned::new(
            0..0,
            super::config::Api::new(secrets(&flags.token_env)),
        ));
    }
    if let (Some(path), Some(provider)) = (&flags.webhook, &flags.provider) {
        let webhook = Webhook {
            path: Path::new(path).map_err(|e| anyhow!("--webhook: {e}"))?,
            provider: ProviderName::new(provider).map_err(|e| anyhow!("--provider: {e}"))?,
            secrets: secrets(&flags.secret_env),
            handlers: vec![flags.handler.clone()],
            ordering: None,
            id_prefix: String::new(),
            origin: None,
            tolerance: None,
            custom: None,
        };
        config.webhooks.push(Spanned::new(0..0, webhook));
    }
    if flags.post.is_some() || !flags.command.is_empty() {
        let mut handler = HandlerConfig::new(flags.handler.clone());
        handler.post = flags
            .post
            .as_deref()
            .map(super::values::PostUrl::new)
            .transpose()
            .map_err(|e| anyhow!("--post: {e}"))?;
        let command = || super::values::Command(flags.command.clone());
        handler.command = (!flags.command.is_empty()).then(command);
        config.handlers.push(Spanned::new(0..0, handler));
    }
    Ok(config)
}

impl Plan {
    async fn new(source: &Source, config: Config) -> Result<Self, Wrong> {
        const GRACE: Duration = Duration::from_secs(20);
        let config_warnings = warnings::of_config(&config);
        let mut secrets = config.secret_variables();
        // Its URL may have a password.
        secrets.push("INBOX_STORE".to_owned());
        let grace = config.grace.map_or(GRACE, |grace| grace.0);
        let listen = config
            .listen
            .map_or_else(|| ([127, 0, 0, 1], 8080).into(), |listen| listen.0);
        let store = match config.store {
            None => String::new(),
            Some(place) => {
                let url = place.get_ref().read();
                url.map_err(|error| source.wrong("store", place.span(), error))?
            }
        };
        let tls = match &config.tls {
            Some(files) => Some(tls(source, files).await?),
            None => None,
        };
        let api = config.api.map(|api| {
            let span = api.span();
            let api = api.into_inner();
            if api.tokens.is_empty() {
                return Err(source.wrong(
                    "api.tokens",
                    span,
                    "the API is not served without a token: tokens = [{ env = \"INBOX_TOKEN\" }]",
                ));
            }
            Ok(PlannedApi {
                tokens: tokens(source, "api.tokens", &api.tokens)?,
                retry: RetryPolicy::default()
                    .with_max_attempts(api.max_attempts.get())
                    .with_delays(
                        api.retry_delay.0,
                        LONGEST_RETRY_DELAY.max(api.retry_delay.0),
                    ),
                after_dead: match api.after_dead {
                    AfterDeadName::Continue => AfterDead::Continue,
                    AfterDeadName::Block => AfterDead::Block,
                },
                body_limit: api.max_body_bytes.map(|bytes| bytes.get() as usize),
            })
        });
        let api = api.transpose()?;
        let dashboard = config.dashboard;
        let dashboard = dashboard.map(|config| dashboard::plan(source, config));
        let metrics = config.metrics.as_ref();
        let metrics = metrics.map(|config| metrics::plan(source, config));
        let notify = config.notify.map(|config| notify::plan(source, config));
        let body_budget = body_budget(
            source,
            config.body_budget_bytes,
            api.as_ref(),
            !config.webhooks.is_empty(),
        )?;
        let worked_on = config.handlers.iter();
        let worked_on = worked_on.map(|handler| handler.get_ref().name.clone());
        let worked_on: BTreeSet<HandlerName> = worked_on.collect();
        Ok(Self {
            listen,
            store,
            grace,
            tls,
            api,
            dashboard: dashboard.transpose()?,
            metrics: metrics.transpose()?,
            notify: notify.transpose()?,
            body_budget,
            backlog_limit: config.backlog_limit,
            webhooks: webhooks::plan(source, config.webhooks)?,
            receivers: receivers::plan(source, config.receivers, &worked_on)?,
            handlers: handlers(source, config.handlers, grace, &secrets)?,
            janitor: janitor(source, config.janitor)?,
            config_warnings,
        })
    }

    /// Where metrics are served, if that is not where all else is.
    pub(super) fn metrics_listen(&self) -> Option<SocketAddr> {
        self.metrics.as_ref()?.listen
    }

    /// What is served, line by line.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(api) = &self.api {
            let tokens = output::count_of(api.tokens.len() as u64, "token");
            lines.push(format!("JSON API at /v1 ({tokens})"));
        }
        if let Some(pages) = &self.dashboard {
            let tokens = output::count_of(pages.tokens.len() as u64, "token");
            lines.push(format!("dashboard at {} ({tokens})", dashboard::PATH));
        }
        if self.metrics.as_ref().is_some_and(|m| m.listen.is_none()) {
            lines.push("metrics at /metrics".to_owned());
        }
        if let Some(notify) = &self.notify {
            let host = host(notify.url.as_str());
            lines.push(format!("dead letters and lag are told to {host}"));
        }
        for planned in &self.webhooks {
            let webhook = &planned.webhook;
            lines.push(format!(
                "webhooks of {} at {}, for {}",
                webhook.provider.as_str(),
                webhook.path.0,
                names(&webhook.handlers)
            ));
        }
        for receiver in &self.receivers {
            lines.push(format!(
                "messages of {}, for {}",
                receiver.name,
                names(&receiver.rules.handlers)
            ));
        }
        for handler in &self.handlers {
            lines.push(format!(
                "messages of `{}` {}",
                handler.args.handler, handler.what
            ));
        }
        for (handler, kept) in self.janitor.all_kept() {
            let whose = of_handler(handler);
            let states = [
                ("processed", kept.processed),
                ("dead", kept.dead),
                ("discarded", kept.discarded),
            ];
            for (state, time) in states {
                if let Some(time) = time {
                    lines.push(format!(
                        "{state} messages{whose} are DELETED after {}; a copy that comes later is \
                         handled again",
                        output::duration(time)
                    ));
                }
            }
            if let Some(time) = kept.payloads {
                lines.push(format!(
                    "payloads of processed messages{whose} are DELETED after {}; their keys stay",
                    output::duration(time)
                ));
            }
        }
        lines
    }

    /// All in one line.
    pub(super) fn sentence(&self) -> String {
        let api = if self.api.is_some() {
            "the JSON API, "
        } else {
            ""
        };
        let receivers = match self.receivers.len() as u64 {
            0 => String::new(),
            count => format!("{}, ", output::count_of(count, "broker")),
        };
        format!(
            "{api}{} of webhooks, {receivers}{}",
            output::count_of(self.webhooks.len() as u64, "path"),
            output::count_of(self.handlers.len() as u64, "handler")
        )
    }
}

/// What bodies have together. One has half of it at most.
fn body_budget(
    source: &Source,
    set: Option<Spanned<NonZeroU32>>,
    api: Option<&PlannedApi>,
    has_webhooks: bool,
) -> Result<usize, Wrong> {
    let of_api = api.map(|api| api.body_limit.unwrap_or(API_LIMIT));
    let largest = of_api.max(has_webhooks.then_some(WEBHOOK_LIMIT));
    let least = largest.unwrap_or_default().saturating_mul(2);
    let Some(set) = set else {
        return Ok(BodyBudget::USUAL.max(least));
    };
    let bytes = set.get_ref().get() as usize;
    if bytes < least {
        let message = format!("expected {least} or more, twice the largest body");
        return Err(source.wrong("body_budget_bytes", set.span(), message));
    }
    Ok(bytes)
}

pub(super) fn of_handler(handler: Option<&HandlerName>) -> String {
    handler.map_or_else(String::new, |name| format!(" of `{name}`"))
}

/// Without a handler that is there twice.
fn janitor(source: &Source, janitor: Janitor) -> Result<Janitor, Wrong> {
    let mut seen = BTreeSet::new();
    for (index, own) in janitor.handlers.iter().enumerate() {
        let name = &own.get_ref().name;
        if !seen.insert(name) {
            let key = format!("janitor.handlers[{index}].name");
            return Err(source.wrong(&key, own.span(), format!("`{name}` is there twice")));
        }
    }
    Ok(janitor)
}

fn names(handlers: &[HandlerName]) -> String {
    let names: Vec<_> = handlers.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

/// The certificate and its key as the server uses them.
async fn tls(source: &Source, files: &Tls) -> Result<RustlsConfig, Wrong> {
    let certificate = file(source, "tls.certificate", &files.certificate)?;
    let key = file(source, "tls.key", &files.key)?;
    server::tls(certificate, key).await.map_err(|error| {
        let message = format!("the certificate and its key cannot be used: {error}");
        source.wrong("tls", files.certificate.span(), message)
    })
}

fn file(source: &Source, key: &str, path: &Spanned<PathBuf>) -> Result<Vec<u8>, Wrong> {
    if path.get_ref().to_string_lossy().starts_with("-----BEGIN") {
        // Nothing of it is to be repeated.
        let message = "expected the path of a file, and not what is in it";
        return Err(source.wrong(key, path.span(), message));
    }
    let place = path.get_ref().display();
    fs::read(path.get_ref())
        .map_err(|error| source.wrong(key, path.span(), format!("cannot read {place}: {error}")))
}

/// The tokens that are named.
pub(super) fn tokens(
    source: &Source,
    key: &str,
    all: &[Spanned<Secret>],
) -> Result<Vec<Token>, Wrong> {
    let token = |((index, text), place): ((usize, String), &Spanned<Secret>)| {
        Token::new(&text)
            .map_err(|error| source.wrong(&format!("{key}[{index}]"), place.span(), error))
    };
    let read = read_all(source, key, all)?.into_iter().enumerate();
    read.zip(all).map(token).collect()
}

/// The secrets that are named.
pub(super) fn read_all(
    source: &Source,
    key: &str,
    all: &[Spanned<Secret>],
) -> Result<Vec<String>, Wrong> {
    let read = |(index, secret): (usize, &Spanned<Secret>)| {
        secret
            .get_ref()
            .read()
            .map_err(|error| source.wrong(&format!("{key}[{index}]"), secret.span(), error))
    };
    all.iter().enumerate().map(read).collect()
}

fn handlers(
    source: &Source,
    all: Vec<Spanned<HandlerConfig>>,
    grace: Duration,
    secrets: &[String],
) -> Result<Vec<PlannedHandler>, Wrong> {
    let mut planned: Vec<PlannedHandler> = Vec::new();
    for (index, config) in all.into_iter().enumerate() {
        let (key, span) = (format!("handlers[{index}]"), config.span());
        let config = config.into_inner();
        let name = &config.name;
        if planned.iter().any(|other| other.args.handler == *name) {
            let message = format!("`{name}` is there twice");
            return Err(source.wrong(&format!("{key}.name"), span, message));
        }
        let command = config.command.clone().unwrap_or_default().0;
        let target = match (&config.post, command.first()) {
            (Some(post), None) => TargetArgs {
                post: Some(post.0.clone()),
                command,
            },
            (None, Some(_)) => TargetArgs {
                post: None,
                command,
            },
            _ => {
                let message = "a handler has either a command, as a list, or an address to post to";
                return Err(source.wrong(&key, span, message));
            }
        };
        let what = match target.command.first() {
            Some(program) => format!("run {program}"),
            None => format!(
                "are posted to {}",
                host(target.post.as_deref().unwrap_or_default())
            ),
        };
        let args = config.into_args(grace);
        let handler = handler::from_args(&target, &args, secrets, Arc::default())
            .map_err(|error| source.wrong(&format!("{key}.command"), span, error))?;
        let limit = args.time_limit(&target);
        planned.push(PlannedHandler {
            handler,
            args,
            limit,
            what,
        });
    }
    Ok(planned)
}

/// Where a URL leads, without credentials and what else may be secret in it.
fn host(url: &str) -> String {
    let url: Option<reqwest::Url> = url.parse().ok();
    let host = url.as_ref().and_then(reqwest::Url::host_str);
    host.unwrap_or_default().to_owned()
}
