//! Whether the tables belong together. They do not after a load of some of them only, or from dumps
//! of different times; then messages would be lost, taken twice or never ended, so nothing is
//! answered.

use inbox_api::{Error, ErrorKind, Result};
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _, mysql::MySqlRow};

use crate::{
    error::before,
    options::MySqlOptions,
    statement::Statement,
    statements::{Names, in_database},
};

async fn rows(connection: &mut MySqlConnection, sql: String) -> sqlx::Result<Vec<MySqlRow>> {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .fetch_all(connection)
        .await
}

async fn find_contradiction(
    connection: &mut MySqlConnection,
    options: &MySqlOptions,
) -> sqlx::Result<Option<String>> {
    let names = Names::new(options);
    for sql in names.file(include_str!("sql/schema_consistency.sql")) {
        let sql = sql.fill(&[]).into_text();
        if let Some(row) = rows(connection, sql).await?.first() {
            let finding: &[u8] = row.try_get_unchecked(0)?;
            return Ok(Some(String::from_utf8_lossy(finding).into_owned()));
        }
    }
    let values = [
        ("within", Statement::new(in_database(options))),
        (
            "name",
            Statement::new(format!("'{}_message'", options.inbox)),
        ),
    ];
    let statements = names.file(include_str!("sql/schema_numbers.sql"));
    let texts: Vec<String> = statements
        .into_iter()
        .map(|sql| sql.fill(&values).into_text())
        .collect();
    // One packet, which the server finishes whatever becomes of this future: the session is the caller's.
    let mut numbers = Vec::new();
    for row in rows(connection, texts.join(";\n")).await? {
        numbers.push(row.try_get_unchecked::<i64, _>(0)?);
    }
    let [last, next] = numbers[..] else {
        return Err(sqlx::Error::RowNotFound);
    };
    Ok((last >= next).then(|| {
        format!("a new message would get the number {next}, and {last} is in use already")
    }))
}

/// Fails if the tables do not belong together.
pub(crate) async fn check(connection: &mut MySqlConnection, options: &MySqlOptions) -> Result<()> {
    let inbox = &options.inbox;
    match find_contradiction(connection, options)
        .await
        .map_err(before)?
    {
        None => Ok(()),
        Some(finding) => Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "the tables {inbox}_… do not belong together, as after loading a part of a dump: \
                 {finding}; load all of them from one dump"
            ),
        )),
    }
}
