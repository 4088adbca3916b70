//! Replaying what is final.

use inbox_api::{Bytes, Filter, Intervention, Key, Progress, Result, Slice, State, check_size};

use super::intervention::{Act, intervene, intervene_in_slice};
use crate::{connection::Connection, scripts::REPLAY};

const FINAL: &[State] = &[State::Processed, State::Dead, State::Discarded];

pub(super) async fn replay(
    connection: &Connection,
    key: &Key,
    payload: Option<Bytes>,
) -> Result<Intervention> {
    let limit = connection.options.payload_limit;
    check_size("payload", payload.as_ref().map_or(0, Bytes::len), limit)?;
    let act = Act {
        script: &REPLAY,
        states: FINAL,
        payload,
    };
    intervene(connection, key, &act).await
}

pub(super) async fn replay_slice(
    connection: &Connection,
    filter: &Filter,
    slice: &Slice,
) -> Result<Progress> {
    intervene_in_slice(connection, filter, slice, &REPLAY, FINAL).await
}
