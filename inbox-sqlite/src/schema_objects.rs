//! What an inbox is made of: tables, indexes and triggers, as SQLite keeps them and as steps make them.

use std::collections::BTreeMap;

use inbox_api::InboxName;
use sqlx::{
    ConnectOptions as _, Connection as _, Row as _, SqliteConnection, sqlite::SqliteConnectOptions,
};

use crate::statements::expand;

/// A table, index or trigger: which of them, and the text that made it.
pub(crate) struct Object {
    pub(crate) kind: String,
    pub(crate) sql: String,
}

/// By their names in lower case, as SQLite compares them.
pub(crate) type Objects = BTreeMap<String, Object>;

/// A statement without its comments, and with single spaces. Tools reformat what they run, and
/// comments change; columns, types, conditions and bodies remain.
pub(crate) fn normalize(sql: &str) -> String {
    let mut text = String::with_capacity(sql.len());
    let mut rest = sql.chars().peekable();
    while let Some(c) = rest.next() {
        let next = rest.peek().copied();
        match c {
            '\'' | '"' | '`' => {
                text.push(c);
                for quoted in rest.by_ref() {
                    text.push(quoted);
                    if quoted == c {
                        break;
                    }
                }
                continue;
            }
            '-' if next == Some('-') => while rest.next().is_some_and(|c| c != '\n') {},
            '/' if next == Some('*') => {
                rest.next();
                let mut before = ' ';
                for inner in rest.by_ref() {
                    if before == '*' && inner == '/' {
                        break;
                    }
                    before = inner;
                }
            }
            c if c.is_whitespace() => {}
            c => {
                text.push(c);
                continue;
            }
        }
        if !text.is_empty() && !text.ends_with(' ') {
            text.push(' ');
        }
    }
    text.truncate(text.trim_end().len());
    text
}

/// The objects that `connection` has, out of `names`.
async fn read_objects(connection: &mut SqliteConnection, names: &[&str]) -> sqlx::Result<Objects> {
    let rows = sqlx::query(
        "SELECT lower(name), type, coalesce(sql, '') FROM sqlite_master
         WHERE lower(name) IN (SELECT value FROM json_each(?1))",
    )
    .bind(serde_json::json!(names).to_string())
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            let object = Object {
                kind: row.try_get(1)?,
                sql: normalize(row.try_get(2)?),
            };
            Ok((row.try_get(0)?, object))
        })
        .collect()
}

/// What `parts` make: set up in memory, so that the comparison covers every column,
/// type, check, index and trigger without a second description of them.
pub(crate) async fn expected_objects(inbox: &InboxName, parts: &[&str]) -> sqlx::Result<Objects> {
    let mut memory = SqliteConnectOptions::new()
        .in_memory(true)
        .disable_statement_logging()
        .connect()
        .await?;
    for part in parts {
        sqlx::raw_sql(expand(part, inbox))
            .execute(&mut memory)
            .await?;
    }
    let names: Vec<String> =
        sqlx::query_scalar("SELECT name FROM sqlite_master WHERE sql IS NOT NULL")
            .fetch_all(&mut memory)
            .await?;
    let prefix = format!("{inbox}_");
    let names: Vec<_> = names
        .iter()
        .map(String::as_str)
        .filter(|name| name.starts_with(&prefix))
        .collect();
    let objects = read_objects(&mut memory, &names).await?;
    memory.close().await?;
    Ok(objects)
}

/// Those of the `expected` objects' names that the file has.
pub(crate) async fn present_objects(
    connection: &mut SqliteConnection,
    expected: &Objects,
) -> sqlx::Result<Objects> {
    let names: Vec<_> = expected.keys().map(String::as_str).collect();
    read_objects(connection, &names).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_white_space_do_not_count() {
        let one = "CREATE TABLE t (\n  a TEXT, -- it's a comment\n  b /* and another */ TEXT\n)";
        assert_eq!(normalize(one), "CREATE TABLE t ( a TEXT, b TEXT )");
        // Within quotes they are text.
        for sql in [
            "CHECK (a <> '--  x')",
            r#"SELECT "/* 'a'  */""#,
            "SELECT 'it''s -- a'",
        ] {
            assert_eq!(normalize(sql), sql);
        }
        assert_eq!(normalize("a -- no end of line"), "a");
        assert_eq!(normalize("a /* no end"), "a");
        assert_eq!(normalize("a - b / c"), "a - b / c");
    }
}
