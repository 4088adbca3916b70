//! A harness out of one closure, for a store whose tests need no more.

use std::{any::Any, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use inbox_api::{Clock, Inbox};

use crate::{
    harness::{Fixture, Harness},
    needs::{Need, Offered, Settings, Unable},
    transactions::AnyTransactions,
};

type Make<T> = Box<dyn Fn() -> BoxFuture<'static, Offered<T>> + Send + Sync>;

/// A ready [`Harness`]: a name, and a closure that opens a fresh inbox.
///
/// ```
/// use conformance_tests::{Fresh, Need, Ready};
/// use inbox_api::Clock;
/// use inbox_memory::{MemoryOptions, MemoryStore};
///
/// fn my_store() -> Ready {
///     Ready::new("my store", |settings| async move {
///         let clock = Clock::system();
///         let mut options = MemoryOptions::new()
///             .drop_processed_payloads(settings.drop_processed_payloads)
///             .clock(clock.clone());
///         if let Some(limit) = settings.payload_limit {
///             options = options.payload_limit(limit);
///         }
///         Ok(Fresh::new(MemoryStore::with(options)).with_clock(clock))
///     })
///     .lacks([Need::SecondConnection, Need::WakeupsAcrossProcesses, Need::Transactions])
/// }
///
/// // In tests/conformance.rs, this is all the rest:
/// // conformance_tests::conformance!(my_store());
/// # fn main() {
/// # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
/// # let runtime = runtime.unwrap_or_else(|error| panic!("{error}"));
/// # let report = runtime.block_on(conformance_tests::run(std::sync::Arc::new(my_store()), ""));
/// # assert!(report.is_conformant(), "{report}");
/// # }
/// ```
///
/// A new store lacks most of it. The list to start with, from which goes what is done, for a store that
/// keeps its inbox in a file:
///
/// ```
/// use conformance_tests::{Fresh, Need, Ready};
/// use inbox_api::Schema as _;
/// # use inbox_memory::MemoryStore;
/// # struct MyStore;
/// # impl MyStore {
/// #     fn open(_: std::path::PathBuf) -> std::io::Result<MemoryStore> {
/// #         Ok(MemoryStore::new())
/// #     }
/// # }
///
/// fn my_store() -> Ready {
///     Ready::new("my store", |_settings| async move {
///         let directory = tempfile::tempdir()?;
///         let store = MyStore::open(directory.path().join("inbox"))?;
///         store.create().await?;
///         // The directory goes when the inbox does.
///         Ok(Fresh::new(store).keep(directory))
///     })
///     .lacks([
///         // Of the closure: `with_clock` and `with_second`, and the settings that it follows.
///         Need::Clock,
///         Need::SecondConnection,
///         Need::PayloadLimit,
///         Need::DroppedPayloads,
///         Need::OperationTimeout,
///         // Of the store, as its capabilities say.
///         Need::BatchAtomicity,
///         Need::LargePayloads,
///         Need::Ordering,
///         Need::Runs,
///         Need::Transactions,
///         Need::Wakeups,
///         Need::WakeupsAcrossProcesses,
///     ])
/// }
/// # fn main() {
/// # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
/// # let runtime = runtime.unwrap_or_else(|error| panic!("{error}"));
/// # let suite = conformance_tests::run(std::sync::Arc::new(my_store()), "duplicates::");
/// # let report = runtime.block_on(suite);
/// # assert!(report.is_clean(), "{report}");
/// # }
/// ```
///
/// It declares by itself what no closure can do ([`Need::HARNESS`] without the abilities of
/// [`Fresh`]). To check that too, implement [`Harness`] instead.
pub struct Ready {
    name: String,
    open: Box<dyn Fn(Settings) -> BoxFuture<'static, Offered<Fresh>> + Send + Sync>,
    lacks: Vec<Need>,
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ready")
            .field("name", &self.name)
            .field("lacks", &self.lacks)
            .finish_non_exhaustive()
    }
}

impl Ready {
    /// `open` makes a fresh inbox: set up, empty, and not touched by anything else. It follows the
    /// settings, but for those whose [`Need`] is declared as [lacking](Self::lacks): it is not asked
    /// for these. What must live as long as the inbox, such as a temporary directory, goes into
    /// [`Fresh::keep`].
    pub fn new<F, Fut>(name: impl Into<String>, open: F) -> Self
    where
        F: Fn(Settings) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Offered<Fresh>> + Send + 'static,
    {
        Self {
            name: name.into(),
            open: Box::new(move |settings| Box::pin(open(settings))),
            lacks: Vec::new(),
        }
    }

