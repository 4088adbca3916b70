//! The receiver on a store that survives: set-up is demanded, and files are shared.

use std::sync::Arc;

use inbox::{
    ErrorKind, Filter, Inbox,
    receiver::{Receiver, ReceiverError},
};
use inbox_sqlite::{SqliteOptions, SqliteStore};
use tokio_util::sync::CancellationToken;

use crate::{broker::Broker, faulty::message};

#[tokio::test]
async fn an_inbox_that_is_not_set_up_ends_the_run_and_acknowledges_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", directory.path().join("inbox.db").display());
    let options = SqliteOptions::from_url(&url).unwrap();
    let inbox: Arc<dyn Inbox> = Arc::new(SqliteStore::connect(options).await.unwrap());
    let broker = Broker::new(inbox.clone());
    for n in 0..700 {
        broker.queue(message(n));
    }
    let receiver = Receiver::builder(inbox.clone()).build();
    let never = CancellationToken::new();
    let error = receiver
        .run(&mut broker.source(), never.clone())
        .await
        .unwrap_err();
    assert!(
        matches!(&error, ReceiverError::Store(e) if e.kind() == ErrorKind::SchemaMissing),
        "{error:?}"
    );
    assert_eq!(broker.fates(), []);
    inbox.create().await.unwrap();
    let summary = receiver.run(&mut broker.source(), never).await.unwrap();
    assert_eq!(summary.accepted, 700);
    assert_eq!(broker.acknowledged_in_order(), 700);
    assert_eq!(inbox.count(&Filter::default()).await.unwrap(), 700);
    inbox.close().await;
}
