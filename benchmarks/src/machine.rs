//! The machine, and what this process takes of it.

use std::{fmt, fs, time::Duration};

use anyhow::{Context as _, Result};
use serde::Serialize;

/// What has to be known about the machine to compare figures.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
}

impl Machine {
    pub(crate) fn this() -> Result<Self> {
        let field = |path: &str, name: &str| -> Result<String> {
            let text = fs::read_to_string(path).context("needs Linux's /proc")?;
            let line = text.lines().find(|line| line.starts_with(name));
            let value = line.and_then(|line| line.split_once(':'));
            Ok(value.map_or_else(String::new, |(_, value)| value.trim().to_owned()))
        };
        let memory = field("/proc/meminfo", "MemTotal")?;
        let kilobytes: u64 = memory.trim_end_matches(" kB").parse()?;
        Ok(Self {
            processor: field("/proc/cpuinfo", "model name")?,
            cores: std::thread::available_parallelism()?.get(),
            memory_gib: (kilobytes + (1 << 19)) >> 20,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?
                .trim()
                .to_owned(),
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            processor,
            cores,
            memory_gib,
            kernel,
        } = self;
        write!(
            f,
            "{processor}, {cores} cores, {memory_gib} GiB, Linux {kernel}"
        )
    }
}

/// This process's resident memory, in bytes.
pub(crate) fn resident() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("needs Linux's /proc")?;
    let kilobytes: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))
        .context("no VmRSS in /proc/self/status")?
        .trim()
        .parse()?;
    Ok(kilobytes * 1024)
}

/// How many files and sockets this process has open.
pub(crate) fn open_files() -> Result<u64> {
    let open = fs::read_dir("/proc/self/fd").context("needs Linux's /proc")?;
    Ok(open.count() as u64)
}

/// The processor time that this process has used so far, all threads together. Counted in ticks
/// of ten milliseconds, which is what Linux tells on every machine that this runs on.
pub(crate) fn processor_time() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat").context("needs Linux's /proc")?;
    // Behind the program's name, which may contain anything, user time is the 12th field and
    // system time the 13th.
    let (_, fields) = stat.rsplit_once(')').context("/proc/self/stat")?;
    let fields = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = fields
        .map(str::parse::<u64>)
        .sum::<Result<_, _>>()
        .context("/proc/self/stat")?;
    Ok(Duration::from_millis(10 * ticks))
}
