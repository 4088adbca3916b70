//! What operators of Wolverine do with scheduled messages and dead letters, here on stores whose clock a
//! test can move.

use inbox::{
    Clock, ErrorType, HandlerName, Intervention, LeaseTerms, Operate as _, OperateExt as _,
    Outcome, Page, Slice, WorkerName,
};

use super::*;

const HOUR: Duration = Duration::from_secs(60 * 60);

/// How many messages a summary reads at most.
const ENOUGH: u64 = 1000;

/// An inbox with the clock that it goes by.
struct Place {
    inbox: Arc<dyn Inbox>,
    clock: Clock,
    _folder: Option<tempfile::TempDir>,
}

async fn places() -> [Place; 2] {
    let clock = Clock::system();
    let memory = MemoryStore::with(MemoryOptions::new().clock(clock.clone()));
    let memory = Place {
        inbox: Arc::new(memory),
        clock,
        _folder: None,
    };
    let (clock, folder) = (Clock::system(), tempfile::tempdir().unwrap());
    let options = SqliteOptions::new(folder.path().join("inbox.db")).clock(clock.clone());
    let sqlite = Place {
        inbox: Arc::new(SqliteStore::connect(options).await.unwrap()),
        clock,
        _folder: Some(folder),
    };
    for place in [&memory, &sqlite] {
        place.inbox.create().await.unwrap();
    }
    [memory, sqlite]
}

fn of_kind(kind: &str, id: &str) -> Message {
    message_of(kind, id, "x")
}

impl Place {
    async fn receive(&self, messages: &[Message]) {
        let receipts = self.inbox.receive(messages).await.unwrap();
        assert!(receipts.iter().all(|r| *r == inbox::Receipt::Accepted));
    }

    async fn ids(&self, filter: &Filter) -> Vec<String> {
        let listing = self.inbox.list(filter, &Page::first(100)).await.unwrap();
        let records = listing.records.iter();
        records.map(|record| record.key.id.to_string()).collect()
    }

    /// Everything that is due dies of this.
    async fn kill(&self, error: &str) {
        let worker = WorkerName::new("w").unwrap();
        let terms = LeaseTerms::new(HOUR, worker).unwrap();
        let request = inbox::ClaimRequest {
            handlers: vec![billing(), handler("shipping")],
            limit: 100,
            terms,
            run_limit: 1,
        };
        for leased in self.inbox.claim(&request).await.unwrap().leased {
            let outcome = Outcome::Dead {
                reason: error.to_owned(),
                after: inbox::AfterDead::Continue,
            };
            let settled = self.inbox.settle_one(&leased.lease, outcome).await.unwrap();
            assert_eq!(settled, inbox::Settled::Done);
        }
    }
}

fn scheduled() -> Filter {
    Filter {
        states: vec![State::Pending],
        due_later_than: Some(Duration::ZERO),
        ..Filter::default()
    }
}

fn dead() -> Filter {
    Filter {
        states: vec![State::Dead],
        ..Filter::default()
    }
}

/// Two invoices and a trial, due in one, five and nine hours, and an invoice that is due now.
async fn three_scheduled(place: &Place) {
    let later = |kind, id, hours| of_kind(kind, id).with_due(Due::After(hours * HOUR));
    place
        .receive(&[
            later("invoice.due", "1", 1),
            later("invoice.due", "2", 5),
            later("trial.over", "3", 9),
            of_kind("invoice.due", "now"),
        ])
        .await;
}

/// `IScheduledMessages.QueryAsync`: by type, by time, by ids, page by page.
#[tokio::test]
async fn wolverine_queries_scheduled_messages() {
    for place in places().await {
        three_scheduled(&place).await;
        assert_eq!(place.ids(&scheduled()).await, ["1", "2", "3"]);
        let of_a_kind = Filter {
            kind: Some(inbox::Kind::new("invoice.due").unwrap()),
            ..scheduled()
        };
        assert_eq!(place.ids(&of_a_kind).await, ["1", "2"]);
        let between = Filter {
            due_later_than: Some(2 * HOUR),
            due_within: Some(6 * HOUR),
            ..scheduled()
        };
        assert_eq!(place.ids(&between).await, ["2"]);
        let named = Filter {
            ids: vec![MessageId::new("3").unwrap(), MessageId::new("now").unwrap()],
            ..scheduled()
        };
        assert_eq!(place.ids(&named).await, ["3"]);
        assert_eq!(place.inbox.count(&scheduled()).await.unwrap(), 3);
        let mut page = Page::first(2);
        let first = place.inbox.list(&scheduled(), &page).await.unwrap();
        page.after = first.next;
        let second = place.inbox.list(&scheduled(), &page).await.unwrap();
        assert_eq!((first.records.len(), second.records.len()), (2, 1));
    }
}

/// `IScheduledMessages.RescheduleAsync`, of one to be earlier and of many to be later.
#[tokio::test]
async fn wolverine_reschedules() {
    for place in places().await {
        let later = |id| message(id).with_due(Due::After(9 * HOUR));
        place
            .receive(&[later("1"), later("2"), message("now")])
            .await;
        let moved = place.inbox.reschedule(&key("1"), Due::After(HOUR)).await;
        assert_eq!(moved.unwrap(), Intervention::Done);
        place.kill("no funds").await;
        let moved = place.inbox.reschedule(&key("now"), Due::Now).await;
        assert_eq!(
            moved.unwrap(),
            Intervention::WrongState(State::Dead),
            "it is not scheduled"
        );
        place.clock.advance(2 * HOUR);
        assert_eq!(place.ids(&scheduled()).await, ["2"]);
        let slice = Slice {
            after: None,
            limit: 100,
        };
        let day = Due::After(24 * HOUR);
        let moved = place
            .inbox
            .reschedule_slice(&scheduled(), &slice, day)
            .await;
        assert_eq!(moved.unwrap().changed, 1);
        place.clock.advance(12 * HOUR);
        assert_eq!(place.ids(&scheduled()).await, ["2"]);
    }
}

