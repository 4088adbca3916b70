//! How many requests operations take, what they say to the server, and which indexes they use.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use inbox_api::{
    ClaimRequest, Edit, HandlerName, Lease, LeaseTerms, Message, Operate as _, OrderingKey,
    Outcome, Schema as _, Settlement, Store as _,
};
use inbox_mongo::{
    MongoStore,
    mongodb::{
        Client,
        bson::{Bson, Document, doc},
        event::{EventHandler, command::CommandEvent},
        options::{Acknowledgment, ClientOptions, ReadConcern, WriteConcern},
    },
};

use crate::common::{self, TestInbox, handler, lock, message, worker};

/// Commands that were sent, in order.
pub type Sent = Arc<Mutex<Vec<Document>>>;

/// A store on a client that notes what it sends, and whose own defaults are weak. The inbox is set
/// up, and what that took forgotten.
async fn listening(place: &TestInbox) -> (MongoStore, Sent) {
    let (store, sent) = listening_from_the_start(place).await;
    store.create().await.unwrap();
    // The first use looks at the schema.
    store.statistics().await.unwrap();
    lock(&sent).clear();
    (store, sent)
}

pub async fn listening_from_the_start(place: &TestInbox) -> (MongoStore, Sent) {
    let sent = Sent::default();
    let noted = Arc::clone(&sent);
    let mut options = ClientOptions::parse(&place.url).await.unwrap();
    options.write_concern = Some(WriteConcern::builder().w(Acknowledgment::Nodes(1)).build());
    options.read_concern = Some(ReadConcern::local());
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        if let CommandEvent::Started(started) = event {
            lock(&noted).push(started.command);
        }
    }));
    let client = Client::with_options(options).unwrap();
    let store = MongoStore::with_client(client, place.options.clone())
        .await
        .unwrap();
    (store, sent)
}

fn names(sent: &Sent) -> Vec<String> {
    let mut sent = lock(sent);
    let names = sent
        .iter()
        .filter_map(|command| command.keys().next().cloned())
        .collect();
    sent.clear();
    names
}

fn request(limit: u32) -> ClaimRequest {
    ClaimRequest {
        handlers: vec![handler()],
        limit,
        terms: LeaseTerms::new(Duration::from_secs(60), worker()).unwrap(),
        run_limit: 1,
    }
}

/// What the first claim of a process does once, for the counts.
async fn open_segment(store: &MongoStore, sent: &Sent) {
    let _ = store.receive(&[message("first")]).await.unwrap();
    lock(sent).clear();
    let mut claims = store.claim(&request(1)).await.unwrap();
    assert_eq!(
        names(sent),
        ["aggregate", "update", "findAndModify"],
        "the first claim"
    );
    let settlement = Settlement {
        lease: claims.leased.remove(0).lease,
        outcome: Outcome::Processed { result: None },
    };
    let _ = store.settle(&[settlement]).await.unwrap();
    lock(sent).clear();
}

fn batch(size: usize, from: usize, ordered: bool) -> Vec<Message> {
    (from..from + size)
        .map(|number| {
            let message = message(&format!("evt-{number}"));
            if ordered {
                message.with_ordering_key(OrderingKey::new(format!("key-{}", number % 7)).unwrap())
            } else {
                message
            }
        })
        .collect()
}

