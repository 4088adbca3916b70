//! All that is printed, on standard output for results and on standard error for what else there
//! is to say. Nothing here panics, whatever has become of the readers: the print macros do, and a
//! lint keeps them out of this crate.

use std::{
    borrow::Cow,
    fmt::Display,
    io::{self, Write},
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context as _, Result};
use comfy_table::{Table, presets};
use inbox_dashboard::text::written_out;
pub(crate) use inbox_dashboard::text::{
    ago, count, count_of, duration, json_written_out, messages, one_line as cell, time,
};
use serde::Serialize;

use crate::exit;

/// Whether the reader of standard output has gone.
static IS_UNREAD: AtomicBool = AtomicBool::new(false);

/// Writes one line to standard output.
pub(crate) fn line(text: impl AsRef<str>) -> Result<()> {
    bytes(format!("{}\n", text.as_ref()).as_bytes())
}

/// Writes bytes to standard output as they are, and sees that they arrive: what is kept back for
/// the end of the process could not fail any more.
///
/// A reader that has gone (`inbox list | head`) is no failure, and changes no exit code; what would
/// be printed after that is dropped.
pub(crate) fn bytes(content: &[u8]) -> Result<()> {
    if IS_UNREAD.load(Ordering::Relaxed) {
        return Ok(());
    }
    let mut stdout = io::stdout().lock();
    match stdout.write_all(content).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            IS_UNREAD.store(true, Ordering::Relaxed);
            Ok(())
        }
        written => written.context("cannot write to standard output"),
    }
}

/// Writes one line to standard error, if it can be written: nobody could be told otherwise.
pub(crate) fn note(text: impl Display) {
    // At once, so that lines of several tasks do not mix.
    let _ = io::stderr()
        .lock()
        .write_all(format!("{}\n", harmless(&text.to_string())).as_bytes());
}

/// Prints what clap says about a command line, be it wrong or a question for help, and returns the
/// exit code.
pub(crate) fn usage(said: &clap::Error) -> u8 {
    let printed = said.print().and_then(|()| io::stdout().flush());
    match printed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe && !said.use_stderr() => {
            note(format_args!(
                "inbox: cannot write to standard output: {error}"
            ));
            exit::FAILURE
        }
        _ => u8::try_from(said.exit_code()).unwrap_or(exit::FAILURE),
    }
}

/// Standard error for the log, whose lines are lost where they cannot be written.
#[derive(Debug)]
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let _ = io::stderr().lock().write_all(log_line(&text).as_bytes());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes one JSON line. What is stored may be from anyone, and the reader may be a terminal.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    line(json_written_out(&serde_json::to_string(value)?))
}

/// What a dry run has counted, or the most that it can be.
pub(crate) fn dry_run(number: u64, is_most: bool, would: &str) -> String {
    let most = if is_most { "up to " } else { "" };
    match number {
        0 => format!("no message {would}"),
        number => format!("{most}{} {would}", messages(number)),
    }
}

/// A table without borders. Never wrapped: ids are there to be copied, and lines to be grepped.
pub(crate) fn table(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(headings.iter().map(|heading| heading.to_uppercase()));
    table
}

/// Prints a table, its columns two spaces apart.
pub(crate) fn print(mut table: Table) -> Result<()> {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let mut text = String::new();
    for row in table.lines() {
        text.push_str(row.trim_end());
        text.push('\n');
    }
    bytes(text.as_bytes())
}

/// What is told may be of several lines, and may repeat what came from outside.
fn harmless(text: &str) -> Cow<'_, str> {
    written_out(text, |c| matches!(c, '\n' | '\t'))
}

/// A line of the log, whose colours are the log's own: it writes out control characters itself.
fn log_line(line: &str) -> Cow<'_, str> {
    written_out(line, char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_says_how_many_it_would_be() {
        assert_eq!(dry_run(0, true, "would go"), "no message would go");
        assert_eq!(dry_run(1, false, "would go"), "1 message would go");
        assert_eq!(dry_run(2, true, "would go"), "up to 2 messages would go");
    }

    #[test]
    fn what_is_printed_is_harmless() {
        assert_eq!(harmless("a\nb\u{9b}\u{2066}"), "a\nb\\u{9b}\\u{2066}");
        assert_eq!(
            log_line("\u{1b}[33mW\u{1b}[0m \u{202e}\n"),
            "\u{1b}[33mW\u{1b}[0m \\u{202e}\n"
        );
    }
}
