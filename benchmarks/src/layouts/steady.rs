//! Long traffic at full speed with autovacuum: what is left behind.

use std::time::Duration;

use anyhow::Result;

use super::{
    Layout, Options, Shape,
    client::cycle,
    figure,
    server::{Server, tables},
};
use crate::report::Report;

/// The traffic of an hour runs in about two minutes, so the launcher has to look thirty times as
/// often (by default once a minute), and a vacuum must not rest between pages.
const VACUUM: [(&str, &str); 2] = [
    ("autovacuum_naptime", "2s"),
    ("autovacuum_vacuum_cost_delay", "0"),
];

pub(crate) async fn measure(
    report: &mut Report,
    server: &mut Server,
    options: &Options,
    shape: Shape,
) -> Result<()> {
    if server.is_own() {
        for (name, value) in VACUUM {
            server
                .run(format!("ALTER SYSTEM SET {name} = '{value}'"))
                .await?;
            report.note("steady", format!("{name}={value}"));
        }
        server.run("SELECT pg_reload_conf()".to_owned()).await?;
    } else {
        report.note(
            "steady",
            "the server's own settings for autovacuum".to_owned(),
        );
    }
    for layout in &options.layouts {
        eprintln!("steady: {}", layout.name);
        one_layout(report, server, layout, options.steady, shape).await?;
    }
    Ok(())
}

async fn one_layout(
    report: &mut Report,
    server: &mut Server,
    layout: &'static Layout,
    messages: u64,
    shape: Shape,
) -> Result<()> {
    let database = layout.database();
    let mut client = server.create(&database, layout, shape).await?;
    sqlx::raw_sql(layout.indexes)
        .execute(&mut client.connection)
        .await?;
    let clients = server.clients(2, &database, layout, shape).await?;
    let from = server.checkpoint().await?;
    let traffic = cycle(clients, messages);
    tokio::pin!(traffic);

    let mut most_dead = 0.0_f64;
    let time = loop {
        tokio::select! {
            time = &mut traffic => break time?,
            () = tokio::time::sleep(Duration::from_secs(1)) => {
                let dead = tables(&mut client.connection).await?.iter().map(|t| t.dead).sum();
                most_dead = most_dead.max(dead);
            }
        }
    };
    report.rates(layout.name, "steady traffic", messages, &[time]);
    let written = server.wal_bytes_since(&from).await?;
    report.figures(
        layout.name,
        "steady traffic: log, all of it",
        vec![written / figure(messages)],
        "B/msg",
    );
    let tables = tables(&mut client.connection).await?;
    let all = |of: fn(&super::server::Table) -> f64| tables.iter().map(of).sum::<f64>();
    let dead = all(|t| t.dead);
    let sums = [
        ("dead rows, the most at once", most_dead.max(dead), "rows"),
        ("dead rows at the end", dead, "rows"),
        ("vacuums", all(|t| t.vacuums), ""),
        ("size at the end", all(|t| t.rows + t.indexes) / 1e6, "MB"),
    ];
    for (what, sum, unit) in sums {
        report.figures(
            layout.name,
            format!("steady traffic: {what}"),
            vec![sum],
            unit,
        );
    }
    for table in &tables {
        let sizes = [("rows", table.rows), ("indexes", table.indexes)];
        for (what, size) in sizes {
            report.figures(
                layout.name,
                format!("steady traffic: {what} of {}", table.name),
                vec![size / 1e6],
                "MB",
            );
        }
    }
    drop(client);
    server.drop(&database).await?;
    Ok(())
}
