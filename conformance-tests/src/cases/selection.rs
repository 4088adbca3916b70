//! What each part of a filter selects, in listings, counts and summaries.

use std::time::{Duration, SystemTime};

use inbox_api::{
    AfterDead, Due, ErrorType, Filter, HandlerName, Kind, Message, MessageId, OperateExt, Outcome,
    Page, State, headers::CORRELATION_ID,
};

use crate::{
    check::{CaseResult, same},
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, dead, dead_blocking, defer, message, message_for,
        ordered, processed, retry,
    },
};

/// Fails unless the filter selects these, in this order, in a listing, backwards and counted.
async fn selects(inbox: &TestInbox, what: &str, filter: &Filter, expected: &[&str]) -> CaseResult {
    let mut expected: Vec<String> = expected.iter().map(|id| (*id).to_owned()).collect();
    let mut page = Page::first(100);
    for newest_first in [false, true] {
        page.newest_first = newest_first;
        let records = inbox.list(filter, &page).await?.records;
        let ids: Vec<String> = records
            .iter()
            .map(|record| record.key.id.to_string())
            .collect();
        same(&format!("listed {what}"), &ids, &expected)?;
        expected.reverse();
    }
    let counted = inbox.count(filter).await?;
    same(
        &format!("counted {what}"),
        &counted,
        &(expected.len() as u64),
    )
}

fn id(id: &str) -> CaseResult<MessageId> {
    Ok(MessageId::new(id)?)
}

fn all() -> Filter {
    Filter::default()
}

fn failed(error: &str) -> Outcome {
    Outcome::Dead {
        reason: error.into(),
        after: AfterDead::Continue,
    }
}

pub(crate) async fn by_ids(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let longest = "x".repeat(255);
    for name in ["a", "A", "a ", "%", "'b\"", &longest, "c"] {
        inbox.accept(&message(name)?).await?;
    }
    inbox.accept(&message_for("other", "a")?).await?;
    let of = |names: &[&str]| -> CaseResult<Filter> {
        Ok(Filter {
            ids: names
                .iter()
                .map(|name| id(name))
                .collect::<CaseResult<_>>()?,
            ..all()
        })
    };
    selects(&inbox, "by one id", &of(&["a"])?, &["a", "a"]).await?;
    let several = of(&["'b\"", "unknown", &longest, "A", "A", "%"])?;
    selects(
        &inbox,
        "by several ids",
        &several,
        &["A", "%", "'b\"", &longest],
    )
    .await?;
    selects(&inbox, "by an unknown id", &of(&["_"])?, &[]).await?;
    let one_handler = Filter {
        handler: Some(HandlerName::new("other")?),
        ..of(&["a", "c"])?
    };
    selects(&inbox, "by ids and handler", &one_handler, &["a"]).await?;
    let mut many: Vec<String> = (0..2000).map(|n| format!("none-{n}")).collect();
    many.push("c".into());
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    selects(&inbox, "by two thousand ids", &of(&many)?, &["c"]).await
}

pub(crate) async fn by_correlation_id(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let values = [
        "c-1",
        "C-1",
        "c-1 ",
        "",
        "%",
        "a'b\"\\",
        "line\nend",
        "\u{1f980}",
        "1",
        "null",
    ];
    for (n, value) in values.into_iter().enumerate() {
        let sent = message(&format!("{n}"))?.with_header(CORRELATION_ID, value)?;
        inbox.accept(&sent).await?;
    }
    let other_header = message("other")?
        .with_header("Correlation-Id", "c-1")?
        .with_header("causation-id", "c-1")?;
    inbox.accept(&other_header).await?;
    inbox.accept(&message("none")?).await?;
    for (n, value) in values.into_iter().enumerate() {
        let filter = Filter {
            correlation_id: Some(value.into()),
            ..all()
        };
        let what = format!("by the correlation id {value:?}");
        selects(&inbox, &what, &filter, &[&format!("{n}")]).await?;
    }
    let unknown = Filter {
        correlation_id: Some("c".into()),
        ..all()
    };
    selects(
        &inbox,
        "by the beginning of a correlation id",
        &unknown,
        &[],
    )
    .await
}

