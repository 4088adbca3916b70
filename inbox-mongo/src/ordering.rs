//! Ordering keys: which message of a key may be claimed.
//!
//! Of the messages of one key, those that are *open* (pending, leased, or dead and blocking) have
//! `open`, and the one that may be claimed has the lane `CLAIMABLE`. No two documents can be
//! changed together everywhere, so this is kept in three steps that can each be lost:
//!
//! 1. Whatever changes a message of a key in a way that may let another one through (or hold
//!    another one up) sets the lane `MARKED`, in the same write.
//! 2. [`promote_key_heads`] looks at the keys of marked messages and moves the lane `CLAIMABLE` to the
//!    message that should have it.
//! 3. Only then are the marks taken away, and only those that were there before the look.
//!
//! The look goes on in the session in which the marks were set or found, so that it sees them whichever
//! member answers: one that saw less would lose them.
//!
//! A mark that stays behind after a crash is found by the next claim, since marked messages are in
//! the index that claims read. So a key with open messages always has one with a lane.
//!
//! The lane is a hint, though, and two processes that look at the same time may leave it on two
//! messages. What is handed out is decided by [`not_first`], after leasing: a message is kept only
//! if no other one of its key is leased and it is the earliest open one, or was leased before those in
//! front of it were replayed. Of two that are leased at
//! the same time, each looks after its own lease was written, so that at least one sees the other; it
//! is handed back then. Of two in one claim, the earlier is kept. A lease that was not looked at
//! before a crash is taken for no more than that: the next one is looked at again.

use std::{collections::HashSet, time::Duration};

use inbox_api::{Error, ErrorKind, Result, State};
use mongodb::bson::{Bson, Document, doc, oid::ObjectId};

use crate::{
    connection::{Connection, Database},
    error::{LOOKUP_IN_SHARDS, before, code as error_code},
    locked_messages, patience,
    pipelines::{hand_back, promote, unclaim_heads, unmark},
    rows::{CLAIMABLE, MARKED, code, id_of, number, those},
};

/// How often a look is repeated because it took the lane from a message.
const ROUNDS: usize = 8;

/// Joins the open messages of the same key, but for those `without`: the earliest (`first`), and
/// those in front that are claimable or leased (`fronts`).
fn with_key(collection: &str, without: &[&str]) -> Vec<Document> {
    with_key_of(collection, without, doc! { "open": true })
}

/// The same, where the `first` is sought among fewer.
fn with_key_of(collection: &str, without: &[&str], first: Document) -> Vec<Document> {
    let of_key = |mut condition: Document| {
        if !without.is_empty() {
            condition.insert("_id", doc! { "$nin": without });
        }
        let mut filter = doc! { "$expr": { "$and": [
            { "$eq": ["$handler", "$$handler"] },
            { "$eq": ["$orderingKey", "$$orderingKey"] },
        ] } };
        filter.extend(condition);
        doc! { "$match": filter }
    };
    let join = |name: &str, pipeline: Vec<Document>| {
        doc! { "$lookup": {
            "from": collection,
            // What has no key, which is never empty, has no messages of its key either.
            "let": { "handler": "$handler", "orderingKey": { "$ifNull": ["$orderingKey", ""] } },
            "pipeline": pipeline,
            "as": name,
        } }
    };
    let fields = doc! { "$project": { "state": 1, "claim": 1, "seq": 1 } };
    vec![
        join(
            "first",
            vec![
                of_key(first),
                doc! { "$sort": { "seq": 1 } },
                doc! { "$limit": 1 },
                fields.clone(),
            ],
        ),
        join(
            "fronts",
            vec![
                of_key(doc! { "lane": { "$gt": 0 }, "orderingKey": { "$gt": "" } }),
                doc! { "$match": { "lane": CLAIMABLE } },
                fields,
            ],
        ),
    ]
}

fn joined<'d>(document: &'d Document, name: &str) -> impl Iterator<Item = &'d Document> {
    document
        .get_array(name)
        .into_iter()
        .flatten()
        .filter_map(|joined| joined.as_document())
}

fn is(document: &Document, state: State) -> bool {
    number(document, "state") == Some(i64::from(code(state)))
}

/// What is to be done to the messages of one key.
#[derive(Debug, Default, PartialEq, Eq)]
struct Moves {
    unclaim: Vec<String>,
    promote: Vec<String>,
}

