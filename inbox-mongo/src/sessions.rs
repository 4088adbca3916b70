//! Concerns, transactions and cursors of the driver, as the store wants them.

use mongodb::{
    ClientSession,
    bson::{Document, doc},
    error::{Error as DriverError, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT},
    options::{Acknowledgment, ReadConcern, ReadPreference, TransactionOptions, WriteConcern},
};

/// How often a commit is sent whose outcome is not known. Each waits for the server.
const COMMITS: usize = 5;

pub(crate) fn write_concern() -> WriteConcern {
    let mut concern = WriteConcern::builder().w(Acknowledgment::Majority).build();
    concern.journal = Some(true);
    concern
}

/// The same, for commands that are sent as they are.
pub(crate) fn write_concern_document() -> Document {
    doc! { "w": "majority", "j": true }
}

/// Nothing is sent yet: the transaction begins with its first request.
pub(crate) async fn start_transaction(session: &mut ClientSession) -> Result<(), DriverError> {
    let mut options = TransactionOptions::builder()
        .read_concern(ReadConcern::snapshot())
        .write_concern(write_concern())
        .build();
    options.selection_criteria = Some(ReadPreference::Primary.into());
    session.start_transaction().with_options(options).await
}

/// Commits, again and again while the outcome is not known, as the driver's documentation says: a
/// commit may be repeated. A later failure says nothing of an earlier commit, unless it is that the transaction was
/// aborted.
pub(crate) async fn commit_transaction(session: &mut ClientSession) -> Result<(), DriverError> {
    let mut unknown = None;
    for _ in 0..COMMITS {
        match session.commit_transaction().await {
            Err(error) if error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) => {
                unknown = Some(error);
            }
            Err(error) if !error.contains_label(TRANSIENT_TRANSACTION_ERROR) => {
                return Err(unknown.unwrap_or(error));
            }
            ended => return ended,
        }
    }
    unknown.map_or(Ok(()), Err)
}

/// The documents of a cursor.
pub(crate) async fn read_all(
    cursor: Result<mongodb::Cursor<Document>, DriverError>,
) -> Result<Vec<Document>, DriverError> {
    let mut cursor = cursor?;
    let mut documents = Vec::new();
    while cursor.advance().await? {
        documents.push(cursor.deserialize_current()?);
    }
    Ok(documents)
}

pub(crate) async fn read_all_in(
    cursor: Result<mongodb::SessionCursor<Document>, DriverError>,
    session: &mut ClientSession,
) -> Result<Vec<Document>, DriverError> {
    let mut cursor = cursor?;
    let mut documents = Vec::new();
    while cursor.advance(session).await? {
        documents.push(cursor.deserialize_current()?);
    }
    Ok(documents)
}
