//! The command on Redis and its clusters, where it is not as on a file: places that cannot be
//! reached or are set up otherwise, passwords and users, and inboxes of its own.

use inbox_redis::{
    ACL_RULES,
    redis::{self, Cmd, FromRedisValue},
};
use test_servers::{Kind, Server, find_own, or_skip};

use crate::support::{Place, REDIS_KINDS, WEBHOOKS, complaints};

fn on_each(test: impl Fn(Place)) {
    for kind in REDIS_KINDS {
        if let Some(place) = Place::on_redis(kind) {
            eprintln!("on {kind}");
            test(place);
        }
    }
}

/// A server that only this test has.
fn own_server(arguments: &[&str]) -> Option<Server> {
    or_skip(Kind::Redis, find_own(Kind::Redis, arguments)).unwrap()
}

/// Runs one command without the store, on that node.
fn ask<T: FromRedisValue>(url: &str, command: &Cmd) -> redis::RedisResult<T> {
    let mut connection = redis::Client::open(url)?.get_connection()?;
    command.query(&mut connection)
}

fn words(text: &str) -> Cmd {
    let mut words = text.split_whitespace();
    let mut command = redis::cmd(words.next().unwrap());
    for word in words {
        command.arg(word);
    }
    command
}

/// The keys that runs of the conformance suite have on the server, or in the whole cluster.
fn keys_left(place: &Place) -> usize {
    let url = place.server();
    let keys = words("KEYS {conf*");
    let Some(node) = url.strip_prefix("redis+cluster:") else {
        return ask::<Vec<String>>(&url, &keys).unwrap().len();
    };
    // A range's first and last slot, its primary and its replicas.
    let ranges: Vec<Vec<redis::Value>> =
        ask(&format!("redis:{node}"), &words("CLUSTER SLOTS")).unwrap();
    let on_primary = |range: Vec<redis::Value>| {
        let Some(redis::Value::Array(node)) = range.get(2) else {
            panic!("no node in {range:?}");
        };
        let host: String = redis::from_redis_value(node[0].clone()).unwrap();
        let port: u16 = redis::from_redis_value(node[1].clone()).unwrap();
        let found: Vec<String> = ask(&format!("redis://{host}:{port}"), &keys).unwrap();
        found.len()
    };
    ranges.into_iter().map(on_primary).sum()
}

#[test]
fn schema_from_nothing_to_there() {
    on_each(|place| {
        place.sets_up_the_inbox("HSET {test_");
    });
}

#[test]
fn what_cannot_be_opened_is_said_in_one_line_without_credentials() {
    let Some(place) = Place::on_redis(Kind::Redis) else {
        return;
    };
    place.inbox(&["schema", "create"]).exits(0);
    let made = place.store().to_owned();
    let at = place.server();
    let at = at.rsplit_once("//").unwrap().1.trim_end_matches('/');
    let (url, _) = made.split_once('?').unwrap();
    place.refuses([
        ("redis://user:hunter2@127.0.0.1:1".to_owned(), "refused"),
        (
            "redis+cluster://user:hunter2@127.0.0.1:1".to_owned(),
            "refused",
        ),
        (
            "redis://user:hunter2@nowhere.invalid".to_owned(),
            "cannot be reached",
        ),
        (
            format!("redis://hunter1:hunter2@{at}"),
            "the credentials were refused",
        ),
        (format!("redis+cluster://{at}"), "not a cluster"),
        (
            format!("redis://hunter1:hunter2@{at}?bogus=hunter3"),
            "unknown setting",
        ),
        (
            "redis://user:hunter2@host:port".to_owned(),
            "cannot be read",
        ),
        (
            "redis://user:hunter2@one,two".to_owned(),
            "starts with redis+cluster://",
        ),
        ("redis://user:hunter2@".to_owned(), "no host"),
        (format!("{made}&shards=none"), "shards must be"),
        (format!("{made}&shards=3"), "set shards to 1"),
        (
            format!("{url}?inbox=absent"),
            "set one up with `inbox schema create`",
        ),
    ]);
    if let Some(cluster) = Place::on_redis(Kind::RedisCluster) {
        let one = cluster.store().replacen("redis+cluster:", "redis:", 1);
        let output = place.inbox(&["--store", &one, "stats"]).exits(1);
        let output = output.complains("redis+cluster://");
        assert_eq!(complaints(&output.stderr).len(), 1, "{output:?}");
    }
}