impl Moves {
    /// `key` has been joined by [`with_key`].
    fn add(&mut self, key: &Document) {
        let fronts: Vec<&Document> = joined(key, "fronts").collect();
        // The first of its key, until its lease is settled.
        if fronts.iter().any(|front| is(front, State::Leased)) {
            return;
        }
        // A dead one blocks: nothing may be claimed.
        let head = joined(key, "first")
            .next()
            .filter(|first| is(first, State::Pending))
            .and_then(id_of);
        let others = fronts
            .iter()
            .filter_map(|front| id_of(front))
            .filter(|id| head != Some(*id));
        self.unclaim.extend(others.map(str::to_owned));
        if let Some(head) = head
            && !fronts.iter().any(|front| id_of(front) == Some(head))
        {
            self.promote.push(head.to_owned());
        }
    }
}

/// Looks at the ordering keys of these marked messages, as the module says. Where an open transaction
/// holds one of them, the marks stay, and a later claim goes on from here.
pub(crate) async fn promote_key_heads(
    connection: &mut Connection<'_>,
    ids: &[String],
    marks: &[ObjectId],
) -> Result<()> {
    let mut patience = Some(connection.database.pace.patience(ids.len()));
    while let Some(within) = patience {
        let touched = promote_within(connection, ids, marks, Some(within)).await?;
        if touched.is_empty() {
            return Ok(());
        }
        let held = locked_messages::find(connection, &touched, 1).await?.held;
        patience = patience::longer(within).filter(|_| held.is_empty());
    }
    let mut held = Vec::new();
    let mut parts = locked_messages::parts(ids);
    for part in parts.by_ref() {
        let patience = connection.database.pace.patience(part.len());
        if promote_within(connection, part, marks, Some(patience))
            .await?
            .is_empty()
        {
            continue;
        }
        for id in part {
            let only = std::slice::from_ref(id);
            if !promote_within(connection, only, marks, None)
                .await?
                .is_empty()
            {
                held.push(id.clone());
            }
        }
        if held.len() >= locked_messages::MOST {
            break;
        }
    }
    held.extend(parts.flatten().cloned());
    connection.database.left_out.add(held);
    Ok(())
}

/// With `patience`, or in a transaction that waits for nothing. Answers the messages, one of which
/// may be held, where it could not be done.
async fn promote_within(
    connection: &mut Connection<'_>,
    ids: &[String],
    marks: &[ObjectId],
    patience: Option<Duration>,
) -> Result<Vec<String>> {
    let mut ids = ids.to_vec();
    let mut marks = marks.to_vec();
    for _ in 0..ROUNDS {
        let mut pipeline = vec![
            doc! { "$match": those(ids.iter().map(String::as_str)) },
            doc! { "$match": { "orderingKey": { "$gt": "" } } },
            doc! { "$group": { "_id": { "handler": "$handler", "orderingKey": "$orderingKey" } } },
            doc! { "$project": {
                "handler": "$_id.handler", "orderingKey": "$_id.orderingKey",
            } },
        ];
        pipeline.extend(with_key(&connection.database.message_collection(), &[]));
        let keys = connection.look(pipeline).await?;
        let mut moves = Moves::default();
        for key in &keys {
            moves.add(key);
        }
        let mark = ObjectId::new();
        let settled = moves.unclaim.is_empty();
        let mut statements = Vec::new();
        let statement = |ids: &[String], condition: Document, update: Bson| {
            let mut filter = those(ids.iter().map(String::as_str));
            filter.extend(condition);
            doc! { "q": filter, "u": update, "multi": true }
        };
        if !settled {
            statements.push(statement(
                &moves.unclaim,
                doc! { "state": code(State::Pending), "lane": CLAIMABLE },
                unclaim_heads(connection.database, mark).into(),
            ));
        }
        if !moves.promote.is_empty() {
            statements.push(statement(
                &moves.promote,
                doc! { "state": code(State::Pending), "open": true },
                promote().into(),
            ));
        }
        if settled {
            statements.push(statement(
                &ids,
                doc! { "lane": MARKED, "mark": { "$in": marks.clone() } },
                unmark().into(),
            ));
        }
        let updated = match patience {
            Some(patience) => connection.update_unless_held(statements, patience).await?,
            None => connection.update_at_once(statements).await?,
        };
        if updated.is_none() {
            ids.append(&mut moves.unclaim);
            ids.append(&mut moves.promote);
            return Ok(ids);
        }
        if settled {
            return Ok(Vec::new());
        }
        ids.append(&mut moves.unclaim);
        marks.push(mark);
    }
    // Others keep changing the same keys. The marks stay, and the next claim goes on from here.
    Ok(Vec::new())
}

