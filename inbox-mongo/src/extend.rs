//! Extending leases.

use std::{sync::Arc, time::Duration};

use inbox_api::{Extended, Lease, LeaseTerms, Result, duration_micros, from_micros};
use mongodb::bson::Document;

use crate::{
    connection::{Connection, Database},
    locked_messages, pipelines,
    rows::{identifier, number},
    schema::version::checked_task,
    settle::{Groups, Standing, is_leased},
};

pub(crate) async fn extend(
    database: &Arc<Database>,
    leases: &[Lease],
    length: Duration,
) -> Result<Vec<Extended>> {
    database.check_open()?;
    LeaseTerms::check_length(length)?;
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let leases = leases.to_vec();
    checked_task(database, move |database| async move {
        extend_on(&mut database.connection(), &leases, length).await
    })
    .await
}

/// Two requests; none for leases that are not to be renewed now.
pub(crate) async fn extend_on(
    connection: &mut Connection<'_>,
    leases: &[Lease],
    length: Duration,
) -> Result<Vec<Extended>> {
    let paused: Vec<Option<i64>> = leases
        .iter()
        .map(|lease| connection.database.paused_renewals.until(lease, length))
        .collect();
    let asked: Vec<Lease> = leases
        .iter()
        .zip(&paused)
        .filter(|(_, paused)| paused.is_none())
        .map(|(lease, _)| lease.clone())
        .collect();
    let pipeline = pipelines::extend(connection.database, length);
    let mut extended = renew(connection, &asked, pipeline).await?.into_iter();
    let until = |paused: Option<i64>| paused.or_else(|| extended.next().flatten());
    Ok(paused
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
    connection: &mut Connection<'_>,
    leases: &[Lease],
    length: Duration,
) -> Result<Vec<Option<i64>>> {
    let renewing = Renewing::new(leases);
    let pipeline = pipelines::prolong(connection.database, length);
    let matched = renewing.write(connection, &pipeline).await?;
    match connection.database.opened.time() {
        Some(now) if matched == Some(leases.len() as u64) => {
            let now = now.saturating_add(connection.database.ahead());
            let until = now.saturating_add(duration_micros(length));
            Ok(vec![Some(until); leases.len()])
        }
        _ => renewing.look(connection).await,
    }
}

/// Two requests. A message that an open transaction holds keeps the lease that it has. Answers until when
/// each lasts that still stands.
pub(crate) async fn renew(
    connection: &mut Connection<'_>,
    leases: &[Lease],
    pipeline: Vec<Document>,
) -> Result<Vec<Option<i64>>> {
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let renewing = Renewing::new(leases);
    renewing.write(connection, &pipeline).await?;
    renewing.look(connection).await
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
    async fn write(
        &self,
        connection: &mut Connection<'_>,
        pipeline: &[Document],
    ) -> Result<Option<u64>> {
        let statements = self.groups.statements(|()| pipeline.to_vec());
        let patience = connection.database.pace.patience(self.ids.len());
        let written = connection.update_unless_held(statements, patience).await?;
        if written.is_none() {
            for group in &self.groups.groups {
                let part = |ids: &[String]| group.statement(ids, pipeline.to_vec());
                locked_messages::update_parts(connection, &group.ids, usize::MAX, part).await?;
            }
        }
        Ok(written.filter(|_| connection.database.server.counts_updates()))
    }

    /// Until when each lasts that still stands.
    async fn look(&self, connection: &mut Connection<'_>) -> Result<Vec<Option<i64>>> {
        let ids = self.ids.iter().map(String::as_str).collect();
        let standing = Standing::look(connection, &ids).await?;
        let until = |(lease, id): (&Lease, &String)| {
            let found = standing
                .of(id, lease.token.get())
                .filter(|found| is_leased(found))?;
            number(found, "visibleAt")
        };
        Ok(self.leases.iter().zip(&self.ids).map(until).collect())
    }
}
