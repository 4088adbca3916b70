//! What is sent to the server: many statements as one text, so that an operation is one round
//! trip and one transaction, and holds no lock that waits for this process.
//!
//! What a script has locked, and another transaction may just have inserted, it goes on reading with
//! locking reads (`FOR UPDATE`), or with statements that change it. MariaDB gives up the locks on
//! inserted rows a moment before it shows them to new snapshots, so an ordinary read, also that of an
//! `INSERT … SELECT`, may miss a row that is locked, and its companions in other tables.

use futures_util::TryStreamExt as _;
use sqlx::{
    AssertSqlSafe, Either, Executor as _, MySqlConnection, Row as _,
    mysql::{MySql, MySqlRow},
    query::Query,
};

use crate::statement::{Statement, Template, Value};

/// What the server may send in addition to a packet's text, and what the packet itself takes.
pub(crate) const PACKET_OVERHEAD: usize = 4096;

/// Ends a transaction and begins no other, whatever `completion_type` says.
pub(crate) const COMMIT: &str = "COMMIT AND NO CHAIN NO RELEASE";

/// The same, for giving up.
pub(crate) const ROLLBACK: &str = "ROLLBACK AND NO CHAIN NO RELEASE";

/// Begins a transaction that changes something. First ends what the last user may have left open on the
/// connection.
pub(crate) const BEGIN_WRITING: [&str; 3] = [ROLLBACK, WRITING, START];
const WRITING: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE";
const READING: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ ONLY";
const START: &str = "START TRANSACTION";

/// How many rows the statement before has changed, within a `SET`. Where MariaDB cannot send that
/// statement's answer, since the client has gone, it calls the number -1 and goes on with the packet. Then
/// this fails, so that the transaction ends with the connection: what is counted by it would be wrong.
pub(crate) const CHANGED: &str = "IF(ROW_COUNT() < 0, (SELECT 1 UNION SELECT 2), ROW_COUNT())";

/// What a transaction of the store's sets for itself in a session of another pool. Sessions of the
/// store's own are set up once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sets {
    /// Whether its reads wait for what other nodes have answered.
    pub(crate) waits_for_nodes: bool,
    /// The longest wait for a lock, in seconds.
    pub(crate) lock_wait: Option<u64>,
}

/// What a transaction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// On Galera: what other nodes have answered before is seen by a transaction that begins now.
const WAIT_FOR_NODES: &str = "SET @inbox_waits = @@SESSION.wsrep_sync_wait, SESSION wsrep_sync_wait = \
     @@SESSION.wsrep_sync_wait | 1";

/// Gives the session back what its owner had set. A transaction that has begun does not wait again.
const WAIT_AS_BEFORE: &str = "SET SESSION wsrep_sync_wait = COALESCE(@inbox_waits, @@SESSION.wsrep_sync_wait), \
     @inbox_waits = NULL";

/// Gives the session back its own limit for waits, once there is nothing left to wait for.
const LOCK_WAIT_AS_BEFORE: &str = "SET SESSION innodb_lock_wait_timeout = \
                                   CAST(COALESCE(@inbox_lock_wait, \
                                   @@SESSION.innodb_lock_wait_timeout) AS UNSIGNED), \
                                   @inbox_lock_wait = NULL";

/// Frees what lists take in the session's memory, and what they hold.
const FORGET_LISTS: &str = "SET @inbox_claimed = NULL, @inbox_heads = NULL, @inbox_held = NULL, @inbox_keys = NULL, \
                            @inbox_ids = NULL, @inbox_picked = NULL, @inbox_rows = NULL, @inbox_run = NULL, \
                            @inbox_seqs = NULL, @inbox_seen = NULL, @inbox_settled = NULL";

/// Lists from this size on, in bytes, are not left in a session.
const LARGE_LIST: usize = 64 * 1024;

