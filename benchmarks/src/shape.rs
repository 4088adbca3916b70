//! What does not differ between the contenders, and what else the machine did.

use anyhow::Result;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Messages per call.
    pub(crate) batch: u32,
    /// Bytes of a payload.
    pub(crate) payload: usize,
}

/// The load averages of 1, 5 and 15 minutes.
pub(crate) fn load() -> Result<String> {
    let all = std::fs::read_to_string("/proc/loadavg")?;
    Ok(all.split(' ').take(3).collect::<Vec<_>>().join(" "))
}
