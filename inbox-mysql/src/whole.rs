//! Whether the tables belong together. They do not after a load of some of them only, or from dumps
//! of different times; then messages would be lost, taken twice or never ended, so nothing is
//! answered.

use inbox_api::{Error, ErrorKind, Result};
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _, mysql::MySqlRow};

use crate::{error::without_effect, options::MySqlOptions, schema, statements::Names};

/// The highest number that stands in another table than the messages'.
const LAST: &str = "SELECT GREATEST(
    COALESCE((SELECT MAX(seq) FROM {work}), 0), COALESCE((SELECT MAX(seq) FROM {dead}), 0),
    COALESCE((SELECT MAX(seq) FROM {done}), 0)
)";

/// The number that the next message gets, as it is now: MySQL shows for a day what it has shown once,
/// unless told not to.
const NEXT: &str = "SET @inbox_none = 0 /*!80000 ,
    @inbox_expiry = @@SESSION.information_schema_stats_expiry,
    SESSION information_schema_stats_expiry = 0 */;
SELECT CAST(COALESCE(MAX(auto_increment), 1) AS SIGNED) FROM information_schema.tables
WHERE {within} AND table_name = {name};
SET @inbox_none = 0 /*!80000 , SESSION information_schema_stats_expiry = @inbox_expiry */";

async fn rows(connection: &mut MySqlConnection, sql: String) -> sqlx::Result<Vec<MySqlRow>> {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .fetch_all(connection)
        .await
}

async fn number(connection: &mut MySqlConnection, sql: String) -> sqlx::Result<i64> {
    let rows = rows(connection, sql).await?;
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    row.try_get_unchecked(0)
}

async fn finding(
    connection: &mut MySqlConnection,
    options: &MySqlOptions,
) -> sqlx::Result<Option<String>> {
    let names = Names::new(options);
    for sql in names.statements(include_str!("sql/whole.sql")) {
        if let Some(row) = rows(connection, sql).await?.first() {
            let finding: &[u8] = row.try_get_unchecked(0)?;
            return Ok(Some(String::from_utf8_lossy(finding).into_owned()));
        }
    }
    // In this order: a message that is stored in between has a number that is drawn already.
    let last = number(connection, names.expand(LAST)).await?;
    let next = NEXT
        .replace("{within}", &schema::in_database(options))
        .replace("{name}", &format!("'{}_message'", options.inbox));
    let next = number(connection, next).await?;
    Ok((last >= next).then(|| {
        format!("a new message would get the number {next}, and {last} is in use already")
    }))
}

/// Fails if the tables do not belong together.
pub(crate) async fn check(
    operation: &'static str,
    connection: &mut MySqlConnection,
    options: &MySqlOptions,
) -> Result<()> {
    let inbox = &options.inbox;
    match finding(connection, options)
        .await
        .map_err(without_effect(operation))?
    {
        None => Ok(()),
        Some(finding) => Err(Error::new(
            ErrorKind::Corrupt,
            operation,
            format!(
                "the tables {inbox}_… are not of one moment, as after loading a part of a dump: \
                 {finding}; load all of them from one dump"
            ),
        )),
    }
}
