//! What a role must be allowed.

use std::os::unix::fs::PermissionsExt as _;

use inbox_api::{AfterDead, Due, Filter, Intervention, Page, Recorded, Settled, Settlement, Slice};
use test_servers::{Kind, Server, find_own};

use super::*;

/// A server that asks who it is, and an inbox in it. Without a key, all roles count for nothing: everything
/// is allowed.
struct Guarded {
    place: TestInbox,
    /// Without credentials.
    url: String,
    _server: Server,
}

impl Guarded {
    async fn start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        std::fs::write(&key, "c2VjcmV0".repeat(8)).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let arguments = format!("--keyFile={}", key.display());
        let found = tokio::task::spawn_blocking(move || find_own(Kind::Mongodb, &[&arguments]));
        let Ok(server) = found.await.unwrap() else {
            println!("NOT CHECKED: no server here asks who it is");
            return None;
        };
        let url = server.url().to_owned();
        // The first user may be made by anybody on this machine.
        let first = doc! { "createUser": "admin", "pwd": "secret", "roles": ["root"] };
        let admin = common::client(&url).await.database("admin");
        admin.run_command(first).await.unwrap();
        let place = TestInbox::at(url.replacen("://", "://admin:secret@", 1));
        Some(Self {
            place,
            url,
            _server: server,
        })
    }

    /// As a new user with these roles.
    async fn store(&self, user: &str, roles: &[&str]) -> MongoStore {
        let database = &self.place.database;
        let made = doc! { "createUser": user, "pwd": "secret", "roles": roles };
        self.place.run(made).await.unwrap();
        let url = self
            .url
            .replacen("://", &format!("://{user}:secret@"), 1)
            .replacen("/?", &format!("/{database}?"), 1);
        let options = MongoOptions::from_url(&url).unwrap();
        MongoStore::connect(options).await.unwrap()
    }
}

/// Every operation but setting up, each so that it changes something.
async fn everything(store: &MongoStore) {
    assert!(store.exists().await.unwrap());
    store.create().await.unwrap();
    store.migrate().await.unwrap();
    let mut subscription = store.subscribe(&[handler()]).await.unwrap();
    let sent = [message("a"), in_order("b"), in_order("c"), message("d")];
    store.receive(&sent).await.unwrap();
    tokio::time::timeout(LEASE, subscription.woken())
        .await
        .unwrap();
    let leased = store
        .claim_for(&handler(), 10, LEASE, &worker())
        .await
        .unwrap()
        .leased;
    let leases: Vec<_> = leased.into_iter().map(|leased| leased.lease).collect();
    store.extend(&leases, LEASE * 2).await.unwrap();
    let outcomes = [
        Outcome::Processed { result: None },
        Outcome::Dead {
            reason: "d".into(),
            after: AfterDead::Block,
        },
        Outcome::Retry {
            after: LEASE,
            error: "e".into(),
        },
    ];
    let settlements = leases.into_iter().zip(outcomes);
    let settlements: Vec<_> = settlements
        .map(|(lease, outcome)| Settlement { lease, outcome })
        .collect();
    assert_eq!(
        store.settle(&settlements).await.unwrap(),
        [Settled::Done, Settled::Done, Settled::Done]
    );
    let terms = inbox_api::LeaseTerms::new(LEASE, worker()).unwrap();
    let _ = store.begin(&message("e"), &terms).await.unwrap();
    let mut transaction = store.open().await.unwrap();
    let recorded = store
        .record_in(&mut transaction, &message("f"), None)
        .await
        .unwrap();
    assert_eq!(recorded, Recorded::First);
    store.commit(transaction).await.unwrap();

    store
        .list(&Filter::default(), &Page::first(10))
        .await
        .unwrap();
    store.count(&Filter::default()).await.unwrap();
    assert!(store.statistics().await.unwrap().count(State::Processed) >= 2);
    let key = |id: &str| message(id).key().clone();
    assert!(store.get(&key("a")).await.unwrap().is_some());
    let replayed = store.replay(&key("b"), &Edit::default()).await.unwrap();
    assert_eq!(replayed, Intervention::Done);
    let _ = store.reschedule(&key("d"), Due::Now).await.unwrap();
    assert_eq!(store.discard(&key("b")).await.unwrap(), Intervention::Done);
    store.pause(&handler()).await.unwrap();
    assert_eq!(store.paused().await.unwrap(), [handler()]);
    store.resume(&handler()).await.unwrap();
    let expired = PurgeRequest::new(State::Processed, Duration::ZERO, 10).unwrap();
    store.drop_payloads(&expired).await.unwrap();
    store.expired(&expired).await.unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 2);
    let slice = Slice {
        after: None,
        limit: 10,
    };
    store.clear_slice(&handler(), &slice).await.unwrap();
}

#[tokio::test]
async fn the_documented_role_is_enough() {
    let Some(guarded) = Guarded::start().await else {
        return;
    };
    for role in common::documented_roles(&guarded.place.database) {
        let mut command = doc! { "createRole": role.get_str("role").unwrap() };
        command.extend(role.into_iter().filter(|(field, _)| field != "role"));
        guarded.place.run(command).await.unwrap();
    }
    let owner = guarded.store("owner", &["inboxOwner"]).await;
    owner.create().await.unwrap();
    let worker = guarded.store("worker", &["inboxWorker"]).await;
    everything(&worker).await;

    // It may no more than that, and others may nothing.
    let denied = |error: inbox_api::Error| assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    denied(worker.remove().await.unwrap_err());
    let nobody = guarded.store("nobody", &[]).await;
    denied(nobody.receive_one(&message("x")).await.unwrap_err());
    owner.remove().await.unwrap();
}
