//! The store: connections, transactions, and the working side.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox_api::{
    AfterDead, Begun, Capabilities, ClaimRequest, Claims, Due, Effect, Error, ErrorKind, Extended,
    HandlerName, Lease, LeaseTerms, Message, Outcome, Receipt, ReceiveAtomicity, Result, Settled,
    Settlement, Store, Subscription, Wakeups,
};
use sqlx::{
    Connection as _, MySql, MySqlConnection, MySqlPool, mysql::MySqlPoolOptions,
    pool::PoolConnection,
};

use crate::{
    claim::Unreadable,
    error::{in_operation, may_lack_schema, number, without_effect},
    front::Front,
    options::MySqlOptions,
    rows, schema,
    script::{Access, Answers, ROLLBACK, Script, Secrecy, WAIT_FOR_NODES},
    server::Server,
    settle::{Detail, Ending, Settling},
    statements::Names,
    wakeups::Signal,
    work::{Held, Order, Work, held},
};

const CONNECT: &str = "connect";
/// How often an operation is tried when the server gives it up in favour of another.
const TRIES: u32 = 12;
/// How often a claim looks again when it got nothing although something is due.
const LOOKS: u64 = 6;
/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// For how long a connection may have been idle to be used without a look at it.
const TRUSTED: Duration = Duration::from_secs(1);
/// One of so many operations sums up the tally.
const FOLD_ONE_IN: u32 = 200;

/// An inbox in MySQL or MariaDB. Clones share its connections.
///
/// A value belongs to the tokio runtime in which it was connected.
#[derive(Clone)]
pub struct MySqlStore {
    pub(crate) inner: Arc<Inner>,
}

impl std::fmt::Debug for MySqlStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MySqlStore")
            .field("options", &self.inner.work.options)
            .finish_non_exhaustive()
    }
}

pub(crate) struct Inner {
    pub(crate) work: Work,
    pub(crate) signal: Signal,
    pub(crate) front: Front,
    pool: MySqlPool,
    /// Whether the pool is the store's own, whose connections log no statements.
    own_pool: bool,
    closed: AtomicBool,
    /// Whether an inbox of the right version was found there.
    checked: AtomicBool,
}

/// A connection that is closed rather than given back when a script on it did not come to its
/// end: the server then rolls back what is open.
pub(crate) struct Leash(Option<PoolConnection<MySql>>);

impl Leash {
    pub(crate) fn new(connection: PoolConnection<MySql>) -> Self {
        Self(Some(connection))
    }

    /// The script has come to its end.
    pub(crate) fn give_back(&mut self) {
        self.0.take();
    }

    pub(crate) fn connection(&mut self, operation: &'static str) -> Result<&mut MySqlConnection> {
        match &mut self.0 {
            Some(connection) => Ok(&mut **connection),
            None => Err(without_effect(operation)(sqlx::Error::WorkerCrashed)),
        }
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(connection.detach());
        }
    }
}

impl MySqlStore {
    /// Connects to the server. Does not set up the inbox: see [`Schema`](inbox_api::Schema).
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached; `Denied` when it refuses the user;
    /// `SchemaMissing` when the database does not exist; `Unsupported` when it is older than
    /// MySQL 8.0.14 or MariaDB 10.6.
    pub async fn connect(options: MySqlOptions) -> Result<Self> {
        use sqlx::ConnectOptions as _;

        // Statements hold payloads.
        let connect = options.connect.clone().disable_statement_logging();
        let timeout = options.operation_timeout;
        let pool = MySqlPoolOptions::new()
            .max_connections(options.max_connections)
            .acquire_timeout(timeout)
            .test_before_acquire(false)
            .before_acquire(move |connection, meta| {
                Box::pin(async move {
                    if meta.idle_for < TRUSTED {
                        return Ok(true);
                    }
                    let answer = tokio::time::timeout(timeout, connection.ping()).await;
                    Ok(matches!(answer, Ok(Ok(()))))
                })
            })
            .connect_lazy_with(connect.clone());
        // Not through the pool, which would try again and again until its time-out.
        let look = async {
            let mapped = without_effect(CONNECT);
            let mut connection = MySqlConnection::connect_with(&connect)
                .await
                .map_err(mapped)?;
            let server = Server::of(CONNECT, &mut connection).await?;
            connection.close().await.map_err(mapped)?;
            Ok(server)
        };
        let server = in_time(CONNECT, timeout, Effect::None, look).await?;
        Ok(Self::over(pool, true, options, server))
    }