/// What operations sent, by name.
type Counted = Vec<(&'static str, Vec<String>)>;

/// On a replica set, a change that takes longer than usual is looked into, which takes requests, and a
/// claim that took long renews its leases. So a slow machine has some rounds, and each operation is to
/// take no more than what is expected in one of them.
const ROUNDS: usize = 8;

async fn assert_once<F: Future<Output = Counted>>(
    place: &TestInbox,
    expected: &[(&'static str, &[&str])],
    mut round: impl FnMut(usize) -> F,
) {
    let slow = common::replicates(&place.url).await;
    let rounds = if slow { ROUNDS } else { 1 };
    let mut left: Counted = expected
        .iter()
        .map(|(what, names)| (*what, names.iter().map(|&name| name.to_owned()).collect()))
        .collect();
    let mut counted = Counted::new();
    for number in 0..rounds {
        counted = round(number).await;
        left.retain(|expected| !counted.contains(expected));
        if left.is_empty() {
            return;
        }
    }
    panic!("expected {left:?} in one of {rounds} rounds, the last of which took {counted:?}");
}

fn processed(leases: impl IntoIterator<Item = Lease>) -> Vec<Settlement> {
    let processed = |lease| Settlement {
        lease,
        outcome: Outcome::Processed { result: None },
    };
    leases.into_iter().map(processed).collect()
}

#[tokio::test]
async fn requests_do_not_grow_with_the_batch() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let (store, sent) = listening(&place).await;
    open_segment(&store, &sent).await;
    let (store, sent) = (&store, &sent);
    let (one, many): (&[&str], &[&str]) = (
        &["aggregate", "findAndModify"],
        &["aggregate", "update", "aggregate"],
    );
    for (size, from, claim) in [(1, 0, one), (10, 100, many), (100, 1000, many)] {
        let expected: [(_, &[&str]); 5] = [
            ("receive", &["findAndModify", "insert"]),
            ("claim", claim),
            ("extend", &["update", "aggregate"]),
            ("settle", &["update"]),
            // Nothing is left to do: one look says so.
            ("idle claim", &["aggregate"]),
        ];
        let round = |number| async move {
            let messages = batch(size, from + number * size, false);
            let _ = store.receive(&messages).await.unwrap();
            let mut counted = vec![("receive", names(sent))];
            let claims = store.claim(&request(200)).await.unwrap();
            assert_eq!(claims.leased.len(), size);
            counted.push(("claim", names(sent)));
            let leases: Vec<_> = claims.leased.into_iter().map(|l| l.lease).collect();
            let longer = Duration::from_secs(90);
            let _ = store.extend(&leases, longer).await.unwrap();
            counted.push(("extend", names(sent)));
            let _ = store.settle(&processed(leases)).await.unwrap();
            counted.push(("settle", names(sent)));
            let _ = store.claim(&request(200)).await.unwrap();
            counted.push(("idle claim", names(sent)));
            counted
        };
        assert_once(&place, &expected, round).await;
    }
}

#[tokio::test]
async fn requests_for_ordering_keys_do_not_grow_with_the_batch() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let (store, sent) = listening(&place).await;
    open_segment(&store, &sent).await;
    let (store, sent) = (&store, &sent);
    // The others of the last batch wait behind the first ones.
    for (size, from) in [(1, 0), (7, 7), (70, 70)] {
        let expected: [(_, &[&str]); 3] = [
            (
                "receive",
                &["findAndModify", "insert", "aggregate", "update"],
            ),
            ("claim", &["aggregate", "update", "aggregate"]),
            ("settle", &["update", "aggregate", "update"]),
        ];
        let round = |number| async move {
            let messages = batch(size, from + number * size, true);
            let _ = store.receive(&messages).await.unwrap();
            let mut counted = vec![("receive", names(sent))];
            let claims = store.claim(&request(200)).await.unwrap();
            assert_eq!(claims.leased.len(), size.min(7));
            counted.push(("claim", names(sent)));
            let leases = claims.leased.into_iter().map(|l| l.lease);
            let _ = store.settle(&processed(leases)).await.unwrap();
            counted.push(("settle", names(sent)));
            counted
        };
        assert_once(&place, &expected, round).await;
    }
}

/// Fingerprints are read only when there are duplicates.
#[tokio::test]
async fn a_duplicate_takes_one_request_more() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let (store, sent) = listening(&place).await;
    let _ = store.receive(&batch(10, 0, false)).await.unwrap();
    assert_eq!(names(&sent), ["findAndModify", "insert"]);
    let _ = store.receive(&batch(10, 5, false)).await.unwrap();
    assert_eq!(names(&sent), ["findAndModify", "insert", "aggregate"]);
}

