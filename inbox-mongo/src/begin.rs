//! Inline use: may this message's handler run now?

use std::{sync::Arc, time::Instant};

use inbox_api::{
    Begun, ErrorKind, Extended, LeaseTerms, Message, Result, State, duration_micros, from_micros,
};
use mongodb::bson::{Document, doc, oid::ObjectId};

use crate::{
    claim::is_late,
    connection::{Change, Connection, Database},
    extend::extend_on,
    ordering::{is_kept, promote_key_heads},
    patience::REST,
    pipelines::lease,
    rows::{
        Beginning, CLAIMABLE, MARKED, code, corrupt_row, document, identifier, leased, number,
        stored_state, take_bytes, those,
    },
    schema::version::checked_task,
};

/// How often the message may change under the decision.
const ATTEMPTS: usize = 20;

pub(crate) async fn begin(
    database: &Arc<Database>,
    message: &Message,
    terms: &LeaseTerms,
) -> Result<Begun> {
    database.check_open()?;
    message.check_payload(database.options.payload_limit)?;
    let (message, terms) = (message.clone(), terms.clone());
    checked_task(database, |database| async move {
        let mut connection = database.connection();
        let id = identifier(message.key());
        for _ in 0..ATTEMPTS {
            let begun = match find(&mut connection, &id).await? {
                Some(found) => begin_known(&mut connection, &id, found, &terms).await?,
                None => begin_new(&mut connection, &id, &message, &terms).await?,
            };
            if let Some(begun) = begun {
                return Ok(begun);
            }
        }
        Err(connection.error(ErrorKind::Conflict, "the message changed too often"))
    })
    .await
}

/// The message as it stands, with the time as `now`.
pub(crate) async fn find(connection: &mut Connection<'_>, id: &str) -> Result<Option<Document>> {
    let pipeline = vec![
        doc! { "$match": those([id]) },
        doc! { "$set": { "now": connection.database.now() } },
    ];
    Ok(connection.look(pipeline).await?.pop())
}

/// Why a stored message cannot be run now, if so.
pub(crate) enum Obstacle {
    Processed(Option<inbox_api::Bytes>),
    Busy(i64),
    Dead(String),
    Discarded,
}

/// What keeps the message `found` from being run, but for its ordering key.
pub(crate) fn obstacle(
    connection: &Connection<'_>,
    found: &mut Document,
) -> Result<Option<Obstacle>> {
    let corrupt = |reason: String| {
        let place = corrupt_row(&connection.database.options.inbox, found, String::new()).place;
        connection.error(ErrorKind::Corrupt, format!("{place}: {reason}"))
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
                .map_err(|reason| connection.error(ErrorKind::Corrupt, reason))?;
            Some(Obstacle::Processed(result))
        }
        State::Dead => Some(Obstacle::Dead(
            found.get_str("error").unwrap_or_default().to_owned(),
        )),
        State::Discarded => Some(Obstacle::Discarded),
    })
}

/// Decides about a stored message; `None` when it has changed meanwhile.
async fn begin_known(
    connection: &mut Connection<'_>,
    id: &str,
    mut found: Document,
    terms: &LeaseTerms,
) -> Result<Option<Begun>> {
    if let Some(obstacle) = obstacle(connection, &mut found)? {
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
        promote_key_heads(connection, &[id.to_owned()], mark.as_slice()).await?;
        return Ok(None);
    }
    if lane != Some(i64::from(CLAIMABLE)) {
        return Ok(Some(Begun::Blocked));
    }
    if let Some((seq, now)) = number(&found, "seq").zip(number(&found, "now")) {
        connection.open([seq], now).await?;
    }
    let claim = ObjectId::new();
    let mut filter = those([id]);
    filter.extend(doc! {
        "lane": CLAIMABLE,
        "state": { "$in": [code(State::Pending), code(State::Leased)] },
        "visibleAt": { "$lte": number(&found, "now") },
    });
    let pipeline = lease(connection.database, terms, terms.length(), claim);
    let changed = connection.change(filter, pipeline).await?;
    let taken = match changed {
        Change::Done(taken) => taken,
        Change::NoneSuch => return Ok(None),
        Change::Unread | Change::Held => {
            let own = |found: &Document| found.get_object_id("claim").ok() == Some(claim);
            match find(connection, id).await?.filter(own) {
                Some(taken) => taken,
                None if matches!(changed, Change::Unread) => return Ok(None),
                None => {
                    let rest = duration_micros(REST);
                    let now = number(&found, "now").unwrap_or(0);
                    return Ok(Some(Begun::Busy {
                        until: from_micros(now.saturating_add(rest)),
                    }));
                }
            }
        }
    };
    if taken.contains_key("orderingKey") && !is_kept(connection, id, claim).await? {
        return Ok(Some(Begun::Blocked));
    }
    run(connection, taken).map(Some)
}

/// Stores the message and decides; `None` when another process has stored it just now.
async fn begin_new(
    connection: &mut Connection<'_>,
    id: &str,
    message: &Message,
    terms: &LeaseTerms,
) -> Result<Option<Begun>> {
    let asked = Instant::now();
    let (seq, now) = connection.draw(1).await?;
    let due = message.due().resolve(now);
    let ordered = message.ordering_key().is_some();
    let mark = ObjectId::new();
    let beginning = if ordered || due > now {
        Beginning::Pending(mark)
    } else {
        Beginning::Leased(terms, mark)
    };
    let stored = document(message, seq, now, beginning);
    if !connection
        .insert(std::slice::from_ref(&stored))
        .await?
        .is_empty()
    {
        return Ok(None);
    }
    if ordered {
        promote_key_heads(connection, &[id.to_owned()], &[mark]).await?;
        // It is decided about as one that was stored before.
        return Ok(None);
    }
    if due > now {
        return Ok(Some(Begun::Busy {
            until: from_micros(due),
        }));
    }
    let stored = Document::try_from(&stored)
        .map_err(|_| connection.error(ErrorKind::Other, "a document cannot be read back"))?;
    let mut begun = run(connection, stored)?;
    if is_late(asked, terms.length())
        && let Begun::Run(leased) = &mut begun
    {
        // It has waited for a transaction that was storing the same.
        let lease = std::slice::from_ref(&leased.lease);
        let extended = extend_on(connection, lease, terms.length()).await?;
        let Some(Extended::Until(until)) = extended.into_iter().next() else {
            return Ok(None);
        };
        leased.lease.until = until;
    }
    Ok(Some(begun))
}

fn run(connection: &Connection<'_>, taken: Document) -> Result<Begun> {
    leased(taken)
        .map(|leased| Begun::Run(Box::new(leased)))
        .map_err(|(document, reason)| {
            let place =
                corrupt_row(&connection.database.options.inbox, &document, String::new()).place;
            connection.error(ErrorKind::Corrupt, format!("{place}: {reason}"))
        })
}