/// Statements in order. Each has its answer at its place.
#[derive(Debug, Default)]
pub(crate) struct Script {
    statements: Vec<Statement>,
    /// The server's time, as SQL.
    now: String,
    /// Where the script's time stands.
    now_at: usize,
    /// Whether the transaction is the caller's, with its own snapshot.
    within: bool,
    /// Whether the session's reads wait for other nodes during the script only.
    waits_for_nodes: bool,
    /// Whether the session waits for locks for no longer than this, during the script only.
    limits_waits: bool,
    /// Whether it leaves much in session variables, or what no other session should see.
    forgets_lists: bool,
}

/// How the statements of a packet stand in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// One behind the other. The server ends the packet at the first that fails.
    Sequence,
    /// As compound statements, for Galera. When another node's transaction makes the server roll
    /// this one back between two statements of a sequence, the rest of the sequence runs without
    /// a transaction; a compound statement fails as a whole then. Statements that answer with
    /// rows, and the commit, are separate packets: MariaDB does not report the roll-back
    /// properly behind rows that it has sent from within a compound statement.
    Compound,
}

/// The answers of a script: the rows of its statements, by the places that [`Script::add`]
/// returned.
#[derive(Default)]
pub(crate) struct Answers {
    rows: Vec<Vec<MySqlRow>>,
    now_at: usize,
}

impl Answers {
    pub(crate) fn rows(&self, place: usize) -> &[MySqlRow] {
        self.rows.get(place).map_or(&[], Vec::as_slice)
    }

    /// The server's time during the script, in microseconds since 1970.
    pub(crate) fn now(&self) -> sqlx::Result<i64> {
        self.number(self.now_at)
    }

    /// Of a script [within](Script::within) a transaction: whether the session would begin another
    /// one by itself.
    pub(crate) fn session_begins_transactions(&self) -> bool {
        let row = self.rows(self.now_at).first();
        row.and_then(|row| row.try_get_unchecked(1).ok()) == Some(1_i64)
    }

    /// Of such a script, too: whether the session is one of the store's own.
    pub(crate) fn session_is_own(&self) -> bool {
        let row = self.rows(self.now_at).first();
        row.and_then(|row| row.try_get_unchecked(2).ok()) == Some(1_i64)
    }

    /// The number in the first column of the first row.
    pub(crate) fn number(&self, place: usize) -> sqlx::Result<i64> {
        let row = self.rows(place).first().ok_or(sqlx::Error::RowNotFound)?;
        row.try_get_unchecked(0)
    }
}

impl Script {
    /// A script for a transaction that is open already, which fails at one of `tells` unless it is.
    /// `now` is the server's time.
    pub(crate) fn within(now: &str, tells: &[&str]) -> Self {
        let mut script = Self {
            within: true,
            now: now.to_owned(),
            ..Self::default()
        };
        for tell in tells {
            script.fixed(tell);
        }
        script.fixed(&format!("SET @inbox_now = {now}"));
        script.now_at = script.fixed(
            "SELECT @inbox_now, @@SESSION.autocommit = 0 OR @@SESSION.completion_type = 'CHAIN', \
             COALESCE(@inbox_own, 0)",
        );
        script
    }

    /// A script behind that one, at the same time.
    pub(crate) fn further(now: &str) -> Self {
        Self {
            within: true,
            now: now.to_owned(),
            ..Self::default()
        }
    }

    /// Tells the time that was read before.
    pub(crate) fn tell_time(&mut self) {
        self.now_at = self.fixed("SELECT @inbox_now");
    }

    /// A script that is its own transaction, [ended](Self::commit) by its last statement,
    /// whatever the server's and the session's defaults: isolation level, autocommit and
    /// chaining of transactions.
    pub(crate) fn transaction(now: &str, access: Access, sets: Sets) -> Self {
        let mut script = Self {
            now: now.to_owned(),
            ..Self::default()
        };
        script.begin(access, sets);
        script.read_time();
        script
    }

