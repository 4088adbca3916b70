//! All that is printed, on standard output for results and on standard error for what else there
//! is to say. Nothing here panics, whatever has become of the readers: the print macros do, and a
//! lint keeps them out of this crate.

use std::{
    borrow::Cow,
    fmt::Display,
    io::{self, Write},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use comfy_table::{Table, presets};
use inbox::{AttemptEnd, PastAttempt, Record, State};
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

/// Writes one JSON line.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    line(serde_json::to_string(value)?)
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

/// A count with thousands separated.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 message`, `2 messages`.
pub(crate) fn messages(number: u64) -> String {
    count_of(number, "message")
}

/// A number with its noun.
pub(crate) fn count_of(number: u64, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", count(number))
}

/// A duration in its largest two units: `3d 4h`, `12m 5s`, `250ms`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes, seconds) {
        (0, 0, 0, 0) => format!("{}ms", duration.as_millis()),
        (0, 0, 0, s) => format!("{s}s"),
        (0, 0, m, s) => format!("{m}m {}s", s % 60),
        (0, h, m, _) => format!("{h}h {m}m"),
        (d, h, _, _) => format!("{d}d {h}h"),
    }
}

/// A moment, in UTC to the millisecond, as RFC 3339.
pub(crate) fn time(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map_or_else(|_| "?".to_owned(), |t| format!("{t:.3}"))
}

/// How long ago, by this machine's clock.
pub(crate) fn ago(then: SystemTime) -> String {
    let age = SystemTime::now().duration_since(then).unwrap_or_default();
    format!("{} ago", duration(age))
}

/// Whether a character is not seen, or changes how others are: control characters, those that turn
/// the direction of writing, and those without width. A text with them does not show what it is.
fn is_tricky(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// The text with such characters written out, apart from those that `is_ours` knows.
fn written_out(text: &str, is_ours: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(|c| is_tricky(c) && !is_ours(c)) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_tricky(c) && !is_ours(c) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown.into()
}

/// What is told may be of several lines, and may repeat what came from outside.
fn harmless(text: &str) -> Cow<'_, str> {
    written_out(text, |c| matches!(c, '\n' | '\t'))
}

/// A line of the log, whose colours are the log's own: it writes out control characters itself.
fn log_line(line: &str) -> Cow<'_, str> {
    written_out(line, char::is_control)
}

/// Text from outside (ids, kinds, errors) for one table cell: on one line, with what is not to be
/// seen written out, so that a stored text cannot play tricks on the terminal, and cut.
pub(crate) fn cell(text: &str, most: usize) -> String {
    let one_line = text.replace(['\n', '\r', '\t'], " ");
    let mut shown = written_out(&one_line, |_| false).into_owned();
    if let Some((at, _)) = shown.char_indices().nth(most) {
        shown.truncate(at);
        shown.push('…');
    }
    shown
}

/// A record as JSON lines show it.
#[derive(Serialize)]
pub(crate) struct RecordView<'a> {
    handler: &'a str,
    id: &'a str,
    kind: &'a str,
    state: State,
    attempts_started: u32,
    attempts_finished: u32,
    replays: u32,
    content_type: Option<&'a str>,
    ordering_key: Option<&'a str>,
    blocks_ordering_key: bool,
    headers: &'a inbox::Headers,
    payload_bytes: Option<u64>,
    accepted_at: String,
    due_at: String,
    lease_until: Option<String>,
    leased_at: Option<String>,
    worker: Option<&'a str>,
    finished_at: Option<String>,
    last_error: Option<&'a str>,
    place: &'a str,
}

impl<'a> From<&'a Record> for RecordView<'a> {
    fn from(record: &'a Record) -> Self {
        Self {
            handler: record.key.handler.as_str(),
            id: record.key.id.as_str(),
            kind: record.kind.as_str(),
            state: record.state,
            attempts_started: record.attempts.started,
            attempts_finished: record.attempts.finished,
            replays: record.replays,
            content_type: record.content_type.as_ref().map(AsRef::as_ref),
            ordering_key: record.ordering_key.as_ref().map(AsRef::as_ref),
            blocks_ordering_key: record.blocks_ordering_key,
            headers: &record.headers,
            payload_bytes: record.payload_bytes,
            accepted_at: time(record.accepted_at),
            due_at: time(record.due_at),
            lease_until: record.lease_until.map(time),
            leased_at: record.leased_at.map(time),
            worker: record.worker.as_ref().map(AsRef::as_ref),
            finished_at: record.finished_at.map(time),
            last_error: record.last_error.as_deref(),
            place: record.cursor.as_str(),
        }
    }
}

/// A past attempt as JSON shows it.
#[derive(Serialize)]
pub(crate) struct PastAttemptView<'a> {
    attempt: u32,
    replays: u32,
    worker: &'a str,
    leased_at: String,
    ended_at: String,
    took_ms: u64,
    end: AttemptEnd,
    error: &'a str,
}

impl<'a> From<&'a PastAttempt> for PastAttemptView<'a> {
    fn from(past: &'a PastAttempt) -> Self {
        Self {
            attempt: past.attempt,
            replays: past.replays,
            worker: past.worker.as_str(),
            leased_at: time(past.leased_at),
            ended_at: time(past.ended_at),
            took_ms: u64::try_from(past.took().as_millis()).unwrap_or(u64::MAX),
            end: past.end,
            error: &past.error,
        }
    }
}

/// The past attempts of a record, for JSON.
pub(crate) fn history(record: &Record) -> Vec<PastAttemptView<'_>> {
    record.history.iter().map(PastAttemptView::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(messages(1), "1 message");
    }

    #[test]
    fn durations_show_two_units() {
        assert_eq!(duration(Duration::from_millis(250)), "250ms");
        assert_eq!(duration(Duration::from_secs(59)), "59s");
        assert_eq!(duration(Duration::from_secs(725)), "12m 5s");
        assert_eq!(duration(Duration::from_secs(90_000)), "1d 1h");
    }

    #[test]
    fn cells_are_harmless_and_short() {
        assert_eq!(cell("a\u{1b}[31m\nb", 20), "a\\u{1b}[31m b");
        assert_eq!(cell("a\u{202e}b\u{200b}", 20), "a\\u{202e}b\\u{200b}");
        assert_eq!(harmless("a\nb\u{9b}\u{2066}"), "a\nb\\u{9b}\\u{2066}");
        assert_eq!(
            log_line("\u{1b}[33mW\u{1b}[0m \u{202e}\n"),
            "\u{1b}[33mW\u{1b}[0m \\u{202e}\n"
        );
        assert_eq!(cell("äöü", 2), "äö…");
    }
}