/// Fails if the collection of messages is sharded on servers that cannot look messages up there.
pub(crate) async fn check_shards(database: &Database) -> Result<()> {
    if database.server.looks_up_shards() {
        return Ok(());
    }
    let mut pipeline = vec![doc! { "$match": { "_id": "" } }];
    pipeline.extend(with_key(&database.message_collection(), &[]));
    match database.messages().aggregate(pipeline).await {
        Ok(_) => Ok(()),
        Err(error) if error_code(&error) == Some(LOOKUP_IN_SHARDS) => {
            let (major, minor) = database.server.version;
            Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the messages of the inbox {} are sharded, which needs MongoDB 5.1; this is \
                     {major}.{minor}",
                    database.options.inbox
                ),
            ))
        }
        Err(error) => Err(before(error)),
    }
}

/// Whether a message may be handled now as far as its ordering key goes, though nobody leases it.
pub(crate) async fn is_first(connection: &mut Connection<'_>, id: &str) -> Result<bool> {
    let join = with_keys(connection.database);
    let found = look_at_keys(connection, those([id]), join).await?;
    Ok(found.first().is_some_and(|message| may_keep(message, None)))
}

/// What joins messages with the ones of their ordering keys, for [`keep_first_of`].
pub(crate) fn with_keys(database: &Database) -> Vec<Document> {
    with_key(&database.message_collection(), &[])
}

/// Those of the messages `leased` just now by `claim`, and joined by [`with_keys`], that must not be
/// kept.
async fn not_first(
    connection: &mut Connection<'_>,
    leased: &[Document],
    claim: ObjectId,
) -> Result<HashSet<String>> {
    let is_lost = |message: &&Document| {
        message.contains_key("orderingKey") && !may_keep(message, Some(claim))
    };
    let lost = leased.iter().filter(is_lost).filter_map(id_of);
    let mut lost: HashSet<String> = lost.map(str::to_owned).collect();
    if !lost.is_empty() {
        // A lease that ran out keeps its turn against those in front that an operator has replayed
        // and that nobody has leased since. Against others it may never have had a turn: a crash may
        // have come before the look.
        let returned =
            doc! { "state": code(State::Pending), "replays": { "$gt": 0 }, "started": 0 };
        let others = doc! { "open": true, "$nor": [returned] };
        let mut among = those(lost.iter().map(String::as_str));
        among.insert("again", true);
        let collection = connection.database.message_collection();
        let join = with_key_of(&collection, &[], others);
        for message in look_at_keys(connection, among, join).await? {
            if let Some(id) = id_of(&message)
                && may_keep(&message, Some(claim))
            {
                lost.remove(id);
            }
        }
    }
    Ok(lost)
}

/// The messages `among` which are looked for, `join`ed with the ones of their ordering keys.
async fn look_at_keys(
    connection: &mut Connection<'_>,
    among: Document,
    join: Vec<Document>,
) -> Result<Vec<Document>> {
    let mut pipeline = vec![
        doc! { "$match": among },
        doc! { "$project": { "handler": 1, "orderingKey": 1 } },
    ];
    pipeline.extend(join);
    connection.look(pipeline).await
}

/// `message` has been joined by [`with_key`]. Another one that was leased by the same `claim` gives
/// way to the earliest.
fn may_keep(message: &Document, claim: Option<ObjectId>) -> bool {
    let own = id_of(message);
    let gives_way =
        |other: &Document| claim.is_some() && other.get_object_id("claim").ok() == claim;
    let other_leased = joined(message, "fronts")
        .any(|front| id_of(front) != own && is(front, State::Leased) && !gives_way(front));
    let earliest = joined(message, "first")
        .next()
        .is_some_and(|first| id_of(first) == own);
    !other_leased && earliest
}

/// Whether a message may be recorded as far as its ordering key goes, by what others have done up to
/// now: a transaction sees only what was there when it began. `mine` are the messages that the
/// transaction itself has changed; `seq` is that of the message, if it was stored before.
pub(crate) async fn is_first_now(
    connection: &Connection<'_>,
    handler: &str,
    ordering_key: &str,
    mine: &[&str],
    seq: Option<i64>,
) -> Result<bool> {
    let mut pipeline = vec![
        doc! { "$match": { "_id": "sequence" } },
        doc! { "$project": {
            "handler": { "$literal": handler }, "orderingKey": { "$literal": ordering_key },
        } },
    ];
    pipeline.extend(with_key(&connection.database.message_collection(), mine));
    let found = connection.read_meta(pipeline).await?;
    Ok(found.first().is_some_and(|key| nobody_precedes(key, seq)))
}

