//! Receive confirmed by a replica that has nothing else to do, compared with the same without.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use inbox::{
    Inbox,
    redis::{Confirmations, RedisStore},
};

use super::{Bench, Runs, ratios, work};
use crate::{maker::Maker, servers::redis::Server, target::Slot};

const SLOT: Slot = Slot::First;

pub(super) async fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let server = bench.site.redis().context("only Redis confirms")?;
    let replica = Server::start(None, &["--appendfsync", "always"]).await?;
    let port = server.port().to_string();
    let follow = ["REPLICAOF", "127.0.0.1", &port];
    replica.command::<()>(SLOT as u8, &follow).await?;
    while replica.info("replication", "master_link_status").await? != "up" {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let number = bench.options.messages;
    let mut runs: [Runs; 2] = Default::default();
    for run in 0..bench.options.runs {
        // Neither is always first.
        for place in 0..2 {
            let is_confirmed = (run + place) % 2 == 0;
            bench.fresh(SLOT).await?.inbox().close().await;
            let inbox = connect(bench, is_confirmed).await?;
            work::warm_up(&inbox).await?;
            let batches = Maker::new(bench.shape.payload)?.batches(number, bench.shape.batch)?;
            let timed = work::receive(&inbox, bench.options.tasks, batches, number).await?;
            let runs = &mut runs[usize::from(is_confirmed)];
            runs.add_with_calls(number, timed.time, &timed.calls)?;
            inbox.close().await;
        }
    }
    let [plain, confirmed] = &runs;
    bench.rates("receive", None, plain);
    bench.rates("receive, confirmed by a replica", None, confirmed);
    let of_plain = ratios(&confirmed.rates, &plain.rates);
    bench.figures("receive, confirmed, of unconfirmed", of_plain, "ratio");
    Ok(())
}

async fn connect(bench: &Bench<'_>, is_confirmed: bool) -> Result<Arc<dyn Inbox>> {
    let server = bench.site.redis().context("only Redis confirms")?;
    let mut options = server.options(SLOT as u8)?;
    if is_confirmed {
        options = options.confirmations(Confirmations {
            replicas: 1,
            timeout: Duration::from_secs(10),
            ..Confirmations::default()
        });
    }
    Ok(Arc::new(RedisStore::connect(options).await?))
}
