//! Inboxes of our own in a MySQL database, for commands that must not touch what is there. Each
//! has its own name, and is dropped table by table, for which the user needs the privilege DROP.

use inbox::{ErrorKind, InboxName, Schema as _, Store as _};
use inbox_mysql::{MySqlOptions, MySqlStore};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};

/// A name that no other run takes.
pub(crate) fn inbox_name(purpose: &str) -> inbox::Result<InboxName> {
    InboxName::new(format!("inbox_{purpose}_{:08x}", fastrand::u32(..)))
        .map_err(|invalid| invalid.in_operation("connect"))
}

/// The name of a table next to the inbox's own, quoted and with its database.
pub(crate) fn companion(options: &MySqlOptions, table: &str) -> Option<String> {
    let own = of(options).into_iter().next()?;
    let (prefix, _) = own.rsplit_once('_')?;
    Some(format!("{prefix}_{table}`"))
}

/// The tables of an inbox, as the statements that make them name them.
fn of(options: &MySqlOptions) -> Vec<String> {
    options
        .ddl()
        .split("CREATE TABLE IF NOT EXISTS ")
        .skip(1)
        .filter_map(|table| table.split(" (").next())
        .map(str::to_owned)
        .collect()
}

/// Makes an inbox and drops it, so that what is missing for that is said before much is left behind.
pub(crate) async fn try_out(options: &MySqlOptions) -> inbox::Result<()> {
    let options = options.clone().inbox_name(inbox_name("trial")?);
    let store = MySqlStore::connect(options.clone()).await?;
    let created = store.create().await;
    store.close().await;
    let dropped = drop_all(std::slice::from_ref(&options), &[]).await;
    created?;
    dropped.map_err(|error| {
        let context = format!(
            "the tables of a trial, {}_…, cannot be dropped: the user needs the privilege DROP",
            options.name()
        );
        inbox::Error::new(ErrorKind::Denied, "drop", context).with_source(error)
    })
}

/// Drops inboxes of one database, and the tables next to them.
pub(crate) async fn drop_all(inboxes: &[MySqlOptions], companions: &[String]) -> sqlx::Result<()> {
    let Some(first) = inboxes.first() else {
        return Ok(());
    };
    let connection = first.connection().clone().disable_statement_logging();
    let mut connection = connection.connect().await?;
    // Does not wait for ever for those that still use one.
    connection
        .execute("SET SESSION lock_wait_timeout = 5")
        .await?;
    for table in inboxes
        .iter()
        .flat_map(of)
        .chain(companions.iter().cloned())
    {
        let sql = AssertSqlSafe(format!("DROP TABLE IF EXISTS {table}"));
        connection.execute(sqlx::raw_sql(sql)).await?;
    }
    connection.close().await
}
