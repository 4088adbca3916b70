//! Settling and extending leases.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use inbox_api::{
    Extended, HandlerName, Lease, Outcome, Result, Settled, Settlement, State, check_size,
    duration_micros, from_micros,
};
use mongodb::bson::{Document, doc, oid::ObjectId};

use crate::{
    database::{On, number},
    held,
    ordering::rehead,
    rows::{id_of, identifier, is_ordered, seq_of, those},
    stages::{self, Keeping, code},
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

impl Outcomes {
    /// Lets the next messages of the ordering keys through.
    pub(crate) async fn rehead(&self, on: &mut On<'_>) -> Result<()> {
        if self.ordered.is_empty() {
            return Ok(());
        }
        rehead(on, &self.ordered, &[self.mark]).await
    }
}

/// Leases that end, or go on, in the same way: one statement. Leases of one claim mostly have one
/// token, so that a whole batch is often a statement or two.
struct Group<'a, T> {
    handler: &'a HandlerName,
    token: i64,
    what: T,
    ids: Vec<String>,
}

impl<T> Group<'_, T> {
    fn statement(&self, ids: &[String], pipeline: Vec<Document>) -> Document {
        let mut filter = those(ids.iter().map(String::as_str));
        filter.extend(doc! {
            "handler": self.handler.as_str(),
            "token": self.token,
            "state": code(State::Leased),
        });
        doc! { "q": filter, "u": pipeline, "multi": true }
    }
}

struct Groups<'a, T> {
    groups: Vec<Group<'a, T>>,
    places: HashMap<(&'a HandlerName, i64), Vec<usize>>,
}

impl<'a, T: PartialEq> Groups<'a, T> {
    fn new() -> Self {
        Self {
            groups: Vec::new(),
            places: HashMap::new(),
        }
    }

