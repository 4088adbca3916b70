//! Settling leases.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use inbox_api::{HandlerName, Lease, Outcome, Result, Settled, Settlement, State, check_size};
use mongodb::bson::{Document, doc, oid::ObjectId};

use crate::{
    connection::{Connection, Database},
    locked_messages,
    ordering::promote_key_heads,
    pipelines::{self, Keeping},
    rows::{code, id_of, identifier, is_ordered, number, seq_of, those},
    schema::version::checked_task,
};

/// What is answered for a lease that was settled before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repetition {
    Done,
    /// In a transaction: its writes would be done twice.
    Lost,
}

/// The answers, and what is left to do for ordering keys.
pub(crate) struct Outcomes {
    pub(crate) answers: Vec<Settled>,
    pub(crate) ordered: Vec<String>,
    pub(crate) mark: ObjectId,
}

/// Leases that end, or go on, in the same way: one statement. Leases of one claim mostly have one
/// token, so that a whole batch is often a statement or two.
pub(crate) struct Group<'a, T> {
    handler: &'a HandlerName,
    token: i64,
    what: T,
    pub(crate) ids: Vec<String>,
}

impl<T> Group<'_, T> {
    pub(crate) fn statement(&self, ids: &[String], pipeline: Vec<Document>) -> Document {
        let mut filter = those(ids.iter().map(String::as_str));
        filter.extend(doc! {
            "handler": self.handler.as_str(),
            "token": self.token,
            "state": code(State::Leased),
        });
        doc! { "q": filter, "u": pipeline, "multi": true }
    }
}

pub(crate) struct Groups<'a, T> {
    pub(crate) groups: Vec<Group<'a, T>>,
    places: HashMap<(&'a HandlerName, i64), Vec<usize>>,
}

impl<'a, T: PartialEq> Groups<'a, T> {
    pub(crate) fn new() -> Self {
        Self {
            groups: Vec::new(),
            places: HashMap::new(),
        }
    }

    pub(crate) fn add(&mut self, lease: &'a Lease, id: String, what: T) {
        let (handler, token) = (&lease.key.handler, lease.token.get());
        let places = self.places.entry((handler, token)).or_default();
        for place in places.iter() {
            if let Some(group) = self.groups.get_mut(*place)
                && group.what == what
            {
                group.ids.push(id);
                return;
            }
        }
        places.push(self.groups.len());
        self.groups.push(Group {
            handler,
            token,
            what,
            ids: vec![id],
        });
    }

    pub(crate) fn statements(&self, pipeline: impl Fn(&T) -> Vec<Document>) -> Vec<Document> {
        self.groups
            .iter()
            .map(|group| group.statement(&group.ids, pipeline(&group.what)))
            .collect()
    }
}

/// How messages stand.
pub(crate) struct Standing(HashMap<String, Document>);

impl Standing {
    pub(crate) async fn look(connection: &mut Connection<'_>, ids: &HashSet<&str>) -> Result<Self> {
        let found = connection
            .look(vec![
                doc! { "$match": those(ids.iter().copied()) },
                doc! { "$project": { "token": 1, "state": 1, "visibleAt": 1, "settledBy": 1 } },
            ])
            .await?;
        Ok(Self(
            found
                .into_iter()
                .filter_map(|document| Some((id_of(&document)?.to_owned(), document)))
                .collect(),
        ))
    }

    /// Whether the settlement `mark` was one of the newest of the message.
    fn is_settled_by(&self, id: &str, mark: ObjectId) -> bool {
        self.0.get(id).is_some_and(|found| is_signed(found, mark))
    }

    /// The message, if `token` is its newest.
    pub(crate) fn of(&self, id: &str, token: i64) -> Option<&Document> {
        let document = self.0.get(id)?;
        (number(document, "token") == Some(token)).then_some(document)
    }
}

fn is_signed(document: &Document, mark: ObjectId) -> bool {
    let signed = document.get_array("settledBy");
    signed.is_ok_and(|marks| marks.contains(&mark.into()))
}

pub(crate) fn is_leased(document: &Document) -> bool {
    number(document, "state") == Some(i64::from(code(State::Leased)))
}

pub(crate) async fn settle(
    database: &Arc<Database>,
    settlements: &[Settlement],
) -> Result<Vec<Settled>> {
    database.check_open()?;
    if settlements.is_empty() {
        return Ok(Vec::new());
    }
    let settlements = settlements.to_vec();
    checked_task(database, |database| async move {
        settle_now(&database, &settlements).await
    })
    .await
}

/// Ends leases outside of a transaction, and lets the next of their ordering keys through.
pub(crate) async fn settle_now(
    database: &Database,
    settlements: &[Settlement],
) -> Result<Vec<Settled>> {
    let mut connection = database.connection();
    let settled = settle_on(&mut connection, settlements, Repetition::Done).await?;
    if !settled.ordered.is_empty() {
        promote_key_heads(&mut connection, &settled.ordered, &[settled.mark]).await?;
    }
    database.wakers.raise();
    Ok(settled.answers)
}

