//! Looking: records, filters and pages.

use std::time::Duration;

use inbox_api::{
    Bytes, ContentType, Cursor, Due, ErrorKind, Filter, HandlerName, Kind, Listing, Message,
    Outcome, Page, Record, State,
};

use crate::{
    check::{CaseResult, Unmet, ensure, same},
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, dead, message, message_for, numbered, ordered, processed,
    },
    times::about,
};

fn keys_of(listing: &Listing) -> Vec<String> {
    listing
        .records
        .iter()
        .map(|r| r.key.id.to_string())
        .collect()
}

fn expected_ids(numbers: impl Iterator<Item = usize>) -> Vec<String> {
    numbers.map(|n| format!("{n:05}")).collect()
}

async fn all_pages(inbox: &TestInbox, filter: &Filter, page: Page) -> CaseResult<Vec<Vec<String>>> {
    let (mut page, mut pages) = (page, Vec::new());
    loop {
        let listing = inbox.list(filter, &page).await?;
        pages.push(keys_of(&listing));
        ensure!(pages.len() <= 100, "pages: saw no end after 100 of them");
        match listing.next {
            Some(next) => page.after = Some(next),
            None => return Ok(pages),
        }
    }
}

pub(crate) async fn a_record_shows_everything(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let now = inbox.now().await?;
    let sent = message("1")?
        .with_content_type(ContentType::new("application/json")?)
        .with_header("source", "shop")?
        .with_due(Due::After(Duration::ZERO));
    inbox.accept(&sent).await?;
    let leased = inbox.claim_one().await?;
    let result = Some(Bytes::from_static(b"receipt 7"));
    inbox
        .finish(
            &leased,
            Outcome::Processed {
                result: result.clone(),
            },
        )
        .await?;
    let record = inbox.record(sent.key()).await?;
    same("key", &record.key, sent.key())?;
    same("kind", &record.kind, sent.kind())?;
    same(
        "content type",
        &record.content_type.as_ref(),
        &sent.content_type(),
    )?;
    same("headers", &record.headers, sent.headers())?;
    same("payload", &record.payload.as_ref(), &Some(sent.payload()))?;
    same(
        "payload length",
        &record.payload_bytes,
        &Some(sent.payload().len() as u64),
    )?;
    same("state", &record.state, &State::Processed)?;
    same("result", &record.result, &result)?;
    same(
        "lease_until of what is not leased",
        &record.lease_until,
        &None,
    )?;
    same(
        "who held it last",
        &record.worker.as_ref().map(inbox_api::WorkerName::as_str),
        &Some("worker-1"),
    )?;
    same(
        "accepted_at, as claimed and as stored",
        &leased.accepted_at,
        &record.accepted_at,
    )?;
    about("accepted_at", record.accepted_at, now)?;
    about("finished_at", record.finished_at, now)
}

pub(crate) async fn listings_are_in_order_of_acceptance(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let batch = numbered(10)?;
    inbox.accept_all(&batch[..5]).await?;
    inbox.accept_all(&batch[5..]).await?;
    let earliest = inbox.list(&Filter::default(), &Page::first(100)).await?;
    same("earliest first", &keys_of(&earliest), &expected_ids(1..=10))?;
    let page = Page {
        newest_first: true,
        ..Page::first(100)
    };
    let latest = inbox.list(&Filter::default(), &page).await?;
    same(
        "latest first",
        &keys_of(&latest),
        &expected_ids((1..=10).rev()),
    )
}

pub(crate) async fn pages_cover_everything_once(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_all(&numbered(10)?).await?;
    for newest_first in [false, true] {
        for (limit, sizes) in [
            (3, vec![3, 3, 3, 1]),
            (5, vec![5, 5]),
            (10, vec![10]),
            (11, vec![10]),
        ] {
            let page = Page {
                newest_first,
                ..Page::first(limit)
            };
            let pages = all_pages(&inbox, &Filter::default(), page).await?;
            let seen: Vec<usize> = pages.iter().map(Vec::len).collect();
            same(&format!("sizes of pages of up to {limit}"), &seen, &sizes)?;
            let mut all = pages.concat();
            all.sort();
            same("listed on all pages", &all, &expected_ids(1..=10))?;
        }
    }
    Ok(())
}

/// Defect: paging by offset, which skips and repeats when rows leave the filter.
pub(crate) async fn pages_are_stable_while_rows_change(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_all(&numbered(9)?).await?;
    let filter = Filter {
        states: vec![State::Pending],
        ..Filter::default()
    };
    let first = inbox.list(&filter, &Page::first(3)).await?;
    same("first page", &keys_of(&first), &expected_ids(1..=3))?;
    // The first page's messages leave the filter, and new ones come.
    for leased in inbox.claim_up_to(3, LONG).await? {
        inbox.finish(&leased, processed()).await?;
    }
    inbox.accept(&message("00010")?).await?;
    let page = Page {
        after: first.next,
        ..Page::first(3)
    };
    let second = inbox.list(&filter, &page).await?;
    same(
        "second page after the first page's messages left",
        &keys_of(&second),
        &expected_ids(4..=6),
    )?;
    let page = Page {
        after: second.next,
        ..Page::first(10)
    };
    let last = inbox.list(&filter, &page).await?;
    same("last page", &keys_of(&last), &expected_ids(7..=10))
}