    /// Reads the time that is `@inbox_now`. Once more, after a statement that may have waited for a
    /// lock: leases are measured from behind the wait.
    pub(crate) fn read_time(&mut self) {
        let set = Statement::new(format!("SET @inbox_now = {}", self.now));
        self.add(set);
        self.tell_time();
    }

    pub(crate) fn begin(&mut self, access: Access, sets: Sets) {
        self.waits_for_nodes = sets.waits_for_nodes;
        self.limits_waits = sets.lock_wait.is_some();
        // What the last user may have left open on the connection.
        self.fixed(ROLLBACK);
        if sets.waits_for_nodes {
            self.fixed(WAIT_FOR_NODES);
        }
        if let Some(seconds) = sets.lock_wait {
            self.fixed(&format!(
                "SET @inbox_lock_wait = @@SESSION.innodb_lock_wait_timeout, \
                 SESSION innodb_lock_wait_timeout = \
                 CAST(LEAST(@@SESSION.innodb_lock_wait_timeout, {seconds}) AS UNSIGNED)"
            ));
        }
        self.fixed(match access {
            Access::Write => WRITING,
            Access::Read => READING,
        });
        self.fixed(START);
        if sets.waits_for_nodes {
            self.fixed(WAIT_AS_BEFORE);
        }
    }

    pub(crate) fn commit(&mut self) {
        self.end();
        self.fixed(COMMIT);
    }

    /// Ends a script within a transaction that goes on.
    pub(crate) fn end(&mut self) {
        if self.forgets_lists {
            self.fixed(FORGET_LISTS);
        }
        if self.limits_waits {
            self.fixed(LOCK_WAIT_AS_BEFORE);
        }
    }

    /// The bytes of its statements.
    pub(crate) fn size(&self) -> usize {
        self.statements.iter().map(Statement::size).sum()
    }

    pub(crate) fn is_within(&self) -> bool {
        self.within
    }

    /// Leaves no lists in the session.
    pub(crate) fn forget_lists(&mut self) {
        self.forgets_lists = true;
    }

    /// Leaves the session as it was after a statement has failed.
    pub(crate) async fn give_up(&self, connection: &mut MySqlConnection) -> sqlx::Result<()> {
        let as_before = [
            (self.waits_for_nodes, WAIT_AS_BEFORE),
            (self.limits_waits, LOCK_WAIT_AS_BEFORE),
            (self.forgets_lists, FORGET_LISTS),
        ];
        let wanted = as_before.iter().filter(|(wanted, _)| *wanted);
        let mut texts = vec![ROLLBACK];
        texts.extend(wanted.map(|(_, text)| *text));
        send(connection, &texts).await
    }

    /// Undoes, by statements that do so, a script within a transaction of which a statement has failed.
    pub(crate) async fn undo(
        &self,
        connection: &mut MySqlConnection,
        undo: &[&str],
    ) -> sqlx::Result<()> {
        let mut texts = Vec::with_capacity(1 + undo.len());
        if self.forgets_lists {
            texts.push(FORGET_LISTS);
        }
        texts.extend(undo);
        send(connection, &texts).await
    }

    pub(crate) fn add(&mut self, statement: Statement) -> usize {
        self.forgets_lists |=
            statement.text.starts_with("SET @inbox_") && statement.size() > LARGE_LIST;
        self.statements.push(statement);
        self.statements.len() - 1
    }

    /// Adds the statements of a file without values; returns the place of the first.
    pub(crate) fn all(&mut self, file: &[Template]) -> usize {
        self.fill(file, &[])
    }

    /// Adds the statements of a file with these values; returns the place of the first.
    pub(crate) fn fill(&mut self, file: &[Template], values: &[(&str, Statement)]) -> usize {
        let place = self.statements.len();
        let filled = file.iter().map(|template| template.fill(values));
        self.statements.extend(filled);
        place
    }