    /// An inbox over a pool of the caller's own, whose connections go back to it as they were,
    /// but for session variables named `@inbox_…`. The options' connection settings and number of
    /// connections have no effect.
    ///
    /// Payloads, results and headers are bound to statements here rather than written into them,
    /// which costs round trips, because the pool's options may let the driver log statements.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn with_pool(pool: MySqlPool, options: MySqlOptions) -> Result<Self> {
        let mapped = without_effect(CONNECT);
        let look = async {
            let mut connection = Leash::new(pool.acquire().await.map_err(mapped)?);
            let server = Server::of(CONNECT, connection.connection(CONNECT)?).await?;
            connection.give_back();
            Ok(server)
        };
        let server = in_time(CONNECT, options.operation_timeout, Effect::None, look).await?;
        Ok(Self::over(pool, false, options, server))
    }

    fn over(pool: MySqlPool, own_pool: bool, options: MySqlOptions, server: Server) -> Self {
        Self {
            inner: Arc::new(Inner {
                work: Work::new(options, server),
                signal: Signal::new(),
                front: Front::default(),
                pool,
                own_pool,
                closed: AtomicBool::new(false),
                checked: AtomicBool::new(false),
            }),
        }
    }

    pub(crate) fn secrecy(&self) -> Secrecy {
        if self.inner.own_pool {
            Secrecy::Inline
        } else {
            Secrecy::Bind
        }
    }

    /// The server's time, as SQL.
    pub(crate) fn now(&self) -> String {
        let options = &self.inner.work.options;
        let offset = options.clock.micros();
        Names::new(options).expand(&format!("{{now}} + {offset}"))
    }

    /// A transaction of its own.
    pub(crate) fn script(&self, access: Access) -> Script {
        Script::transaction(&self.now(), access, self.inner.work.server.galera)
    }

    pub(crate) async fn acquire(&self, operation: &'static str) -> Result<PoolConnection<MySql>> {
        if self.inner.closed.load(Ordering::Relaxed) {
            return Err(without_effect(operation)(sqlx::Error::PoolClosed));
        }
        self.inner
            .pool
            .acquire()
            .await
            .map_err(without_effect(operation))
    }

    /// Runs a transaction to its end, again when the server gave it up in favour of another.
    /// Checks first that the inbox is there, unless it was seen before.
    pub(crate) async fn run(
        &self,
        operation: &'static str,
        access: Access,
        script: Script,
    ) -> Result<Answers> {
        self.run_up_to(TRIES, operation, access, script).await
    }

    async fn run_up_to(
        &self,
        most: u32,
        operation: &'static str,
        access: Access,
        mut script: Script,
    ) -> Result<Answers> {
        script.commit();
        let mut tries = 1;
        loop {
            let error = match self.run_once(operation, access, &script).await {
                Ok(answers) => return Ok(answers),
                Err(error) => error,
            };
            if may_lack_schema(&error) && self.inner.checked.swap(false, Ordering::Relaxed) {
                // Once more, for an error that says what is missing.
                continue;
            }
            if error.kind() != ErrorKind::Conflict || tries == most {
                return Err(error);
            }
            let longest = Duration::from_millis(1 << tries.min(7)).min(LONGEST_PAUSE);
            tokio::time::sleep(longest.mul_f64(fastrand::f64())).await;
            tries += 1;
        }
    }

    async fn run_once(
        &self,
        operation: &'static str,
        access: Access,
        script: &Script,
    ) -> Result<Answers> {
        let effect = match access {
            Access::Read => Effect::None,
            Access::Write => Effect::Unknown,
        };
        let mut leash = Leash::new(self.acquire(operation).await?);
        let work = async {
            let connection = leash.connection(operation)?;
            if !self.inner.checked.load(Ordering::Relaxed) {
                self.see_all_nodes(operation, connection).await?;
                self.check(operation, connection).await?;
                schema::end_reading(connection)
                    .await
                    .map_err(without_effect(operation))?;
            }
            let server = &self.inner.work.server;
            let error = match script
                .run(connection, server.max_packet, server.form())
                .await
            {
                Ok(answers) => return Ok(Ok(answers)),
                Err(error) => error,
            };
            // After an error of the server's the connection is sound, but the transaction may be
            // open. Any other leaves the connection to be closed.
            let sound = number(&error).is_some()
                && sqlx::raw_sql(ROLLBACK).execute(connection).await.is_ok();
            let error = match access {
                Access::Read => without_effect(operation)(error),
                Access::Write => in_operation(operation)(error),
            };
            if sound { Ok(Err(error)) } else { Err(error) }
        };
        let outcome = in_time(operation, self.inner.work.options.operation_timeout, effect, work).await?;
        leash.give_back();
        outcome
    }

    /// Makes reads on this connection wait for what other nodes of a cluster have answered, or an
    /// inbox that was just set up on one of them would be missing here.
    pub(crate) async fn see_all_nodes(
        &self,
        operation: &'static str,
        connection: &mut MySqlConnection,
    ) -> Result<()> {
        if self.inner.work.server.galera {
            sqlx::raw_sql(WAIT_FOR_NODES)
                .execute(connection)
                .await
                .map_err(without_effect(operation))?;
        }
        Ok(())
    }

    /// Fails unless the inbox is there; asks the server only until it was.
    pub(crate) async fn check(
        &self,
        operation: &'static str,
        connection: &mut MySqlConnection,
    ) -> Result<()> {
        if self.inner.checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        schema::check_version(operation, connection, &self.inner.work.options).await?;
        self.inner.checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Sums up the tally, now and then. It is exact either way, so a failure does not matter.
    pub(crate) async fn fold_sometimes(&self) {
        if fastrand::u32(..FOLD_ONE_IN) == 0 {
            self.fold().await;
        }
    }

    pub(crate) async fn fold(&self) {
        let mut script = self.script(Access::Write);
        script.all(&self.inner.work.sql.fold);
        script.commit();
        if let Err(error) = self.run_once("fold", Access::Write, &script).await {
            tracing::debug!(%error, "the tally was not summed up; it will be later");
        }
    }
}

