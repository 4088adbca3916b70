//! Pausing handlers: a row for each that is paused.

use inbox_api::{ErrorKind, HandlerName};
use redb::{ReadTransaction, ReadableTable as _};

use crate::{error::Failure, tables::PAUSED, transaction::Transaction};

pub(crate) fn pause(
    transaction: &mut Transaction<'_>,
    handler: &HandlerName,
) -> Result<(), Failure> {
    transaction.tables.paused.insert(handler.as_str(), ())?;
    transaction.is_changed = true;
    Ok(())
}

pub(crate) fn resume(
    transaction: &mut Transaction<'_>,
    handler: &HandlerName,
) -> Result<(), Failure> {
    transaction.tables.paused.remove(handler.as_str())?;
    transaction.is_changed = true;
    transaction.has_news = true;
    Ok(())
}

pub(crate) fn paused(transaction: &ReadTransaction) -> Result<Vec<HandlerName>, Failure> {
    let mut handlers = Vec::new();
    for entry in transaction.open_table(PAUSED)?.iter()? {
        let (name, _) = entry?;
        let handler = HandlerName::new(name.value()).map_err(|invalid| {
            Failure::Found(ErrorKind::Corrupt, format!("a paused handler: {invalid}"))
        })?;
        handlers.push(handler);
    }
    Ok(handlers)
}