/// One request if every lease still stands, two otherwise and on a sharded cluster.
pub(crate) async fn settle_on(
    connection: &mut Connection<'_>,
    settlements: &[Settlement],
    repetition: Repetition,
) -> Result<Outcomes> {
    let payload_limit = connection.database.options.payload_limit;
    let keeping = Keeping::of(&connection.database.options);
    let ids: Vec<String> = settlements
        .iter()
        .map(|settlement| identifier(&settlement.lease.key))
        .collect();
    let mark = ObjectId::new();
    let mut answers = Vec::with_capacity(settlements.len());
    let mut first = HashSet::new();
    // Of several leases of one message only the newest can stand.
    let mut newest: HashMap<&str, i64> = HashMap::new();
    let mut repeated = vec![false; settlements.len()];
    let mut groups = Groups::new();
    for ((settlement, id), repeated) in settlements.iter().zip(&ids).zip(&mut repeated) {
        let Settlement { lease, outcome } = settlement;
        let size = match outcome {
            Outcome::Processed {
                result: Some(result),
            } => result.len(),
            _ => 0,
        };
        if let Err(invalid) = check_size("result", size, payload_limit) {
            answers.push(Settled::Refused(invalid));
            continue;
        }
        answers.push(Settled::Done);
        let token = lease.token.get();
        let known = newest.entry(id).or_insert(token);
        *known = token.max(*known);
        if first.insert((id.as_str(), lease.token.get())) {
            groups.add(lease, id.clone(), outcome);
        } else {
            *repeated = true;
        }
    }
    let ordered = |answers: &[Settled]| {
        let done = settlements.iter().zip(&ids).zip(answers);
        done.filter(|((settlement, _), answer)| {
            **answer == Settled::Done && is_ordered(settlement.lease.locator)
        })
        .map(|((_, id), _)| id.clone())
        .collect()
    };
    if first.is_empty() {
        return Ok(Outcomes {
            answers,
            ordered: Vec::new(),
            mark,
        });
    }
    let known: HashSet<&str> = first.iter().map(|(id, _)| *id).collect();
    // Where the count cannot be relied on, others may claim a message before the look at it. In a
    // transaction, it is to be told from what another one has settled.
    let counts = repetition == Repetition::Lost || connection.database.server.counts_updates();
    let database = connection.database;
    let pipeline = |outcome: &&Outcome| pipelines::settle(database, outcome, keeping, mark);
    let leases = settlements.iter().map(|settlement| &settlement.lease);
    connection
        .open_now(leases.map(|lease| seq_of(lease.locator)))
        .await?;
    let patience = connection.database.pace.patience(known.len());
    let statements = groups.statements(pipeline);
    let standing = match connection.update_unless_held(statements, patience).await? {
        Some(matched) if counts && matched == first.len() as u64 => None,
        Some(_) => Some(Standing::look(connection, &known).await?),
        None => Some(others_first(connection, &groups, pipeline, &known, mark).await?),
    };
    for (((settlement, id), answer), repeated) in settlements
        .iter()
        .zip(&ids)
        .zip(&mut answers)
        .zip(&repeated)
    {
        if *answer != Settled::Done {
            continue;
        }
        let is_newest = newest.get(id.as_str()) == Some(&settlement.lease.token.get());
        let by_this = |standing: &Standing| is_newest && standing.is_settled_by(id, mark);
        // Settled by this, or before.
        let is_over = |standing: &Standing| {
            let found = standing.of(id, settlement.lease.token.get());
            found.is_some_and(|found| !is_leased(found))
        };
        let lost = match repetition {
            Repetition::Done => {
                let done = |standing: &Standing| by_this(standing) || is_over(standing);
                !standing.as_ref().is_none_or(done)
            }
            Repetition::Lost => *repeated || !standing.as_ref().is_none_or(by_this),
        };
        if lost {
            *answer = Settled::LeaseLost;
        }
    }
    Ok(Outcomes {
        ordered: ordered(&answers),
        answers,
        mark,
    })
}

/// Ends the leases of messages that no open transaction holds, and then the others, which takes as
/// long as those transactions. Answers how the messages stood right after.
async fn others_first<T: Sync>(
    connection: &mut Connection<'_>,
    groups: &Groups<'_, T>,
    pipeline: impl Fn(&T) -> Vec<Document> + Sync,
    known: &HashSet<&str>,
    mark: ObjectId,
) -> Result<Standing> {
    // What is settled already may soon be another's. It has waited for no majority yet.
    connection.confirm().await?;
    let mut done = Standing::look(connection, known).await?;
    done.0.retain(|_, found| is_signed(found, mark));
    let mut held = Vec::new();
    let mut waiting = Vec::new();
    for group in &groups.groups {
        let part = |ids: &[String]| group.statement(ids, pipeline(&group.what));
        let of_group =
            locked_messages::update_parts(connection, &group.ids, usize::MAX, part).await?;
        if !of_group.is_empty() {
            waiting.push(group.statement(&of_group, pipeline(&group.what)));
            held.extend(of_group);
        }
    }
    let mut standing = Standing::look(connection, known).await?;
    if !held.is_empty() {
        connection.update(waiting).await?;
        let held = held.iter().map(String::as_str).collect();
        standing
            .0
            .extend(Standing::look(connection, &held).await?.0);
    }
    standing.0.extend(done.0);
    Ok(standing)
}
