//! How one operation gets its connections, its time limit and its transactions, and gives them back.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use inbox_api::{Effect, ErrorKind, Result};
use sqlx::MySqlConnection;
use tokio::{sync::Mutex, time::Instant};

use crate::{
    claim_cursor::ClaimCursor,
    connection_pool::{ConnectionGuard, ConnectionPool},
    context::Context,
    error::{before, cannot_call, failed, may_lack_schema, number, refuses_writes},
    installed_schema,
    multi_statement::{Access, Answers, Form, PACKET_OVERHEAD, Script, Sets},
    procedures::{self, Arguments, Procedure},
    statement::Secrecy,
    wakeups::Signal,
};

/// How often an operation is tried when the server gives it up in favour of another.
const TRIES: u32 = 12;
/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// What the clones of a store share.
pub(crate) struct Inner {
    pub(crate) context: Context,
    pub(crate) signal: Signal,
    pub(crate) claim_cursor: ClaimCursor,
    pub(crate) pool: ConnectionPool,
    /// Whether an inbox of the right version was found there.
    checked: AtomicBool,
    /// The same of the form of its tables only.
    form_checked: AtomicBool,
    /// Whether the procedures were found there.
    has_procedures: AtomicBool,
    /// Counts operations that add to the tally.
    pub(crate) tallied: AtomicU32,
    /// Held while a long tally is summed up.
    pub(crate) compacting: Mutex<()>,
}

impl Inner {
    pub(crate) fn new(context: Context, pool: ConnectionPool) -> Self {
        Self {
            context,
            signal: Signal::new(),
            claim_cursor: ClaimCursor::default(),
            pool,
            checked: AtomicBool::new(false),
            form_checked: AtomicBool::new(false),
            has_procedures: AtomicBool::new(false),
            // Processes that do little each, and many at once, take their turns.
            tallied: AtomicU32::new(fastrand::u32(..)),
            compacting: Mutex::new(()),
        }
    }

    /// Something that was due earlier may have become claimable.
    pub(crate) fn wake(&self) {
        self.claim_cursor.forget();
        self.signal.raise();
    }

    /// What a transaction of the store's sets in its session. Reads have to wait for what other nodes
    /// of a cluster have answered, and waits for locks end before the operation does.
    pub(crate) fn sets(&self) -> Sets {
        if self.pool.is_own() {
            return Sets::default();
        }
        Sets {
            waits_for_nodes: self.context.server.galera,
            lock_wait: Some(self.pool.lock_wait().as_secs()),
        }
    }

    pub(crate) async fn run_script(
        &self,
        script: &Script,
        session: &mut MySqlConnection,
    ) -> sqlx::Result<Answers> {
        let server = &self.context.server;
        script.run(session, server.max_packet, server.form()).await
    }

    /// Begins a transaction that looks at the schema, whatever the session's defaults. In a cluster,
    /// an inbox that was just set up on another node would be missing here without the wait.
    pub(crate) async fn begin_reading(&self, session: &mut MySqlConnection) -> Result<()> {
        let mut script = Script::default();
        // It waits for no lock.
        let sets = Sets {
            lock_wait: None,
            ..self.sets()
        };
        script.begin(Access::Read, sets);
        self.run_in_sequence(session, &script).await
    }

    pub(crate) async fn end_reading(&self, session: &mut MySqlConnection) -> Result<()> {
        let mut script = Script::default();
        script.commit();
        self.run_in_sequence(session, &script).await
    }

    async fn run_in_sequence(&self, session: &mut MySqlConnection, script: &Script) -> Result<()> {
        let max_packet = self.context.server.max_packet;
        let ran = script.run(session, max_packet, Form::Sequence).await;
        ran.map(drop).map_err(before)
    }

