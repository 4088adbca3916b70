//! The statements of a shared transaction: as many as it needs, in one trip to SQLite's thread.

use futures_util::StreamExt as _;
use inbox_api::{Begun, Effect, LeaseTerms, Message, Receipt, Result, Settled};
use sqlx::{AssertSqlSafe, Either, Executor as _, SqliteConnection, sqlite::SqliteRow};

use crate::{
    batch::json,
    begin,
    connection::Database,
    error::failed,
    receive,
    settle::{self, Applied, Parameters},
    shared_transaction::Job,
    statements::BEGIN,
};

/// What a transaction does for some operations: settlements first, since a begin takes a lease that has
/// run out from a worker whose settlement would still stand; then it stores and begins.
pub(crate) struct Script<'j> {
    /// The messages to store: those that are received, and then those to begin.
    received: receive::Prepared<'j>,
    /// How many of them are received.
    received_only: usize,
    begins: Vec<(&'j Message, &'j LeaseTerms)>,
    settling: settle::Batch<'j>,
    now: i64,
}

/// The rows that its statements returned.
#[derive(Default)]
pub(crate) struct Returned {
    known: Vec<SqliteRow>,
    received: Vec<SqliteRow>,
    leased: Vec<SqliteRow>,
    settled: Vec<SqliteRow>,
    tokens: Vec<SqliteRow>,
}

/// A statement that returns rows.
#[derive(Clone, Copy)]
enum Part {
    Known,
    Received,
    Leased,
    Settled,
    Tokens,
}

impl Returned {
    fn of(&mut self, part: Part) -> &mut Vec<SqliteRow> {
        match part {
            Part::Known => &mut self.known,
            Part::Received => &mut self.received,
            Part::Leased => &mut self.leased,
            Part::Settled => &mut self.settled,
            Part::Tokens => &mut self.tokens,
        }
    }
}

impl<'j> Script<'j> {
    pub(crate) fn new(database: &Database, jobs: &'j [Job], now: i64) -> Self {
        let (mut messages, mut begins, mut settlements) = (Vec::new(), Vec::new(), Vec::new());
        for job in jobs {
            match job {
                Job::Receive(asked) => messages.extend(&asked.work),
                Job::Begin(asked) => begins.push((&asked.work.0, &asked.work.1)),
                Job::Settle(asked) => settlements.extend(&asked.work),
            }
        }
        let received_only = messages.len();
        messages.extend(begins.iter().map(|(message, _)| *message));
        let payload_limit = database.options.payload_limit;
        Self {
            received: receive::prepare(messages, payload_limit),
            received_only,
            begins,
            settling: settle::Batch::new(settlements, payload_limit, now),
            now,
        }
    }

