//! Counts, times and texts from outside, as the dashboard and the command `inbox` write them.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime},
};

use inbox::{HandlerStatistics, InterventionKind};
use inbox_http::times;

/// A count with thousands separated.
#[must_use]
pub fn count(number: u64) -> String {
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
#[must_use]
pub fn messages(number: u64) -> String {
    count_of(number, "message")
}

/// A number with its noun.
#[must_use]
pub fn count_of(number: u64, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", count(number))
}

/// How many attempts have ended with their worker: `1 crashed or lost its lease`.
#[must_use]
pub fn crashes(number: u32) -> String {
    let whose = if number == 1 { "its" } else { "their" };
    format!("{number} crashed or lost {whose} lease")
}

/// A duration in its largest two units: `3d 4h`, `12m 5s`, `250ms`.
#[must_use]
pub fn duration(duration: Duration) -> String {
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

/// A duration as people write it: `500ms`, `30s`, `12h`, `7d`. A bare number is refused, since
/// it does not say its unit.
///
/// # Errors
/// What is expected, when `text` is something else.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let span: jiff::Span = text
        .parse()
        .map_err(|_| "expected a time such as 500ms, 30s, 12h or 7d".to_owned())?;
    // Days and weeks are 24 hours and 7 days here: ages, not calendar arithmetic.
    let exact = span
        .to_duration(jiff::SpanRelativeTo::days_are_24_hours())
        .map_err(|_| "months and years have no fixed length; use days".to_owned())?;
    Duration::try_from(exact).map_err(|_| "a time cannot be negative".to_owned())
}

/// A moment, in UTC to the millisecond, as RFC 3339.
#[must_use]
pub fn time(time: SystemTime) -> String {
    format!("{:.3}", times::written(time))
}

/// A moment as RFC 3339 has it, such as `2030-01-31T08:00:00Z`.
///
/// # Errors
/// What is expected, when `text` is something else.
pub fn parse_time(text: &str) -> Result<SystemTime, String> {
    let expected = || "expected a moment such as 2030-01-31T08:00:00Z".to_owned();
    times::parse(text).ok_or_else(expected)
}

/// What an operator did, for people: an edit is a replay, too.
#[must_use]
pub fn intervention(kind: InterventionKind) -> &'static str {
    match kind {
        InterventionKind::Edited => "edited and replayed",
        other => other.as_str(),
    }
}

/// How many messages are due, which is counted up to a bound.
#[must_use]
pub fn due(counts: &HandlerStatistics) -> String {
    let is_all = counts.due < HandlerStatistics::DUE_COUNTED;
    count(counts.due) + if is_all { "" } else { "+" }
}

/// How long ago, by this machine's clock.
#[must_use]
pub fn ago(then: SystemTime) -> String {
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
pub fn written_out(text: &str, is_ours: impl Fn(char) -> bool) -> Cow<'_, str> {
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

/// JSON whose texts show such characters as `\u` escapes. It means the same: they can only be in texts, and an escape
/// is what JSON has for any character of these.
#[must_use]
pub fn json_written_out(json: &str) -> Cow<'_, str> {
    let is_tricky = |c: char| is_tricky(c) && c != '\n';
    if !json.contains(is_tricky) {
        return json.into();
    }
    let mut shown = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_tricky(c) {
            let units = c.encode_utf16(&mut [0; 2]).to_vec();
            shown.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            shown.push(c);
        }
    }
    shown.into()
}

/// Text from outside (ids, kinds, errors) on one line, with what is not to be seen written out, so that a
/// stored text cannot play tricks on its reader, and cut to so many characters.
#[must_use]
pub fn one_line(text: &str, most: usize) -> String {
    let one_line = text.replace(['\n', '\r', '\t'], " ");
    let mut shown = written_out(&one_line, |_| false).into_owned();
    if let Some((at, _)) = shown.char_indices().nth(most) {
        shown.truncate(at);
        shown.push('…');
    }
    shown
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
        assert_eq!(crashes(1), "1 crashed or lost its lease");
        assert_eq!(crashes(2), "2 crashed or lost their lease");
    }

    #[test]
    fn durations_show_two_units() {
        assert_eq!(duration(Duration::from_millis(250)), "250ms");
        assert_eq!(duration(Duration::from_secs(59)), "59s");
        assert_eq!(duration(Duration::from_secs(725)), "12m 5s");
        assert_eq!(duration(Duration::from_secs(90_000)), "1d 1h");
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert_eq!(parse_duration("1h 30m"), Ok(Duration::from_secs(5400)));
        assert!(parse_duration("30").is_err());
        assert!(parse_duration("-5s").is_err());
        assert!(parse_duration("1y").is_err());
    }

    #[test]
    fn json_is_harmless_and_means_the_same() {
        let text = "a\u{7f}\u{9b}31m\u{202e}\u{e0041}ä\u{1f600}\n";
        let json = serde_json::to_string(text).unwrap();
        let shown = json_written_out(&json);
        assert_eq!(
            shown,
            "\"a\\u007f\\u009b31m\\u202e\\udb40\\udc41ä\u{1f600}\\n\""
        );
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
        assert!(matches!(json_written_out("{}\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn texts_from_outside_are_harmless_and_short() {
        assert_eq!(one_line("a\u{1b}[31m\nb", 20), "a\\u{1b}[31m b");
        assert_eq!(one_line("a\u{202e}b\u{200b}", 20), "a\\u{202e}b\\u{200b}");
        assert_eq!(one_line("äöü", 2), "äö…");
        let kept = written_out("a\n\u{9b}", |c| c == '\n');
        assert_eq!(kept, "a\n\\u{9b}");
    }
}
