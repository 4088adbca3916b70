//! From URLs to stores.

use inbox::{Error, ErrorKind};

async fn refused(url: &str) -> Error {
    match inbox::connect(url).await {
        Ok(_) => panic!("{url} was accepted"),
        Err(error) => error,
    }
}

#[cfg(feature = "memory")]
#[tokio::test]
async fn every_memory_connection_is_a_new_inbox() {
    use inbox::{HandlerName, Kind, Message, MessageId, Receipt};

    let message = Message::new(
        HandlerName::new("h").unwrap(),
        MessageId::new("1").unwrap(),
        Kind::new("k").unwrap(),
        "payload",
    );
    for url in ["memory://", "MEMORY://"] {
        let inbox = inbox::connect(url).await.unwrap();
        inbox.create().await.unwrap();
        let receipts = inbox.receive(std::slice::from_ref(&message)).await.unwrap();
        assert_eq!(receipts, [Receipt::Accepted]);
    }
    assert_eq!(refused("memory://x").await.kind(), ErrorKind::Invalid);
    assert!(inbox::schemes().contains(&"memory"));
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_sqlite_inbox_is_not_set_up_by_connecting() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("inbox.db");
    let url = format!("sqlite://{}", path.display());
    let inbox = inbox::connect(&url).await.unwrap();
    assert!(!inbox.exists().await.unwrap());
    inbox.create().await.unwrap();
    assert!(inbox.exists().await.unwrap());
    inbox.close().await;
    assert!(inbox::schemes().contains(&"sqlite"));
}

#[tokio::test]
async fn unknown_schemes_are_refused_with_a_list_and_without_the_url() {
    for url in [
        "oracle://scott:tiger@db/inbox",
        "scott:tiger@db/inbox",
        "scott:tiger://db",
        "",
        "://tiger",
        "tiger",
    ] {
        let error = refused(url).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("tiger"), "{shown}");
        for scheme in inbox::schemes() {
            assert!(shown.contains(&format!("{scheme}://")), "{shown}");
        }
    }
    let error = refused("oracle://scott:tiger@db/inbox").await;
    assert!(error.to_string().contains("no store for oracle"), "{error}");
}
