//! Whole messages, with payloads and results.

use std::collections::BTreeMap;

use inbox_api::{Error, ErrorKind, Key, Listing, Record, Result};
use redis::Value;

use crate::{
    keys::field,
    reply::{self, Taker, unexpected},
    rows::{self, Row},
    scripts::READ,
    store::RedisStore,
};

/// One script loads at most so many bodies.
const BODIES: usize = 50;

impl RedisStore {
    pub(super) fn corrupt(
        &self,
        operation: &'static str,
        shard: u16,
        field: &str,
        reason: String,
    ) -> Error {
        let row = rows::corrupt_row(self.layout(), shard, field, reason);
        let context = format!("{}: {}", row.place, row.reason);
        Error::new(ErrorKind::Corrupt, operation, context)
    }

    /// Sorts rows into those that can be read and the others, and loads payloads and results.
    pub(super) async fn listing(
        &self,
        operation: &'static str,
        rows: Vec<Row>,
        with_payload: bool,
    ) -> Result<Listing> {
        let mut listing = Listing::default();
        let mut places: BTreeMap<u16, Vec<(usize, String)>> = BTreeMap::new();
        for row in rows {
            match row.record {
                Ok(record) => {
                    let place = (listing.records.len(), row.field);
                    places.entry(row.shard).or_default().push(place);
                    listing.records.push(record);
                }
                Err(reason) => listing.corrupt.push(rows::corrupt_row(
                    self.layout(),
                    row.shard,
                    &row.field,
                    reason,
                )),
            }
        }
        if with_payload {
            for (shard, places) in places {
                for step in places.chunks(BODIES) {
                    self.load_bodies(operation, shard, step, &mut listing.records)
                        .await?;
                }
            }
        }
        Ok(listing)
    }

    async fn load_bodies(
        &self,
        operation: &'static str,
        shard: u16,
        places: &[(usize, String)],
        records: &mut [Record],
    ) -> Result<()> {
        let mapped = unexpected(operation);
        let mut call = self.inner.caller.call(&READ, shard, []);
        call.arg("bodies");
        for (_, field) in places {
            call.arg(field);
        }
        let answer = reply::list(self.run(operation, call).await?).map_err(mapped)?;
        for ((place, _), pair) in places.iter().zip(answer) {
            let mut pair = Taker::of(pair).map_err(mapped)?;
            let body = pair.bytes().map_err(mapped)?;
            let result = reply::bytes(pair.optional()).map_err(mapped)?;
            if let Some(record) = records.get_mut(*place) {
                // A payload that was just dropped is no longer there to be shown.
                record.payload = body.and_then(|body| rows::payload(&body).ok());
                if record.payload.is_none() {
                    record.payload_bytes = None;
                }
                record.result = result;
            }
        }
        Ok(())
    }

    /// What a shard has under a key.
    pub(super) async fn get_in(&self, shard: u16, key: &Key) -> Result<Option<Record>> {
        const OPERATION: &str = "get";
        let mapped = unexpected(OPERATION);
        let mut call = self.inner.caller.call(&READ, shard, []);
        call.arg("get").arg(field(key));
        let mut answer = Taker::of(self.run(OPERATION, call).await?).map_err(mapped)?;
        let now = match answer.optional() {
            Value::Nil => return Ok(None),
            now => reply::number(&now).map_err(mapped)?,
        };
        let row = rows::row(shard, 0, now, answer.next().map_err(mapped)?).map_err(mapped)?;
        let body = reply::bytes(answer.optional()).map_err(mapped)?;
        let result = reply::bytes(answer.optional()).map_err(mapped)?;
        let corrupt = |reason| self.corrupt(OPERATION, shard, &row.field, reason);
        let mut record = row.record.map_err(corrupt)?;
        record.payload = body
            .map(|body| rows::payload(&body))
            .transpose()
            .map_err(|reason| self.corrupt(OPERATION, shard, &field(key), reason))?;
        record.result = result;
        Ok(Some(record))
    }
}
