//! Inboxes with names that nobody else takes in a MySQL database, for the demo. Each is dropped table by
//! table, for which the user needs the privilege DROP.

use inbox::{ErrorKind, InboxName, Schema as _, Store as _};
use inbox_mysql::{MySqlOptions, MySqlStore};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};

/// A name that no other run takes.
pub(crate) fn inbox_name(purpose: &str) -> inbox::Result<InboxName> {
    InboxName::new(format!("inbox_{purpose}_{:08x}", fastrand::u32(..)))
        .map_err(|invalid| invalid.in_operation("connect"))
}

/// Makes an inbox and drops it, so that what is missing for that is said before much is left behind.
pub(crate) async fn try_out(options: &MySqlOptions) -> inbox::Result<()> {
    let options = options.clone().inbox_name(inbox_name("trial")?);
    let store = MySqlStore::connect(options.clone()).await?;
    let created = store.create().await;
    store.close().await;
    let dropped = drop_all(&options, &[]).await;
    created?;
    dropped.map_err(|error| {
        let context = format!(
            "the tables of a trial, {}_…, cannot be dropped: the user needs the privilege DROP",
            options.name()
        );
        inbox::Error::new(ErrorKind::Denied, context)
            .in_operation("drop")
            .with_source(error)
    })
}

/// Drops an inbox, and tables next to it.
pub(crate) async fn drop_all(inbox: &MySqlOptions, companions: &[String]) -> sqlx::Result<()> {
    let connection = inbox.connection().clone().disable_statement_logging();
    let mut connection = connection.connect().await?;
    // Does not wait for ever for those that still use one.
    connection
        .execute("SET SESSION lock_wait_timeout = 5")
        .await?;
    for table in inbox.tables().iter().chain(companions) {
        let sql = AssertSqlSafe(format!("DROP TABLE IF EXISTS {table}"));
        connection.execute(sqlx::raw_sql(sql)).await?;
    }
    connection.close().await
}
