//! Pausing handlers.

use inbox_api::{HandlerName, Result};

use crate::{connection::Database, error::failed, rows::corrupt_name};

pub(crate) async fn pause(database: &Database, handler: &HandlerName) -> Result<()> {
    database
        .run(|until| async move {
            let mut connection = database.writer(until).await?;
            sqlx::query(database.statements.pause.clone())
                .bind(handler.as_str())
                .execute(&mut *connection)
                .await
                .map_err(failed)?;
            Ok(())
        })
        .await
}

pub(crate) async fn resume(database: &Database, handler: &HandlerName) -> Result<()> {
    database
        .run(|until| async move {
            let mut connection = database.writer(until).await?;
            sqlx::query(database.statements.resume.clone())
                .bind(handler.as_str())
                .execute(&mut *connection)
                .await
                .map_err(failed)?;
            Ok(())
        })
        .await?;
    database.signal.raise();
    Ok(())
}

pub(crate) async fn paused(database: &Database) -> Result<Vec<HandlerName>> {
    let attempt = |until| async move {
        let mut connection = database.reader(until).await?;
        let names: Vec<String> = sqlx::query_scalar(database.statements.paused.clone())
            .fetch_all(&mut *connection)
            .await
            .map_err(failed)?;
        let handler = |name| HandlerName::new(name).map_err(corrupt_name);
        names.into_iter().map(handler).collect()
    };
    database.run(attempt).await
}
