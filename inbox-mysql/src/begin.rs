//! Inline use: begin under a lease, and record within a transaction. Both store the message if
//! it is new and then try to take it, in one packet.

use inbox_api::{
    Attempts, Begun, Bytes, ErrorKind, Key, LeaseTerms, Leased, Message, Recorded, Result, State,
    duration_micros, from_micros,
};
use sqlx::Row as _;

use crate::{
    error::in_operation,
    rows::{self, Stored},
    script::{Answers, Script, Secrecy, Statement},
    work::{self, Work, lease},
};

const JOINED: &str = "FROM {message} AS m
LEFT JOIN {work} AS w ON w.seq = m.seq
LEFT JOIN {dead} AS d ON d.seq = m.seq
LEFT JOIN {done} AS f ON f.seq = m.seq";

/// Where the answers of an inline use stand.
pub(crate) struct Places {
    stored: work::Stored,
    taken: usize,
    standing: usize,
}

/// Why a handler may not run now.
enum Standing {
    Processed { result: Option<Bytes> },
    Busy { until: i64 },
    Blocked,
    Dead { reason: String },
    Discarded,
}

fn standing(stored: Stored, now: i64) -> Standing {
    let record = stored.record;
    match (stored.stored_state, stored.visible_at) {
        (State::Processed, _) => Standing::Processed {
            result: record.result,
        },
        (State::Dead, _) => Standing::Dead {
            reason: record.last_error.unwrap_or_default(),
        },
        (State::Discarded, _) => Standing::Discarded,
        (State::Pending | State::Leased, Some(until)) if until > now => Standing::Busy { until },
        (State::Pending | State::Leased, _) => Standing::Blocked,
    }
}

impl Work {
    /// A query for whole records, payload and result included, of the rows that `condition` says.
    pub(crate) fn select_records(&self, condition: &str) -> String {
        self.sql.expand(&format!(
            "SELECT {{columns}}, m.payload, f.result {JOINED} WHERE {condition}"
        ))
    }

    /// `SET @inbox_seq` to the row of a key, as far as it is there.
    pub(crate) fn find(&self, script: &mut Script, key: &Key) {
        script.fixed("SET @inbox_seq = NULL");
        script.add(self.find_into("seq INTO @inbox_seq", key));
    }

    /// The same, and locks it. Reads what is there now, whatever the transaction's isolation level.
    fn find_locked(&self, script: &mut Script, key: &Key) {
        script.fixed("SET @inbox_seq = NULL, @inbox_keys = NULL");
        // The stored copy's ordering key counts, which may be another than this copy's.
        let columns = "seq, IF(ordering_key IS NULL, NULL, \
                       JSON_ARRAY(JSON_ARRAY(HEX(handler), HEX(ordering_key)))) \
                       INTO @inbox_seq, @inbox_keys";
        let mut find = self.find_into(columns, key);
        find.push(" FOR UPDATE");
        script.add(find);
    }

    fn find_into(&self, columns: &str, key: &Key) -> Statement {
        let mut find = Statement::new(self.sql.expand(&format!(
            "SELECT {columns} FROM {{message}} WHERE handler = "
        )));
        find.bytes(key.handler.as_str().as_bytes())
            .push(" AND id = ")
            .bytes(key.id.as_str().as_bytes());
        find
    }

    /// Adds a begin to `script` of a message that may be new, and that a claim would take as soon as
    /// it is stored. Half the statements of [`Self::begin`], and each has to be parsed.
    pub(crate) fn begin_new(
        &self,
        script: &mut Script,
        message: &Message,
        terms: &LeaseTerms,
        secrecy: Secrecy,
    ) -> usize {
        self.store_content(script, message, secrecy);
        script.read_time();
        let mut set = Statement::new("SET @inbox_lease = ");
        set.number(duration_micros(terms.length()));
        set.push(", @inbox_worker = ");
        set.bytes(terms.worker().as_str().as_bytes());
        script.add(set);
        let first = script.all(&self.sql.begin_new);
        first + self.sql.begin_new.len() - 1
    }

