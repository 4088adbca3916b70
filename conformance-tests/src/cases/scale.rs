//! Cost: no operation takes longer because of what has gone before or waits.

use std::{collections::BTreeMap, time::Duration};

use inbox_api::{
    Begun, Filter, Key, Lease, Message, Page, PurgeRequest, Receipt, Settled, Settlement, State,
};
use tokio::time::Instant;

use crate::{
    check::{CaseResult, Unmet, ensure, same},
    options::DEFAULT_SCALE,
    test_inbox::{Context, LONG, TestInbox, dead, message, ordered, processed, terms},
};

/// Messages of one request, while there are to be many.
const BATCH: usize = 1000;
/// Messages of a request whose time is taken.
const FEW: usize = 10;
/// Messages at least, so that what is purged meanwhile is not missed.
const LEAST: usize = 100;
/// By how much there are more messages the second time.
const GROWTH: usize = 100;
/// Of so many calls of each operation, the one in the middle counts.
const CALLS: usize = 15;
/// How often many messages are measured, since what slows a machine down passes and a scan does not.
const ROUNDS: usize = 3;
/// What takes longer than so many times as long is a scan,
const RATIO: u32 = 5;
/// unless it is no more than this longer.
const FLOOR: Duration = Duration::from_millis(5);

/// What the many messages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Past {
    /// Processed ones and dead ones.
    History,
    /// Pending ones.
    Backlog,
}

impl Past {
    fn as_str(self) -> &'static str {
        match self {
            Self::History => "history",
            Self::Backlog => "backlog",
        }
    }
}

/// The times of each operation.
type Times = BTreeMap<&'static str, Vec<Duration>>;

struct Measuring {
    inbox: TestInbox,
    past: Past,
    messages: usize,
    /// Of messages whose time is taken.
    numbers: usize,
}

impl Measuring {
    fn message(&self, number: usize) -> CaseResult<Message> {
        let id = format!("{number:08}");
        if self.inbox.capabilities().ordering && number.is_multiple_of(2) {
            return ordered(&id, &format!("key {}", number % BATCH));
        }
        message(&id)
    }

    /// Makes messages until there are so many.
    async fn grow(&mut self, messages: usize) -> CaseResult {
        while self.messages < messages {
            let until = (self.messages + BATCH).min(messages);
            let batch: Vec<Message> = (self.messages..until)
                .map(|number| self.message(number))
                .collect::<CaseResult<_>>()?;
            self.inbox.accept_all(&batch).await?;
            if self.past == Past::History {
                self.work_off(batch.len()).await?;
            }
            self.messages = until;
        }
        Ok(())
    }

    async fn work_off(&self, messages: usize) -> CaseResult {
        let mut done = 0;
        while done < messages {
            let leased = self.inbox.claim_up_to(u32::MAX, LONG).await?;
            ensure!(
                !leased.is_empty(),
                "claim: expected the {} messages that are left, saw that nothing is due",
                messages - done
            );
            let settlements: Vec<Settlement> = leased
                .into_iter()
                .enumerate()
                .map(|(n, leased)| Settlement {
                    lease: leased.lease,
                    outcome: if n.is_multiple_of(10) {
                        dead("gave up")
                    } else {
                        processed()
                    },
                })
                .collect();
            settle_all(&self.inbox, &settlements).await?;
            done += settlements.len();
        }
        Ok(())
    }