pub(crate) async fn by_attempts(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for (n, name) in ["0", "1", "2", "3"].into_iter().enumerate() {
        inbox.accept(&message(name)?).await?;
        for _ in 0..n {
            let begun = inbox
                .begin(&message(name)?, &crate::test_inbox::terms(LONG)?)
                .await?;
            if let inbox_api::Begun::Run(leased) = begun {
                inbox.finish(&leased, retry(Duration::ZERO)).await?;
            }
        }
    }
    let of = |least| Filter {
        min_started: Some(least),
        ..all()
    };
    selects(&inbox, "with any attempts", &of(0), &["0", "1", "2", "3"]).await?;
    selects(&inbox, "with an attempt", &of(1), &["1", "2", "3"]).await?;
    selects(&inbox, "with three attempts", &of(3), &["3"]).await?;
    selects(&inbox, "with any number of attempts", &of(u32::MAX), &[]).await?;
    let up_to = |most| Filter {
        max_started: Some(most),
        ..all()
    };
    selects(&inbox, "without an attempt", &up_to(0), &["0"]).await?;
    selects(
        &inbox,
        "with two attempts at most",
        &up_to(2),
        &["0", "1", "2"],
    )
    .await?;
    let between = Filter {
        min_started: Some(1),
        ..up_to(2)
    };
    selects(&inbox, "with one or two attempts", &between, &["1", "2"]).await?;
    // The attempt that runs counts.
    let begun = inbox
        .begin(&message("2")?, &crate::test_inbox::terms(LONG)?)
        .await?;
    same(
        "begin runs",
        &matches!(begun, inbox_api::Begun::Run(_)),
        &true,
    )?;
    selects(
        &inbox,
        "with three attempts, one running",
        &of(3),
        &["2", "3"],
    )
    .await
}

pub(crate) async fn by_what_blocks(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    inbox.accept_in(&message("dead")?, State::Dead).await?;
    inbox.accept(&ordered("passed", "p")?).await?;
    let passed = inbox.claim_one().await?;
    inbox.finish(&passed, dead("gave up")).await?;
    for id in ["1", "2"] {
        inbox.accept(&ordered(id, id)?).await?;
        let leased = inbox.claim_one().await?;
        inbox.finish(&leased, dead_blocking("gave up")).await?;
        inbox.accept(&ordered(&format!("behind {id}"), id)?).await?;
    }
    let blocking = |states: &[State]| Filter {
        states: states.to_vec(),
        blocking: true,
        ..all()
    };
    let both = &["1", "2"];
    selects(&inbox, "that block, of any state", &blocking(&[]), both).await?;
    let dead_or_pending = [State::Dead, State::Pending];
    let both_states = blocking(&dead_or_pending);
    selects(&inbox, "that block, dead or pending", &both_states, both).await?;
    let pending = blocking(&[State::Pending]);
    selects(&inbox, "that block, pending", &pending, &[]).await?;
    let slice = inbox_api::Slice {
        after: None,
        limit: 1,
    };
    let replayed = inbox.replay_slice(&blocking(&[]), &slice).await?;
    same("replayed of those that block", &replayed.changed, &1)?;
    selects(&inbox, "that still block", &blocking(&[]), &["2"]).await
}

pub(crate) async fn by_due_time(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("now")?).await?;
    inbox
        .accept(&message("soon")?.with_due(Due::After(LONG * 10)))
        .await?;
    inbox
        .accept(&message("late")?.with_due(Due::After(LONG * 100)))
        .await?;
    inbox
        .accept(&message("never")?.with_due(Due::After(Duration::MAX)))
        .await?;
    let later = |wait| Filter {
        due_later_than: Some(wait),
        ..all()
    };
    let within = |wait| Filter {
        due_within: Some(wait),
        ..all()
    };
    let zero = Duration::ZERO;
    selects(
        &inbox,
        "due later than now",
        &later(zero),
        &["soon", "late", "never"],
    )
    .await?;
    selects(
        &inbox,
        "due later than in a while",
        &later(LONG * 50),
        &["late", "never"],
    )
    .await?;
    selects(&inbox, "due now", &within(zero), &["now"]).await?;
    selects(
        &inbox,
        "due in a while",
        &within(LONG * 50),
        &["now", "soon"],
    )
    .await?;
    let between = Filter {
        due_later_than: Some(LONG),
        due_within: Some(LONG * 1000),
        ..all()
    };
    selects(
        &inbox,
        "due between two moments",
        &between,
        &["soon", "late"],
    )
    .await?;
    // What was rescheduled, retried or deferred is due when that said.
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, defer(LONG * 100)).await?;
    let _ = inbox.reschedule(message("late")?.key(), Due::Now).await?;
    let what = "due later than now after a deferral and a reschedule";
    selects(&inbox, what, &later(zero), &["now", "soon", "never"]).await?;
    // A final message keeps its due time, so a state says more.
    let _ = inbox.discard(message("soon")?.key()).await?;
    let scheduled = Filter {
        states: vec![State::Pending],
        ..later(zero)
    };
    selects(&inbox, "scheduled", &scheduled, &["now", "never"]).await?;
    selects(
        &inbox,
        "due later than now, in any state",
        &later(zero),
        &["now", "soon", "never"],
    )
    .await?;
    selects(
        &inbox,
        "due within all time",
        &within(Duration::MAX),
        &["now", "soon", "late", "never"],
    )
    .await
}

