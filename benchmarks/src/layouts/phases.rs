//! Receive, claim and settle, each by itself and all together.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::{
    Layout, Options, Shape,
    client::cycle,
    figure,
    server::{Server, Wal},
};
use crate::report::Report;

const STEPS: [&str; 4] = ["receive", "claim", "settle", "whole cycle, 2 connections"];

/// A phase of a run: messages a second, and bytes of log a message.
struct Phase {
    rate: f64,
    records: f64,
    with_images: f64,
}

/// What is reported of each phase: what it adds to the step's name, its unit, the figure.
type Figure = (&'static str, &'static str, fn(&Phase) -> f64);

pub(crate) async fn measure(
    report: &mut Report,
    server: &mut Server,
    options: &Options,
    shape: Shape,
) -> Result<()> {
    let layouts = &options.layouts;
    let mut all: Vec<Vec<[Phase; 4]>> = layouts.iter().map(|_| Vec::new()).collect();
    for run in 0..options.runs as usize {
        // Each run begins with another layout, so that none is always first.
        for place in 0..layouts.len() {
            let place = (place + run) % layouts.len();
            eprintln!("phases: run {} of {}", run + 1, layouts[place].name);
            all[place].push(one_run(server, layouts[place], options.messages, shape).await?);
        }
    }
    let figures: [Figure; 3] = [
        ("", "msg/s", |phase| phase.rate),
        (": log without page images", "B/msg", |phase| phase.records),
        (": log with page images", "B/msg", |phase| phase.with_images),
    ];
    for (what, unit, of) in figures {
        for (step, name) in STEPS.into_iter().enumerate() {
            for (layout, runs) in layouts.iter().zip(&all) {
                let figures = runs.iter().map(|phases| of(&phases[step])).collect();
                report.figures(layout.name, format!("{name}{what}"), figures, unit);
            }
        }
    }
    // Neighbours in a run had the same weather, so their ratio says more than two medians.
    let Some((first, others)) = all.split_first() else {
        return Ok(());
    };
    for (step, name) in STEPS.into_iter().enumerate() {
        for (layout, runs) in layouts[1..].iter().zip(others) {
            let ratios = runs.iter().zip(first);
            let ratios = ratios.map(|(of, to)| 100.0 * of[step].rate / to[step].rate);
            let step = format!("{name}: against {}, run by run", layouts[0].name);
            report.figures(layout.name, step, ratios.collect(), "%");
        }
    }
    Ok(())
}

async fn one_run(
    server: &mut Server,
    layout: &'static Layout,
    messages: u64,
    shape: Shape,
) -> Result<[Phase; 4]> {
    let database = layout.database();
    let mut client = server.create(&database, layout, shape).await?;
    sqlx::raw_sql(layout.indexes)
        .execute(&mut client.connection)
        .await?;
    let phase = |time: Instant, wal: Wal, start: Instant| Phase {
        rate: figure(messages) / (time - start).as_secs_f64(),
        records: wal.records / figure(messages),
        with_images: (wal.records + wal.images) / figure(messages),
    };

    let from = server.checkpoint().await?;
    let start = Instant::now();
    client.receive(messages).await?;
    let end = Instant::now();
    let receive = phase(end, server.wal_since(&from).await?, start);

    let from = server.checkpoint().await?;
    let start = Instant::now();
    let mut claimed = Vec::new();
    loop {
        let leases = client.claim().await?;
        if leases.is_empty() {
            break;
        }
        claimed.push(leases);
    }
    let end = Instant::now();
    ensure!(claimed.iter().map(Vec::len).sum::<usize>() as u64 == messages);
    let claim = phase(end, server.wal_since(&from).await?, start);

    let from = server.checkpoint().await?;
    let start = Instant::now();
    for leases in claimed {
        client.settle(leases).await?;
    }
    let end = Instant::now();
    let settle = phase(end, server.wal_since(&from).await?, start);

    let clients = server.clients(2, &database, layout, shape).await?;
    let from = server.checkpoint().await?;
    let start = Instant::now();
    let time = cycle(clients, messages).await?;
    let whole = phase(start + time, server.wal_since(&from).await?, start);

    drop(client);
    server.drop(&database).await?;
    Ok([receive, claim, settle, whole])
}
