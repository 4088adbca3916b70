//! Tables for people, JSON lines for machines.

use std::{
    io::{self, Write as _},
    time::Duration,
};

use anyhow::Result;
use clap::ValueEnum;
use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::machine::Machine;

/// Latencies of single calls, in nanoseconds.
pub(crate) type Latencies = Histogram<u64>;

/// None yet; each will be kept to three digits, and up to an hour.
pub(crate) fn latencies() -> Result<Latencies> {
    const HOUR: u64 = 3_600_000_000_000;
    Ok(Histogram::new_with_bounds(1, HOUR, 3)?)
}

/// Adds one.
pub(crate) fn record(latencies: &mut Latencies, time: Duration) {
    latencies.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1));
}

/// That part of the latencies is at most as long, in milliseconds.
#[expect(clippy::cast_precision_loss, reason = "milliseconds")]
pub(crate) fn quantile(latencies: &Latencies, part: f64) -> f64 {
    latencies.value_at_quantile(part) as f64 / 1e6
}

/// What several runs came to.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// All zero without figures.
    pub(crate) fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        let nth = |i: usize| figures.get(i).copied().unwrap_or_default();
        let last = figures.len().saturating_sub(1);
        Self {
            // Of an even number, what lies between the two in the middle.
            median: nth(last / 2).midpoint(nth(figures.len() / 2)),
            least: nth(0),
            most: nth(last),
        }
    }
}

/// What an option's value is called on the command line.
pub(crate) fn name(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Prints a line. A reader that has gone is an error like others.
pub(crate) fn print(line: impl std::fmt::Display) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{line}")
}

/// The place of a figure on the horizontal axis of a chart.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct At {
    pub(crate) axis: String,
    pub(crate) value: u64,
}

/// What the figures that follow have in common.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Setting {
    pub(crate) scenario: String,
    /// Name, version and what matters of its settings.
    pub(crate) server: String,
    pub(crate) settings: Map<String, Value>,
}

impl Setting {
    pub(crate) fn new(
        scenario: impl Into<String>,
        server: impl Into<String>,
        settings: impl IntoIterator<Item = (&'static str, u64)>,
    ) -> Self {
        Self {
            scenario: scenario.into(),
            server: server.into(),
            settings: settings
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.into()))
                .collect(),
        }
    }
}

/// One measured figure: median and spread of several runs.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    setting: Setting,
    store: &'static str,
    step: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<At>,
    runs: usize,
    #[serde(flatten)]
    spread: Spread,
    unit: &'static str,
    /// Of single calls, over all runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    p50_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_ms: Option<f64>,
}

/// What is printed as a line of JSON.
#[derive(Serialize)]
struct Line<'a, T> {
    #[serde(flatten)]
    line: &'a T,
    version: &'static str,
    /// When the command began.
    date: String,
    machine: &'a Machine,
}

/// What has to be known about the figures.
#[derive(Debug, Serialize)]
struct Note {
    note: &'static str,
    text: String,
}

pub(crate) struct Report {
    json: bool,
    began: Timestamp,
    machine: Machine,
    setting: Setting,
    notes: Vec<Note>,
    rows: Vec<Row>,
}

impl Report {
    pub(crate) fn new(json: bool) -> Result<Self> {
        Ok(Self {
            json,
            began: Timestamp::now(),
            machine: Machine::this()?,
            setting: Setting::default(),
            notes: Vec::new(),
            rows: Vec::new(),
        })
    }

    /// Says what the figures that follow belong to.
    pub(crate) fn set(&mut self, setting: Setting) {
        self.setting = setting;
    }

    /// What is measured next with another value of a setting than the command's options say.
    pub(crate) fn adjust(&mut self, setting: &'static str, value: u64) {
        let settings = &mut self.setting.settings;
        settings.insert(setting.to_owned(), value.into());
    }

    /// Adds a note, which is printed before the figures.
    pub(crate) fn note(&mut self, note: &'static str, text: String) {
        self.notes.push(Note { note, text });
    }

