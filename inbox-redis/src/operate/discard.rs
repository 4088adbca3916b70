//! Giving up what is pending or dead.

use inbox_api::{Filter, Intervention, Key, Progress, Result, Slice, State};

use super::intervention::{Act, intervene, intervene_in_slice};
use crate::{connection::Connection, scripts::DISCARD};

const UNWANTED: &[State] = &[State::Pending, State::Dead];

pub(super) async fn discard(connection: &Connection, key: &Key) -> Result<Intervention> {
    let act = Act {
        script: &DISCARD,
        states: UNWANTED,
        payload: None,
    };
    intervene(connection, key, &act).await
}

pub(super) async fn discard_slice(
    connection: &Connection,
    filter: &Filter,
    slice: &Slice,
) -> Result<Progress> {
    intervene_in_slice(connection, filter, slice, &DISCARD, UNWANTED).await
}
