//! What came out: a table for people, JSON lines for machines.

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// What one run came to, in messages a second.
#[derive(Clone, Debug, Default)]
pub(super) struct Rates {
    pub(super) version: String,
    pub(super) receive: f64,
    pub(super) drain: f64,
}

/// Median and spread of several runs.
#[derive(Clone, Copy, Debug, Serialize)]
struct Figure {
    median: f64,
    min: f64,
    max: f64,
}

impl Figure {
    fn of(figures: impl Iterator<Item = f64>) -> Self {
        let mut figures: Vec<_> = figures.collect();
        figures.sort_by(f64::total_cmp);
        let at = |i: usize| figures.get(i).copied().unwrap_or_default();
        Self {
            median: at(figures.len() / 2),
            min: at(0),
            max: at(figures.len().saturating_sub(1)),
        }
    }

    fn rate(self) -> String {
        format!("{:.0} ({:.0} – {:.0})", self.median, self.min, self.max)
    }

    fn ratio(self) -> String {
        format!("{:.2} ({:.2} – {:.2})", self.median, self.min, self.max)
    }
}

/// One of them in the table.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    peer: String,
    settings: String,
    contract: String,
    receive: Figure,
    drain: Figure,
    /// The inbox's rate, of this one's, run by run.
    our_receive: Figure,
    our_drain: Figure,
}

impl Row {
    /// Its rates beside the inbox's in the same runs.
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
            receive: Figure::of(rates.iter().map(|rates| rates.receive)),
            drain: Figure::of(rates.iter().map(|rates| rates.drain)),
            our_receive: Figure::of(both().map(|(own, rates)| own.receive / rates.receive)),
            our_drain: Figure::of(both().map(|(own, rates)| own.drain / rates.drain)),
        }
    }
}

/// Prints notes and rows.
pub(super) fn print(notes: &[(&str, String)], rows: &[Row], json: bool) -> Result<()> {
    if json {
        for (note, text) in notes {
            println!("{}", serde_json::json!({ "note": note, "text": text }));
        }
        for row in rows {
            println!("{}", serde_json::to_string(row)?);
        }
        return Ok(());
    }
    for (note, text) in notes {
        println!("{note}: {text}");
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
            row.receive.rate(),
            row.drain.rate(),
            row.our_receive.ratio(),
            row.our_drain.ratio(),
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
        println!("{}", line.trim_end());
    }
    Ok(())
}
