//! The harness of the memory store, which is this crate's to have: the store cannot depend on it.

use inbox_api::{Clock, DEFAULT_PAYLOAD_LIMIT};
use inbox_memory::{MemoryOptions, MemoryStore};

use crate::{
    needs::{Need, Settings},
    ready::{Fresh, Ready},
};

/// The harness of the [memory store](inbox_memory): the store's own tests and `inbox conformance` run
/// the suite with it.
#[must_use]
pub fn memory_harness() -> Ready {
    Ready::new("memory", |settings: Settings| async move {
        let clock = Clock::system();
        let options = MemoryOptions::new()
            .payload_limit(settings.payload_limit.unwrap_or(DEFAULT_PAYLOAD_LIMIT))
            .drop_processed_payloads(settings.drop_processed_payloads)
            .clock(clock.clone());
        Ok(Fresh::new(MemoryStore::with(options)).with_clock(clock))
    })
    // Nothing outlives the process or is shared with another.
    .lacks([
        Need::SecondConnection,
        Need::Transactions,
        Need::WakeupsAcrossProcesses,
    ])
}