    /// The lease, unless the message's key was known.
    pub(crate) fn begun_new(
        answers: &Answers,
        at: usize,
        message: &Message,
        terms: &LeaseTerms,
    ) -> sqlx::Result<Option<Begun>> {
        let Some(row) = answers.rows(at).first() else {
            return Ok(None);
        };
        let accepted_at = row.try_get_unchecked(1)?;
        let now = answers.now()?;
        let until = now.saturating_add(duration_micros(terms.length()));
        Ok(Some(Begun::Run(Box::new(Leased {
            message: message.clone(),
            lease: lease(message, answers.number(at)?, now, until),
            attempts: Attempts {
                started: 1,
                finished: 0,
            },
            accepted_at: from_micros(accepted_at),
        }))))
    }

    /// Adds a begin to `script`.
    pub(crate) fn begin(
        &self,
        script: &mut Script,
        message: &Message,
        terms: &LeaseTerms,
        secrecy: Secrecy,
    ) -> Places {
        self.prepare_one(script, message);
        let stored = self.store_one(script, message, false, secrecy);
        self.find_locked(script, message.key());
        // Whatever may be waited for is waited for here: the lease begins behind it.
        let lock = "SELECT seq INTO @inbox_taken FROM {work} WHERE seq = @inbox_seq FOR UPDATE";
        script.fixed(&self.sql.expand(lock));
        script.read_time();
        let mut take = Statement::new(self.sql.expand(
            "UPDATE {work} SET queue = 1, token = GREATEST(token + 1, @inbox_now), \
             started = started + 1, worker = ",
        ));
        take.bytes(terms.worker().as_str().as_bytes());
        take.push(", visible_at = @inbox_now + ");
        take.number(duration_micros(terms.length()));
        take.push(" WHERE seq = @inbox_seq AND queue < 2 AND visible_at <= @inbox_now");
        script.add(take);
        let taken = script.changed();
        let standing = script.fixed(&(self.select_records("m.seq = @inbox_seq") + " FOR UPDATE"));
        Places {
            stored,
            taken,
            standing,
        }
    }

    /// Prepares a record, and adds a look for its key to `script`, which answers with its row: see
    /// [`Self::store_one`].
    pub(crate) fn prepare_record(&self, script: &mut Script, message: &Message) -> usize {
        self.prepare_one(script, message);
        script.add(self.find_into("seq", message.key()))
    }

    /// Adds a record to `script`.
    pub(crate) fn record(
        &self,
        script: &mut Script,
        message: &Message,
        result: Option<&Bytes>,
        known: bool,
        secrecy: Secrecy,
    ) -> Places {
        let stored = self.store_one(script, message, known, secrecy);
        self.find_locked(script, message.key());
        script.all(&self.sql.lock_keys);
        script.fixed("SET @inbox_taken = NULL");
        let mut fixed = |text: &str| script.fixed(&self.sql.expand(text));
        fixed(
            "SELECT seq INTO @inbox_taken FROM {work} \
             WHERE seq = @inbox_seq AND queue < 2 AND visible_at <= @inbox_now FOR UPDATE",
        );
        fixed(
            "INSERT INTO {tally} (handler, backlog, processed, dead, discarded) \
             SELECT handler, -1, 1, 0, 0 FROM {work} WHERE seq = @inbox_taken FOR UPDATE",
        );
        // A new token, so that a worker whose lease ran out is told so when it settles.
        let mut finish = Statement::new(self.sql.expand(
            "INSERT INTO {done} (seq, handler, state, due_at, token, started, finished, replays, \
             worker, last_error, finished_at, result) \
             SELECT seq, handler, 2, due_at, GREATEST(token + 1, @inbox_now), started + 1, \
             finished + 1, replays, worker, last_error, @inbox_now, ",
        ));
        match result {
            Some(result) => finish.secret(result, secrecy),
            None => finish.push("NULL"),
        };
        finish.push(
            &self
                .sql
                .expand(" FROM {work} WHERE seq = @inbox_taken FOR UPDATE"),
        );
        script.add(finish);
        let taken = script.changed();
        let mut fixed = |text: &str| script.fixed(&self.sql.expand(text));
        fixed(
            "DELETE e FROM {work} AS w STRAIGHT_JOIN {open} AS e FORCE INDEX (PRIMARY) \
             ON e.handler = w.handler AND e.ordering_key = w.ordering_key AND e.seq = w.seq \
             WHERE w.seq = @inbox_taken",
        );
        fixed("DELETE FROM {work} WHERE seq = @inbox_taken");
        if self.options.drop_processed_payloads {
            fixed(
                "UPDATE {message} SET payload = NULL, payload_bytes = NULL \
                 WHERE seq = @inbox_taken",
            );
        }
        script.all(&self.sql.rehead);
        // In one of the caller's transactions with an older snapshot, only a locking read shows
        // what stands there now.
        let standing = script.fixed(&(self.select_records("m.seq = @inbox_seq") + " FOR UPDATE"));
        Places {
            stored,
            taken,
            standing,
        }
    }

