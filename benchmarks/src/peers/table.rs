//! What came out: a table for people, JSON lines for machines.

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::report::{self, Spread};

/// What one run came to, in messages a second.
#[derive(Clone, Debug, Default)]
pub(super) struct Rates {
    pub(super) version: String,
    pub(super) receive: f64,
    pub(super) drain: f64,
}

fn rate(spread: Spread) -> String {
    let Spread {
        median,
        least,
        most,
    } = spread;
    format!("{median:.0} ({least:.0} – {most:.0})")
}

fn ratio(spread: Spread) -> String {
    let Spread {
        median,
        least,
        most,
    } = spread;
    format!("{median:.2} ({least:.2} – {most:.2})")
}

/// One of them in the table.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    peer: String,
    settings: String,
    contract: String,
    receive: Spread,
    drain: Spread,
    /// The inbox's rate, of this one's, run by run.
    our_receive: Spread,
    our_drain: Spread,
}

impl Row {
    /// Its rates compared with the inbox's in the same runs.
    pub(super) fn new(
        name: &str,
        settings: &str,
        contract: &str,
        rates: &[Rates],
        own: &[Rates],
    ) -> Self {
        let version = rates.first().map_or("", |rates| &rates.version);
        let both = || own.iter().zip(rates);
        Self {
            peer: format!("{name} {version}"),
            settings: settings.to_owned(),
            contract: contract.to_owned(),
            receive: Spread::of(rates.iter().map(|rates| rates.receive).collect()),
            drain: Spread::of(rates.iter().map(|rates| rates.drain).collect()),
            our_receive: Spread::of(
                both()
                    .map(|(own, rates)| own.receive / rates.receive)
                    .collect(),
            ),
            our_drain: Spread::of(both().map(|(own, rates)| own.drain / rates.drain).collect()),
        }
    }
}

/// Prints notes and rows.
pub(super) fn print(notes: &[(&str, String)], rows: &[Row], json: bool) -> Result<()> {
    if json {
        for (note, text) in notes {
            report::print(serde_json::json!({ "note": note, "text": text }))?;
        }
        for row in rows {
            report::print(serde_json::to_string(row)?)?;
        }
        return Ok(());
    }
    for (note, text) in notes {
        report::print(format_args!("{note}: {text}"))?;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "PEER",
        "SETTINGS",
        "CONTRACT",
        "RECEIVE/s",
        "DRAIN/s",
        "INBOX RECEIVES, TIMES",
        "INBOX DRAINS, TIMES",
    ]);
    for row in rows {
        table.add_row([
            row.peer.clone(),
            row.settings.clone(),
            row.contract.clone(),
            rate(row.receive),
            rate(row.drain),
            ratio(row.our_receive),
            ratio(row.our_drain),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    for column in 3..7 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for line in table.lines() {
        report::print(line.trim_end())?;
    }
    Ok(())
}