    pub(crate) fn fixed(&mut self, text: &str) -> usize {
        self.add(Statement::new(text))
    }

    /// Adds a question for how many rows the statement before has changed, which is
    /// `@inbox_count` then. Answers where it says so.
    pub(crate) fn changed(&mut self) -> usize {
        // In two steps, since the second may be in another packet.
        self.keep_changed();
        self.fixed("SELECT @inbox_count")
    }

    /// Keeps that number in `@inbox_count`.
    pub(crate) fn keep_changed(&mut self) {
        self.fixed(&format!("SET @inbox_count = {CHANGED}"));
    }

    /// Runs everything, in as few packets as the server takes.
    pub(crate) async fn run(
        &self,
        connection: &mut MySqlConnection,
        max_packet: usize,
        form: Form,
    ) -> sqlx::Result<Answers> {
        let mut rows = Vec::with_capacity(self.statements.len());
        let mut packet = Packet::default();
        for statement in &self.statements {
            let full = packet.text.len() + statement.text.len() + PACKET_OVERHEAD > max_packet;
            let alone = form == Form::Compound && (statement.selects || statement.text == COMMIT);
            if full || alone || !statement.bound.is_empty() {
                std::mem::take(&mut packet)
                    .send(connection, form, &mut rows)
                    .await?;
            }
            if alone {
                packet.add(statement);
                std::mem::take(&mut packet)
                    .send(connection, Form::Sequence, &mut rows)
                    .await?;
            } else if statement.bound.is_empty() {
                packet.add(statement);
            } else {
                send_bound(connection, statement).await?;
                rows.push(Vec::new());
            }
        }
        packet.send(connection, form, &mut rows).await?;
        Ok(Answers {
            rows,
            now_at: self.now_at,
        })
    }
}

/// Sends statements in one packet, which ends at the first that fails.
async fn send(connection: &mut MySqlConnection, texts: &[&str]) -> sqlx::Result<()> {
    let packet = sqlx::raw_sql(AssertSqlSafe(texts.join(";\n")));
    packet.execute(connection).await.map(drop)
}

/// Statements without bound values, to be sent at once.
#[derive(Default)]
struct Packet {
    text: String,
    statements: usize,
}

impl Packet {
    fn add(&mut self, statement: &Statement) {
        if !self.text.is_empty() {
            self.text.push_str(";\n");
        }
        self.text.push_str(&statement.text);
        self.statements += 1;
    }

    async fn send(
        self,
        connection: &mut MySqlConnection,
        form: Form,
        answers: &mut Vec<Vec<MySqlRow>>,
    ) -> sqlx::Result<()> {
        if self.statements == 0 {
            return Ok(());
        }
        let text = match form {
            Form::Sequence => self.text,
            Form::Compound => format!("BEGIN NOT ATOMIC\n{};\nEND", self.text),
        };
        let mut stream = sqlx::raw_sql(AssertSqlSafe(text)).fetch_many(connection);
        let all = answers.len() + self.statements;
        let mut rows = Vec::new();
        while let Some(item) = stream.try_next().await? {
            match item {
                Either::Left(_) => answers.push(std::mem::take(&mut rows)),
                Either::Right(row) => rows.push(row),
            }
        }
        // The statements within a compound statement have no answers themselves.
        answers.resize_with(all, Vec::new);
        Ok(())
    }
}

async fn send_bound(connection: &mut MySqlConnection, statement: &Statement) -> sqlx::Result<()> {
    let query: Query<'_, MySql, _> =
        sqlx::query(AssertSqlSafe(statement.text.clone())).persistent(statement.repeats);
    let query = statement
        .bound
        .iter()
        .fold(query, |query, value| match value {
            Value::Bytes(bytes) => query.bind(bytes.as_ref()),
            Value::Number(number) => query.bind(number),
            Value::Null => query.bind(None::<&[u8]>),
        });
    connection.execute(query).await?;
    Ok(())
}
