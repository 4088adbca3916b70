//! The store: connections, transactions, and the working side.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox_api::{
    AfterDead, Begun, Capabilities, ClaimRequest, Claims, Due, Effect, ErrorKind, Extended,
    HandlerName, Lease, LeaseTerms, Message, Outcome, Receipt, ReceiveAtomicity, Result, Settled,
    Settlement, Store, Subscription, Wakeups, from_micros,
};
use sqlx::{Connection as _, MySqlConnection, MySqlPool};
use tokio::time::Instant;

use crate::{
    claim::Unreadable,
    claim_cursor::ClaimCursor,
    connections::{Connections, too_late},
    error::{in_operation, may_lack_schema, number, without_effect},
    options::MySqlOptions,
    rows, schema,
    script::{Access, Answers, Form, Script, Secrecy, Sets},
    server::Server,
    settle::{Detail, Ending, Settling},
    statements::Names,
    wakeups::Signal,
    work::{Held, Known, Whose, Work, held},
};

const CONNECT: &str = "connect";
/// How often an operation is tried when the server gives it up in favour of another.
const TRIES: u32 = 12;
/// How often a claim looks again when it got nothing although something is due, and an extension when
/// it could not have a row.
pub(crate) const LOOKS: u64 = 6;
/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// One of so many operations sums up the tally.
const FOLD_ONE_IN: u32 = 200;
/// Payloads and headers may be part of a statement's text when packets take so many bytes: in
/// hexadecimal it takes twice as many as they have.
const ROOM_FOR_TEXT: usize = 2 * 1024 * 1024;

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
    pub(crate) claim_cursor: ClaimCursor,
    pub(crate) connections: Connections,
    /// Whether an inbox of the right version was found there.
    checked: AtomicBool,
    /// The same of the form of its tables only.
    form_checked: AtomicBool,
    /// Counts operations that add to the tally.
    tallied: AtomicU32,
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
        let limit = options.operation_timeout;
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
        let server = tokio::time::timeout(limit, look)
            .await
            .unwrap_or_else(|_| Err(too_late(CONNECT)))?;
        let connections = Connections::own(connect, options.max_connections, limit, server.galera);
        Ok(Self::over(connections, options, server))
    }

    /// An inbox over a pool of the caller's own, whose connections go back to it as they were,
    /// but for session variables named `@inbox_…`. The options' connection settings and number of
    /// connections have no effect. After an operation that took too long, the connections that the
    /// pool holds ready are closed, as they may be as silent.
    ///
    /// Payloads, results and headers are bound to statements here rather than written into them,
    /// which costs round trips, because the pool's options may let the driver log statements.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn with_pool(pool: MySqlPool, options: MySqlOptions) -> Result<Self> {
        let connections = Connections::foreign(pool, options.operation_timeout);
        let until = connections.until();
        let mut guard = connections.guard(CONNECT, until).await?;
        let look = async { Server::of(CONNECT, guard.connection(CONNECT)?).await };
        let server = connections
            .in_time(CONNECT, until, Effect::None, look)
            .await?;
        guard.give_back();
        Ok(Self::over(connections, options, server))
    }

    fn over(connections: Connections, options: MySqlOptions, server: Server) -> Self {
        Self {
            inner: Arc::new(Inner {
                work: Work::new(options, server),
                signal: Signal::new(),
                claim_cursor: ClaimCursor::default(),
                connections,
                checked: AtomicBool::new(false),
                form_checked: AtomicBool::new(false),
                // Processes that do little each, and many at once, take their turns.
                tallied: AtomicU32::new(fastrand::u32(..FOLD_ONE_IN)),
            }),
        }
    }

    pub(crate) fn secrecy(&self) -> Secrecy {
        if self.inner.connections.are_own() {
            self.secrecy_of_own()
        } else {
            Secrecy::Bind
        }
    }

    /// In a session of the store's own, which logs no statements.
    pub(crate) fn secrecy_of_own(&self) -> Secrecy {
        if self.inner.work.server.max_packet >= ROOM_FOR_TEXT {
            Secrecy::Inline
        } else {
            Secrecy::Bind
        }
    }

    pub(crate) async fn run_script(
        &self,
        script: &Script,
        connection: &mut MySqlConnection,
    ) -> sqlx::Result<Answers> {
        let server = &self.inner.work.server;
        let (max_packet, form) = (server.max_packet, server.form());
        script.run(connection, max_packet, form).await
    }

    /// The server's time, as SQL.
    pub(crate) fn now(&self) -> String {
        let options = &self.inner.work.options;
        let offset = options.clock.micros();
        Names::new(options).expand(&format!("{{now}} + {offset}"))
    }

    /// What a transaction of the store's sets in its session. Reads have to wait for what other nodes
    /// of a cluster have answered, and waits for locks end before the operation does.
    pub(crate) fn sets(&self) -> Sets {
        let connections = &self.inner.connections;
        if connections.are_own() {
            return Sets::default();
        }
        Sets {
            waits_for_nodes: self.inner.work.server.galera,
            lock_wait: Some(connections.lock_wait().as_secs()),
        }
    }

    /// A separate transaction.
    pub(crate) fn script(&self, access: Access) -> Script {
        Script::transaction(&self.now(), access, self.sets())
    }

    /// When an operation that is called now has to have answered.
    pub(crate) fn until(&self) -> Instant {
        self.inner.connections.until()
    }

    /// Runs a transaction to its end, again when the server gave it up in favour of another.
    /// Checks first that the inbox is there, unless it was seen before.
    pub(crate) async fn run(
        &self,
        operation: &'static str,
        until: Instant,
        access: Access,
        mut script: Script,
    ) -> Result<Answers> {
        script.commit();
        let mut tries = 1;
        loop {
            let begun = Instant::now();
            let error = match self.run_once(operation, until, access, &script).await {
                Ok(answers) => return Ok(answers),
                Err(error) => error,
            };
            if may_lack_schema(&error) && self.inner.checked.swap(false, Ordering::Relaxed) {
                // Once more, for an error that says what is missing.
                continue;
            }
            let longest = Duration::from_millis(1 << tries.min(7)).min(LONGEST_PAUSE);
            let again = Instant::now() + longest.mul_f64(fastrand::f64());
            // Another try may wait for the same lock, and would leave its session waiting.
            let wait = self.inner.connections.lock_wait();
            let in_vain = begun.elapsed() >= wait && again + wait > until;
            let conflict = error.kind() == ErrorKind::Conflict;
            if !conflict || in_vain || tries == TRIES || again >= until {
                return Err(error);
            }
            tokio::time::sleep_until(again).await;
            tries += 1;
        }
    }

    pub(crate) async fn run_once(
        &self,
        operation: &'static str,
        until: Instant,
        access: Access,
        script: &Script,
    ) -> Result<Answers> {
        let connections = &self.inner.connections;
        let mut guard = connections.guard(operation, until).await?;
        let connection = guard.connection(operation)?;
        if !self.inner.checked.load(Ordering::Relaxed) {
            let check = async {
                self.begin_reading(operation, connection).await?;
                self.check(operation, connection).await?;
                self.end_reading(operation, connection).await
            };
            connections
                .in_time(operation, until, Effect::None, check)
                .await?;
        }
        let effect = match access {
            Access::Read => Effect::None,
            Access::Write => Effect::Unknown,
        };
        let work = async {
            let error = match self.run_script(script, connection).await {
                Ok(answers) => return Ok(Ok(answers)),
                Err(error) => error,
            };
            // After an error of the server's the connection is sound, but the transaction may be
            // open. Any other leaves the connection to be closed.
            let sound = number(&error).is_some() && script.give_up(connection).await.is_ok();
            let error = match access {
                Access::Read => without_effect(operation)(error),
                Access::Write => in_operation(operation)(error),
            };
            if sound { Ok(Err(error)) } else { Err(error) }
        };
        let outcome = connections.in_time(operation, until, effect, work).await?;
        guard.give_back();
        outcome
    }

    /// Begins a transaction that looks at the schema, whatever the session's defaults. In a cluster,
    /// an inbox that was just set up on another node would be missing here without the wait.
    pub(crate) async fn begin_reading(
        &self,
        operation: &'static str,
        connection: &mut MySqlConnection,
    ) -> Result<()> {
        let mut script = Script::default();
        // It waits for no lock.
        let sets = Sets {
            lock_wait: None,
            ..self.sets()
        };
        script.begin(Access::Read, sets);
        self.run_all(operation, connection, &script).await
    }

    pub(crate) async fn end_reading(
        &self,
        operation: &'static str,
        connection: &mut MySqlConnection,
    ) -> Result<()> {
        let mut script = Script::default();
        script.commit();
        self.run_all(operation, connection, &script).await
    }

    async fn run_all(
        &self,
        operation: &'static str,
        connection: &mut MySqlConnection,
        script: &Script,
    ) -> Result<()> {
        let max_packet = self.inner.work.server.max_packet;
        let ran = script.run(connection, max_packet, Form::Sequence).await;
        ran.map(drop).map_err(without_effect(operation))
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
        schema::check_whole(operation, connection, &self.inner.work.options).await?;
        self.inner.checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The same in a transaction of the caller's, whose isolation level may be any: only the look at
    /// the tables' form. What compares rows would see those of others half-done, or lock them.
    pub(crate) async fn check_within(
        &self,
        operation: &'static str,
        connection: &mut MySqlConnection,
    ) -> Result<()> {
        let inner = &self.inner;
        if inner.checked.load(Ordering::Relaxed) || inner.form_checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        schema::check_version(operation, connection, &inner.work.options).await?;
        inner.form_checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Sums up the tally, now and then. It is exact either way, so a failure does not matter.
    pub(crate) async fn fold_sometimes(&self, until: Instant) {
        if self.fold_is_due() {
            self.fold(until).await;
        }
    }

    /// The same behind an operation in a caller's transaction, which may commit without the store. On
    /// another connection, since a transaction of the caller's may lock more than it reads; and not
    /// waited for, since that may be the only connection there is.
    pub(crate) fn fold_beside(&self) {
        if self.fold_is_due() {
            let store = self.clone();
            tokio::spawn(async move { store.fold(store.until()).await });
        }
    }

    fn fold_is_due(&self) -> bool {
        let before = self.inner.tallied.fetch_add(1, Ordering::Relaxed);
        before % FOLD_ONE_IN == FOLD_ONE_IN - 1
    }

    pub(crate) async fn fold(&self, until: Instant) {
        let mut script = self.script(Access::Write);
        script.all(&self.inner.work.sql.fold);
        script.commit();
        let outcome = self.run_once("fold", until, Access::Write, &script).await;
        if let Err(error) = outcome {
            tracing::debug!(%error, "the tally was not summed up; it will be later");
        }
    }
}

#[async_trait]
impl Store for MySqlStore {
    fn capabilities(&self) -> Capabilities {
        let durability = "what the server's commits survive: a crash, and a power cut with \
                          innodb_flush_log_at_trx_commit=1 and, where there is a binary log, \
                          sync_binlog=1";
        let mut capabilities = Capabilities::minimal(durability, self.inner.work.payload_limit());
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
        let until = self.until();
        let work = &self.inner.work;
        let secrecy = self.secrecy();
        let mut script = self.script(Access::Write);
        // The locks of what is known last for as long as one transaction of the store's.
        let none = Known::default();
        let receiving = work.receive(&mut script, messages, &none, Whose::Own, secrecy);
        let answers = if receiving.is_empty() {
            Answers::default()
        } else {
            self.run(OPERATION, until, Access::Write, script).await?
        };
        let receipts = receiving
            .receipts(messages, &answers)
            .map_err(in_operation(OPERATION))?;
        if receipts.contains(&Receipt::Accepted) {
            self.inner.signal.raise();
        }
        self.fold_sometimes(until).await;
        Ok(receipts)
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        const OPERATION: &str = "claim";
        if request.handlers.is_empty() || request.limit == 0 {
            return Ok(Claims::default());
        }
        let until = self.until();
        let work = &self.inner.work;
        let mut looks = 1;
        let mut from = self.inner.claim_cursor.of(request);
        let (answers, at) = loop {
            let mut script = self.script(Access::Write);
            let at = work.claim(&mut script, request, from);
            let answers = self.run(OPERATION, until, Access::Write, script).await?;
            let last = work
                .full_up_to(&answers, at, request)
                .map_err(in_operation(OPERATION))?;
            self.inner.claim_cursor.advance(request, last);
            if from.take().is_some() && answers.rows(at).is_empty() {
                continue;
            }
            // A range that ends is read one row too far, and that row is locked for a moment: a
            // message may be skipped because of a claim for another handler. So an empty answer
            // is only believed when nothing is due, or after a few looks.
            let missed = answers.number(at + 1).map_err(in_operation(OPERATION))? == 1;
            let again = Instant::now() + Duration::from_millis(looks).mul_f64(fastrand::f64());
            if !missed || looks == LOOKS || again >= until {
                break (answers, at);
            }
            tokio::time::sleep_until(again).await;
            looks += 1;
        };
        let lease_end = Work::lease_end(&answers, request)?;
        let (leased, bad) = work.claims(&answers, at, lease_end)?;
        let claims = if bad.is_empty() {
            Claims {
                leased,
                ..Claims::default()
            }
        } else {
            // The leases are given by now, whatever becomes of the second look.
            self.claims_now(&answers, at, lease_end, until)
                .await
                .map_err(|error| error.with_effect(Effect::Unknown))?
        };
        self.fold_sometimes(until).await;
        Ok(claims)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        const OPERATION: &str = "settle";
        let mapped = in_operation(OPERATION);
        let until = self.until();
        let work = &self.inner.work;
        let settling = Settling::new(work, settlements);
        let applied = self.settle_all(OPERATION, until, &settling.endings).await?;
        let unclear = settling.unclear(&applied);
        let newest = if unclear.is_empty() {
            HashMap::new()
        } else {
            // Rare: what tells a repetition from a lost lease.
            let mut script = self.script(Access::Read);
            let places = work.for_seqs(&mut script, &unclear, &work.sql.newest);
            let answers = self
                .run(OPERATION, until, Access::Read, script)
                .await
                // The others are settled by now.
                .map_err(|error| error.with_effect(Effect::Unknown))?;
            work.newest(&answers, &places).map_err(mapped)?
        };
        self.fold_sometimes(until).await;
        Ok(settling.answers(settlements, &applied, &newest))
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        const OPERATION: &str = "extend";
        LeaseTerms::check_length(length).map_err(|invalid| invalid.in_operation(OPERATION))?;
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let until = self.until();
        let mut list: Vec<_> = leases.iter().map(held).map(|h| (h.seq, h.token)).collect();
        list.sort_unstable();
        list.dedup();
        let ends = self.extend_all(OPERATION, until, list, length).await?;
        Ok(leases
            .iter()
            .map(|lease| {
                let held = held(lease);
                match ends.get(&(held.seq, held.token)) {
                    Some(end) => Extended::Until(from_micros(*end)),
                    None => Extended::LeaseLost,
                }
            })
            .collect())
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        const OPERATION: &str = "begin";
        let until = self.until();
        let work = &self.inner.work;
        work.check_message(message)
            .map_err(|invalid| invalid.in_operation(OPERATION))?;
        if message.ordering_key().is_none() && message.due() == Due::Now {
            let mut script = self.script(Access::Write);
            let at = work.begin_new(&mut script, message, terms, self.secrecy());
            let answers = self.run(OPERATION, until, Access::Write, script).await?;
            let begun = Work::begun_new(&answers, at, message, terms);
            if let Some(begun) = begun.map_err(in_operation(OPERATION))? {
                self.fold_sometimes(until).await;
                return Ok(begun);
            }
        }
        let mut script = self.script(Access::Write);
        let places = work.begin(&mut script, message, terms, self.secrecy());
        let answers = self.run(OPERATION, until, Access::Write, script).await?;
        let (begun, accepted) = work.begun(&answers, &places, terms)?;
        if accepted && !matches!(begun, Begun::Run(_)) {
            self.inner.signal.raise();
        }
        self.fold_sometimes(until).await;
        Ok(begun)
    }

    async fn subscribe(&self, _handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        if self.inner.connections.are_closed() {
            return Err(without_effect("subscribe")(sqlx::Error::PoolClosed));
        }
        Ok(Box::new(self.inner.signal.subscribe()))
    }

    async fn close(&self) {
        self.inner.connections.close().await;
    }
}

impl MySqlStore {
    /// What a claim got of which something could not be read. It may be there all the same, if it was
    /// stored just now (see `script.rs`). What cannot be read by locking reads either is set aside.
    async fn claims_now(
        &self,
        answers: &Answers,
        at: usize,
        lease_end: i64,
        until: Instant,
    ) -> Result<Claims> {
        let tokens = Work::tokens(answers, at)?;
        let work = &self.inner.work;
        let mut script = self.script(Access::Write);
        let at = work.look_again(&mut script, answers, at);
        let answers = self.run("claim", until, Access::Write, script).await?;
        let (mut leased, mut bad) = work.claims(&answers, at, lease_end)?;
        // Not what another worker has by now.
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
            self.set_aside(bad, until).await?;
        }
        Ok(Claims { leased, corrupt })
    }

    /// Makes rows dead that were claimed and cannot be read.
    async fn set_aside(&self, bad: Vec<Unreadable>, until: Instant) -> Result<()> {
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
        self.run("claim", until, Access::Write, script).await?;
        // It may have been first of its ordering key.
        self.inner.signal.raise();
        Ok(())
    }
}