/// Neither does the backlog of a handler that is paused cost the others anything, nor the pause, but
/// for the first claim that meets it.
#[tokio::test]
async fn a_pause_takes_one_request_once() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let (store, sent) = listening(&place).await;
    let _ = store.receive(&batch(20, 0, false)).await.unwrap();
    let other = HandlerName::new("other").unwrap();
    let _ = store
        .receive(&[message("a").for_handler(other.clone())])
        .await
        .unwrap();
    let both = ClaimRequest {
        handlers: vec![handler(), other.clone()],
        ..request(10)
    };
    store.pause(&handler()).await.unwrap();
    lock(&sent).clear();
    let claims = store.claim(&both).await.unwrap();
    assert_eq!(claims.leased.len(), 1);
    assert_eq!(names(&sent).get(..2).unwrap(), ["aggregate", "aggregate"]);
    assert_eq!(store.claim(&both).await.unwrap().leased, []);
    assert_eq!(names(&sent), ["aggregate"]);
    let claims = store.claim(&request(10)).await.unwrap();
    assert_eq!(claims.leased, []);
    assert_eq!(names(&sent), ["aggregate"]);
    store.resume(&handler()).await.unwrap();
    assert_eq!(store.claim(&both).await.unwrap().leased.len(), 10);
}

/// A purge of all handlers looks at some of them at a time, and goes on where the one before has ended.
#[tokio::test]
async fn requests_of_a_purge_do_not_grow_with_the_handlers() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let (store, sent) = listening(&place).await;
    let messages: Vec<Message> = (0..300)
        .map(|number| {
            let handler = HandlerName::new(format!("handler-{number:03}")).unwrap();
            message(&format!("evt-{number}")).for_handler(handler)
        })
        .collect();
    let _ = store.receive(&messages).await.unwrap();
    let raw = place.raw().await;
    let stored = raw.collection::<Document>("inbox_message");
    let processed = doc! {
        "$set": { "state": 2, "finishedAt": 1_i64, "emptied": false }, "$unset": { "lane": "" },
    };
    stored.update_many(doc! {}, processed).await.unwrap();
    lock(&sent).clear();
    let expired = inbox_api::PurgeRequest::new(inbox_api::State::Processed, Duration::ZERO, 30);
    let expired = expired.unwrap();
    // What an archiver gets of them, a whole slice.
    assert_eq!(store.expired(&expired).await.unwrap().records.len(), 30);
    for _ in 0..10 {
        assert_eq!(store.purge(&expired).await.unwrap(), 30);
    }
    assert_eq!(store.purge(&expired).await.unwrap(), 0);
    let looks = names(&sent);
    let looks = looks.iter().filter(|name| *name == "aggregate").count();
    assert!(looks < 60, "{looks} looks at 300 handlers");
}

#[tokio::test]
async fn concerns_are_said_on_each_request() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let (store, sent) = listening(&place).await;
    let _ = store.receive(&batch(3, 0, true)).await.unwrap();
    let claims = store.claim(&request(10)).await.unwrap();
    let settlements: Vec<_> = claims
        .leased
        .into_iter()
        .map(|leased| Settlement {
            lease: leased.lease,
            outcome: Outcome::Release,
        })
        .collect();
    let _ = store.settle(&settlements).await.unwrap();
    let _ = store.discard(batch(1, 0, true)[0].key()).await.unwrap();
    let commands = std::mem::take(&mut *lock(&sent));
    assert!(commands.len() > 8);
    check_concerns(commands);
    assert!(store.exists().await.unwrap());
    store.migrate().await.unwrap();
    let commands = std::mem::take(&mut *lock(&sent));
    assert!(commands.len() > 4);
    check_concerns(commands);
}

fn check_concerns(commands: Vec<Document>) {
    for command in commands {
        let name = command.keys().next().unwrap().as_str();
        match name {
            // What is no document is read without one.
            "listCollections" | "listIndexes" => {}
            "aggregate" | "find" => {
                let concern = command.get_document("readConcern").unwrap();
                assert_eq!(concern.get_str("level").unwrap(), "majority", "{name}");
            }
            _ => {
                let concern = command.get_document("writeConcern").unwrap();
                assert_eq!(concern.get_str("w").unwrap(), "majority", "{name}");
                assert!(concern.get_bool("j").unwrap(), "{name}");
            }
        }
    }
}

