//! Inline use: may this message's handler run now?

use std::time::Instant;

use inbox_api::{
    Begun, ErrorKind, Extended, LeaseTerms, Message, Result, State, duration_micros, from_micros,
};
use mongodb::bson::{Document, doc, oid::ObjectId};

use crate::{
    claim::is_late,
    database::{Change, Database, On, number},
    held,
    ordering::{keep_first, rehead},
    rows::{Beginning, document, identifier, leased, stored_state, take_bytes, those},
    settle::extend,
    stages::{CLAIMABLE, MARKED, code, lease},
};

/// How often the message may change under the decision.
const ATTEMPTS: usize = 20;

pub(crate) async fn begin(
    database: &Database,
    operation: &'static str,
    message: &Message,
    terms: &LeaseTerms,
) -> Result<Begun> {
    let mut on = database.on(operation);
    let id = identifier(message.key());
    for _ in 0..ATTEMPTS {
        let begun = match find(&mut on, &id).await? {
            Some(found) => known(&mut on, &id, found, terms).await?,
            None => new(&mut on, &id, message, terms).await?,
        };
        if let Some(begun) = begun {
            return Ok(begun);
        }
    }
    Err(on.error(ErrorKind::Conflict, "the message changed too often"))
}

/// The message as it stands, with the time as `now`.
pub(crate) async fn find(on: &mut On<'_>, id: &str) -> Result<Option<Document>> {
    let pipeline = vec![
        doc! { "$match": those([id]) },
        doc! { "$set": { "now": on.database.now() } },
    ];
    Ok(on.look(pipeline).await?.pop())
}

/// Why a stored message cannot be run now, if so.
pub(crate) enum Obstacle {
    Processed(Option<inbox_api::Bytes>),
    Busy(i64),
    Dead(String),
    Discarded,
}

/// What keeps the message `found` from being run, but for its ordering key.
pub(crate) fn obstacle(on: &On<'_>, found: &mut Document) -> Result<Option<Obstacle>> {
    let corrupt = |reason: String| {
        let place = crate::rows::corrupt_row(&on.database.inbox, found, String::new()).place;
        on.error(ErrorKind::Corrupt, format!("{place}: {reason}"))
    };
    let time = |field: &str| {
        number(found, field).ok_or_else(|| corrupt(format!("{field} is not a number")))
    };
    let now = time("now")?;
    Ok(match stored_state(found).map_err(corrupt)? {
        State::Pending => Some(time("dueAt")?)
            .filter(|due| *due > now)
            .map(Obstacle::Busy),
        State::Leased => Some(time("visibleAt")?)
            .filter(|until| *until > now)
            .map(Obstacle::Busy),
        State::Processed => {
            let result = take_bytes(found, "result")
                .map_err(|reason| on.error(ErrorKind::Corrupt, reason))?;
            Some(Obstacle::Processed(result))
        }
        State::Dead => Some(Obstacle::Dead(
            found.get_str("error").unwrap_or_default().to_owned(),
        )),
        State::Discarded => Some(Obstacle::Discarded),
    })
}

/// Decides about a stored message; `None` when it has changed meanwhile.
async fn known(
    on: &mut On<'_>,
    id: &str,
    mut found: Document,
    terms: &LeaseTerms,
) -> Result<Option<Begun>> {
    if let Some(obstacle) = obstacle(on, &mut found)? {
        return Ok(Some(match obstacle {
            Obstacle::Processed(result) => Begun::Processed { result },
            Obstacle::Busy(until) => Begun::Busy {
                until: from_micros(until),
            },
            Obstacle::Dead(reason) => Begun::Dead { reason },
            Obstacle::Discarded => Begun::Discarded,
        }));
    }
    let lane = number(&found, "lane");
    if lane == Some(i64::from(MARKED)) {
        let mark = found.get_object_id("mark").ok();
        rehead(on, &[id.to_owned()], mark.as_slice()).await?;
        return Ok(None);
    }
    if lane != Some(i64::from(CLAIMABLE)) {
        return Ok(Some(Begun::Blocked));
    }
    if let Some((seq, now)) = number(&found, "seq").zip(number(&found, "now")) {
        on.open([seq], now).await?;
    }
    let claim = ObjectId::new();
    let mut filter = those([id]);
    filter.extend(doc! {
        "lane": CLAIMABLE,
        "state": { "$in": [code(State::Pending), code(State::Leased)] },
        "visibleAt": { "$lte": number(&found, "now") },
    });
    let pipeline = lease(on.database, terms, claim);
    let taken = match on.change(filter, pipeline).await? {
        Change::Done(taken) => taken,
        Change::NoneSuch => return Ok(None),
        Change::Unread => {
            let own = |found: &Document| found.get_object_id("claim").ok() == Some(claim);
            let Some(taken) = find(on, id).await?.filter(own) else {
                return Ok(None);
            };
            taken
        }
        Change::Held => {
            let rest = duration_micros(held::REST);
            let now = number(&found, "now").unwrap_or(0);
            return Ok(Some(Begun::Busy {
                until: from_micros(now.saturating_add(rest)),
            }));
        }
    };
    if taken.contains_key("orderingKey")
        && !keep_first(on, &[id.to_owned()], claim).await?.is_empty()
    {
        return Ok(Some(Begun::Blocked));
    }
    run(on, taken).map(Some)
}

/// Stores the message and decides; `None` when another process has stored it just now.
async fn new(
    on: &mut On<'_>,
    id: &str,
    message: &Message,
    terms: &LeaseTerms,
) -> Result<Option<Begun>> {
    let asked = Instant::now();
    let (seq, now) = on.draw(1).await?;
    let due = message.due().resolve(now);
    let ordered = message.ordering_key().is_some();
    let mark = ObjectId::new();
    let beginning = if ordered || due > now {
        Beginning::Pending(mark)
    } else {
        Beginning::Leased(terms, mark)
    };
    let stored = document(message, seq, now, beginning);
    if !on.insert(std::slice::from_ref(&stored)).await?.is_empty() {
        return Ok(None);
    }
    if ordered {
        rehead(on, &[id.to_owned()], &[mark]).await?;
        // It is decided about as one that was stored before.
        return Ok(None);
    }
    if due > now {
        return Ok(Some(Begun::Busy {
            until: from_micros(due),
        }));
    }
    let stored = Document::try_from(&stored)
        .map_err(|_| on.error(ErrorKind::Other, "a document cannot be read back"))?;
    let mut begun = run(on, stored)?;
    if is_late(asked, terms.length())
        && let Begun::Run(leased) = &mut begun
    {
        // It has waited for a transaction that was storing the same.
        let lease = std::slice::from_ref(&leased.lease);
        let extended = extend(on, lease, terms.length()).await?;
        let Some(Extended::Until(until)) = extended.into_iter().next() else {
            return Ok(None);
        };
        leased.lease.until = until;
    }
    Ok(Some(begun))
}

fn run(on: &On<'_>, taken: Document) -> Result<Begun> {
    leased(taken)
        .map(|leased| Begun::Run(Box::new(leased)))
        .map_err(|(document, reason)| {
            let place =
                crate::rows::corrupt_row(&on.database.inbox, &document, String::new()).place;
            on.error(ErrorKind::Corrupt, format!("{place}: {reason}"))
        })
}