    /// Fails unless the inbox is there; asks the server only until it was.
    pub(crate) async fn check(&self, session: &mut MySqlConnection) -> Result<()> {
        if self.checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (context, options) = (&self.context, &self.context.options);
        installed_schema::check(session, options).await?;
        // Not on a pool of the caller's, whose driver may log what is not bound.
        let usable = self.pool.is_own() && !context.server.galera;
        let there = usable && procedures::are_there(session, options, context.procedures()).await?;
        self.has_procedures.store(there, Ordering::Relaxed);
        self.checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The same in a transaction of the caller's, whose isolation level may be any: only the look at
    /// the tables' form. What compares rows would see those of others half-done, or lock them.
    pub(crate) async fn check_within(&self, session: &mut MySqlConnection) -> Result<()> {
        if self.checked.load(Ordering::Relaxed) || self.form_checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        installed_schema::check_version(session, &self.context.options).await?;
        self.form_checked.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// What one operation works with: its time limit, and a connection of the pool for each of its
/// transactions.
#[derive(Clone, Copy)]
pub(crate) struct Connection<'a> {
    pub(crate) inner: &'a Arc<Inner>,
    pub(crate) context: &'a Context,
    /// When it has to have answered.
    pub(crate) until: Instant,
    /// Whether it may use the spare connection while transactions have all others.
    may_use_spare: bool,
}

impl<'a> Connection<'a> {
    /// For an operation that is called now.
    pub(crate) fn new(inner: &'a Arc<Inner>) -> Self {
        Self {
            inner,
            context: &inner.context,
            until: inner.pool.until(),
            may_use_spare: false,
        }
    }

    /// The same, on the spare connection while transactions have all others.
    pub(crate) fn or_spare(self) -> Self {
        Self {
            may_use_spare: true,
            ..self
        }
    }

    /// How payloads, results and headers are sent: to another pool's session they are bound, since its
    /// options may let the driver log statements.
    pub(crate) fn secrecy(&self) -> Secrecy {
        if self.inner.pool.is_own() {
            self.context.secrecy_of_own()
        } else {
            Secrecy::Bind
        }
    }

    /// A separate transaction.
    pub(crate) fn script(&self, access: Access) -> Script {
        Script::transaction(&self.context.now(), access, self.inner.sets())
    }

    /// A separate transaction whose statements read the time themselves.
    pub(crate) fn script_without_time(&self) -> Script {
        let mut script = Script::default();
        script.begin(Access::Write, self.inner.sets());
        script
    }

    /// A connection that is closed unless it is [released](ConnectionGuard::release) or given back.
    pub(crate) async fn guard(&self) -> Result<ConnectionGuard<'a>> {
        let pool = &self.inner.pool;
        if self.may_use_spare {
            pool.guard_or_spare(self.until).await
        } else {
            pool.guard(self.until).await
        }
    }

    /// What takes longer than the operation may fails as `Unavailable`, and with this effect.
    pub(crate) async fn in_time<T>(
        &self,
        effect: Effect,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.inner.pool.in_time(self.until, effect, work).await
    }

    /// Calls a procedure, which is a whole transaction. `None` when it is not there, or does not take such
    /// arguments.
    pub(crate) async fn call(
        &self,
        procedure: &Procedure,
        arguments: &Arguments,
    ) -> Result<Option<Answers>> {
        let inner = self.inner;
        if !inner.has_procedures.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let Some(script) = procedure.call(arguments) else {
            return Ok(None);
        };
        if script.size() + PACKET_OVERHEAD > self.context.server.max_packet {
            return Ok(None);
        }
        match self.run_to_end(Access::Write, &script).await {
            Err(error) if cannot_call(&error) => {
                inner.has_procedures.store(false, Ordering::Relaxed);
                Ok(None)
            }
            answers => answers.map(Some),
        }
    }

    /// Runs a transaction to its end, again when the server gave it up in favour of another.
    /// Checks first that the inbox is there, unless it was seen before.
    pub(crate) async fn run(&self, access: Access, mut script: Script) -> Result<Answers> {
        script.commit();
        self.run_to_end(access, &script).await
    }

    /// The same with a script that ends its transaction.
    async fn run_to_end(&self, access: Access, script: &Script) -> Result<Answers> {
        let mut tries = 1;
        loop {
            let begun = Instant::now();
            let error = match self.run_once(access, script).await {
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
            let wait = self.inner.pool.lock_wait();
            let in_vain = begun.elapsed() >= wait && again + wait > self.until;
            let conflict = error.kind() == ErrorKind::Conflict;
            if !conflict || in_vain || tries == TRIES || again >= self.until {
                return Err(error);
            }
            tokio::time::sleep_until(again).await;
            tries += 1;
        }
    }

    pub(crate) async fn run_once(&self, access: Access, script: &Script) -> Result<Answers> {
        let inner = self.inner;
        let mut guard = self.guard().await?;
        let session = guard.session()?;
        if !inner.checked.load(Ordering::Relaxed) {
            let check = async {
                inner.begin_reading(session).await?;
                inner.check(session).await?;
                inner.end_reading(session).await
            };
            self.in_time(Effect::None, check).await?;
        }
        let effect = match access {
            Access::Read => Effect::None,
            Access::Write => Effect::Unknown,
        };
        let work = async {
            let error = match inner.run_script(script, session).await {
                Ok(answers) => return Ok(Ok(answers)),
                Err(error) => error,
            };
            let is_of_server = number(&error).is_some();
            let error = match access {
                Access::Read => before(error),
                Access::Write => failed(error),
            };
            // After an error of the server's the connection is sound, but the transaction may be open. Any other, and
            // a server that takes no writes, leaves the connection to be closed.
            let sound =
                is_of_server && !refuses_writes(&error) && script.give_up(session).await.is_ok();
            if sound { Ok(Err(error)) } else { Err(error) }
        };
        let outcome = self.in_time(effect, work).await?;
        if outcome.is_ok() {
            guard.release();
        } else {
            guard.give_back();
        }
        outcome
    }
}
