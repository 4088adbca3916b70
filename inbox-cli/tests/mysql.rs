//! The command on MySQL and MariaDB, where it is not as on a file: places that cannot be reached,
//! and its own tables.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests, which the configuration for tests does not reach"
)]

mod support;

use nix::sys::signal::Signal;
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection};
use support::{MYSQL_KINDS, Place, finish, signal, wait_for};

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
        place
            .inbox(&["schema", "ddl"])
            .exits(0)
            .says("CREATE TABLE");
        place.inbox(&["schema", "exists"]).exits(4).says("no");
        place.inbox(&["schema", "version"]).exits(4).says("none");
        for command in [&["stats"][..], &["list"], &["process", "--", "true"]] {
            place
                .inbox(command)
                .exits(1)
                .complains("set one up with `inbox schema create`");
        }
        place.inbox(&["schema", "create"]).exits(0);
        place.inbox(&["schema", "create"]).exits(0);
        place.inbox(&["schema", "exists"]).exits(0).says("yes");
        place
            .inbox(&["schema", "migrate"])
            .exits(0)
            .says("already at version");
        place.inbox(&["stats"]).exits(0).says("the inbox is empty");
    });
}

#[test]
fn what_cannot_be_opened_is_said_in_one_line_without_credentials() {
    on_each(|place| {
        let at = place.server();
        let at = at.rsplit_once('@').unwrap().1;
        let host = at.split_once('/').unwrap().0;
        for (url, reason) in [
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
        ] {
            for command in [&["stats"][..], &["process", "--drain", "--", "true"]] {
                let output = place.inbox(&[&["--store", &url], command].concat());
                // A URL that no store understands is a wrong command line.
                let is_usage = output.stderr.contains("the store's URL");
                let output = output.exits(if is_usage { 2 } else { 1 }).complains(reason);
                assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
                assert!(!output.stderr.contains("hunter"), "{output:?}");
            }
        }
    });
}

#[test]
fn the_demo_keeps_its_promise_and_leaves_nothing() {
    on_each(|place| {
        let output = place
            .inbox(&["demo", "--workers", "2", "--kills", "3", "--json"])
            .exits(0);
        let result = &output.json()[0];
        assert_eq!(result["exactly_once"], true, "{output:?}");
        assert_eq!(result["crashes"], 3, "{output:?}");
        assert_eq!(result["effects"], result["processed"], "{output:?}");
        assert!(result["dead"].as_u64().unwrap() > 0, "{output:?}");
        place.inbox(&["demo", "--keep", "x"]).exits(2);
        let child = place.start(&["demo"]);
        wait_for("a demo", || tables_left(&place, "demo") > 0);
        signal(&child, Signal::SIGINT);
        finish(child.wait_with_output().unwrap()).exits(130);
        assert_eq!(tables_left(&place, "demo"), 0);
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
        let child = place.start(&["conformance"]);
        wait_for("a case", || tables_left(&place, "conformance") > 0);
        signal(&child, Signal::SIGINT);
        finish(child.wait_with_output().unwrap()).exits(130);
        assert_eq!(tables_left(&place, "conformance"), 0);
    });
}