/// `key` has been joined by [`with_key`], without the message in question.
fn nobody_precedes(key: &Document, seq: Option<i64>) -> bool {
    let leased = joined(key, "fronts").any(|front| is(front, State::Leased));
    let precedes = |other: &Document| seq.is_none_or(|seq| number(other, "seq") < Some(seq));
    !leased && !joined(key, "first").any(precedes)
}

/// Hands the message leased by `claim` back if it is not the first of its ordering key, which it has,
/// and answers whether it is.
pub(crate) async fn is_kept(
    connection: &mut Connection<'_>,
    id: &str,
    claim: ObjectId,
) -> Result<bool> {
    let join = with_keys(connection.database);
    let mut leased = look_at_keys(connection, those([id]), join).await?;
    keep_first_of(connection, &mut leased, claim).await?;
    Ok(!leased.is_empty())
}

/// Hands those of the messages `leased` by `claim` back that are not the first of their ordering keys, and
/// takes them out. They are read after they were leased, and joined by [`with_keys`] if one has a key.
pub(crate) async fn keep_first_of(
    connection: &mut Connection<'_>,
    leased: &mut Vec<Document>,
    claim: ObjectId,
) -> Result<()> {
    let lost = not_first(connection, leased, claim).await?;
    if !lost.is_empty() {
        let mark = ObjectId::new();
        let mut filter = those(lost.iter().map(String::as_str));
        filter.extend(doc! { "claim": claim, "state": code(State::Leased) });
        connection
            .update(vec![
                doc! { "q": filter, "u": hand_back(connection.database, mark), "multi": true },
            ])
            .await?;
        let ids: Vec<String> = lost.iter().cloned().collect();
        promote_key_heads(connection, &ids, &[mark]).await?;
        leased.retain(|message| id_of(message).is_none_or(|id| !lost.contains(id)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str, state: State) -> Document {
        doc! { "_id": id, "state": code(state) }
    }

    fn moves(first: Option<Document>, fronts: Vec<Document>) -> Moves {
        let first: Vec<Document> = first.into_iter().collect();
        let mut moves = Moves::default();
        moves.add(&doc! { "first": first, "fronts": fronts });
        moves
    }

    #[test]
    fn the_earliest_open_message_moves_to_the_front() {
        let pending = |id| entry(id, State::Pending);
        assert_eq!(moves(None, vec![]), Moves::default());
        assert_eq!(moves(Some(pending("a")), vec![]).promote, ["a"]);
        assert_eq!(
            moves(Some(pending("a")), vec![pending("a")]),
            Moves::default()
        );
        let replayed = moves(Some(pending("a")), vec![pending("b")]);
        assert_eq!(
            (replayed.promote, replayed.unclaim),
            (vec!["a".into()], vec!["b".into()])
        );
        assert_eq!(
            moves(Some(pending("a")), vec![entry("b", State::Leased)]),
            Moves::default()
        );
        let blocked = moves(Some(entry("a", State::Dead)), vec![pending("b")]);
        assert_eq!(
            (blocked.promote, blocked.unclaim),
            (vec![], vec!["b".into()])
        );
    }

    #[test]
    fn nothing_is_recorded_before_what_precedes_it() {
        let key =
            |first: Vec<Document>, fronts: Vec<Document>| doc! { "first": first, "fronts": fronts };
        let mut other = entry("a", State::Pending);
        other.insert("seq", 7_i64);
        let leased = entry("a", State::Leased);
        assert!(nobody_precedes(&key(vec![], vec![]), None));
        assert!(!nobody_precedes(&key(vec![other.clone()], vec![]), None));
        assert!(!nobody_precedes(&key(vec![other.clone()], vec![]), Some(8)));
        assert!(nobody_precedes(&key(vec![other.clone()], vec![]), Some(6)));
        assert!(!nobody_precedes(&key(vec![other], vec![leased]), Some(6)));
    }

    #[test]
    fn a_lease_is_kept_only_by_the_first() {
        let claim = ObjectId::new();
        let own = entry("b", State::Leased);
        let keep = |first: &Document, fronts: Vec<Document>| {
            let message = doc! { "_id": "b", "first": [first], "fronts": fronts };
            may_keep(&message, Some(claim))
        };
        let mut same_claim = entry("c", State::Leased);
        same_claim.insert("claim", claim);
        let another = entry("c", State::Leased);
        assert!(keep(&own, vec![own.clone()]));
        assert!(keep(&own, vec![own.clone(), same_claim]));
        assert!(!keep(&own, vec![own.clone(), another]));
        assert!(!keep(&entry("a", State::Pending), vec![own.clone()]));
    }
}
