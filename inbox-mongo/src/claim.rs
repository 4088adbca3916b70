//! Claiming: candidates, a conditional update that takes them, and a look at what was won. Three
//! requests whatever the batch, and two where it is one message without an ordering key.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use inbox_api::{
    ClaimRequest, Claims, Effect, Error, ErrorKind, HandlerName, Lease, Outcome, Result,
    Settlement, State, from_micros,
};
use mongodb::bson::{Document, doc, oid::ObjectId};
use tokio::sync::oneshot;

use crate::{
    connection::{Change, Connection, Database},
    extend,
    layout::CLAIM_INDEX,
    locked_messages::{update_each, update_others},
    ordering::{keep_first_of, promote_key_heads, with_keys},
    paused_handlers::{read_names, take_paused, with_paused},
    pipelines::{self, lease, set_aside},
    rows::{
        CLAIMABLE, MARKED, code, corrupt_row, handler_of, id_of, leased, marks_of, number, those,
    },
    schema::version::checked_task,
    settle::settle_now,
};

/// The most messages of one claim, so that the request fits a command.
const MOST: u32 = 20_000;
/// Candidates are at most this many times what was asked for.
const WIDEST: u32 = 8;
/// So many messages that may be held are tried, each by itself.
const MOST_ALONE: u32 = 32;
/// How often a claim goes on to others when all that it chose is held.
const TRIES: usize = 5;
/// A lease that took longer than this to hand out is renewed before.
const LATE: Duration = Duration::from_millis(500);
/// Messages are leased for so long at least until they are handed out. A shorter lease begins then: one
/// that ran out meanwhile would be taken by another claim, and have counted an attempt for nothing.
const SHORTEST: Duration = Duration::from_secs(10);
/// How often candidates are read again because ordering keys had to be looked at first, and how
/// many at least once there was one.
const LOOKS: usize = 5;
const MARKED_AT_ONCE: u32 = 100;

/// Marks the store as doubtful unless it is taken away before: also when the future that has it is
/// dropped.
struct Doubt<'a>(Option<&'a AtomicBool>);

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if let Some(doubtful) = self.0 {
            doubtful.store(true, Ordering::Relaxed);
        }
    }
}

pub(crate) async fn claim(database: &Arc<Database>, request: &ClaimRequest) -> Result<Claims> {
    database.check_open()?;
    if request.handlers.is_empty() || request.limit == 0 {
        return Ok(Claims::default());
    }
    let request = request.clone();
    let (give, given) = oneshot::channel();
    let task = checked_task(database, |database| async move {
        let claims = claim_now(&database, &request).await?;
        if !claims.corrupt.is_empty() {
            // What was set aside may have been first of its ordering key.
            database.wakers.raise();
        }
        if let Err(claims) = give.send(claims) {
            // Nobody waits any more.
            hand_back(&database, &claims).await?;
        }
        Ok(())
    });
    let mut doubt = Doubt(Some(&database.doubtful));
    match task.await {
        Err(error) if error.is_retryable() => return Err(error),
        outcome => {
            doubt.0 = None;
            outcome?;
        }
    }
    given.await.map_err(|_| {
        Error::new(ErrorKind::Other, "a claim was not handed over").with_effect(Effect::Unknown)
    })
}