pub(crate) async fn a_page_without_room_is_empty(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_all(&numbered(2)?).await?;
    let none = inbox.list(&Filter::default(), &Page::first(0)).await?;
    same(
        "records and next",
        &(keys_of(&none), none.next),
        &(Vec::new(), None),
    )?;
    let all = inbox
        .list(&Filter::default(), &Page::first(u32::MAX))
        .await?;
    same(
        "with the largest limit",
        &(keys_of(&all), all.next),
        &(expected_ids(1..=2), None),
    )
}

pub(crate) async fn payloads_are_listed_when_asked_for(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let leased = inbox.claim_one().await?;
    let result = Some(Bytes::from_static(b"done"));
    inbox
        .finish(
            &leased,
            Outcome::Processed {
                result: result.clone(),
            },
        )
        .await?;
    for with_payload in [false, true] {
        let page = Page {
            with_payload,
            ..Page::first(5)
        };
        let listing = inbox.list(&Filter::default(), &page).await?;
        let seen = listing
            .records
            .first()
            .map(|r| (r.payload.clone(), r.result.clone()));
        let expected = if with_payload {
            (Some(sent.payload().clone()), result.clone())
        } else {
            (None, None)
        };
        same("payload and result", &seen, &Some(expected))?;
        let bytes = listing.records.first().and_then(|r| r.payload_bytes);
        same("payload length", &bytes, &Some(1))?;
    }
    Ok(())
}

pub(crate) async fn a_listing_agrees_with_get(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for (n, state) in State::ALL.into_iter().enumerate() {
        inbox
            .accept_in(&message_for(state.as_str(), &format!("{n}"))?, state)
            .await?;
    }
    let page = Page {
        with_payload: true,
        ..Page::first(10)
    };
    let listing = inbox.list(&Filter::default(), &page).await?;
    same("records", &listing.records.len(), &5)?;
    for record in &listing.records {
        same(
            "the same record by get",
            &inbox.record(&record.key).await?,
            record,
        )?;
    }
    Ok(())
}

/// Ten messages that differ in every respect that a filter knows.
async fn variety(inbox: &TestInbox) -> CaseResult {
    for (n, state) in State::ALL.into_iter().cycle().take(10).enumerate() {
        let handler = if n < 5 { "a" } else { "b" };
        let plain = message_for(handler, &format!("{n:05}"))?;
        let kind = Kind::new(if n % 2 == 0 { "even" } else { "odd" })?;
        let sent = Message::new(plain.handler().clone(), plain.id().clone(), kind, "x");
        inbox.accept(&sent).await?;
        let begun = inbox
            .begin(&sent, &crate::test_inbox::terms(LONG * 60 * 10)?)
            .await?;
        let inbox_api::Begun::Run(leased) = begun else {
            return Err(Unmet::Failed(format!(
                "begin of a pending message: saw {begun:?}"
            )));
        };
        match state {
            State::Leased => {}
            State::Pending => inbox.finish(&leased, Outcome::Release).await?,
            State::Processed => inbox.finish(&leased, processed()).await?,
            State::Dead => inbox.finish(&leased, dead("100% Broken_pipe")).await?,
            State::Discarded => {
                inbox.finish(&leased, dead("superseded")).await?;
                let _ = inbox.discard(sent.key()).await?;
            }
        }
        if n == 4 {
            inbox.pass(inbox.brief()).await?;
        }
    }
    Ok(())
}

async fn matches(inbox: &TestInbox, what: &str, filter: Filter, expected: &[usize]) -> CaseResult {
    let expected = expected_ids(expected.iter().copied());
    let listing = inbox.list(&filter, &Page::first(100)).await?;
    same(&format!("listed {what}"), &keys_of(&listing), &expected)?;
    let count = inbox.count(&filter).await?;
    same(&format!("counted {what}"), &count, &(expected.len() as u64))?;
    let pages = all_pages(inbox, &filter, Page::first(2)).await?.concat();
    same(&format!("listed in pages of two {what}"), &pages, &expected)
}