/// What the server's documentation asks for a command: a collection, or none for the database, and
/// actions.
fn privileges(command: &Document) -> Vec<(String, &'static str)> {
    let (name, collection) = command.iter().next().unwrap();
    let upserts = command.get_array("updates").is_ok_and(|updates| {
        updates
            .iter()
            .any(|update| update.as_document().unwrap().contains_key("upsert"))
    });
    let actions: &[&str] = match name.as_str() {
        "hello" | "isMaster" | "buildInfo" | "getMore" | "endSessions" | "commitTransaction"
        | "abortTransaction" => return Vec::new(),
        "listCollections" => return vec![(String::new(), "listCollections")],
        "aggregate" | "find" => &["find"],
        "findAndModify" => &["find", "update"],
        "update" if upserts => &["update", "insert"],
        "update" => &["update"],
        "insert" => &["insert"],
        "delete" => &["remove"],
        "listIndexes" => &["listIndexes"],
        "create" => &["createCollection"],
        "createIndexes" => &["createIndex"],
        "drop" => &["dropCollection"],
        other => panic!("which privileges does {other} need?"),
    };
    let collection = collection.as_str().unwrap();
    actions
        .iter()
        .map(|action| (collection.to_owned(), *action))
        .collect()
}

/// What the documented roles give, each without the other.
fn given(role: &str) -> Vec<(String, String)> {
    let roles = common::documented_roles("shop");
    let role = roles
        .iter()
        .find(|found| found.get_str("role").is_ok_and(|name| name == role));
    let privileges = role.unwrap().get_array("privileges").unwrap();
    privileges
        .iter()
        .flat_map(|privilege| {
            let privilege = privilege.as_document().unwrap();
            let resource = privilege.get_document("resource").unwrap();
            let collection = resource.get_str("collection").unwrap();
            privilege
                .get_array("actions")
                .unwrap()
                .iter()
                .map(|action| {
                    let action = action.as_str().unwrap().to_owned();
                    (collection.to_owned(), action)
                })
        })
        .collect()
}

fn check_privileges(sent: &Sent, given: &[(String, String)]) {
    for command in std::mem::take(&mut *lock(sent)) {
        for (collection, action) in privileges(&command) {
            assert!(
                given.contains(&(collection.clone(), action.to_owned())),
                "no role gives {action} on {collection:?}, for {:?}",
                command.keys().next()
            );
        }
    }
}

/// FerretDB enforces no roles, so what is sent is compared with what they give.
#[tokio::test]
async fn the_documented_roles_have_what_commands_need() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let (owner, of_owner) = listening_from_the_start(&place).await;
    owner.create().await.unwrap();
    let worker = given("inboxWorker");
    check_privileges(&of_owner, &[worker.clone(), given("inboxOwner")].concat());

    let (store, sent) = listening_from_the_start(&place).await;
    assert!(store.exists().await.unwrap());
    store.create().await.unwrap();
    store.migrate().await.unwrap();
    let _ = store.receive(&batch(3, 0, false)).await.unwrap();
    let _ = store.receive(&batch(14, 100, true)).await.unwrap();
    let terms = LeaseTerms::new(Duration::from_secs(60), common::worker()).unwrap();
    let _ = store.begin(&message("inline"), &terms).await.unwrap();
    let claims = store.claim(&request(10)).await.unwrap();
    let mut leases: Vec<_> = claims.leased.into_iter().map(|l| l.lease).collect();
    let _ = store
        .extend(&leases, Duration::from_secs(90))
        .await
        .unwrap();
    let dead = Settlement {
        lease: leases.remove(0),
        outcome: Outcome::Dead {
            reason: "no".into(),
            after: inbox_api::AfterDead::Block,
        },
    };
    let done = leases.into_iter().map(|lease| Settlement {
        lease,
        outcome: Outcome::Processed { result: None },
    });
    let settlements: Vec<_> = std::iter::once(dead).chain(done).collect();
    let _ = store.settle(&settlements).await.unwrap();
    let key = settlements[1].lease.key.clone();
    let _ = store.replay(&key, &Edit::default()).await.unwrap();
    let _ = store.discard(&key).await.unwrap();
    let _ = store.get(&key).await.unwrap();
    let page = inbox_api::Page::first(5);
    let everything = inbox_api::Filter::default();
    let _ = store.list(&everything, &page).await.unwrap();
    // Counts of segments are kept once nothing has changed for a while.
    place.offset.advance(Duration::from_secs(200));
    store.statistics().await.unwrap();
    for state in [inbox_api::State::Dead, inbox_api::State::Processed] {
        let expired = inbox_api::PurgeRequest::new(state, Duration::ZERO, 10).unwrap();
        let _ = store.drop_payloads(&expired).await.unwrap();
        let _ = store.purge(&expired).await.unwrap();
    }
    let slice = inbox_api::Slice {
        after: None,
        limit: 10,
    };
    let due = inbox_api::Due::Now;
    store.pause(&handler()).await.unwrap();
    store.resume(&handler()).await.unwrap();
    let rescheduled = store.reschedule_slice(&everything, &slice, due).await;
    assert!(rescheduled.unwrap().changed > 0);
    let _ = store.clear_slice(&handler(), &slice).await.unwrap();
    check_privileges(&sent, &worker);
    owner.remove().await.unwrap();
    check_privileges(&of_owner, &[worker, given("inboxOwner")].concat());
}