    /// The middle of the times of each operation.
    async fn medians(&mut self) -> CaseResult<BTreeMap<&'static str, Duration>> {
        let known: Vec<Message> = (self.messages - FEW..self.messages)
            .map(|number| self.message(number))
            .collect::<CaseResult<_>>()?;
        let middle = self.message(self.messages / 2)?;
        let middle = self.inbox.record(middle.key()).await?.cursor;
        let page = Page {
            after: Some(middle),
            ..Page::first(10)
        };
        let mut times = Times::new();
        // The first call of each may have to connect or to prepare.
        for call in 0..=CALLS {
            let mut seen = Times::new();
            self.once(&known, &page, &mut seen).await?;
            if call > 0 {
                for (what, mut seen) in seen {
                    times.entry(what).or_default().append(&mut seen);
                }
            }
        }
        Ok(times
            .into_iter()
            .map(|(what, mut times)| {
                times.sort();
                (what, times[times.len() / 2])
            })
            .collect())
    }

    /// Does everything once.
    async fn once(&mut self, known: &[Message], page: &Page, times: &mut Times) -> CaseResult {
        let inbox = &self.inbox;
        let mut number = self.numbers;
        let new: Vec<Message> = (0..FEW)
            .map(|_| {
                number += 1;
                message(&format!("measured {number}"))
            })
            .collect::<CaseResult<_>>()?;
        let inline = message(&format!("begun {number}"))?;
        let filter = Filter::default();
        let expired = PurgeRequest::new(State::Processed, Duration::ZERO, 5)?;

        let receipts = timed(times, "receive", inbox.receive(&new)).await?;
        same("receipts", &receipts, &vec![Receipt::Accepted; FEW])?;
        let receipts = timed(times, "receive of duplicates", inbox.receive(known)).await?;
        same(
            "receipts",
            &receipts,
            &vec![Receipt::Duplicate { differs: false }; FEW],
        )?;
        let key: &Key = known[0].key();
        let _ = timed(times, "get", inbox.get(key)).await?;
        let begun = timed(times, "begin", inbox.begin(&inline, &terms(LONG)?)).await?;
        let Begun::Run(leased) = begun else {
            return Err(Unmet::Failed(format!("begin of a new key: saw {begun:?}")));
        };
        let _ = timed(
            times,
            "begin of a known key",
            inbox.begin(&known[0], &terms(LONG)?),
        )
        .await?;
        inbox.finish(&leased, processed()).await?;

        let started = Instant::now();
        let leased = inbox.claim_up_to(10, LONG).await?;
        times.entry("claim").or_default().push(started.elapsed());
        ensure!(!leased.is_empty(), "claim: saw that nothing is due");
        let leases: Vec<Lease> = leased.into_iter().map(|leased| leased.lease).collect();
        let _ = timed(times, "extend", inbox.extend(&leases, LONG)).await?;
        let settlements: Vec<Settlement> = leases
            .into_iter()
            .map(|lease| Settlement {
                lease,
                outcome: processed(),
            })
            .collect();
        let started = Instant::now();
        settle_all(inbox, &settlements).await?;
        times.entry("settle").or_default().push(started.elapsed());

        let _ = timed(times, "statistics", inbox.statistics()).await?;
        let first = Page::first(10);
        let _ = timed(times, "the first page of list", inbox.list(&filter, &first)).await?;
        let _ = timed(
            times,
            "a page in the middle of list",
            inbox.list(&filter, page),
        )
        .await?;
        let _ = timed(times, "expired", inbox.expired(&expired)).await?;
        let _ = timed(times, "purge", inbox.purge(&expired)).await?;
        self.numbers = number;
        Ok(())
    }
}

async fn timed<T>(
    times: &mut Times,
    what: &'static str,
    operation: impl Future<Output = inbox_api::Result<T>>,
) -> CaseResult<T> {
    let started = Instant::now();
    let answer = operation.await?;
    times.entry(what).or_default().push(started.elapsed());
    Ok(answer)
}

async fn settle_all(inbox: &TestInbox, settlements: &[Settlement]) -> CaseResult {
    let answers = inbox.settle(settlements).await?;
    same(
        "answers of settle",
        &answers,
        &vec![Settled::Done; settlements.len()],
    )
}

/// Whether it takes longer with many messages than a wide margin allows.
fn grew(few: Duration, many: Duration) -> bool {
    many > few * RATIO && many > few + FLOOR
}

async fn costs_nothing(cx: &Context, past: Past) -> CaseResult {
    let many = cx.options.scale.map_or(DEFAULT_SCALE, usize::from);
    let few = (many / GROWTH).max(LEAST);
    let mut measuring = Measuring {
        inbox: cx.fresh().await?,
        past,
        messages: 0,
        numbers: 0,
    };
    measuring.grow(few).await?;
    let small = measuring.medians().await?;
    measuring.grow(many).await?;
    let mut large = measuring.medians().await?;
    for _ in 1..ROUNDS {
        if !small.iter().any(|(what, time)| grew(*time, large[what])) {
            return Ok(());
        }
        for (what, time) in measuring.medians().await? {
            large
                .entry(what)
                .and_modify(|least| *least = time.min(*least));
        }
    }
    let grown: Vec<String> = small
        .iter()
        .filter(|(what, time)| grew(**time, large[*what]))
        .map(|(what, time)| {
            format!(
                "{what} took {time:.1?} with a {} of {few} messages, and {:.1?} with {many}",
                past.as_str(),
                large[what]
            )
        })
        .collect();
    ensure!(grown.is_empty(), "{}", grown.join("; "));
    Ok(())
}

/// Defect: an operation looks at all that was ever stored.
pub(crate) async fn the_history_costs_nothing(cx: Context) -> CaseResult {
    costs_nothing(&cx, Past::History).await
}

/// Defect: an operation looks at all that waits.
pub(crate) async fn the_backlog_costs_nothing(cx: Context) -> CaseResult {
    costs_nothing(&cx, Past::Backlog).await
}
