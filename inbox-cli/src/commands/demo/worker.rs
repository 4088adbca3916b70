//! A worker process of the demo: a processor whose handler works in the transaction that
//! completes the message.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Result, bail};
use async_trait::async_trait;
use clap::Parser;
use inbox::{
    Completion, Context, Failure, Handler, HandlerName, Processor, RetryPolicy, Router,
    TransactionalHandler, in_transaction,
};
use tokio::io::AsyncReadExt;
use tokio_util::sync::CancellationToken;

use super::stage::{OnSqlite, Stage, Transaction};
use crate::exit::Exit;

/// The word that makes this program a worker of the demo. Not one of the commands, so that neither
/// help nor completions offer it.
pub(crate) const DEMO_WORKER: &str = "demo-worker";

/// A worker process of the demo, which only the demo starts.
#[derive(Debug, Parser)]
#[command(name = "inbox demo-worker")]
pub(crate) struct DemoWorker {
    /// The file of an inbox on SQLite
    #[arg(long)]
    pub(crate) file: Option<PathBuf>,
    /// The database of an inbox on a server. Not an argument: it may hold a password
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    #[arg(skip = std::env::var("INBOX_STORE").ok())]
    pub(crate) store: Option<String>,
    /// The schema of an inbox on PostgreSQL, in that database
    #[cfg(feature = "postgres")]
    #[arg(long)]
    pub(crate) schema: Option<String>,
    /// The name of an inbox on MySQL, in that database
    #[cfg(feature = "mysql")]
    #[arg(long)]
    pub(crate) inbox: Option<inbox::InboxName>,
}

impl DemoWorker {
    /// What this process was started as, if that is a worker of the demo.
    pub(crate) fn from_command_line() -> Option<Self> {
        let mut arguments = std::env::args_os().skip(1);
        if arguments.next()? != DEMO_WORKER {
            return None;
        }
        Some(Self::parse_from(
            std::iter::once(DEMO_WORKER.into()).chain(arguments),
        ))
    }
}

/// The handler of all messages of the demo.
pub(super) const HANDLER: &str = "demo";
/// Messages of this kind fail twice before they succeed.
const FAILS_AT_FIRST: &str = "com.github.issues.opened";
/// Messages of this kind never succeed.
const ALWAYS_FAILS: &str = "com.github.ping";
/// More than kills and failures together can use up, so that only what always fails is dead.
const MAX_ATTEMPTS: u32 = 12;
/// Short, so that what a killed worker held is soon worked on again.
const LEASE: Duration = Duration::from_secs(1);

pub(crate) async fn worker(args: DemoWorker) -> Result<Exit> {
    match args {
        DemoWorker {
            file: Some(file), ..
        } => work_on(OnSqlite::open(&file).await?).await,
        #[cfg(feature = "postgres")]
        DemoWorker {
            store: Some(url),
            schema: Some(schema),
            ..
        } => {
            let schema = inbox_postgres::SchemaName::new(schema)?;
            work_on(super::stage::OnPostgres::open(&url, schema).await?).await
        }
        #[cfg(feature = "mysql")]
        DemoWorker {
            store: Some(url),
            inbox: Some(inbox),
            ..
        } => work_on(super::stage::OnMysql::open(&url, inbox).await?).await,
        _ => bail!("a demo's worker is started by the demo"),
    }
}

async fn work_on<S: Stage>(stage: S) -> Result<Exit> {
    let store = stage.store().clone();
    let work = Work {
        effect: in_transaction(store.clone(), WriteEffect(stage)),
    };
    let router = Router::new(HandlerName::new(HANDLER)?).fallback_handler(work);
    let processor = Processor::builder(Arc::new(store))
        .router(router)
        .concurrency(4)
        .lease(LEASE)
        .retry(
            RetryPolicy::default()
                .with_max_attempts(MAX_ATTEMPTS)
                .with_delays(Duration::from_millis(50), Duration::from_millis(300)),
        )
        .build()?;
    processor.run(parent_gone()).await?;
    Ok(Exit::Ok)
}

/// Cancelled when the demo ends, however it ends: it holds the other end of our standard input.
fn parent_gone() -> CancellationToken {
    let token = CancellationToken::new();
    let cancel = token.clone();
    tokio::spawn(async move {
        let mut nothing = [0; 1];
        let _ = tokio::io::stdin().read(&mut nothing).await;
        cancel.cancel();
    });
    token
}

/// Some work outside the database, then the effect.
struct Work<H> {
    effect: H,
}

#[async_trait]
impl<H: Handler> Handler for Work<H> {
    async fn handle(&self, context: &Context) -> Result<Completion, Failure> {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(20..120))).await;
        self.effect.handle(context).await
    }
}

/// Writes a row in the transaction that completes the message.
struct WriteEffect<S>(S);

#[async_trait]
impl<S: Stage> TransactionalHandler<Transaction<S>> for WriteEffect<S> {
    async fn handle(
        &self,
        transaction: &mut Transaction<S>,
        context: &Context,
    ) -> Result<Completion, Failure> {
        let message = context.message();
        // Written before the failures below: a roll-back must take it back.
        self.0.write(transaction, message.id().as_str()).await?;
        match message.kind().as_str() {
            ALWAYS_FAILS => Err(Failure::retry("this kind always fails")),
            FAILS_AT_FIRST if context.attempts().finished < 2 => {
                Err(Failure::retry("this kind fails at first"))
            }
            _ => Ok(Completion::default()),
        }
    }
}