async fn claim_now(database: &Database, request: &ClaimRequest) -> Result<Claims> {
    let mut connection = database.connection();
    if database.doubtful.load(Ordering::Relaxed) {
        // Where no majority confirms a lease, the message is handed to nobody, and must not pay for
        // more than the first such claim.
        connection.confirm().await?;
        database.doubtful.store(false, Ordering::Relaxed);
    }
    let claim = ObjectId::new();
    let mut tries = 0;
    let (chosen, mut won, leased_since) = loop {
        tries += 1;
        let mut among = Among::Others;
        let mut chosen = choose_due(&mut connection, request, among).await?;
        if chosen.is_none() && !database.left_out.ids().is_empty() {
            // Nothing else is due, and what was held may be free again.
            among = Among::All;
            chosen = choose_due(&mut connection, request, among).await?;
        }
        let Some(chosen) = chosen else {
            return Ok(Claims::default());
        };
        let leased_since = Instant::now();
        let taken = take(&mut connection, request, &chosen, claim, among).await?;
        adapt_spread(database, chosen.ids.len(), taken.won.len());
        // What an open transaction holds is left out the next time.
        let go_on = taken.won.is_empty() && taken.met_held && tries < TRIES;
        if !go_on || among == Among::All {
            break (chosen.ids, taken.won, leased_since);
        }
    };

    keep_first_of(&mut connection, &mut won, claim).await?;
    let places: HashMap<&str, usize> = chosen
        .iter()
        .enumerate()
        .map(|(place, id)| (id.as_str(), place))
        .collect();
    won.sort_by_key(|document| id_of(document).and_then(|id| places.get(id)));

    let mut claims = Claims::default();
    let mut unreadable = Vec::new();
    for document in won {
        match leased(document) {
            Ok(leased) => claims.leased.push(leased),
            Err((document, reason)) => {
                let inbox = &database.options.inbox;
                claims
                    .corrupt
                    .push(corrupt_row(inbox, &document, reason.clone()));
                unreadable.extend(id_of(&document).map(|id| (id.to_owned(), reason)));
            }
        }
    }
    bury(&mut connection, &unreadable, claim).await?;
    let length = request.terms.length();
    if length < SHORTEST || is_late(leased_since, length) {
        renew(&mut connection, &mut claims, length).await?;
    }
    Ok(claims)
}

/// Which messages are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Among {
    /// All but those that an open transaction held a short while ago.
    Others,
    /// All, and without waiting for what may be held still.
    All,
}

/// What may be claimed, in the order of its time, and what time it was.
struct Chosen {
    ids: Vec<String>,
    /// Whether one of them has an ordering key.
    ordered: bool,
    now: i64,
}

/// A message that may be claimed.
struct Candidate {
    id: String,
    seq: i64,
    ordered: bool,
}

impl Candidate {
    fn read(document: &Document) -> Option<Self> {
        Some(Self {
            id: id_of(document)?.to_owned(),
            seq: number(document, "seq")?,
            ordered: document.contains_key("orderingKey"),
        })
    }
}

/// Chooses what to lease, if there is something, and opens its segments.
async fn choose_due(
    connection: &mut Connection<'_>,
    request: &ClaimRequest,
    among: Among,
) -> Result<Option<Chosen>> {
    let limit = match among {
        Among::Others => request.limit.min(MOST),
        Among::All => request.limit.min(MOST_ALONE),
    };
    let spread = connection
        .database
        .spread
        .load(Ordering::Relaxed)
        .clamp(1, WIDEST);
    let (candidates, now) = candidates(connection, request, limit * spread, among).await?;
    let chosen = choose(candidates, limit as usize);
    if chosen.is_empty() {
        connection.note_time(now).await?;
        return Ok(None);
    }
    let seqs = chosen.iter().map(|candidate| candidate.seq);
    connection.open(seqs, now).await?;
    Ok(Some(Chosen {
        ordered: chosen.iter().any(|candidate| candidate.ordered),
        ids: chosen.into_iter().map(|candidate| candidate.id).collect(),
        now,
    }))
}

/// The more others took of what was chosen, the more is read the next time.
fn adapt_spread(database: &Database, chosen: usize, won: usize) {
    let spread = database.spread.load(Ordering::Relaxed).clamp(1, WIDEST);
    let next = if won * 2 <= chosen {
        (spread * 2).min(WIDEST)
    } else if won == chosen {
        spread / 2
    } else {
        spread
    };
    database.spread.store(next, Ordering::Relaxed);
}

/// Whether a lease that was asked for at `since` has lost a part of its length that counts.
pub(crate) fn is_late(since: Instant, length: Duration) -> bool {
    since.elapsed() > LATE.min(length / 4)
}

