//! The command on PostgreSQL, where it is not as on a file: places that cannot be reached, servers
//! that go away, and its own schemas.

use nix::sys::signal::Signal;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use test_servers::{Kind, Server, require_or_skip};

use crate::support::{Counts, Place, WEBHOOKS, event, events, finish, signal, wait_for};

/// Runs one query for one text on the server of `place`, without the command.
fn ask(place: &Place, sql: &str) -> Option<String> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut connection = PgConnection::connect(&place.server()).await.unwrap();
        let sql = AssertSqlSafe(sql.to_owned());
        let answers: Vec<Option<String>> = sqlx::query_scalar(sql)
            .fetch_all(&mut connection)
            .await
            .unwrap();
        answers.into_iter().next().flatten()
    })
}

fn schemas_left(place: &Place, purpose: &str) -> Option<String> {
    ask(
        place,
        &format!(
            "SELECT string_agg(nspname, ' ') FROM pg_namespace WHERE nspname LIKE 'inbox\\_{purpose}\\_%'"
        ),
    )
}

/// A server that only this test has, with an inbox on it.
fn own_server() -> Option<(Server, Place)> {
    let server = require_or_skip(Kind::Postgres).unwrap_or_else(|error| panic!("{error}"));
    let server = server.filter(|server| !server.is_shared())?;
    let place = Place::at(server.url());
    Some((server, place))
}

#[test]
fn schema_from_nothing_to_there() {
    let Some(place) = Place::on_postgres() else {
        return;
    };
    place.sets_up_the_inbox("CREATE TABLE");
    // The printed statements make the same inbox elsewhere.
    let Some(other) = Place::on_postgres() else {
        return;
    };
    let ddl = other.inbox(&["schema", "ddl"]).exits(0).stdout;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut connection = PgConnection::connect(&place.server()).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(ddl))
            .execute(&mut connection)
            .await
            .unwrap();
    });
    other.inbox(&["schema", "exists"]).exits(0).says("yes");
}

#[test]
fn what_cannot_be_opened_is_said_in_one_line_without_credentials() {
    let Some(place) = Place::on_postgres() else {
        return;
    };
    let at = place.server();
    let at = at.rsplit_once('@').unwrap().1;
    let host = at.split_once('/').unwrap().0;
    place.refuses([
        (
            "postgres://user:hunter2@127.0.0.1:1/x".to_owned(),
            "refused",
        ),
        (
            "postgres://user:hunter2@nowhere.invalid/x".to_owned(),
            "lookup",
        ),
        (
            format!("postgres://hunter1:hunter2@{at}"),
            "refused the credentials",
        ),
        (
            format!("postgres://hunter1:hunter2@{at}?bogus=hunter3"),
            "unknown setting",
        ),
        (
            "postgres://user:hunter2@host:port/x".to_owned(),
            "cannot be read",
        ),
        (
            "oracle://user:hunter2@host/x".to_owned(),
            "no store for oracle",
        ),
        (
            format!("{}?inbox=absent", place.server()),
            "set one up with `inbox schema create`",
        ),
        (
            place.server().replace(at, &format!("{host}/nothing")),
            "database does not exist",
        ),
    ]);
}

#[test]
fn the_demo_keeps_its_promise_and_leaves_nothing() {
    let Some(place) = Place::on_postgres() else {
        return;
    };
    place.keeps_the_promise_of_the_demo(|| schemas_left(&place, "demo").is_some());
}

#[test]
fn conformance_is_reported_and_leaves_nothing() {
    let Some(place) = Place::on_postgres() else {
        return;
    };
    // One group; the store's own tests run all of them.
    place
        .inbox(&["conformance", "fencing"])
        .exits(0)
        .says("postgres: passes what was asked for, which is not the whole suite.");
    place.leaves_nothing_of(&["conformance"], || {
        schemas_left(&place, "conformance").is_some()
    });
}

/// A line that is read well, and that this store refuses.
#[test]
fn strict_stops_at_a_line_that_the_store_refuses() {
    let Some(place) = Place::on_postgres() else {
        return;
    };
    let url = format!("{}&payload_type=json", place.store());
    let text = r#"{"specversion":"1.0","id":"2","source":"/test","type":"t","datacontenttype":"text/plain","data":"no JSON"}"#;
    let lines = [
        event("1", "t", "{}"),
        format!("{text}\n"),
        event("3", "t", "{}"),
    ];
    let input = lines.concat();
    let ingest = |arguments: &[&str]| {
        let all = [&["ingest", "-", "--store", &url], arguments].concat();
        place.inbox_with(&all, input.as_bytes()).exits(3)
    };
    ingest(&[])
        .says("2 accepted, 0 duplicates, 1 line refused")
        .complains("line 2: payload must be JSON");
    let strict = ["--strict", "--batch", "1", "--handler", "strict"];
    ingest(&strict)
        .says("1 accepted, 0 duplicates, 1 line refused")
        .complains("stopped at line 2: payload must be JSON");
    let list = ["list", "--json", "--handler", "strict", "--store", &url];
    let listed = place.inbox(&list).exits(0).json();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0]["id"], "1");
    let run = ["run", "-", "--store", &url, "--handler", "run", "--strict"];
    place
        .inbox_with(&[&run[..], &["--", "true"]].concat(), input.as_bytes())
        .exits(3)
        .complains("stopped at line 2: payload must be JSON");
}

#[test]
fn a_server_that_goes_away_is_waited_for_and_an_interrupt_heard_meanwhile() {
    let Some((mut server, place)) = own_server() else {
        return;
    };
    let number = 200;
    place.file("first.ndjson", events(number));
    place.inbox(&["ingest", "first.ndjson"]).exits(0);
    let process = [
        "process",
        "--drain",
        "--",
        "sh",
        "-c",
        "echo $INBOX_ID >> done",
    ];
    let child = place.start(&process);
    wait_for("some work", || place.read("done").lines().count() > 20);
    server.kill().unwrap();
    server.start().unwrap();
    finish(child.wait_with_output().unwrap())
        .exits(0)
        .says("processed");
    let all = Counts {
        processed: number as u64,
        ..Counts::default()
    };
    assert_eq!(place.stats(), all);

    // Nobody is told of an outage by an idle worker, and Ctrl-C still works.
    let child = place.start(&["process", "--", "true"]);
    wait_for("a listening worker", || {
        let sql = "SELECT 'there' FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
        ask(&place, sql).is_some()
    });
    server.stop().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    signal(&child, Signal::SIGINT);
    finish(child.wait_with_output().unwrap()).exits(130);
    place
        .inbox(&["ingest", WEBHOOKS])
        .exits(1)
        .complains("Connection refused");
    server.start().unwrap();
    assert_eq!(place.stats(), all);
}
