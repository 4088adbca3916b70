//! The layouts: nothing but their SQL.

use std::str::FromStr;

use anyhow::{Context as _, Error};

/// A storage layout. All statements take the same parameters in every layout.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    /// Tables without indexes, so that prefilling them is quick.
    pub(crate) tables: &'static str,
    pub(crate) indexes: &'static str,
    /// `$1` handler, `$2` ids, `$3` payloads; returns the ids that were new.
    pub(crate) receive: &'static str,
    /// `$1` handler, `$2` limit, `$3` microseconds of lease, `$4` worker.
    pub(crate) claim: &'static str,
    /// `$1` numbers, `$2` tokens, `$3` handler, `$4` end of the lease in microseconds of the
    /// epoch; returns the numbers of those that stood.
    pub(crate) settle: &'static str,
    /// `$1` handler, `$2` how many processed messages to add.
    pub(crate) retained: &'static str,
    /// `$1` handler, `$2` how many due messages to add.
    pub(crate) pending: &'static str,
}

macro_rules! layout {
    ($name:literal, $folder:literal) => {
        Layout {
            name: $name,
            tables: include_str!(concat!("sql/", $folder, "/tables.sql")),
            indexes: include_str!(concat!("sql/", $folder, "/indexes.sql")),
            receive: include_str!(concat!("sql/", $folder, "/receive.sql")),
            claim: include_str!(concat!("sql/", $folder, "/claim.sql")),
            settle: include_str!(concat!("sql/", $folder, "/settle.sql")),
            retained: include_str!(concat!("sql/", $folder, "/retained.sql")),
            pending: include_str!(concat!("sql/", $folder, "/pending.sql")),
        }
    };
}

static LAYOUTS: [Layout; 6] = [
    // Everything in one row, updated in place.
    layout!("one-table", "one_table"),
    // An immutable message, and a narrow row updated in place and kept for good.
    layout!("message+state", "message_state"),
    // An immutable message, a narrow row while it is unfinished, another once it is.
    layout!("message+work+done", "message_work_done"),
    // The last with variants of its work table: no index on `seq` alone (a lease is found in the
    // claim index), ...
    layout!("work-without-key", "work_without_key"),
    // ... a claim that leaves the indexes alone, ...
    layout!("work-hot-claim", "work_hot_claim"),
    // ... leased rows in a table of their own.
    layout!("lease-table", "lease_table"),
];

impl Layout {
    pub(crate) const NAMES: [&str; 6] = [
        "one-table",
        "message+state",
        "message+work+done",
        "work-without-key",
        "work-hot-claim",
        "lease-table",
    ];

    /// The name of its database.
    pub(crate) fn database(&self) -> String {
        let name: String = self
            .name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
            .collect();
        format!("layout_{name}")
    }
}

impl FromStr for &'static Layout {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        LAYOUTS
            .iter()
            .find(|layout| layout.name == name)
            .with_context(|| format!("the layouts are {}", Layout::NAMES.join(", ")))
    }
}