    /// Declares what the store, or the closure, cannot do. A test that is not checked for any
    /// other reason fails and says which [`Need`] to add here. A store with
    /// [`Capabilities::minimal`](inbox_api::Capabilities::minimal) lacks [`Need::Ordering`],
    /// [`Need::Runs`], [`Need::Transactions`], [`Need::Wakeups`] and [`Need::WakeupsAcrossProcesses`].
    #[must_use]
    pub fn lacks(mut self, needs: impl IntoIterator<Item = Need>) -> Self {
        self.lacks.extend(needs);
        self
    }

    fn refuse(&self, wanted: bool, need: Need) -> Offered<()> {
        if wanted && self.lacks.contains(&need) {
            return Err(Unable::NotOffered(need));
        }
        Ok(())
    }
}

#[async_trait]
impl Harness for Ready {
    fn name(&self) -> String {
        self.name.clone()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        self.refuse(settings.payload_limit.is_some(), Need::PayloadLimit)?;
        self.refuse(settings.drop_processed_payloads, Need::DroppedPayloads)?;
        self.refuse(settings.operation_timeout.is_some(), Need::OperationTimeout)?;
        Ok(Box::new((self.open)(settings.clone()).await?))
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        let offered = [Need::Clock, Need::SecondConnection, Need::Transactions];
        let beyond = Need::HARNESS.iter().filter(|need| !offered.contains(need));
        beyond.chain(&self.lacks).copied().collect()
    }
}

/// A fresh inbox, and what may be done to it.
pub struct Fresh {
    // In the order in which they are dropped.
    inbox: Arc<dyn Inbox>,
    second: Option<Make<Arc<dyn Inbox>>>,
    transactions: Option<Arc<dyn AnyTransactions>>,
    clock: Option<Clock>,
    kept: Vec<Box<dyn Any + Send + Sync>>,
}

impl std::fmt::Debug for Fresh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fresh").finish_non_exhaustive()
    }
}

impl Fresh {
    /// An inbox without further abilities.
    pub fn new(store: impl Inbox + 'static) -> Self {
        Self {
            inbox: Arc::new(store),
            second: None,
            transactions: None,
            clock: None,
            kept: Vec::new(),
        }
    }

    /// The clock that the store reads, which the suite then moves
    /// ([`Fixture::advance_clock`]).
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Opens the same inbox as another process would ([`Fixture::second_connection`]).
    #[must_use]
    pub fn with_second<F, Fut, S>(mut self, open: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Offered<S>> + Send + 'static,
        S: Inbox + 'static,
    {
        self.second = Some(Box::new(move || {
            let opening = open();
            Box::pin(async move { Ok(Arc::new(opening.await?) as Arc<dyn Inbox>) })
        }));
        self
    }

    /// The store's transactions ([`Transactions`](crate::Transactions)).
    #[must_use]
    pub fn with_transactions(mut self, transactions: impl AnyTransactions + 'static) -> Self {
        self.transactions = Some(Arc::new(transactions));
        self
    }

    /// Keeps what must outlive the store, and cleans up when it is dropped: a directory, a
    /// server, a container.
    #[must_use]
    pub fn keep(mut self, guard: impl Any + Send + Sync) -> Self {
        self.kept.push(Box::new(guard));
        self
    }
}

#[async_trait]
impl Fixture for Fresh {
    fn inbox(&self) -> Arc<dyn Inbox> {
        Arc::clone(&self.inbox)
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        let clock = self.clock.as_ref();
        clock
            .map(|clock| clock.advance(by))
            .ok_or(Unable::NotOffered(Need::Clock))
    }

    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        match &self.second {
            Some(open) => open().await,
            None => Err(Unable::NotOffered(Need::SecondConnection)),
        }
    }

    fn transactions(&self) -> Offered<Arc<dyn AnyTransactions>> {
        let transactions = self.transactions.as_ref().map(Arc::clone);
        transactions.ok_or(Unable::NotOffered(Need::Transactions))
    }
}