pub(crate) async fn by_time_of_the_end(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let longer = |age| Filter {
        finished_longer_ago: Some(age),
        ..all()
    };
    let within = |age| Filter {
        finished_within: Some(age),
        ..all()
    };
    inbox
        .accept(&message("pending")?.with_due(Due::After(LONG * 1000)))
        .await?;
    inbox.accept_in(&message("first")?, State::Dead).await?;
    selects(
        &inbox,
        "finished any time ago",
        &longer(Duration::ZERO),
        &["first"],
    )
    .await?;
    selects(
        &inbox,
        "finished within no time",
        &within(Duration::ZERO),
        &[],
    )
    .await?;
    selects(
        &inbox,
        "finished within all time",
        &within(Duration::MAX),
        &["first"],
    )
    .await?;
    selects(
        &inbox,
        "finished before all time",
        &longer(Duration::MAX),
        &[],
    )
    .await?;
    inbox.need_clock()?;
    // Accepted long before, finished late.
    inbox.accept(&message("second")?).await?;
    inbox.pass(LONG * 10).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, processed()).await?;
    inbox.pass(LONG).await?;
    selects(
        &inbox,
        "finished a while ago",
        &longer(LONG * 5),
        &["first"],
    )
    .await?;
    selects(&inbox, "finished lately", &within(LONG * 5), &["second"]).await?;
    let both = Filter {
        finished_longer_ago: Some(LONG / 2),
        finished_within: Some(LONG * 5),
        ..all()
    };
    selects(&inbox, "finished between two moments", &both, &["second"]).await?;
    // A dead message that is discarded finished when it was discarded.
    let _ = inbox.discard(message("first")?.key()).await?;
    selects(
        &inbox,
        "finished lately, after a discard",
        &within(LONG * 5),
        &["first", "second"],
    )
    .await
}

pub(crate) async fn by_error_type(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let errors = [
        ("exact", "app::Error: no"),
        ("nothing-behind", "app::Error: "),
        ("case", "app::error: no"),
        ("longer", "app::Error2: no"),
        ("inner", "other::Error: app::Error: no"),
        ("no-space", "app::Error:no"),
        ("cut", "app::Error"),
        ("generic", "app::Error<alloc::string::String>: no"),
        ("wild", "app::E%: no"),
        ("under", "app::Err_r: no"),
        ("unicode", "app::Fähler: no"),
        ("plain", "timeout: no"),
    ];
    for (name, error) in errors {
        inbox.accept(&message(name)?).await?;
        let leased = inbox.claim_one().await?;
        inbox.finish(&leased, failed(error)).await?;
    }
    inbox.accept_in(&message("none")?, State::Discarded).await?;
    for name in [
        "app::Error",
        "app::error",
        "app::Error<alloc::string::String>",
        "app::Err_r",
        "app::Fähler",
        "unknown::E",
    ] {
        let error_type = ErrorType::new(name)?;
        let expected: Vec<&str> = errors
            .iter()
            .filter(|(_, error)| ErrorType::of(error).as_ref() == Some(&error_type))
            .map(|(name, _)| *name)
            .collect();
        let filter = Filter {
            error_type: Some(error_type),
            ..all()
        };
        selects(
            &inbox,
            &format!("by the error type {name}"),
            &filter,
            &expected,
        )
        .await?;
    }
    let both = Filter {
        error_type: Some(ErrorType::new("app::Error")?),
        error_contains: Some("no".into()),
        states: vec![State::Dead],
        ..all()
    };
    selects(&inbox, "by error type, text and state", &both, &["exact"]).await
}

