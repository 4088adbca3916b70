//! `inbox conformance`: the public conformance suite on a built-in store.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use conformance_tests::{Harness, Options};
use inbox::StoreKind;

use crate::{
    args::{ConformanceArgs, Global},
    exit::Exit,
    interrupt, output, progress,
    store::{self, cannot_open, without_password},
};

/// For how long what a case in the middle has started is waited for.
const LONGEST_END: Duration = Duration::from_secs(5);

pub(crate) async fn run(global: &Global, args: ConformanceArgs) -> Result<Exit> {
    // First, so that an interrupt leaves nothing behind from the start.
    let token = interrupt::token()?;
    let harness = harness(&global.store).await?;
    let options = Options {
        filter: args.filter,
        jobs: Some(args.jobs),
        scale: args.scale,
        ..Options::default()
    };
    let bar = progress::bar(global, "cases", options.cases().count() as u64);
    // Its own runtime, whose end is the end of everything that a case in the middle has
    // started: it would go on making what is to be removed.
    let suite = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let running = suite.spawn({
        let harness = Arc::clone(&harness);
        let bar = bar.clone();
        async move { conformance_tests::run_with(harness, &options, |_| bar.inc(1)).await }
    });
    let report = tokio::select! {
        report = running => Some(report?),
        () = token.cancelled() => None,
    };
    tokio::task::spawn_blocking(move || suite.shutdown_timeout(LONGEST_END)).await?;
    if let Err(error) = harness.clean_up().await {
        output::note(error);
    }
    bar.finish_and_clear();
    let Some(report) = report else {
        return Ok(interrupt::exit(&token, Exit::Interrupted));
    };
    if global.json {
        output::json(&report)?;
    } else {
        output::line(report.to_string())?;
    }
    Ok(if report.is_clean() {
        Exit::Ok
    } else {
        Exit::No
    })
}

async fn harness(url: &str) -> Result<Arc<dyn Harness>> {
    store::check(url);
    let context = || cannot_open(url);
    Ok(match StoreKind::of(url) {
        Some(StoreKind::Memory) => Arc::new(conformance_tests::memory_harness()),
        #[cfg(feature = "mongo")]
        Some(StoreKind::Mongo) => {
            let harness = inbox_mongo::conformance::MongoHarness::at(url).await;
            Arc::new(harness.with_context(context)?)
        }
        #[cfg(feature = "mysql")]
        Some(StoreKind::MySql) => {
            let harness = inbox_mysql::conformance::MySqlHarness::at(url).await;
            Arc::new(harness.with_context(context)?)
        }
        #[cfg(feature = "postgres")]
        Some(StoreKind::Postgres) => {
            let harness = inbox_postgres::conformance::PostgresHarness::at(url).await;
            Arc::new(harness.with_context(context)?)
        }
        #[cfg(feature = "redis")]
        Some(StoreKind::Redis) => {
            let harness = inbox_redis::conformance::RedisHarness::at(url).await;
            Arc::new(harness.with_context(context)?)
        }
        Some(StoreKind::Sqlite) => {
            let harness = inbox_sqlite::conformance::SqliteHarness::at(url).await;
            Arc::new(harness.with_context(context)?)
        }
        _ => bail!(
            "no store of this build is at {}; it has {}",
            without_password(url),
            inbox::schemes().join(", ")
        ),
    })
}