/// The names of all indexes that an explanation mentions, and whether it reads a whole collection.
fn used(value: &Bson, indexes: &mut Vec<String>, whole: &mut bool) {
    match value {
        Bson::Document(document) => {
            for (name, value) in document {
                match (name.as_str(), value) {
                    ("indexName", Bson::String(index)) => indexes.push(index.clone()),
                    ("stage", Bson::String(stage)) if stage == "COLLSCAN" => *whole = true,
                    ("Node Type", Bson::String(node)) if node == "Seq Scan" => *whole = true,
                    // FerretDB lists what it considered there.
                    ("IndexCosts" | "rejectedPlans", _) => {}
                    _ => used(value, indexes, whole),
                }
            }
        }
        Bson::Array(values) => {
            for value in values {
                used(value, indexes, whole);
            }
        }
        _ => {}
    }
}

/// What a command says that is not explained.
const OF_THE_SESSION: [&str; 7] = [
    "lsid",
    "$db",
    "$clusterTime",
    "readConcern",
    "writeConcern",
    "txnNumber",
    "maxTimeMS",
];

async fn explained(place: &TestInbox, command: Document) -> (Vec<String>, bool) {
    let plan = place
        .run(doc! { "explain": command, "verbosity": "queryPlanner" })
        .await
        .unwrap();
    let (mut indexes, mut whole) = (Vec::new(), false);
    used(&Bson::Document(plan), &mut indexes, &mut whole);
    (indexes, whole)
}

/// Explains what the store has really sent.
#[tokio::test]
async fn plans_use_the_indexes() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let (store, sent) = listening(&place).await;
    for part in 0..4 {
        let _ = store
            .receive(&batch(500, part * 500, part == 3))
            .await
            .unwrap();
    }
    lock(&sent).clear();
    let claims = store.claim(&request(5)).await.unwrap();
    assert_eq!(claims.leased.len(), 5);
    let expired =
        inbox_api::PurgeRequest::new(inbox_api::State::Processed, Duration::ZERO, 10).unwrap();
    let _ = store.purge(&expired).await.unwrap();
    let page = inbox_api::Page::first(5);
    let _ = store
        .list(&inbox_api::Filter::default(), &page)
        .await
        .unwrap();
    let _ = store.get(message("evt-1").key()).await.unwrap();
    let commands = std::mem::take(&mut *lock(&sent));
    // The second one opens the segment of the messages.
    let wanted = [
        "claim", "_id_", "_id_", "_id_", "standing", "sequence", "_id_",
    ];
    assert_eq!(commands.len(), wanted.len());
    for (mut command, wanted) in commands.into_iter().zip(wanted) {
        for session in OF_THE_SESSION {
            command.remove(session);
        }
        let name = command.keys().next().unwrap().clone();
        let text = format!("{command:?}").chars().take(300).collect::<String>();
        if name == "update" && !explains_updates(&place).await {
            println!("NOT CHECKED: this server does not explain updates");
            continue;
        }
        let (indexes, whole) = explained(&place, command).await;
        // FerretDB reads the whole collection and sorts.
        if wanted == "sequence" && is_ferretdb(&place).await {
            println!("NOT CHECKED: this server does not list in the order of an index");
            continue;
        }
        assert!(
            indexes.iter().any(|index| index == wanted) && !whole,
            "{text}: {indexes:?}, reads the whole collection: {whole}"
        );
    }
}