    /// Runs the transaction, which may be left open when this fails or is dropped: the connection is
    /// then of no more use.
    pub(crate) async fn run(
        &mut self,
        database: &Database,
        connection: &mut SqliteConnection,
    ) -> Result<Returned> {
        let texts = &database.statements.shared;
        let mut statements: Vec<(Option<Part>, &str)> = Vec::new();
        let settling = self
            .settling
            .chunks
            .pop()
            .map(settle::parameters)
            .transpose()?;
        let (settlements, results) = match settling {
            None => (None, None),
            Some(Parameters::Processed { leases }) => {
                statements.push((Some(Part::Settled), &texts.settle_processed));
                (Some(leases), None)
            }
            Some(Parameters::Any { rows, results }) => {
                statements.push((Some(Part::Settled), &texts.settle));
                (Some(rows), Some(results))
            }
        };
        let leases = settlements.is_some().then(|| self.settling.rows());
        let leases = leases.as_ref().map(json).transpose()?;
        if leases.is_some() {
            statements.push((Some(Part::Tokens), &texts.settle_tokens));
        }
        let mut changes = usize::from(leases.is_some());
        let begins = match self.begins.as_slice() {
            [] => None,
            begins => {
                statements.push((Some(Part::Known), &texts.known));
                let row = |(message, terms): &(&'j Message, &'j LeaseTerms)| {
                    begin::row(message, terms, self.now)
                };
                Some(json(&begins.iter().map(row).collect::<Vec<_>>())?)
            }
        };
        let (rows, contents) = match self.received.only_parameters(self.now)? {
            None => (None, None),
            Some(parameters) => {
                statements.push((Some(Part::Received), &texts.receive));
                changes += 1;
                (Some(parameters.rows), Some(parameters.contents))
            }
        };
        if begins.is_some() {
            statements.push((Some(Part::Leased), &texts.begin));
            changes += 1;
        }
        if changes > 1 {
            // A single statement is a transaction by itself.
            statements.insert(0, (None, BEGIN));
            statements.push((None, "COMMIT"));
        }

        let texts: Vec<&str> = statements.iter().map(|(_, text)| *text).collect();
        let query = sqlx::query(AssertSqlSafe(texts.join(";\n")))
            .bind(begins)
            .bind(rows)
            .bind(contents)
            .bind(self.now)
            .bind(settlements)
            .bind(results)
            .bind(leases);
        let mut returned = Returned::default();
        let mut ended = 0;
        let mut stream = connection.fetch_many(query);
        while let Some(item) = stream.next().await {
            let item = item.map_err(|error| {
                let is_committed = changes == 1 && ended > 0;
                let error = failed(error);
                if is_committed {
                    error.with_effect(Effect::Unknown)
                } else {
                    error
                }
            })?;
            match (item, statements.get(ended)) {
                (Either::Left(_), _) => ended += 1,
                (Either::Right(row), Some((Some(part), _))) => returned.of(*part).push(row),
                (Either::Right(_), _) => {}
            }
        }
        if ended < statements.len() {
            // The stream of a thread that has ended just ends.
            return Err(failed(sqlx::Error::WorkerCrashed));
        }
        Ok(returned)
    }

    /// The answers, once it is committed.
    pub(crate) fn read(self, database: &Database, returned: &Returned) -> Result<Answers> {
        let mut applied = Applied::default();
        let settling = self.settling;
        settling
            .read(&returned.settled, &mut applied)
            .map_err(failed)?;
        let mut wake = applied.wake;
        let mut newest = settle::read_tokens(&returned.tokens).map_err(failed)?;
        // Behind a single statement, others may have claimed what it has put back.
        newest.extend(applied.leases);
        let settled = settling.answers(&newest);

        let (known, received) = (&returned.known, &returned.received);
        let begun = begin::Rows::new(known, received, &returned.leased).map_err(failed)?;
        let inbox = database.options.inbox.as_str();
        let answer = |(message, terms): &(&Message, &LeaseTerms)| {
            let answer = begun.answer(inbox, message, terms, self.now);
            // It may have a lease.
            let (begun, is_new_to_others) =
                answer.map_err(|error| error.with_effect(Effect::Unknown))?;
            wake |= is_new_to_others;
            Ok(begun)
        };
        let begun = self.begins.iter().map(answer).collect();

        let (mut receipts, due) = self.received.only_receipts(received, self.now)?;
        receipts.truncate(self.received_only);
        wake |= due.iter().take(self.received_only).any(|due| *due);
        Ok(Answers {
            receipts,
            begun,
            settled,
            wake,
        })
    }
}

/// What the operations are answered, in their order.
pub(crate) struct Answers {
    receipts: Vec<Receipt>,
    begun: Vec<Result<Begun>>,
    settled: Vec<Settled>,
    /// Whether a message may have become claimable.
    pub(crate) wake: bool,
}

impl Answers {
    /// To the callers that the script was made of.
    pub(crate) fn send(self, jobs: Vec<Job>) {
        let mut receipts = self.receipts.into_iter();
        let mut begun = self.begun.into_iter();
        let mut settled = self.settled.into_iter();
        for job in jobs {
            match job {
                Job::Receive(asked) => {
                    let count = asked.work.len();
                    asked.answer(Ok(receipts.by_ref().take(count).collect()));
                }
                Job::Begin(asked) => {
                    if let Some(begun) = begun.next() {
                        asked.answer(begun);
                    }
                }
                Job::Settle(asked) => {
                    let count = asked.work.len();
                    asked.answer(Ok(settled.by_ref().take(count).collect()));
                }
            }
        }
    }
}