    /// The one row of [`Self::select_records`].
    pub(crate) fn only(
        &self,
        operation: &'static str,
        answers: &Answers,
        at: usize,
    ) -> Result<Option<Stored>> {
        let mapped = in_operation(operation);
        let now = answers.now().map_err(mapped)?;
        let Some(row) = answers.rows(at).first() else {
            return Ok(None);
        };
        rows::stored(row, now).map(Some).map_err(|reason| {
            self.corrupt(
                operation,
                row.try_get_unchecked(0).unwrap_or_default(),
                reason,
            )
        })
    }

    fn present(
        &self,
        operation: &'static str,
        answers: &Answers,
        places: &Places,
    ) -> Result<Stored> {
        let stored = self.only(operation, answers, places.standing)?;
        stored.ok_or_else(|| {
            let context = "the message was purged just now";
            inbox_api::Error::new(ErrorKind::Conflict, operation, context)
        })
    }

    /// What a begin found, and whether the message is new.
    pub(crate) fn begun(
        &self,
        answers: &Answers,
        places: &Places,
        terms: &LeaseTerms,
    ) -> Result<(Begun, bool)> {
        const OPERATION: &str = "begin";
        let mapped = in_operation(OPERATION);
        let now = answers.now().map_err(mapped)?;
        let accepted = answers.number(places.stored.counted).map_err(mapped)? == 1;
        let stored = self.present(OPERATION, answers, places)?;
        if answers.number(places.taken).map_err(mapped)? == 1 {
            let until = now.saturating_add(duration_micros(terms.length()));
            let message = stored
                .record
                .message()
                .ok_or_else(|| self.corrupt(OPERATION, stored.seq, "payload is missing".into()))?;
            let leased = Leased {
                lease: lease(&message, stored.seq, stored.token, until),
                message,
                attempts: stored.record.attempts,
                accepted_at: stored.record.accepted_at,
            };
            return Ok((Begun::Run(Box::new(leased)), accepted));
        }
        let begun = match standing(stored, now) {
            Standing::Processed { result } => Begun::Processed { result },
            Standing::Busy { until } => Begun::Busy {
                until: from_micros(until),
            },
            Standing::Blocked => Begun::Blocked,
            Standing::Dead { reason } => Begun::Dead { reason },
            Standing::Discarded => Begun::Discarded,
        };
        Ok((begun, accepted))
    }

    pub(crate) fn recorded(&self, answers: &Answers, places: &Places) -> Result<Recorded> {
        const OPERATION: &str = "record_in";
        let mapped = in_operation(OPERATION);
        if answers.number(places.taken).map_err(mapped)? == 1 {
            return Ok(Recorded::First);
        }
        let now = answers.now().map_err(mapped)?;
        let stored = self.present(OPERATION, answers, places)?;
        Ok(match standing(stored, now) {
            Standing::Processed { result } => Recorded::Processed { result },
            Standing::Busy { until } => Recorded::Busy {
                until: from_micros(until),
            },
            Standing::Blocked => Recorded::Blocked,
            Standing::Dead { reason } => Recorded::Dead { reason },
            Standing::Discarded => Recorded::Discarded,
        })
    }
}