/// A lease is as long as it was asked to be from when it is handed out, or nearly so. One that ran out
/// meanwhile, and is another's, was the claim's and has counted as an attempt: it is handed out as over.
async fn renew(
    connection: &mut Connection<'_>,
    claims: &mut Claims,
    length: Duration,
) -> Result<()> {
    let pipeline = pipelines::extend(connection.database, length);
    let ends = extend::renew(connection, &leases(claims), pipeline).await?;
    for (leased, end) in claims.leased.iter_mut().zip(ends) {
        let lease = &mut leased.lease;
        lease.until = match end {
            Some(until) => from_micros(until),
            // Not after it ran out, whether it was renewed before or not.
            None => lease.until - SHORTEST.saturating_sub(length),
        };
    }
    Ok(())
}

fn leases(claims: &Claims) -> Vec<Lease> {
    let leased = claims.leased.iter();
    leased.map(|leased| leased.lease.clone()).collect()
}

/// Hands back what was claimed for a caller who has gone meanwhile.
async fn hand_back(database: &Database, claims: &Claims) -> Result<()> {
    let settlements: Vec<Settlement> = leases(claims)
        .into_iter()
        .map(|lease| Settlement {
            lease,
            outcome: Outcome::Release,
        })
        .collect();
    if settlements.is_empty() {
        return Ok(());
    }
    let _ = settle_now(database, &settlements).await?;
    Ok(())
}

/// The messages that have been waiting for longest, and the server's time. Not only those that are
/// due: the order is by that time, so what is not due comes last, and no request is needed to know
/// the time beforehand.
async fn candidates(
    connection: &mut Connection<'_>,
    request: &ClaimRequest,
    limit: u32,
    among: Among,
) -> Result<(Vec<Candidate>, i64)> {
    let mut paused = connection.database.paused_handlers.known();
    let most_looks = match among {
        Among::Others => LOOKS,
        // What is marked may be held still.
        Among::All => 1,
    };
    let mut looks = 0;
    let mut limit = limit;
    loop {
        looks += 1;
        let handlers = request.handlers.iter().map(AsRef::as_ref);
        let handlers: Vec<&str> = handlers
            .filter(|name: &&str| !paused.contains(*name))
            .collect();
        let handlers = match handlers.as_slice() {
            [only] => mongodb::bson::Bson::from(*only),
            _ => doc! { "$in": handlers }.into(),
        };
        let mut lane = doc! { "handler": handlers, "lane": { "$gt": 0 } };
        let left_out = connection.database.left_out.ids();
        if among == Among::Others && !left_out.is_empty() {
            lane.insert("_id", doc! { "$nin": left_out });
        }
        let mut pipeline = vec![
            doc! { "$match": lane },
            doc! { "$sort": { "visibleAt": 1, "seq": 1 } },
        ];
        if looks > most_looks {
            // Others go on marking messages. What may be claimed is not to wait for that.
            pipeline.push(doc! { "$match": { "lane": CLAIMABLE } });
        }
        pipeline.extend([
            doc! { "$limit": i64::from(limit) },
            doc! { "$project": {
                "seq": 1, "visibleAt": 1, "orderingKey": 1, "lane": 1, "mark": 1,
                "now": connection.database.now(),
            } },
            with_paused(
                connection.database.meta_collection(),
                connection.database.now(),
            ),
        ]);
        let mut found = connection.aggregate(Some(CLAIM_INDEX), pipeline).await?;
        let now_paused = take_paused(&mut found).ok_or_else(|| connection.no_inbox())?;
        let now = number(&now_paused, "now").unwrap_or(0);
        let now_paused = read_names(&now_paused);
        if now_paused != paused {
            connection.database.paused_handlers.note(now_paused.clone());
            let matters = |handler: &HandlerName| {
                let name = handler.as_str();
                paused.contains(name) != now_paused.contains(name)
            };
            let looks_again = request.handlers.iter().any(matters);
            paused = now_paused;
            if looks_again && looks <= LOOKS {
                continue;
            }
            found.retain(|document| {
                id_of(document).is_none_or(|id| !paused.contains(handler_of(id)))
            });
        }
        let marked: Vec<&Document> = found
            .iter()
            .filter(|document| number(document, "lane") == Some(i64::from(MARKED)))
            .collect();
        if marked.is_empty() {
            let due =
                |document: &&Document| number(document, "visibleAt").is_some_and(|at| at <= now);
            let due = found.iter().filter(due).filter_map(Candidate::read);
            return Ok((due.collect(), now));
        }
        // Left behind by a process that crashed, or that is just about to do the same.
        let (ids, marks) = marks_of(&marked);
        promote_key_heads(connection, &ids, &marks).await?;
        limit = limit.max(MARKED_AT_ONCE);
    }
}

