//! Pausing handlers: claims take nothing of those that have a row.

use inbox_api::{HandlerName, Result};
use sqlx::{Row as _, postgres::PgArguments};

use crate::{
    arguments::Arguments,
    connection::{Database, On},
    error::failed,
};

pub(super) async fn pause(database: &Database, handler: &HandlerName) -> Result<()> {
    let arguments = Arguments::new().with(handler.as_str()).finish()?;
    let text = &database.statements.pause;
    database.run(On::Pool, text, arguments).await.map(drop)
}

pub(super) async fn resume(database: &Database, handler: &HandlerName) -> Result<()> {
    let arguments = Arguments::new()
        .with(handler.as_str())
        .with(database.options.notifications)
        .finish()?;
    let text = &database.statements.resume;
    database.run(On::Pool, text, arguments).await.map(drop)
}

pub(super) async fn paused(database: &Database) -> Result<Vec<HandlerName>> {
    let text = &database.statements.paused;
    let answer = database.run(On::Pool, text, PgArguments::default()).await?;
    let mut paused = Vec::with_capacity(answer.len());
    for row in &answer {
        // A name that breaks the rules is no handler's.
        paused.extend(HandlerName::new(row.try_get::<&str, _>(0).map_err(failed)?));
    }
    Ok(paused)
}
