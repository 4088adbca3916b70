//! A store whose clock the test moves, and short names for what every test needs.

pub use conformance_tests::samples::{
    LEASE, dead, defer, handler, key, message, ordered, retry, terms, worker,
};

use inbox_api::{
    AfterDead, Clock, Cursor, Due, Filter, Intervention, Leased, Message, Operate, Outcome, Page,
    Receipt, Record, Settled, State, StoreExt,
};
use inbox_memory::{MemoryOptions, MemoryStore};

pub const DONE: Outcome = Outcome::Processed { result: None };

pub struct Fixture {
    pub store: MemoryStore,
    pub clock: Clock,
}

pub fn fixture() -> Fixture {
    with(MemoryOptions::new())
}

pub fn with(options: MemoryOptions) -> Fixture {
    let clock = Clock::system();
    Fixture {
        store: MemoryStore::with(options.clock(clock.clone())),
        clock,
    }
}

impl Fixture {
    pub async fn accept(&self, messages: &[Message]) {
        use inbox_api::Store;
        let receipts = self.store.receive(messages).await.unwrap();
        assert!(
            receipts.iter().all(|r| *r == Receipt::Accepted),
            "{receipts:?}"
        );
    }

    pub async fn claim(&self, limit: u32) -> Vec<Leased> {
        self.claim_of("h", limit).await
    }

    pub async fn claim_of(&self, name: &str, limit: u32) -> Vec<Leased> {
        let claims = self
            .store
            .claim_for(&handler(name), limit, LEASE, &worker())
            .await
            .unwrap();
        assert!(claims.corrupt.is_empty());
        claims.leased
    }

    /// The ids of what a claim gets.
    pub async fn claim_ids(&self, limit: u32) -> Vec<String> {
        let leased = self.claim(limit).await;
        leased.iter().map(|l| l.message.id().to_string()).collect()
    }

    pub async fn claim_one(&self) -> Leased {
        self.claim(1).await.pop().expect("something is due")
    }

    pub async fn settle(&self, leased: &Leased, outcome: Outcome) -> Settled {
        self.store.settle_one(&leased.lease, outcome).await.unwrap()
    }

    /// Receives the message and settles it.
    pub async fn finish(&self, message: &Message, outcome: Outcome) {
        self.accept(std::slice::from_ref(message)).await;
        let leased = self.claim_one().await;
        assert_eq!(leased.message.id(), message.id());
        assert_eq!(self.settle(&leased, outcome).await, Settled::Done);
    }

    pub async fn record(&self, id: &str) -> Record {
        self.store.get(&key(id)).await.unwrap().expect("stored")
    }

    pub async fn state(&self, id: &str) -> State {
        self.record(id).await.state
    }
}

pub async fn ids(f: &Fixture, filter: &Filter, page: &Page) -> (Vec<String>, Option<Cursor>) {
    let listing = f.store.list(filter, page).await.unwrap();
    let ids = listing.records.iter().map(|r| r.key.id.to_string());
    (ids.collect(), listing.next)
}

/// One message in each state, `ran-out` being under a lease that has run out.
pub async fn one_of_each() -> Fixture {
    let f = fixture();
    f.accept(&[message("ran-out")]).await;
    let _lost = f.claim_one().await;
    f.finish(&message("processed"), DONE).await;
    f.finish(&message("dead"), dead(AfterDead::Continue)).await;
    f.accept(&[message("discarded")]).await;
    assert_eq!(
        f.store.discard(&key("discarded")).await.unwrap(),
        Intervention::Done
    );
    f.clock.advance(LEASE / 2);
    f.accept(&[message("leased")]).await;
    let _held = f.claim_one().await;
    f.clock.advance(LEASE / 2);
    f.accept(&[message("pending").with_due(Due::After(LEASE))])
        .await;
    f
}