/// The indexes that a command names, one a statement; `None` for one that names none.
fn named(command: &Document) -> Vec<Option<String>> {
    let hint = |statement: &Document| statement.get_str("hint").ok().map(str::to_owned);
    let statements = ["updates", "deletes"]
        .into_iter()
        .find_map(|field| command.get_array(field).ok());
    match statements {
        Some(statements) => statements
            .iter()
            .map(|statement| hint(statement.as_document().unwrap()))
            .collect(),
        None => vec![hint(command)],
    }
}

/// A server's statistics must not talk it out of an index: above some hundred identifiers, or with
/// a deep backlog, it reads all that is due instead.
#[tokio::test]
async fn requests_about_messages_name_their_index_whatever_the_batch() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let (store, sent) = listening(&place).await;
    let ferretdb = is_ferretdb(&place).await;
    let terms = LeaseTerms::new(Duration::from_secs(60), worker()).unwrap();
    for size in [1, 100, 1000] {
        let limit = u32::try_from(size).unwrap();
        for ordered in [false, true] {
            let from = size * 10 + usize::from(ordered) * size;
            let _ = store.receive(&batch(size, from, ordered)).await.unwrap();
            let claims = store.claim(&request(limit)).await.unwrap();
            let leases: Vec<_> = claims.leased.into_iter().map(|l| l.lease).collect();
            let longer = Duration::from_secs(90);
            let _ = store.extend(&leases, longer).await.unwrap();
            let settlements: Vec<_> = leases
                .into_iter()
                .map(|lease| Settlement {
                    lease,
                    outcome: Outcome::Processed { result: None },
                })
                .collect();
            let _ = store.settle(&settlements).await.unwrap();
        }
        let inline = message(&format!("inline-{size}"));
        let _ = store.receive(std::slice::from_ref(&inline)).await.unwrap();
        let _ = store.begin(&inline, &terms).await.unwrap();
        let _ = store.get(inline.key()).await.unwrap();
        let expired =
            inbox_api::PurgeRequest::new(inbox_api::State::Processed, Duration::ZERO, limit);
        let _ = store.purge(&expired.unwrap()).await.unwrap();
        let mut met = Vec::new();
        let commands = std::mem::take(&mut *lock(&sent));
        for command in commands {
            let (name, collection) = command.iter().next().unwrap();
            let name = name.clone();
            if collection.as_str() != Some("inbox_message") || name == "insert" {
                continue;
            }
            if ferretdb && name != "aggregate" {
                println!("NOT CHECKED: {name} on a server that takes no hints there");
                continue;
            }
            let text: String = format!("{command:?}").chars().take(300).collect();
            for index in named(&command) {
                let index = index.unwrap_or_else(|| panic!("{size}: no index named: {text}"));
                met.push(index);
            }
            explain_hinted(&place, command, &text).await;
        }
        for index in ["_id_", "claim", "standing"] {
            assert!(met.iter().any(|met| met == index), "{size}: {index}");
        }
    }
}

/// That the plan has the index that the command names, and no other at that place.
async fn explain_hinted(place: &TestInbox, mut command: Document, text: &str) {
    let name = command.keys().next().unwrap().clone();
    if name != "aggregate" && !explains_updates(place).await {
        return;
    }
    let wanted = named(&command);
    for session in OF_THE_SESSION {
        command.remove(session);
    }
    // One statement is explained at a time.
    if wanted.len() > 1 {
        return;
    }
    let (indexes, whole) = explained(place, command).await;
    let wanted = wanted.into_iter().flatten().next().unwrap();
    assert!(
        !whole && (indexes.is_empty() || indexes.contains(&wanted)),
        "{text}: {indexes:?}, reads the whole collection: {whole}"
    );
}

async fn is_ferretdb(place: &TestInbox) -> bool {
    let build = place.run(doc! { "buildInfo": 1 }).await.unwrap();
    build.contains_key("ferretdb")
}

async fn explains_updates(place: &TestInbox) -> bool {
    let update = doc! {
        "update": "inbox_message", "updates": [{ "q": { "_id": "x" }, "u": { "$set": { "a": 1 } } }],
    };
    place
        .run(doc! { "explain": update, "verbosity": "queryPlanner" })
        .await
        .is_ok()
}
