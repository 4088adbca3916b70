//! The command on MySQL and MariaDB, where it is not as on a file: places that cannot be reached,
//! and its own tables.

use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection};

use crate::support::{MYSQL_KINDS, Place};

fn on_each(test: impl Fn(Place)) {
    for kind in MYSQL_KINDS {
        if let Some(place) = Place::on_mysql(kind) {
            eprintln!("on {kind}");
            test(place);
        }
    }
}

/// How many tables there are with such names, without the command.
fn tables_left(place: &Place, purpose: &str) -> i64 {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut connection = MySqlConnection::connect(&place.server()).await.unwrap();
        sqlx::query_scalar(AssertSqlSafe(format!(
            "SELECT COUNT(*) FROM information_schema.tables \
             WHERE table_schema = DATABASE() AND table_name LIKE 'inbox\\_{purpose}\\_%'"
        )))
        .fetch_one(&mut connection)
        .await
        .unwrap()
    })
}

#[test]
fn schema_from_nothing_to_there() {
    on_each(|place| {
        place.sets_up_the_inbox("CREATE TABLE");
    });
}

#[test]
fn what_cannot_be_opened_is_said_in_one_line_without_credentials() {
    on_each(|place| {
        let at = place.server();
        let at = at.rsplit_once('@').unwrap().1;
        let host = at.split_once('/').unwrap().0;
        place.refuses([
            ("mysql://user:hunter2@127.0.0.1:1/x".to_owned(), "refused"),
            (
                format!("mysql://hunter1:hunter2@{at}"),
                "the server refused the user",
            ),
            (
                format!("mysql://hunter1:hunter2@{at}?bogus=hunter3"),
                "unknown setting",
            ),
            (
                format!("{}?inbox=absent", place.server()),
                "set one up with `inbox schema create`",
            ),
            (
                place.server().replace(at, &format!("{host}/nothing")),
                "does not exist",
            ),
        ]);
    });
}

#[test]
fn the_demo_keeps_its_promise_and_leaves_nothing() {
    on_each(|place| {
        place.keeps_the_promise_of_the_demo(|| tables_left(&place, "demo") > 0);
    });
}

#[test]
fn conformance_is_reported_and_leaves_nothing() {
    on_each(|place| {
        // One group; the store's own tests run all of them.
        place
            .inbox(&["conformance", "fencing"])
            .exits(0)
            .says("mysql: passes what was asked for, which is not the whole suite.");
        place.leaves_nothing_of(&["conformance"], || tables_left(&place, "conformance") > 0);
    });
}
