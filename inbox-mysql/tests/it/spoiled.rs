//! Rows that are not as the store has left them.

use hostile::{Target, hold_for};
use inbox_api::{AfterDead, Edit, Filter, Intervention, Operate as _, Slice};
use test_servers::Kind;

use crate::common::{
    TestInbox, accept, claim_one, dead, key, message, on_each, settle, shared_url,
};

const OTHERS: [&str; 6] = [
    "-9223372036854775808",
    "9223372036854775807",
    "-1",
    "0",
    "127",
    "4611686018427387904",
];

/// The first bytes are a column, rows of it, and a value's kind; the value follows.
fn statement(columns: &[(String, String)], part: &[u8]) -> Option<String> {
    let [column, rows, kind, value @ ..] = part else {
        return None;
    };
    let (table, column) = columns.get(usize::from(*column) % columns.len())?;
    let value = match kind % 3 {
        0 => "NULL".into(),
        1 => OTHERS[usize::from(*kind) % OTHERS.len()].to_owned(),
        _ => {
            let digits: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("x'{digits}'")
        }
    };
    let rows = match rows % 2 {
        0 => "",
        _ => "LIMIT 1",
    };
    Some(format!("UPDATE {table} SET {column} = {value} {rows}"))
}

fn spoil(kind: Kind, name: &'static str) {
    let Some(url) = shared_url(kind) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (inbox, store, columns) = runtime.block_on(async {
        let inbox = TestInbox::at(url).await.unwrap();
        let store = inbox.store().await;
        let columns = "SELECT table_name, column_name FROM information_schema.columns \
                       WHERE table_schema = DATABASE() AND table_name NOT LIKE '%meta%' ORDER BY 1, 2";
        let mut connection = inbox.connection().await.unwrap();
        let columns = sqlx::raw_sql(columns).fetch_all(&mut connection).await;
        let text = |row: &sqlx::mysql::MySqlRow, index: usize| -> String {
            sqlx::Row::try_get_unchecked(row, index).unwrap()
        };
        let columns: Vec<_> = columns
            .unwrap()
            .iter()
            .map(|row| (text(row, 0), text(row, 1)))
            .collect();
        (inbox, store, columns)
    });
    assert!(columns.len() > 20, "{columns:?}");
    let tables: std::collections::BTreeSet<_> =
        columns.iter().map(|(table, _)| table.clone()).collect();
    let empty: String = tables
        .into_iter()
        .map(|table| format!("DELETE FROM {table};"))
        .collect();
    let corpus = include_str!("../../../hostile/corpus/sqlite-rows.txt");
    let target = Target::new(name, corpus, move |input| {
        runtime.block_on(async {
            inbox
                .run(empty.as_str())
                .await
                .map_err(|error| error.to_string())?;
            hostile::fill(&store)
                .await
                .map_err(|error| error.to_string())?;
            for part in input.split(|byte| *byte == 0).take(4) {
                if let Some(statement) = statement(&columns, part) {
                    let _ = inbox.run(statement).await;
                }
            }
            let used = hostile::use_every_operation(&store).await;
            used.map_err(|error| error.to_string())
        })
    });
    hold_for(&target.limit(1024, 8 * 1024 * 1024), 15);
}

#[test]
fn rows_of_any_values_are_answered_on_mariadb() {
    spoil(Kind::Mariadb, "mariadb-rows");
}

#[test]
fn rows_of_any_values_are_answered_on_mysql() {
    spoil(Kind::Mysql, "mysql-rows");
}

/// It would be set aside again by the next claim.
#[test]
fn a_message_whose_payload_is_gone_is_not_replayed_as_it_is() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        accept(&store, &[message("1")]).await;
        let lease = claim_one(&store).await;
        settle(&store, &lease, dead(AfterDead::Continue)).await;
        let gone = "UPDATE inbox_message SET payload = NULL";
        inbox.run(gone).await.unwrap();
        let replayed = store.replay(&key("1"), &Edit::default()).await;
        assert_eq!(replayed.unwrap(), Intervention::PayloadDropped);
        let slice = Slice {
            after: None,
            limit: 10,
        };
        let replayed = store.replay_slice(&Filter::default(), &slice).await;
        assert_eq!(replayed.unwrap().changed, 0);
        let edit = Edit {
            payload: Some("another".into()),
            ..Edit::default()
        };
        let replayed = store.replay(&key("1"), &edit).await;
        assert_eq!(replayed.unwrap(), Intervention::Done);
        claim_one(&store).await;
    });
}
