//! What an inbox is made of, and whether that is there: as `schema_parts.sql` tells it, a line a part.

use std::collections::HashSet;

use sqlx::{PgConnection, Row as _};

use crate::{ddl, names::Names, versions::ask};

/// What `names`' inbox is made of when it is complete.
fn expected(names: &Names) -> Vec<String> {
    let layout = if names.in_partitions {
        include_str!("sql/schema_1_parts_partitioned.txt")
    } else {
        include_str!("sql/schema_1_parts_plain.txt")
    };
    let mut shape: Vec<String> = names
        .text(&(include_str!("sql/schema_1_parts.txt").to_owned() + layout))
        .lines()
        .map(str::to_owned)
        .collect();
    for (name, template) in ddl::functions(names) {
        let call = call(&names.text(template));
        shape.push(format!("function {}_{name}{call}", names.inbox));
    }
    shape
}

/// How a function is called, from the statement that makes it: `(types) types of the answer`.
fn call(statement: &str) -> String {
    let (_, rest) = statement.split_once("FUNCTION ").unwrap_or_default();
    let (head, _) = rest.split_once("\nLANGUAGE ").unwrap_or_default();
    let (_, head) = head.split_once('(').unwrap_or_default();
    let (arguments, answer) = head.split_once(')').unwrap_or_default();
    let (mut into, mut out) = (Vec::new(), Vec::new());
    for argument in list(arguments) {
        match argument.strip_prefix("OUT ") {
            Some(named) => out.push(type_of(named)),
            None => into.push(type_of(argument)),
        }
    }
    let answer = answer.trim().trim_start_matches("RETURNS").trim();
    if let Some(columns) = answer.strip_prefix("TABLE (") {
        out.extend(list(columns.trim_end_matches(')')).map(type_of));
    } else if !answer.is_empty() {
        out.push(type_in_full(answer));
    }
    format!("({}) {}", into.join(", "), out.join(", "))
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
}

/// Of `name type`.
fn type_of(named: &str) -> String {
    type_in_full(named.split_once(' ').map_or(named, |(_, kind)| kind.trim()))
}

/// As the server writes a type.
fn type_in_full(kind: &str) -> String {
    kind.replace("timestamptz", "timestamp with time zone")
}

/// The parts that are there, one a row. With `same_texts` only functions that are as they were set up,
/// which only the inbox itself can say.
fn parts(names: &Names, same_texts: bool) -> String {
    const SAME_TEXTS: &str = "JOIN {inbox}_meta AS m ON m.functions ->> \
                              (p.proname || '(' || replace(oidvectortypes(p.proargtypes), '\"', '') || ')') \
                              = encode(sha256(convert_to(p.prosrc, 'UTF8')), 'hex')";
    let template = include_str!("sql/schema_parts.sql");
    names.text(&template.replace("{same_texts}", if same_texts { SAME_TEXTS } else { "" }))
}

/// The query that answers whether all parts are there, and asks nothing but the catalogue.
pub(crate) fn exists_query(names: &Names) -> String {
    let expected: Vec<String> = expected(names)
        .iter()
        .map(|part| format!("    ('{}')", part.replace('\'', "''")))
        .collect();
    names
        .text(include_str!("sql/schema_exists.sql"))
        .replace("{expected}", &expected.join(",\n"))
        .replace("{parts}", &parts(names, false))
}

/// The first part that is missing or not as it should be.
pub(crate) async fn missing_part(
    connection: &mut PgConnection,
    names: &Names,
) -> sqlx::Result<Option<String>> {
    let rows = ask(connection, names, &parts(names, true)).await?;
    let present = rows
        .iter()
        .map(|row| row.try_get(0))
        .collect::<sqlx::Result<HashSet<String>>>()?;
    Ok(expected(names)
        .into_iter()
        .find(|part| !present.contains(part)))
}

/// Whether a function's text is not this build's.
pub(crate) async fn other_texts(
    connection: &mut PgConnection,
    names: &Names,
) -> sqlx::Result<bool> {
    let rows = ask(connection, names, include_str!("sql/schema_functions.sql")).await?;
    let present = rows
        .iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect::<sqlx::Result<HashSet<(String, String)>>>()?;
    Ok(ddl::functions(names).any(|(name, template)| {
        let text = names.text(template);
        let body = text.split("$$").nth(1).unwrap_or_default().to_owned();
        !present.contains(&(format!("{}_{name}", names.inbox), body))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_from_the_statements() {
        for (statement, expected) in [
            (
                "-- (a, b)\nCREATE FUNCTION \"s\".\"i_f\"() RETURNS void\nLANGUAGE sql",
                "() void",
            ),
            (
                "CREATE FUNCTION f(a text[], at timestamptz)\nRETURNS bigint[]\nLANGUAGE sql",
                "(text[], timestamp with time zone) bigint[]",
            ),
            (
                "CREATE FUNCTION f(\n a json, OUT b bigint,\n OUT c timestamptz\n)\nLANGUAGE sql",
                "(json) bigint, timestamp with time zone",
            ),
            (
                "CREATE FUNCTION f(a text)\nRETURNS TABLE (\n b text, c bytea\n)\nLANGUAGE sql",
                "(text) text, bytea",
            ),
        ] {
            assert_eq!(call(statement), expected);
        }
    }
}
