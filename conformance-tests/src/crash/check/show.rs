//! The history of a few messages, for people to read.

use std::fmt::Write as _;

use inbox_api::Key;

use super::Evidence;
use crate::crash::history::{
    Answered, Asked, Beginning, Call, Change, Ending, Granted, History, runs_in,
};

/// The time from which shown times count.
pub(super) fn origin(history: &History) -> u64 {
    history
        .calls
        .iter()
        .map(|call| call.start)
        .min()
        .unwrap_or(0)
}

/// From when to when, and by whom.
pub(super) fn when(call: &Call, origin: u64) -> String {
    let end = call.end.map_or_else(
        || "(no end)".to_owned(),
        |end| format!("{} s", seconds(end, origin)),
    );
    format!(
        "{} to {end:>12}  worker {} (pid {})",
        seconds(call.start, origin),
        call.worker,
        call.pid
    )
}

fn seconds(at: u64, origin: u64) -> String {
    let micros = at.saturating_sub(origin);
    format!("{:>4}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

/// What happened to `keys`, in the order in which it began, and how they ended.
pub(super) fn lines(evidence: &Evidence<'_>, keys: &[&Key]) -> Vec<String> {
    if keys.is_empty() {
        return Vec::new();
    }
    let origin = origin(evidence.history);
    let mut found: Vec<(u64, String)> = Vec::new();
    for call in &evidence.history.calls {
        for key in keys {
            for what in describe_call(call, key) {
                let name = if keys.len() > 1 {
                    format!("{key} ")
                } else {
                    String::new()
                };
                found.push((call.start, format!("{}  {name}{what}", when(call, origin))));
            }
        }
    }
    found.extend(moves(evidence.history, &found));
    found.sort();
    let mut lines: Vec<String> = found.into_iter().map(|(_, line)| line).collect();
    for key in keys {
        let mut ends = evidence
            .listing
            .iter()
            .enumerate()
            .filter(|(_, record)| record.key == **key)
            .peekable();
        if ends.peek().is_none() {
            lines.push(format!("at the end  {key} is not in the inbox"));
        }
        for (place, record) in ends {
            lines.push(format!(
                "at the end  {key} is {}, {} attempts started, {} finished, number {} in the listing",
                record.state,
                record.attempts.started,
                record.attempts.finished,
                place + 1
            ));
        }
    }
    lines
}

/// The moves of the store's clock between the first and the last of these moments, and the one before them.
fn moves(history: &History, found: &[(u64, String)]) -> Vec<(u64, String)> {
    let moments = || found.iter().map(|(at, _)| *at);
    let (Some(first), Some(last)) = (moments().min(), moments().max()) else {
        return Vec::new();
    };
    let before = history.moves.partition_point(|moved| moved.start < first);
    let moves = history.moves.iter().skip(before.saturating_sub(1));
    let origin = origin(history);
    moves
        .take_while(|moved| moved.start <= last)
        .map(|moved| {
            let (start, end) = (seconds(moved.start, origin), seconds(moved.end, origin));
            let ahead = moved.ahead as f64 / 1e6;
            let text = format!(
                "{start} to {end:>12} s  the store's clock is moved to {ahead:+.6} s from the true time"
            );
            (moved.start, text)
        })
        .collect()
}

/// What `call` says about `key`, once for each time that it names it.
fn describe_call(call: &Call, key: &Key) -> Vec<String> {
    let mut told = Vec::new();
    let unknown = |what: &mut String| {
        let _ = match &call.answered {
            Some(Answered::Failed { error, unknown, .. }) if *unknown => {
                write!(what, " -> failed, perhaps with an effect: {error}")
            }
            Some(Answered::Failed { error, .. }) => write!(what, " -> failed: {error}"),
            Some(Answered::RolledBack) => write!(what, " -> rolled back on purpose"),
            _ => write!(what, " -> no answer"),
        };
    };
    match &call.asked {
        Asked::Receive {
            messages,
            transaction,
        } => {
            for (place, sent) in messages.iter().enumerate() {
                if sent.key != *key {
                    continue;
                }
                let mut what = format!("receive{}", within(*transaction));
                if let Some(ordering_key) = &sent.ordering_key {
                    let _ = write!(what, " (ordering key {ordering_key})");
                }
                match &call.answered {
                    Some(Answered::Receipts(answers)) => {
                        let _ = write!(what, " -> {}", answer(answers.get(place)));
                    }
                    _ => unknown(&mut what),
                }
                told.push(what);
            }
        }
        Asked::Begin { message, length } => {
            if message.key != *key {
                return told;
            }
            let mut what = format!("begin for {} ms", length / 1000);
            if let Some(ordering_key) = &message.ordering_key {
                let _ = write!(what, " (ordering key {ordering_key})");
            }
            match &call.answered {
                Some(Answered::Begun(Beginning::Run(granted))) => {
                    let (token, started) = (granted.held.token, granted.started);
                    let finished = granted.finished;
                    let _ = write!(
                        what,
                        " -> token {token}, attempt {started} ({finished} finished)"
                    );
                }
                Some(Answered::Begun(other)) => {
                    let _ = write!(what, " -> {other:?}");
                }
                _ => unknown(&mut what),
            }
            told.push(what);
        }
        Asked::Claim { length, .. } => {
            if let Some(Answered::Claims { granted, .. }) = &call.answered {
                for (place, one) in granted.iter().enumerate() {
                    if one.held.key != *key {
                        continue;
                    }
                    told.push(format!(
                        "claim for {} ms -> token {}, attempt {} ({} finished){}",
                        length / 1000,
                        one.held.token,
                        one.started,
                        one.finished,
                        within_run(granted, place)
                    ));
                }
            }
        }
        Asked::Settle {
            endings,
            transaction,
        } => {
            for (place, ended) in endings.iter().enumerate() {
                if ended.held.key != *key {
                    continue;
                }
                let ending = match ended.ending {
                    Ending::Retry(micros) => format!("retry in {} ms", micros / 1000),
                    Ending::Processed => "processed".to_owned(),
                    Ending::Dead => "dead".to_owned(),
                    Ending::Block => "dead, blocking its ordering key".to_owned(),
                    Ending::Release => "release".to_owned(),
                    Ending::Defer(micros) => format!("defer by {} ms", micros / 1000),
                };
                let mut what = format!(
                    "settle{} with token {}: {ending}",
                    within(*transaction),
                    ended.held.token
                );
                match &call.answered {
                    Some(Answered::Settled(answers)) => {
                        let _ = write!(what, " -> {}", answer(answers.get(place)));
                    }
                    _ => unknown(&mut what),
                }
                told.push(what);
            }
        }
        Asked::List { .. } | Asked::Purge { .. } => {}
        Asked::Change { key: of, change } => {
            if of == key {
                let mut what = match change {
                    Change::Replay => "replay if it is dead".to_owned(),
                    Change::Discard => "discard if it is dead".to_owned(),
                };
                match &call.answered {
                    Some(Answered::Changed(changed)) => {
                        let _ = write!(what, " -> {changed} changed");
                    }
                    _ => unknown(&mut what),
                }
                told.push(what);
            }
        }
        Asked::Extend { leases, length } => {
            for (place, held) in leases.iter().enumerate() {
                if held.key != *key {
                    continue;
                }
                let mut what = format!("extend token {} for {} ms", held.token, length / 1000);
                match &call.answered {
                    Some(Answered::Extended(answers)) => {
                        let _ = write!(what, " -> {}", answer(answers.get(place)));
                    }
                    _ => unknown(&mut what),
                }
                told.push(what);
            }
        }
    }
    told
}

/// The answer for one message; a store that gives too few has given none.
fn answer<T: std::fmt::Debug>(answer: Option<&T>) -> String {
    answer.map_or_else(|| "no answer".to_owned(), |answer| format!("{answer:?}"))
}

/// Which of how many it is in its run of a claim's answer, if it is in one.
fn within_run(granted: &[Granted], place: usize) -> String {
    let place_in = |run: Vec<usize>| {
        let before = run.iter().position(|member| *member == place)?;
        Some(format!(", number {} of a run of {}", before + 1, run.len()))
    };
    runs_in(granted)
        .into_iter()
        .find_map(place_in)
        .unwrap_or_default()
}

fn within(transaction: bool) -> &'static str {
    if transaction { " in a transaction" } else { "" }
}
