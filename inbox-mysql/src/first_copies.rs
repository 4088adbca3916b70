//! What a duplicate's first copy was: fingerprints, read for duplicates only.

use std::collections::{BTreeSet, HashMap};

use inbox_api::{Key, Message, Receipt, Result};
use sqlx::Row as _;

use crate::{
    connection::Connection,
    context::Context,
    error::failed,
    list_variables::set_names,
    multi_statement::{Access, Answers, Script},
    statement::Statement,
};

/// Keys that are known, with the fingerprints of their first copies.
#[derive(Debug, Default)]
pub(crate) struct Fingerprints(HashMap<(Vec<u8>, Vec<u8>), i64>);

impl Fingerprints {
    /// Reads rows of a handler, an id and a fingerprint.
    pub(crate) fn read(answers: &Answers, places: &[usize]) -> sqlx::Result<Self> {
        let rows = places.iter().flat_map(|place| answers.rows(*place));
        let keys = rows.map(|row| {
            let key = (row.try_get_unchecked(0)?, row.try_get_unchecked(1)?);
            Ok((key, row.try_get_unchecked(2)?))
        });
        keys.collect::<sqlx::Result<_>>().map(Self)
    }

    /// Of one key.
    pub(crate) fn one(key: &Key, fingerprint: i64) -> Self {
        Self(HashMap::from([(bytes(key), fingerprint)]))
    }

    /// Of a key, if it is there.
    pub(crate) fn of(&self, key: &Key) -> Option<i64> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&bytes(key)).copied()
    }
}

fn bytes(key: &Key) -> (Vec<u8>, Vec<u8>) {
    let bytes = |text: &str| text.as_bytes().to_vec();
    (bytes(key.handler.as_str()), bytes(key.id.as_str()))
}

/// Which messages were new. The others count as equal to their first copies until they are
/// [compared](Received::compare).
pub(crate) struct Received {
    pub(crate) receipts: Vec<Receipt>,
    /// The fingerprints that the answers had.
    pub(crate) fingerprints: Fingerprints,
    /// The places of duplicates whose first copies are not in the answers.
    pub(crate) unknown: Vec<usize>,
}

impl Received {
    /// The receipts of `messages`, which are those that were received. `first_copies` are of keys that
    /// were known before, or looked for since.
    pub(crate) fn compare(
        mut self,
        messages: &[Message],
        first_copies: &Fingerprints,
    ) -> Vec<Receipt> {
        let is_duplicate = |receipt: &Receipt| matches!(receipt, Receipt::Duplicate { .. });
        if !self.receipts.iter().any(is_duplicate) {
            return self.receipts;
        }
        let new = self.receipts.iter().zip(messages);
        let new = new.filter(|(receipt, _)| **receipt == Receipt::Accepted);
        let new: HashMap<_, _> = new
            .map(|(_, message)| (message.key(), message.fingerprint().get()))
            .collect();
        for (receipt, message) in self.receipts.iter_mut().zip(messages) {
            if let Receipt::Duplicate { differs } = receipt {
                let key = message.key();
                let first = new.get(key).copied();
                let first = first.or_else(|| self.fingerprints.of(key));
                let first = first.or_else(|| first_copies.of(key));
                *differs = first.is_some_and(|first| first != message.fingerprint().get());
            }
        }
        self.receipts
    }
}

/// The fingerprints of those duplicates that are not known yet: of several messages, whose keys would
/// otherwise travel a second time with every batch.
pub(crate) async fn look_for_first_copies(
    connection: Connection<'_>,
    messages: &[Message],
    received: &Received,
) -> Result<Fingerprints> {
    let context = connection.context;
    let places = received.unknown.iter();
    let keys: BTreeSet<_> = places
        .filter_map(|place| messages.get(*place))
        .map(|m| (m.handler().as_str(), m.id().as_str()))
        .collect();
    if keys.is_empty() {
        return Ok(Fingerprints::default());
    }
    let mut script = connection.script(Access::Write);
    let places = add_fingerprints(context, &mut script, &keys, Statement::new("TRUE"));
    let answers = connection.run(Access::Write, script).await?;
    Fingerprints::read(&answers, &places).map_err(failed)
}

/// Adds a look for the fingerprints of these keys, under a condition. Answers with where they are.
pub(crate) fn add_fingerprints(
    context: &Context,
    script: &mut Script,
    keys: &BTreeSet<(&str, &str)>,
    wanted: Statement,
) -> Vec<usize> {
    let values = [("wanted", wanted)];
    let lists = set_names(context, "@inbox_ids", keys.iter().copied());
    let places = lists.into_iter().map(|list| {
        script.add(list);
        script.fill(&context.sql.receive_fingerprints, &values)
    });
    places.collect()
}
