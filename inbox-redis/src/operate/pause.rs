//! Pausing handlers: noted in the marker of every shard, where claims look.

use inbox_api::{HandlerName, Result};

use crate::{
    connection::Connection,
    reply,
    scripts::{PAUSE, PAUSED},
};

/// Notes in all shards whether the handler is paused.
pub(super) async fn set_paused(
    connection: &Connection,
    handler: &HandlerName,
    is_paused: bool,
) -> Result<()> {
    let calls = connection.layout().all().map(|shard| {
        let mut call = connection.call(&PAUSE, shard, []);
        call.arg(handler.as_str()).arg(u8::from(is_paused));
        call
    });
    connection.run_all_confirmed(calls.collect()).await?;
    Ok(())
}

/// The handlers that are paused in any shard: after a call that failed, not in all.
pub(super) async fn paused(connection: &Connection) -> Result<Vec<HandlerName>> {
    let calls = connection.layout().all();
    let calls = calls.map(|shard| connection.call(&PAUSED, shard, []));
    let mut handlers = Vec::new();
    for answer in connection.run_all(calls.collect()).await? {
        for name in reply::list(answer)? {
            let name = reply::text(&name)?.unwrap_or_default();
            handlers.extend(HandlerName::new(name).ok());
        }
    }
    handlers.sort();
    handlers.dedup();
    Ok(handlers)
}