#[test]
fn a_server_that_may_lose_messages_is_refused_in_one_line() {
    for (arguments, reason) in [
        (
            &["--maxmemory-policy", "allkeys-lru"][..],
            "maxmemory-policy",
        ),
        (&["--appendonly", "no"], "persists nothing"),
    ] {
        let Some(server) = own_server(arguments) else {
            return;
        };
        let place = Place::new();
        for command in [&["stats"][..], &["conformance", "fencing"]] {
            let output = place.inbox(&[&["--store", server.url()], command].concat());
            let output = output.exits(1).complains(reason);
            assert_eq!(complaints(&output.stderr).len(), 1, "{output:?}");
        }
    }
}

#[test]
fn a_password_and_a_users_permissions_are_enough_or_named() {
    let Some(server) = own_server(&[]) else {
        return;
    };
    let rules = |inbox: &str| ACL_RULES.replace("INBOX", inbox);
    for rules in [
        format!("ACL SETUSER small on >hunter2 {}", rules("orders")),
        // The suite's inboxes have their own names.
        format!("ACL SETUSER tester on >hunter2 {} +unlink", rules("conf*")),
        "CONFIG SET requirepass hunter2".to_owned(),
    ] {
        ask::<()>(server.url(), &words(&rules)).unwrap();
    }
    let at = server
        .url()
        .trim_start_matches("redis://")
        .trim_end_matches('/');
    let place = Place::new();
    let run = |user: &str, settings: &str, command: &[&str]| {
        let url = format!("redis://{user}@{at}{settings}");
        place.inbox(&[&["--store", &url], command].concat())
    };
    let conformance = &["conformance", "fencing"][..];
    for user in [":hunter2", "tester:hunter2"] {
        run(user, "", conformance)
            .exits(0)
            .says("redis: passes what was asked for, which is not the whole suite.");
    }
    for command in [
        &["schema", "create"][..],
        &["ingest", WEBHOOKS],
        &["process", "--drain", "--", "true"],
        &["stats"],
        &["list"],
    ] {
        run("small:hunter2", "?inbox=orders", command).exits(0);
    }
    let refused = "the credentials were refused";
    for (user, settings, command, reason) in [
        (":hunter1", "", conformance, refused),
        ("nobody:hunter1", "", conformance, refused),
        ("small:hunter1", "?inbox=orders", &["stats"], refused),
        (
            "small:hunter2",
            "?inbox=other",
            &["stats"],
            "lacks a permission",
        ),
        ("small:hunter2", "", conformance, "lacks a permission"),
    ] {
        let output = run(user, settings, command).exits(1).complains(reason);
        assert_eq!(complaints(&output.stderr).len(), 1, "{output:?}");
        assert!(!output.stderr.contains("hunter"), "{output:?}");
    }
    // Without any.
    let output = place.inbox(&["--store", server.url(), "stats"]).exits(1);
    let output = output.complains(refused);
    assert_eq!(complaints(&output.stderr).len(), 1, "{output:?}");
}

#[test]
fn there_is_no_demo_without_transactions() {
    on_each(|place| {
        place.inbox(&["demo"]).exits(2).complains("Redis has none");
    });
}

#[test]
fn conformance_is_reported_and_leaves_nothing() {
    on_each(|place| {
        // One group; the store's own tests run all of them.
        place
            .inbox(&["conformance", "fencing"])
            .exits(0)
            .says("redis: passes what was asked for, which is not the whole suite.");
        assert_eq!(keys_left(&place), 0);
        place.leaves_nothing_of(&["conformance"], || keys_left(&place) > 0);
    });
}