/// What takes longer fails as `Unavailable`; its connection is closed then.
pub(crate) async fn in_time<T>(
    operation: &'static str,
    timeout: Duration,
    effect: Effect,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout(timeout, work)
        .await
        .unwrap_or_else(|_| {
            let context = "the server did not answer in time";
            Err(Error::new(ErrorKind::Unavailable, operation, context).with_effect(effect))
        })
}

#[async_trait]
impl Store for MySqlStore {
    fn capabilities(&self) -> Capabilities {
        let durability = "what the server's commits survive: a crash, and a power cut with \
                          innodb_flush_log_at_trx_commit=1 and, where there is a binary log, \
                          sync_binlog=1";
        let mut capabilities =
            Capabilities::minimal(durability, self.inner.work.options.payload_limit);
        capabilities.multi_process = true;
        capabilities.transactions = true;
        capabilities.ordering = true;
        capabilities.wakeups = Wakeups::SameProcess;
        capabilities.receive_atomicity = ReceiveAtomicity::Batch;
        capabilities
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        const OPERATION: &str = "receive";
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let work = &self.inner.work;
        let secrecy = self.secrecy();
        let mut script = self.script(Access::Write);
        let mut receiving = work.receive(&mut script, messages, Order::OfAcceptance, secrecy);
        let answers = if receiving.is_empty() {
            Answers::default()
        } else {
            match self.run_up_to(1, OPERATION, Access::Write, script).await {
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    let mut script = self.script(Access::Write);
                    receiving = work.receive(&mut script, messages, Order::OfKeys, secrecy);
                    self.run(OPERATION, Access::Write, script).await?
                }
                outcome => outcome?,
            }
        };
        let receipts = receiving
            .receipts(&answers)
            .map_err(in_operation(OPERATION))?;
        if receipts.contains(&Receipt::Accepted) {
            self.inner.signal.raise();
        }
        self.fold_sometimes().await;
        Ok(receipts)
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        const OPERATION: &str = "claim";
        if request.handlers.is_empty() || request.limit == 0 {
            return Ok(Claims::default());
        }
        let work = &self.inner.work;
        let mut looks = 1;
        let mut from = self.inner.front.of(request);
        let (answers, at) = loop {
            let mut script = self.script(Access::Write);
            let at = work.claim(&mut script, request, from);
            let answers = self.run(OPERATION, Access::Write, script).await?;
            let last = work
                .full_up_to(&answers, at, request)
                .map_err(in_operation(OPERATION))?;
            self.inner.front.advance(request, last);
            if from.take().is_some() && answers.rows(at).is_empty() {
                continue;
            }
            // A range that ends is read one row too far, and that row is locked for a moment: a
            // message may be skipped because of a claim for another handler. So an empty answer
            // is only believed when nothing is due, or after a few looks.
            let missed = answers.number(at + 1).map_err(in_operation(OPERATION))? == 1;
            if !missed || looks == LOOKS {
                break (answers, at);
            }
            tokio::time::sleep(Duration::from_millis(looks).mul_f64(fastrand::f64())).await;
            looks += 1;
        };
        let until = Work::lease_end(&answers, request)?;
        let (leased, bad) = work.claims(&answers, at, until)?;
        let claims = if bad.is_empty() {
            Claims {
                leased,
                ..Claims::default()
            }
        } else {
            self.claims_now(&answers, at, until).await?
        };
        self.fold_sometimes().await;
        Ok(claims)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        const OPERATION: &str = "settle";
        let mapped = in_operation(OPERATION);
        let work = &self.inner.work;
        let settling = Settling::new(work, settlements);
        let mut script = self.script(Access::Write);
        let places = work.settle(
            &mut script,
            &settling.endings,
            self.secrecy(),
            Detail::Count,
        );
        let answers = if places.is_empty() {
            Answers::default()
        } else {
            self.run(OPERATION, Access::Write, script).await?
        };
        let applied = work
            .applied(&answers, &places, &settling.endings)
            .map_err(mapped)?;
        if applied.wake {
            self.inner.front.forget();
            self.inner.signal.raise();
        }
        let unclear = settling.unclear(&applied);
        let newest = if unclear.is_empty() {
            std::collections::HashMap::new()
        } else {
            // Rare: what tells a repetition from a lost lease.
            let mut script = self.script(Access::Read);
            Work::set_seqs(&mut script, &unclear);
            let at = script.all(&work.sql.newest);
            let answers = self.run(OPERATION, Access::Read, script).await?;
            work.newest(&answers, at).map_err(mapped)?
        };
        self.fold_sometimes().await;
        Ok(settling.answers(settlements, &applied, &newest))
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        const OPERATION: &str = "extend";
        LeaseTerms::check_length(length).map_err(|invalid| invalid.in_operation(OPERATION))?;
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let work = &self.inner.work;
        let mut script = self.script(Access::Write);
        let at = work.extend(&mut script, leases, length);
        let answers = self.run(OPERATION, Access::Write, script).await?;
        work.extended(&answers, at, leases, length)
            .map_err(in_operation(OPERATION))
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        const OPERATION: &str = "begin";
        let work = &self.inner.work;
        work.check_message(message)
            .map_err(|invalid| invalid.in_operation(OPERATION))?;
        if message.ordering_key().is_none() && message.due() == Due::Now {
            let mut script = self.script(Access::Write);
            let at = work.begin_new(&mut script, message, terms, self.secrecy());
            let answers = self.run(OPERATION, Access::Write, script).await?;
            let begun = Work::begun_new(&answers, at, message, terms);
            if let Some(begun) = begun.map_err(in_operation(OPERATION))? {
                self.fold_sometimes().await;
                return Ok(begun);
            }
        }
        let mut script = self.script(Access::Write);
        let places = work.begin(&mut script, message, terms, self.secrecy());
        let answers = self.run(OPERATION, Access::Write, script).await?;
        let (begun, accepted) = work.begun(&answers, &places, terms)?;
        if accepted && !matches!(begun, Begun::Run(_)) {
            self.inner.signal.raise();
        }
        self.fold_sometimes().await;
        Ok(begun)
    }

    async fn subscribe(&self, _handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        if self.inner.closed.load(Ordering::Relaxed) {
            return Err(without_effect("subscribe")(sqlx::Error::PoolClosed));
        }
        Ok(Box::new(self.inner.signal.subscribe()))
    }

    async fn close(&self) {
        self.inner.closed.store(true, Ordering::Relaxed);
        if self.inner.own_pool {
            // A transaction that the caller still holds must not keep this from returning.
            let closing = self.inner.pool.close();
            let _ = tokio::time::timeout(self.inner.work.options.operation_timeout, closing).await;
        }
    }
}

