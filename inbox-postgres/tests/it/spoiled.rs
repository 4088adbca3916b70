//! Rows that are not as the store has left them.

use hostile::{Target, hold_for};

use crate::common::*;

const OTHERS: [&str; 6] = [
    "-9223372036854775808",
    "9223372036854775807",
    "-1",
    "0",
    "32767",
    "-2147483648",
];
const TIMES: [&str; 5] = [
    "infinity",
    "-infinity",
    "294276-01-01",
    "4713-01-01 BC",
    "now",
];

/// The first bytes are a column, rows of it, and a value's kind; the value follows.
fn statement(columns: &[String], part: &[u8]) -> Option<String> {
    let [column, rows, kind, value @ ..] = part else {
        return None;
    };
    let [table, column, data_type] = *columns
        .get(usize::from(*column) % columns.len())?
        .split('.')
        .collect::<Vec<_>>()
    else {
        return None;
    };
    let text = String::from_utf8_lossy(value)
        .replace('\'', "''")
        .replace(['{', '}'], "");
    let other = |others: &[&str]| others[usize::from(*kind) % others.len()].to_owned();
    let value = match (kind % 7, data_type) {
        (0, _) => "NULL".into(),
        (_, "timestamp with time zone") => format!("'{}'", other(&TIMES)),
        (1 | 2, _) => format!("'{}'", other(&OTHERS)),
        (3, "json" | "jsonb") => "'[{\"attempt\":1e9}]'".into(),
        _ => format!("'{text}'"),
    };
    let rows = match rows % 2 {
        0 => "true".into(),
        _ => format!("ctid IN (SELECT ctid FROM {{schema}}.{table} LIMIT 1)"),
    };
    Some(format!(
        "UPDATE {{schema}}.{table} SET {column} = {value}::{data_type} WHERE {rows}"
    ))
}

#[test]
fn rows_of_any_values_are_answered() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let Some(Ready { place, store }) = runtime.block_on(ready()) else {
        return;
    };
    let columns: Vec<String> = runtime.block_on(place.column(
        "SELECT table_name || '.' || column_name || '.' || data_type FROM information_schema.columns
         WHERE quote_ident(table_schema) = quote_ident(trim('\"' FROM '{schema}'))
           AND table_name NOT IN ('inbox_meta', 'inbox_overview') ORDER BY 1",
    ));
    assert!(columns.len() > 20, "{columns:?}");
    let tables: std::collections::BTreeSet<_> = columns
        .iter()
        .map(|column| format!("{{schema}}.{}", column.split('.').next().unwrap()))
        .collect();
    let empty = format!(
        "TRUNCATE {}",
        tables.into_iter().collect::<Vec<_>>().join(", ")
    );
    let corpus = include_str!("../../../hostile/corpus/sqlite-rows.txt");
    let target = Target::new("postgres-rows", corpus, move |input| {
        runtime.block_on(async {
            place.run(&empty).await.map_err(|error| error.to_string())?;
            hostile::fill(&store)
                .await
                .map_err(|error| error.to_string())?;
            for part in input.split(|byte| *byte == 0).take(4) {
                if let Some(statement) = statement(&columns, part) {
                    let _ = place.run(&statement).await;
                }
            }
            let used = hostile::use_every_operation(&store).await;
            used.map_err(|error| error.to_string())
        })
    });
    hold_for(&target.limit(1024, 8 * 1024 * 1024), 20);
}