/// Messages of two handlers and kinds that died of two types of error, and what else there is.
async fn dead_letters(inbox: &TestInbox) -> CaseResult {
    let kind = |sent: Message, name: &str| -> CaseResult<Message> {
        let (handler, id) = (sent.handler().clone(), sent.id().clone());
        Ok(Message::new(handler, id, Kind::new(name)?, "x"))
    };
    let letters = [
        (HANDLER, "1", "placed", "app::A: 1"),
        (HANDLER, "2", "placed", "app::B: 2"),
        (HANDLER, "3", "placed", "app::A: 3"),
        (HANDLER, "4", "paid", "no type"),
        ("other", "5", "placed", "app::A: 5"),
    ];
    for (handler, name, of_kind, error) in letters {
        let sent = kind(message_for(handler, name)?, of_kind)?;
        inbox.accept(&sent).await?;
        for leased in crate::test_inbox::claim(&*inbox.store, handler, 1, LONG).await? {
            inbox.finish(&leased, failed(error)).await?;
        }
    }
    inbox.accept_in(&message("6")?, State::Processed).await
}

pub(crate) async fn a_summary_groups_them(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    dead_letters(&inbox).await?;
    let dead = Filter {
        states: vec![State::Dead],
        ..all()
    };
    let summary = inbox.summarize(&dead, 1000).await?;
    let mut seen: Vec<_> = summary
        .groups
        .iter()
        .map(|group| {
            let error_type = group.error_type.as_ref().map(ToString::to_string);
            let of = (
                group.handler.to_string(),
                group.kind.to_string(),
                error_type,
            );
            (of, group.messages, group.sample.id.to_string())
        })
        .collect();
    seen.sort();
    let group = |handler: &str, kind: &str, error: Option<&str>, messages: u64, sample: &str| {
        let of = (
            handler.to_owned(),
            kind.to_owned(),
            error.map(ToOwned::to_owned),
        );
        (of, messages, sample.to_owned())
    };
    let expected = vec![
        group(HANDLER, "paid", None, 1, "4"),
        group(HANDLER, "placed", Some("app::A"), 2, "3"),
        group(HANDLER, "placed", Some("app::B"), 1, "2"),
        group("other", "placed", Some("app::A"), 1, "5"),
    ];
    same("groups", &seen, &expected)?;
    same(
        "messages, corrupt ones and whether these are all",
        &(summary.messages, summary.corrupt, summary.is_complete),
        &(5, 0, true),
    )?;
    let spans = async |first: &str, last: &str| -> CaseResult<[Option<SystemTime>; 6]> {
        let (first, last) = (
            inbox.record(message(first)?.key()).await?,
            inbox.record(message(last)?.key()).await?,
        );
        Ok([
            Some(first.accepted_at),
            Some(last.accepted_at),
            Some(first.due_at),
            Some(last.due_at),
            first.finished_at,
            last.finished_at,
        ])
    };
    let of_two = summary.groups.iter().find(|group| group.messages == 2);
    same(
        "first and last acceptance, due time and end of a group",
        &of_two.map(|group| {
            [
                Some(group.accepted.first),
                Some(group.accepted.last),
                Some(group.due.first),
                Some(group.due.last),
                group.finished.map(|span| span.first),
                group.finished.map(|span| span.last),
            ]
        }),
        &Some(spans("1", "3").await?),
    )
}

pub(crate) async fn a_summary_stops_at_its_limit(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    dead_letters(&inbox).await?;
    let dead = Filter {
        states: vec![State::Dead],
        ..all()
    };
    for (limit, complete) in [
        (0, false),
        (2, false),
        (4, false),
        (5, true),
        (u64::MAX, true),
    ] {
        let summary = inbox.summarize(&dead, limit).await?;
        same(
            &format!("messages of a summary of {limit}, and whether these are all"),
            &(summary.messages, summary.is_complete),
            &(limit.min(5), complete),
        )?;
    }
    let latest = inbox.summarize(&dead, 1).await?;
    let samples: Vec<String> = latest
        .groups
        .iter()
        .map(|g| g.sample.id.to_string())
        .collect();
    same(
        "samples of a summary of one: the latest",
        &samples,
        &vec!["5".into()],
    )
}