impl MySqlStore {
    /// What a claim got of which something could not be read. It may be there all the same, if it was
    /// stored just now (see `script.rs`). What cannot be read by locking reads either is set aside.
    async fn claims_now(&self, answers: &Answers, at: usize, until: i64) -> Result<Claims> {
        let tokens = Work::tokens(answers, at)?;
        let work = &self.inner.work;
        let mut script = self.script(Access::Write);
        let at = work.look_again(&mut script, answers, at);
        let answers = self.run("claim", Access::Write, script).await?;
        let (mut leased, mut bad) = work.claims(&answers, at, until)?;
        // Not what somebody else has by now.
        leased.retain(|leased| {
            let held = held(&leased.lease);
            tokens.get(&held.seq) == Some(&held.token)
        });
        bad.retain(|row| tokens.get(&row.seq) == Some(&row.token));
        let inbox = work.options.inbox.as_str();
        let corrupt = bad
            .iter()
            .map(|row| {
                let (seq, reason) = (row.seq, row.reason.as_str());
                tracing::error!(inbox, seq, reason, "corrupt message set aside");
                rows::corrupt_row(inbox, seq, reason.to_owned())
            })
            .collect();
        if !bad.is_empty() {
            self.set_aside(bad).await?;
        }
        Ok(Claims { leased, corrupt })
    }

    /// Makes rows dead that were claimed and cannot be read.
    async fn set_aside(&self, bad: Vec<Unreadable>) -> Result<()> {
        let outcomes: Vec<_> = bad
            .into_iter()
            .map(|row| {
                // Its ordering key, if any, is found by the row.
                let held = Held {
                    seq: row.seq,
                    token: row.token,
                    ordered: true,
                };
                let outcome = Outcome::Dead {
                    reason: format!("corrupt: {}", row.reason),
                    after: AfterDead::Continue,
                };
                (held, outcome)
            })
            .collect();
        let mut endings: Vec<_> = outcomes
            .iter()
            .map(|(held, outcome)| Ending {
                handler: None,
                held: *held,
                outcome,
            })
            .collect();
        endings.sort_unstable_by_key(|ending| ending.held.seq);
        let mut script = self.script(Access::Write);
        let work = &self.inner.work;
        work.settle(&mut script, &endings, Secrecy::Inline, Detail::Each);
        self.run("claim", Access::Write, script).await?;
        // It may have been first of its ordering key.
        self.inner.signal.raise();
        Ok(())
    }
}