    fn add(&mut self, lease: &'a Lease, id: String, what: T) {
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

    fn statements(&self, pipeline: impl Fn(&T) -> Vec<Document>) -> Vec<Document> {
        self.groups
            .iter()
            .map(|group| group.statement(&group.ids, pipeline(&group.what)))
            .collect()
    }
}

/// How messages stand.
struct Standing(HashMap<String, Document>);

impl Standing {
    async fn look(on: &mut On<'_>, ids: &HashSet<&str>) -> Result<Self> {
        let found = on
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

    /// Whether the settlement `mark` was the last of the message.
    fn is_settled_by(&self, id: &str, mark: ObjectId) -> bool {
        let document = self.0.get(id);
        document.is_some_and(|document| document.get_object_id("settledBy").ok() == Some(mark))
    }

    /// The message, if `token` is its newest.
    fn of(&self, id: &str, token: i64) -> Option<&Document> {
        let document = self.0.get(id)?;
        (number(document, "token") == Some(token)).then_some(document)
    }
}

fn is_leased(document: &Document) -> bool {
    number(document, "state") == Some(i64::from(code(State::Leased)))
}

/// One request if every lease still stands, two otherwise and on a sharded cluster.
pub(crate) async fn settle(
    on: &mut On<'_>,
    settlements: &[Settlement],
    payload_limit: usize,
    keeping: Keeping,
    repetition: Repetition,
) -> Result<Outcomes> {
    let ids: Vec<String> = settlements
        .iter()
        .map(|settlement| identifier(&settlement.lease.key))
        .collect();
    let mark = ObjectId::new();
    let mut answers = Vec::with_capacity(settlements.len());
    let mut first = HashSet::new();
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
    let counts = repetition == Repetition::Lost || on.database.server.counts_updates();
    let signed = on.database.server.replicates();
    let database = on.database;
    let pipeline = |outcome: &&Outcome| {
        let mut pipeline = stages::settle(database, outcome, keeping, mark);
        if signed {
            pipeline.push(doc! { "$set": { "settledBy": mark } });
        }
        pipeline
    };
    let leases = settlements.iter().map(|settlement| &settlement.lease);
    on.open_now(leases.map(|lease| seq_of(lease.locator)))
        .await?;
    let patience = on.database.pace.patience(known.len());
    let statements = groups.statements(pipeline);
    let standing = match on.update_unless_held(statements, patience).await? {
        Some(matched) if counts && matched == first.len() as u64 => None,
        Some(_) => Some(Standing::look(on, &known).await?),
        None => Some(others_first(on, &groups, pipeline, &known).await?),
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
        let by_this = |standing: &Standing| signed && standing.is_settled_by(id, mark);
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
    on: &mut On<'_>,
    groups: &Groups<'_, T>,
    pipeline: impl Fn(&T) -> Vec<Document> + Sync,
    known: &HashSet<&str>,
) -> Result<Standing> {
    let mut held = Vec::new();
    let mut waiting = Vec::new();
    for group in &groups.groups {
        let part = |ids: &[String]| group.statement(ids, pipeline(&group.what));
        let of_group = held::update_parts(on, &group.ids, usize::MAX, part).await?;
        if !of_group.is_empty() {
            waiting.push(group.statement(&of_group, pipeline(&group.what)));
            held.extend(of_group);
        }
    }
    let mut standing = Standing::look(on, known).await?;
    if !held.is_empty() {
        on.update(waiting).await?;
        let held = held.iter().map(String::as_str).collect();
        standing.0.extend(Standing::look(on, &held).await?.0);
    }
    Ok(standing)
}

/// Two requests; none for leases whose renewal rests.
pub(crate) async fn extend(
    on: &mut On<'_>,
    leases: &[Lease],
    length: Duration,
) -> Result<Vec<Extended>> {
    let resting: Vec<Option<i64>> = leases
        .iter()
        .map(|lease| on.database.resting.until(lease, length))
        .collect();
    let asked: Vec<Lease> = leases
        .iter()
        .zip(&resting)
        .filter(|(_, resting)| resting.is_none())
        .map(|(lease, _)| lease.clone())
        .collect();
    let pipeline = stages::extend(on.database, length);
    let mut extended = renew(on, &asked, pipeline).await?.into_iter();
    let until = |resting: Option<i64>| resting.or_else(|| extended.next().flatten());
    Ok(resting
        .into_iter()
        .map(until)
        .map(|until| {
            until.map_or(Extended::LeaseLost, |until| {
                Extended::Until(from_micros(until))
            })
        })
        .collect())
}

/// Makes leases last for `length` from now at least. Answers until when, for those that still stand:
/// one request if all do.
pub(crate) async fn prolong(
    on: &mut On<'_>,
    leases: &[Lease],
    length: Duration,
) -> Result<Vec<Option<i64>>> {
    let renewing = Renewing::new(leases);
    let pipeline = stages::prolong(on.database, length);
    let matched = renewing.write(on, &pipeline).await?;
    match on.database.opened.time() {
        Some(now) if matched == Some(leases.len() as u64) => {
            let now = now.saturating_add(on.database.ahead());
            let until = now.saturating_add(duration_micros(length));
            Ok(vec![Some(until); leases.len()])
        }
        _ => renewing.look(on).await,
    }
}

/// Two requests. A message that an open transaction holds keeps the lease that it has.
async fn renew(
    on: &mut On<'_>,
    leases: &[Lease],
    pipeline: Vec<Document>,
) -> Result<Vec<Option<i64>>> {
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let renewing = Renewing::new(leases);
    renewing.write(on, &pipeline).await?;
    renewing.look(on).await
}

/// Leases whose end is to be moved.
struct Renewing<'a> {
    leases: &'a [Lease],
    ids: Vec<String>,
    groups: Groups<'a, ()>,
}

impl<'a> Renewing<'a> {
    fn new(leases: &'a [Lease]) -> Self {
        let ids: Vec<String> = leases.iter().map(|lease| identifier(&lease.key)).collect();
        let mut groups = Groups::new();
        for (lease, id) in leases.iter().zip(&ids) {
            groups.add(lease, id.clone(), ());
        }
        Self {
            leases,
            ids,
            groups,
        }
    }

    /// Answers how many stand, unless an open transaction holds some.
    async fn write(&self, on: &mut On<'_>, pipeline: &[Document]) -> Result<Option<u64>> {
        let statements = self.groups.statements(|()| pipeline.to_vec());
        let patience = on.database.pace.patience(self.ids.len());
        let written = on.update_unless_held(statements, patience).await?;
        if written.is_none() {
            for group in &self.groups.groups {
                let part = |ids: &[String]| group.statement(ids, pipeline.to_vec());
                held::update_parts(on, &group.ids, usize::MAX, part).await?;
            }
        }
        Ok(written.filter(|_| on.database.server.counts_updates()))
    }

    /// Until when each lasts that still stands.
    async fn look(&self, on: &mut On<'_>) -> Result<Vec<Option<i64>>> {
        let ids = self.ids.iter().map(String::as_str).collect();
        let standing = Standing::look(on, &ids).await?;
        let until = |(lease, id): (&Lease, &String)| {
            let found = standing
                .of(id, lease.token.get())
                .filter(|found| is_leased(found))?;
            number(found, "visibleAt")
        };
        Ok(self.leases.iter().zip(&self.ids).map(until).collect())
    }
}
