//! The command on MongoDB, or what speaks its protocol, where it is not as on a file: places that
//! cannot be reached, and its own databases.

use inbox_mongo::mongodb::{Client, bson::doc};

use crate::support::{Place, complaints};

/// Whether the server has transactions and change streams, and how many databases are there with
/// such names, without the command.
fn ask(place: &Place, prefix: &str) -> (bool, usize) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        // Without the settings, some of which are the store's.
        let server = place.store().split('?').next().unwrap();
        let client = Client::with_uri_str(server).await.unwrap();
        let admin = client.database("admin");
        let hello = admin.run_command(doc! { "hello": 1 }).await.unwrap();
        let replicates = hello.contains_key("setName") || hello.contains_key("msg");
        let names = client.list_database_names().await.unwrap();
        let names = names.iter().filter(|name| name.starts_with(prefix));
        (replicates, names.count())
    })
}

#[test]
fn schema_from_nothing_to_there() {
    let Some(place) = Place::on_mongodb() else {
        return;
    };
    place.sets_up_the_inbox("createIndexes");
}

#[test]
fn what_cannot_be_opened_is_said_in_one_line_without_credentials() {
    let Some(place) = Place::on_mongodb() else {
        return;
    };
    let at = place.store().split_once("://").unwrap().1;
    let (host, database) = at.split_once('/').unwrap();
    let database = database.split_once('?').unwrap().0;
    place.refuses([
        (
            "mongodb://user:hunter2@127.0.0.1:1/x?serverSelectionTimeoutMS=500".to_owned(),
            "127.0.0.1:1: Connection refused",
        ),
        (
            "mongodb://user:hunter2@127.0.0.1:port/x".to_owned(),
            "cannot be read",
        ),
        (
            format!("mongodb://hunter1:hunter2@{host}/{database}?bogus=hunter3"),
            "unknown setting",
        ),
        (
            place.store().replace(database, "another_hunt"),
            "set one up with `inbox schema create`",
        ),
        (
            place.store().replace("inbox=test", "inbox=absent"),
            "set one up with `inbox schema create`",
        ),
    ]);
    for (url, reason, code) in [
        (
            "mongodb://user:hunter2@127.0.0.1:1/x?serverSelectionTimeoutMS=500",
            "127.0.0.1:1: Connection refused",
            1,
        ),
        (
            "mongodb://user:hunter2@127.0.0.1:port/x",
            "cannot be read",
            2,
        ),
    ] {
        let output = place.inbox(&["--store", url, "conformance"]);
        let output = output.exits(code).complains(reason);
        assert_eq!(complaints(&output.stderr).len(), 1, "{output:?}");
        assert!(!output.stderr.contains("hunter"), "{output:?}");
    }
}

#[test]
fn the_demo_is_refused() {
    let Some(place) = Place::on_mongodb() else {
        return;
    };
    place
        .inbox(&["demo"])
        .exits(2)
        .complains("no stage on MongoDB");
}

#[test]
fn conformance_is_reported_and_leaves_nothing() {
    let Some(place) = Place::on_mongodb() else {
        return;
    };
    // The store's own tests run all of them.
    place
        .inbox(&["conformance", "fencing"])
        .exits(0)
        .says("passes what was asked for, which is not the whole suite.");
    // A store without transactions has nothing to check here, which is no success.
    let output = place.inbox(&["conformance", "transactions::a_roll_back"]);
    let (replicates, left) = ask(&place, "inbox_conformance_");
    if replicates {
        output.exits(0).says("mongodb: conforms");
    } else {
        output
            .exits(4)
            .says("mongodb (a standalone server: no transactions): nothing was checked.");
    }
    assert_eq!(left, 0);
    place.leaves_nothing_of(&["conformance"], || ask(&place, "inbox_conformance_").1 > 0);
}
