//! Idempotent endpoints and webhooks over real connections, compared with the same service without
//! the layer, and with what a careful author writes by hand.

mod by_hand;
mod client;
mod services;

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::net::TcpListener;

use self::{by_hand::Tables, services::Service};
use super::{Bench, Runs, ratios, transactional};
use crate::{report::latencies, target::Slot};

/// Of clients, each with one request at a time.
const CONNECTIONS: [u32; 3] = [1, 8, 64];
/// What is not counted: connections are opened, and their statements planned.
const WARM_UP: Duration = Duration::from_secs(1);

/// Which service is compared with which.
const COMPARED: [(Service, Service); 5] = [
    (Service::Layer, Service::Alone),
    (Service::Layer, Service::ByHand),
    (Service::LayerInTransaction, Service::Alone),
    (Service::LayerInTransaction, Service::ByHandInTransaction),
    (Service::Webhooks, Service::WebhooksByHand),
];

pub(super) async fn measure(bench: &mut Bench<'_>) -> Result<()> {
    if Tables::connect(&bench.site, Slot::First).is_none() {
        let text = format!("not measured on {}", bench.site.target.name());
        bench.report.note("http", text);
        return Ok(());
    }
    for connections in CONNECTIONS {
        let mut all = Service::ALL.map(|_| Runs::default());
        for run in 0..bench.options.runs as usize {
            // Each run begins with another service, so that none is always first.
            for place in 0..all.len() {
                let number = (place + run) % all.len();
                let (service, runs) = (Service::ALL[number], &mut all[number]);
                one(bench, service, connections, runs).await?;
            }
        }
        let with = match connections {
            1 => "1 connection".to_owned(),
            connections => format!("{connections} connections"),
        };
        let of = |service: Service| &all[service as usize];
        for service in Service::ALL {
            let (runs, name) = (of(service), service.name());
            bench.report.all(
                bench.site.target.name(),
                format!("{name}, {with}"),
                None,
                runs.rates.clone(),
                "req/s",
                runs.calls.as_ref(),
            );
        }
        for (one, other) in COMPARED {
            let step = format!("{}, of {}, {with}", one.name(), other.name());
            bench.figures(step, ratios(&of(one).rates, &of(other).rates), "ratio");
        }
    }
    Ok(())
}

/// All clients, one request each after the other, for a stretch of time.
async fn one(
    bench: &mut Bench<'_>,
    service: Service,
    connections: u32,
    runs: &mut Runs,
) -> Result<()> {
    let store = bench.fresh(Slot::First).await?;
    transactional::set_up(&bench.site, Slot::First).await?;
    let Some(tables) = Tables::create(&bench.site, Slot::First).await? else {
        return Ok(());
    };
    let app = service.router(&store, &tables)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let serving = tokio::spawn(services::serve(listener, app));
    let start = Instant::now() + WARM_UP;
    let end = start + Duration::from_secs(bench.options.seconds);
    let payload = bench.shape.payload;
    let clients =
        (0..connections).map(|_| tokio::spawn(client::run(address, service, payload, start, end)));
    let clients: Vec<_> = clients.collect();
    let mut calls = latencies()?;
    for client in clients {
        calls.add(client.await??)?;
    }
    let time = start.elapsed();
    serving.abort();
    tables.close().await;
    store.inbox().close().await;
    runs.add_with_calls(calls.len(), time, &calls)
}