pub(crate) async fn filters_narrow(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    variety(&inbox).await?;
    let all = Filter::default;
    matches(
        &inbox,
        "without a filter",
        all(),
        &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    )
    .await?;
    for (n, state) in State::ALL.into_iter().enumerate() {
        let filter = Filter {
            states: vec![state],
            ..all()
        };
        matches(&inbox, &format!("as {state}"), filter, &[n, n + 5]).await?;
    }
    let filter = Filter {
        states: vec![State::Dead, State::Pending],
        ..all()
    };
    matches(&inbox, "as dead or pending", filter, &[0, 3, 5, 8]).await?;
    let filter = Filter {
        handler: Some(HandlerName::new("b")?),
        ..all()
    };
    matches(&inbox, "of a handler", filter, &[5, 6, 7, 8, 9]).await?;
    let filter = Filter {
        handler: Some(HandlerName::new("B")?),
        ..all()
    };
    matches(&inbox, "of a handler in another case", filter, &[]).await?;
    let filter = Filter {
        kind: Some(Kind::new("odd")?),
        ..all()
    };
    matches(&inbox, "of a kind", filter, &[1, 3, 5, 7, 9]).await?;
    let filter = Filter {
        handler: Some(HandlerName::new("a")?),
        kind: Some(Kind::new("odd")?),
        states: vec![State::Dead],
        ..all()
    };
    matches(&inbox, "by state, handler and kind", filter, &[3]).await
}

pub(crate) async fn ages_narrow(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    variety(&inbox).await?;
    let age = Some(inbox.brief() / 2);
    let filter = Filter {
        older_than: age,
        ..Filter::default()
    };
    matches(&inbox, "accepted before", filter, &[0, 1, 2, 3, 4]).await?;
    let filter = Filter {
        newer_than: age,
        ..Filter::default()
    };
    matches(&inbox, "accepted since", filter, &[5, 6, 7, 8, 9]).await?;
    let filter = Filter {
        older_than: Some(Duration::MAX),
        ..Filter::default()
    };
    matches(&inbox, "accepted before all time", filter, &[]).await
}

/// Defect: wildcards and case folding in the search for error texts.
pub(crate) async fn error_texts_are_found_byte_for_byte(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    variety(&inbox).await?;
    for (text, expected) in [
        ("Broken", vec![3, 8]),
        ("broken", vec![]),
        ("100%", vec![3, 8]),
        ("1%B", vec![]),
        ("n_p", vec![3, 8]),
        ("n__p", vec![]),
        ("s", vec![4, 9]),
        ("", vec![3, 4, 8, 9]),
        ("'", vec![]),
    ] {
        let filter = Filter {
            error_contains: Some(text.into()),
            ..Filter::default()
        };
        matches(
            &inbox,
            &format!("whose error contains {text:?}"),
            filter,
            &expected,
        )
        .await?;
    }
    Ok(())
}

pub(crate) async fn ordering_keys_narrow(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    for (id, key) in [("00001", "k"), ("00002", "K"), ("00003", "k")] {
        inbox.accept(&ordered(id, key)?).await?;
    }
    inbox.accept(&message("00004")?).await?;
    let filter = Filter {
        ordering_key: Some(inbox_api::OrderingKey::new("k")?),
        ..Filter::default()
    };
    matches(&inbox, "of an ordering key", filter, &[1, 3]).await?;
    let record: Record = inbox.record(ordered("00002", "K")?.key()).await?;
    same(
        "ordering key",
        &record
            .ordering_key
            .as_ref()
            .map(inbox_api::OrderingKey::as_str),
        &Some("K"),
    )
}

pub(crate) async fn a_foreign_cursor_is_invalid(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    for text in [
        "nonsense",
        "",
        "1; DROP TABLE inbox",
        "99999999999999999999999999",
        "\0",
    ] {
        let after = Some(Cursor::new(text));
        let page = Page {
            after: after.clone(),
            ..Page::first(5)
        };
        let slice = inbox_api::Slice { after, limit: 5 };
        let kinds = [
            inbox
                .list(&Filter::default(), &page)
                .await
                .err()
                .map(|e| e.kind()),
            inbox
                .replay_slice(&Filter::default(), &slice)
                .await
                .err()
                .map(|e| e.kind()),
            inbox
                .discard_slice(&Filter::default(), &slice)
                .await
                .err()
                .map(|e| e.kind()),
        ];
        let expected = [Some(ErrorKind::Invalid); 3];
        same(
            &format!("errors of list and slices at the cursor {text:?}"),
            &kinds,
            &expected,
        )?;
    }
    Ok(())
}

pub(crate) async fn a_cursor_outlives_its_message(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_all(&numbered(4)?).await?;
    let first = inbox.list(&Filter::default(), &Page::first(2)).await?;
    for leased in inbox.claim_up_to(2, LONG).await? {
        inbox.finish(&leased, processed()).await?;
    }
    let gone = inbox_api::PurgeRequest::new(State::Processed, Duration::ZERO, 10)?;
    same("purged", &inbox.purge(&gone).await?, &2)?;
    let page = Page {
        after: first.next,
        ..Page::first(10)
    };
    let rest = inbox.list(&Filter::default(), &page).await?;
    same(
        "listed behind what was purged",
        &keys_of(&rest),
        &expected_ids(3..=4),
    )?;
    same("claimable", &inbox.claim_up_to(9, LONG).await?.len(), &2)?;
    same("handler", &rest.records[0].key.handler.as_str(), &HANDLER)
}