/// A run of candidates, from a random place if there are more than wanted: workers that get into
/// each other's way read more of them.
fn choose<T>(mut candidates: Vec<T>, limit: usize) -> Vec<T> {
    let spare = candidates.len().saturating_sub(limit);
    if spare > 0 {
        let start = fastrand::usize(..=spare);
        candidates.drain(..start);
        candidates.truncate(limit);
    }
    candidates
}

/// What became of what was chosen.
struct Taken {
    won: Vec<Document>,
    /// Whether an open transaction holds some of it.
    met_held: bool,
}

/// Leases those of `chosen` that are still free, and reads them, joined with their ordering keys.
async fn take(
    connection: &mut Connection<'_>,
    request: &ClaimRequest,
    chosen: &Chosen,
    claim: ObjectId,
    among: Among,
) -> Result<Taken> {
    let length = request.terms.length().max(SHORTEST);
    let pipeline = lease(connection.database, &request.terms, length, claim);
    let still_free = |some: &[String]| {
        let mut filter = those(some.iter().map(String::as_str));
        filter.extend(doc! {
            "lane": CLAIMABLE,
            "state": { "$in": [code(State::Pending), code(State::Leased)] },
            // The server's own time, of a moment ago: who took it since has moved this.
            "visibleAt": { "$lte": chosen.now },
        });
        filter
    };
    let taking = |some: &[String]| {
        doc! {
            "q": still_free(some), "u": pipeline.clone(), "multi": true,
        }
    };
    let matched = match among {
        Among::Others if !chosen.ordered && chosen.ids.len() == 1 => {
            match connection.change(still_free(&chosen.ids), pipeline).await? {
                Change::Done(taken) => {
                    return Ok(Taken {
                        won: vec![taken],
                        met_held: false,
                    });
                }
                Change::NoneSuch => Some(0),
                Change::Unread => Some(1),
                Change::Held => {
                    connection.database.left_out.add(chosen.ids.clone());
                    None
                }
            }
        }
        Among::Others => update_others(connection, &chosen.ids, taking).await?,
        Among::All => {
            let held = update_each(connection, &chosen.ids, taking).await?;
            connection.database.left_out.add(held);
            None
        }
    };
    let met_held = matched.is_none();
    let mut won = Vec::new();
    if matched != Some(0) {
        let mut filter = those(chosen.ids.iter().map(String::as_str));
        filter.insert("claim", claim);
        let mut pipeline = vec![doc! { "$match": filter }];
        if chosen.ordered {
            pipeline.extend(with_keys(connection.database));
        }
        won = connection.look(pipeline).await?;
    }
    Ok(Taken { won, met_held })
}

/// Makes messages that cannot be read dead, under the leases that the claim has just given them.
async fn bury(
    connection: &mut Connection<'_>,
    unreadable: &[(String, String)],
    claim: ObjectId,
) -> Result<()> {
    if unreadable.is_empty() {
        return Ok(());
    }
    let mark = ObjectId::new();
    let statements = unreadable
        .iter()
        .map(|(id, reason)| {
            let mut filter = those([id.as_str()]);
            filter.insert("claim", claim);
            let pipeline = set_aside(connection.database, &format!("corrupt: {reason}"), mark);
            doc! { "q": filter, "u": pipeline, "multi": false }
        })
        .collect();
    connection.update(statements).await?;
    let ids: Vec<String> = unreadable.iter().map(|(id, _)| id.clone()).collect();
    promote_key_heads(connection, &ids, &[mark]).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_candidates_is_chosen() {
        let candidates: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        assert_eq!(choose(candidates.clone(), 10), candidates);
        assert_eq!(choose(candidates.clone(), 20), candidates);
        for _ in 0..50 {
            let chosen = choose(candidates.clone(), 4);
            assert!(candidates.windows(4).any(|run| run == chosen));
        }
    }
}
