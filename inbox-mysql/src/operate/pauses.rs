//! Pausing handlers: claims look for them in the statement that selects.

use inbox_api::{HandlerName, Result};
use sqlx::Row as _;

use crate::{
    connection::Connection, error::failed, multi_statement::Access, statement::Statement,
    statement::Template,
};

pub(super) async fn pause(connection: Connection<'_>, handler: &HandlerName) -> Result<()> {
    change(connection, &connection.context.sql.pause, handler).await
}

pub(super) async fn resume(connection: Connection<'_>, handler: &HandlerName) -> Result<()> {
    change(connection, &connection.context.sql.resume, handler).await?;
    connection.inner.wake();
    Ok(())
}

async fn change(
    connection: Connection<'_>,
    file: &[Template],
    handler: &HandlerName,
) -> Result<()> {
    let handler = Statement::of_bytes(handler.as_str().as_bytes());
    let mut script = connection.script(Access::Write);
    script.fill(file, &[("handler", handler)]);
    connection.run(Access::Write, script).await.map(drop)
}

pub(super) async fn paused(connection: Connection<'_>) -> Result<Vec<HandlerName>> {
    let mut script = connection.script(Access::Read);
    let at = script.all(&connection.context.sql.paused_list);
    let answers = connection.run(Access::Read, script).await?;
    let mut handlers = Vec::new();
    for row in answers.rows(at) {
        let name: &[u8] = row.try_get_unchecked(0).map_err(failed)?;
        // Only what this wrote can be resumed.
        let name = std::str::from_utf8(name).ok();
        handlers.extend(name.and_then(|name| HandlerName::new(name).ok()));
    }
    Ok(handlers)
}
