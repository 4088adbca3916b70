//! `inbox conformance`: the public conformance suite on a built-in store.

mod memory;
#[cfg(feature = "mongodb")]
mod mongodb;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
mod sqlite;

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use conformance_tests::{Harness, Mishap, Need, Options, SchemaVariant};

use self::{memory::Memory, sqlite::Sqlite};
use crate::{
    args::{ConformanceArgs, Global},
    exit::Exit,
    interrupt, output, progress,
    store::{self, Kind, cannot_open, shown},
};

/// For how long what a case in the middle has started is waited for.
const LONGEST_END: Duration = Duration::from_secs(5);

/// A harness that tidies up. Fixtures do what they can when they are dropped; what needs a
/// connection is left to this.
#[async_trait]
trait Rig: Harness {
    /// Removes all that is left of the run, and goes on when it fails.
    async fn clean_up(&self) {}
}

pub(crate) async fn run(global: &Global, args: ConformanceArgs) -> Result<Exit> {
    // First, so that an interrupt leaves nothing behind from the start.
    let token = interrupt::token()?;
    let rig = rig(&global.store).await?;
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
        let harness: Arc<dyn Harness> = Arc::<dyn Rig>::clone(&rig);
        let bar = bar.clone();
        async move { conformance_tests::run_with(harness, &options, |_| bar.inc(1)).await }
    });
    let report = tokio::select! {
        report = running => Some(report?),
        () = token.cancelled() => None,
    };
    tokio::task::spawn_blocking(move || suite.shutdown_timeout(LONGEST_END)).await?;
    rig.clean_up().await;
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

async fn rig(url: &str) -> Result<Arc<dyn Rig>> {
    store::check(url)?;
    let context = || cannot_open(url);
    Ok(match Kind::of(url) {
        Some(Kind::Memory) => Arc::new(Memory),
        #[cfg(feature = "mongodb")]
        Some(Kind::Mongodb) => Arc::new(mongodb::Mongo::new(url).await.with_context(context)?),
        #[cfg(feature = "mysql")]
        Some(Kind::Mysql) => Arc::new(mysql::Mysql::new(url).await.with_context(context)?),
        #[cfg(feature = "postgres")]
        Some(Kind::Postgres) => Arc::new(postgres::Postgres::new(url).await.with_context(context)?),
        #[cfg(feature = "redis")]
        Some(Kind::Redis) => Arc::new(redis::Redis::new(url).await.with_context(context)?),
        Some(Kind::Sqlite) => Arc::new(Sqlite::new(url).with_context(context)?),
        _ => bail!(
            "no store of this build is at {}; it has {}",
            shown(url),
            inbox::schemes().join(", ")
        ),
    })
}

/// What a run from outside, with a store's public interface alone, cannot do to any store. The
/// stores' own tests check these too.
fn needs_raw_access() -> Vec<Need> {
    let mut needs = vec![
        Need::CorruptRows,
        Need::Invariants,
        Need::Outage,
        Need::Silence,
        Need::Restart,
        Need::PowerLoss,
        Need::OutageAmidWrites,
        Need::BusinessWrites,
        Need::Schema(SchemaVariant::Incomplete),
        Need::Schema(SchemaVariant::Older),
        Need::Schema(SchemaVariant::Newer),
        Need::Schema(SchemaVariant::Foreign),
    ];
    needs.extend(Mishap::ALL.map(Need::Mishap));
    needs
}
