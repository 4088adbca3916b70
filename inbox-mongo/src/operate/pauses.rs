//! Pausing handlers.

use inbox_api::{HandlerName, Result, State};
use mongodb::bson::{Document, doc};

use crate::{
    connection::Connection,
    layout::{CLAIM_INDEX, PAUSED},
    rows::{CLAIMABLE, code, id_of, those},
};

pub(super) async fn pause(connection: &Connection<'_>, handler: &HandlerName) -> Result<()> {
    let named = doc! { "$addToSet": { "handlers": handler.as_str() } };
    change(connection, named).await
}

pub(super) async fn resume(connection: &mut Connection<'_>, handler: &HandlerName) -> Result<()> {
    let unnamed = doc! { "$pull": { "handlers": handler.as_str() } };
    change(connection, unnamed).await?;
    if connection.database.server.replicates() {
        touch_first(connection, handler).await?;
    }
    Ok(())
}

async fn change(connection: &Connection<'_>, change: Document) -> Result<()> {
    let statement = doc! { "q": { "_id": PAUSED }, "u": change };
    if connection.update_meta(vec![statement]).await? == 0 {
        return Err(connection.no_inbox());
    }
    Ok(())
}

/// Changes the message that is to be claimed next: other processes are woken by changes of messages.
async fn touch_first(connection: &mut Connection<'_>, handler: &HandlerName) -> Result<()> {
    let first = connection
        .aggregate(
            Some(CLAIM_INDEX),
            vec![
                doc! { "$match": { "handler": handler.as_str(), "lane": { "$gt": 0 } } },
                doc! { "$sort": { "visibleAt": 1, "seq": 1 } },
                doc! { "$match": { "lane": CLAIMABLE, "state": code(State::Pending) } },
                doc! { "$limit": 1 },
                doc! { "$project": { "_id": 1 } },
            ],
        )
        .await?;
    let Some(id) = first.first().and_then(id_of) else {
        return Ok(());
    };
    let mut filter = those([id]);
    filter.insert("state", code(State::Pending));
    let touched = doc! { "$inc": { "touched": 1_i64 } };
    let statement = doc! { "q": filter, "u": touched, "multi": false };
    let patience = connection.database.pace.patience(1);
    // One that an open transaction holds wakes when that ends.
    let _ = connection
        .update_unless_held(vec![statement], patience)
        .await?;
    Ok(())
}

/// The handlers that are paused, in order of name.
pub(super) async fn paused(connection: &Connection<'_>) -> Result<Vec<HandlerName>> {
    let found = connection
        .read_meta([doc! { "$match": { "_id": PAUSED } }])
        .await?;
    let found = found.first().ok_or_else(|| connection.no_inbox())?;
    let names = found.get_array("handlers").into_iter().flatten();
    let mut paused: Vec<HandlerName> = names
        .filter_map(|name| HandlerName::new(name.as_str()?).ok())
        .collect();
    paused.sort_unstable();
    Ok(paused)
}
