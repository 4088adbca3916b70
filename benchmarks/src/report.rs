//! Tables for people, JSON lines for machines.

use std::time::Duration;

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// One measured figure: median and spread of several runs, in messages a second.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) store: &'static str,
    pub(crate) step: String,
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) unit: &'static str,
}

/// What has to be known about the figures.
#[derive(Debug, Serialize)]
struct Note {
    note: &'static str,
    text: String,
}

pub(crate) struct Report {
    json: bool,
    notes: Vec<Note>,
    rows: Vec<Row>,
}

impl Report {
    pub(crate) fn new(json: bool) -> Self {
        Self {
            json,
            notes: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Adds a note, which is printed before the figures.
    pub(crate) fn note(&mut self, note: &'static str, text: String) {
        self.notes.push(Note { note, text });
    }

    /// Adds the rates of several runs over `messages` messages each.
    pub(crate) fn rates(
        &mut self,
        store: &'static str,
        step: impl Into<String>,
        messages: u64,
        runs: &[Duration],
    ) {
        #[expect(
            clippy::cast_precision_loss,
            reason = "rates need no more than 52 bits"
        )]
        let rates = runs
            .iter()
            .map(|run| messages as f64 / run.as_secs_f64())
            .collect();
        self.figures(store, step, rates, "msg/s");
    }

    /// Adds figures of several runs.
    pub(crate) fn figures(
        &mut self,
        store: &'static str,
        step: impl Into<String>,
        mut figures: Vec<f64>,
        unit: &'static str,
    ) {
        figures.sort_by(f64::total_cmp);
        let at = |i: usize| figures.get(i).copied().unwrap_or_default();
        self.rows.push(Row {
            store,
            step: step.into(),
            median: at(figures.len() / 2),
            min: at(0),
            max: at(figures.len().saturating_sub(1)),
            unit,
        });
    }

    pub(crate) fn print(self) -> Result<()> {
        if self.json {
            for note in &self.notes {
                println!("{}", serde_json::to_string(note)?);
            }
            for row in &self.rows {
                println!("{}", serde_json::to_string(row)?);
            }
            return Ok(());
        }
        for note in &self.notes {
            println!("{}: {}", note.note, note.text);
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["STORE", "STEP", "MEDIAN", "MIN", "MAX", "UNIT"]);
        for row in &self.rows {
            table.add_row([
                row.store.to_owned(),
                row.step.clone(),
                shown(row.median),
                shown(row.min),
                shown(row.max),
                row.unit.to_owned(),
            ]);
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        for column in 2..5 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for line in table.lines() {
            println!("{}", line.trim_end());
        }
        Ok(())
    }
}

/// Rates need no decimals; ratios and milliseconds do.
fn shown(figure: f64) -> String {
    if figure < 100.0 {
        format!("{figure:.2}")
    } else {
        format!("{figure:.0}")
    }
}