/// `IScheduledMessages.CancelAsync`, of what a query means.
#[tokio::test]
async fn wolverine_cancels_scheduled_messages() {
    for place in places().await {
        let later = |kind, id| of_kind(kind, id).with_due(Due::After(HOUR));
        place
            .receive(&[later("trial.over", "1"), later("invoice.due", "2")])
            .await;
        let filter = Filter {
            kind: Some(inbox::Kind::new("trial.over").unwrap()),
            ..scheduled()
        };
        let slice = Slice {
            after: None,
            limit: 100,
        };
        let cancelled = place.inbox.discard_slice(&filter, &slice).await.unwrap();
        assert_eq!(cancelled.changed, 1);
        assert_eq!(place.ids(&scheduled()).await, ["2"]);
        // A copy that comes late does not schedule it again.
        let copy = place.inbox.receive_one(&later("trial.over", "1")).await;
        assert!(matches!(copy.unwrap(), inbox::Receipt::Duplicate { .. }));
    }
}

/// `IScheduledMessages.SummarizeAsync`: how many of each type; here also from when to when.
#[tokio::test]
async fn wolverine_summarizes_what_is_scheduled() {
    for place in places().await {
        three_scheduled(&place).await;
        let summary = place.inbox.summarize(&scheduled(), ENOUGH).await.unwrap();
        assert_eq!((summary.messages, summary.is_complete), (3, true));
        let groups = summary.groups.iter();
        let counts: Vec<_> = groups.map(|g| (g.kind.as_str(), g.messages)).collect();
        assert_eq!(counts, [("invoice.due", 2), ("trial.over", 1)]);
        let due = summary.groups[0].due;
        let apart = due.last.duration_since(due.first).unwrap();
        assert!(apart.abs_diff(4 * HOUR) < HOUR, "{apart:?}");
    }
}

/// `IDeadLetters.SummarizeAsync(range)`: how many died of what, within a range of time, and the query,
/// replay and discard of just these.
#[tokio::test]
async fn wolverine_summarizes_dead_letters_of_a_time_range() {
    const IO: &str = "std::io::error::Error: connection reset";
    const DECLINED: &str = "shop::Declined: no funds";
    for place in places().await {
        let to_shipping = |id| message(id).for_handler(handler("shipping"));
        place.receive(&[message("1"), message("2")]).await;
        place.kill(IO).await;
        place.clock.advance(10 * HOUR);
        place
            .receive(&[message("3"), to_shipping("4"), to_shipping("5")])
            .await;
        place.kill(DECLINED).await;
        place.clock.advance(HOUR);
        let all = place.inbox.summarize(&dead(), ENOUGH).await.unwrap();
        let groups = all.groups.iter();
        let groups: Vec<_> = groups
            .map(|group| {
                let error = group.error_type.as_ref().map(ErrorType::as_str);
                (
                    group.handler.as_str(),
                    error.unwrap_or_default(),
                    group.messages,
                )
            })
            .collect();
        let expected = [
            ("billing", "shop::Declined", 1),
            ("billing", "std::io::error::Error", 2),
            ("shipping", "shop::Declined", 2),
        ];
        assert_eq!(groups, expected);
        let lately = Filter {
            finished_within: Some(5 * HOUR),
            ..dead()
        };
        let before = Filter {
            finished_longer_ago: Some(5 * HOUR),
            ..dead()
        };
        let summary = place.inbox.summarize(&lately, ENOUGH).await.unwrap();
        assert_eq!(summary.messages, 3);
        assert_eq!(place.ids(&before).await, ["1", "2"]);
        let slice = Slice {
            after: None,
            limit: 100,
        };
        let of_one_error = Filter {
            error_type: ErrorType::of(DECLINED),
            handler: Some(handler("shipping")),
            ..lately
        };
        let replayed = place.inbox.replay_slice(&of_one_error, &slice).await;
        assert_eq!(replayed.unwrap().changed, 2);
        let discarded = place.inbox.discard_slice(&before, &slice).await.unwrap();
        assert_eq!(discarded.changed, 2);
        assert_eq!(place.ids(&dead()).await, ["3"]);
    }
}

/// `IMessageStoreAdmin.ClearAllAsync`: nothing is left, and nothing is known of it. What a worker holds
/// stays here, since its outcome is on the way.
#[tokio::test]
async fn wolverine_clears_all() {
    for place in places().await {
        let of = |id: &str, name: &HandlerName| message(id).for_handler(name.clone());
        let handlers = [billing(), handler("shipping")];
        for name in &handlers {
            let later = of("2", name).with_due(Due::After(HOUR));
            place.receive(&[of("1", name), later]).await;
        }
        place.kill("no funds").await;
        let terms = LeaseTerms::new(HOUR, WorkerName::new("w").unwrap()).unwrap();
        let held = place.inbox.begin(&message("held"), &terms).await.unwrap();
        assert!(matches!(held, Begun::Run(_)));
        let mut cleared = 0;
        for name in &handlers {
            let mut slice = Slice {
                after: None,
                limit: 1,
            };
            loop {
                let step = place.inbox.clear_slice(name, &slice).await.unwrap();
                cleared += step.changed;
                slice.after = step.next;
                if slice.after.is_none() {
                    break;
                }
            }
        }
        assert_eq!(cleared, 4);
        assert_eq!(place.ids(&Filter::default()).await, ["held"]);
        place.receive(&[of("1", &handlers[1])]).await;
    }
}
