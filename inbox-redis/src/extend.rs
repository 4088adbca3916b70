//! Extending leases.

use std::{collections::BTreeMap, time::Duration};

use inbox_api::{Extended, Lease, LeaseTerms, Result, duration_micros, from_micros};

use crate::{connection::Connection, keys::field, reply, scripts::EXTEND, settle::STEP};

pub(crate) async fn extend(
    connection: &Connection,
    leases: &[Lease],
    length: Duration,
) -> Result<Vec<Extended>> {
    connection.check_open()?;
    LeaseTerms::check_length(length)?;
    let mut extended = vec![Extended::LeaseLost; leases.len()];
    let mut by_shard: BTreeMap<u16, Vec<(usize, u64, &Lease)>> = BTreeMap::new();
    for (place, lease) in leases.iter().enumerate() {
        if let Some((shard, seq)) = connection.layout().located(lease.locator) {
            by_shard.entry(shard).or_default().push((place, seq, lease));
        }
    }
    let moment = connection.clocks().moment();
    let (mut calls, mut places) = (Vec::new(), Vec::new());
    for (shard, members) in by_shard {
        for step in members.chunks(STEP) {
            let handlers = step.iter().map(|(_, _, lease)| &lease.key.handler);
            let mut call = connection.call_at(&EXTEND, shard, handlers, moment);
            call.arg(duration_micros(length));
            for (_, seq, lease) in step {
                call.arg(field(&lease.key)).arg(*seq).arg(lease.token.get());
            }
            calls.push(call);
            places.push(step.iter().map(|(place, ..)| *place).collect::<Vec<_>>());
        }
    }
    let answers = connection.run_all_confirmed(calls).await?;
    for (places, answer) in places.into_iter().zip(answers) {
        let ends = reply::list(answer)?;
        for (place, end) in places.into_iter().zip(ends) {
            let end = reply::number(&end)?;
            if let (true, Some(answer)) = (end > 0, extended.get_mut(place)) {
                *answer = Extended::Until(from_micros(end));
            }
        }
    }
    Ok(extended)
}