    /// Adds figures of several runs.
    pub(crate) fn figures(
        &mut self,
        store: &'static str,
        step: impl Into<String>,
        figures: Vec<f64>,
        unit: &'static str,
    ) {
        self.all(store, step, None, figures, unit, None);
    }

    /// Adds figures of several runs, with their place in a chart and the latencies of their calls
    /// if they have any.
    pub(crate) fn all(
        &mut self,
        store: &'static str,
        step: impl Into<String>,
        at: Option<At>,
        figures: Vec<f64>,
        unit: &'static str,
        latencies: Option<&Latencies>,
    ) {
        self.rows.push(Row {
            setting: self.setting.clone(),
            store,
            step: step.into(),
            at,
            runs: figures.len(),
            spread: Spread::of(figures),
            unit,
            p50_ms: latencies.map(|latencies| quantile(latencies, 0.5)),
            p99_ms: latencies.map(|latencies| quantile(latencies, 0.99)),
        });
    }

    /// Prints what there is.
    pub(crate) fn print(self) -> Result<()> {
        if self.json {
            for note in &self.notes {
                print(self.line(note)?)?;
            }
            for row in &self.rows {
                print(self.line(row)?)?;
            }
            return Ok(());
        }
        // Commands that print by themselves, and those that did not begin, leave nothing.
        if self.notes.is_empty() && self.rows.is_empty() {
            return Ok(());
        }
        print(format_args!(
            "inbox {}, {}: {}",
            env!("CARGO_PKG_VERSION"),
            self.date(),
            self.machine
        ))?;
        for note in &self.notes {
            print(format_args!("{}: {}", note.note, note.text))?;
        }
        // An end that came early may have left none.
        let table = (!self.rows.is_empty()).then(|| self.table());
        for line in table.iter().flat_map(Table::lines) {
            print(line.trim_end())?;
        }
        Ok(())
    }

    fn date(&self) -> String {
        format!("{:.0}", self.began)
    }

    fn line<T: Serialize>(&self, line: &T) -> Result<String> {
        Ok(serde_json::to_string(&Line {
            line,
            version: env!("CARGO_PKG_VERSION"),
            date: self.date(),
            machine: &self.machine,
        })?)
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header([
            "STORE", "STEP", "MEDIAN", "LEAST", "MOST", "UNIT", "P50 MS", "P99 MS",
        ]);
        for row in &self.rows {
            let step = match &row.at {
                None => row.step.clone(),
                Some(at) => format!("{}, {} {}", row.step, at.axis, at.value),
            };
            table.add_row([
                row.store.to_owned(),
                step,
                format_figure(row.spread.median),
                format_figure(row.spread.least),
                format_figure(row.spread.most),
                row.unit.to_owned(),
                row.p50_ms.map_or_else(String::new, format_figure),
                row.p99_ms.map_or_else(String::new, format_figure),
            ]);
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        for column in [2, 3, 4, 6, 7] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }
}

/// Messages a second.
#[expect(
    clippy::cast_precision_loss,
    reason = "rates need no more than 52 bits"
)]
pub(crate) fn rate(messages: u64, time: Duration) -> f64 {
    messages as f64 / time.as_secs_f64()
}

/// Rates need no decimals; ratios and milliseconds do.
fn format_figure(figure: f64) -> String {
    if figure < 0.1 {
        format!("{figure:.4}")
    } else if figure < 100.0 {
        format!("{figure:.2}")
    } else {
        format!("{figure:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::float_cmp, reason = "these are exact")]
    fn the_median_lies_in_the_middle() {
        for (figures, median) in [
            (vec![], 0.0),
            (vec![3.0], 3.0),
            (vec![4.0, 1.0], 2.5),
            (vec![9.0, 1.0, 2.0], 2.0),
            (vec![9.0, 1.0, 2.0, 4.0], 3.0),
        ] {
            assert_eq!(Spread::of(figures).median, median);
        }
    }
}
