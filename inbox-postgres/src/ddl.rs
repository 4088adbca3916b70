//! The statements that set an inbox up: numbered steps for the tables, then the functions and the view.

use crate::names::Names;

/// Step n brings the tables from version n to n + 1. Never changed once released. The functions
/// and the view are those of the newest version, and are replaced as a whole.
///
/// A version stands for the tables and for how the functions are called. What changes within the
/// functions only is a [`REVISION`]: old builds and new ones work with either.
pub(crate) const STEPS: &[&str] = &[include_str!("sql/schema_1.sql")];

/// To be counted up by whatever changes a function or the view.
pub(crate) const REVISION: u32 = 1;

/// The oldest version whose builds work with the tables and functions that this build makes.
pub(crate) const WORKS_FROM: u32 = 1;

pub(crate) const MARKER: &str = "inbox.postgres";

const VIEW: &str = include_str!("sql/schema_view.sql");

/// The server-side functions, in the order in which they are made.
const FUNCTIONS: &[(&str, &str)] = &[
    ("now", include_str!("sql/now.sql")),
    ("compact_counters", include_str!("sql/compact_counters.sql")),
    ("lock_keys", include_str!("sql/lock_keys.sql")),
    ("lock_keys_of", include_str!("sql/lock_keys_of.sql")),
    (
        "promote_key_heads",
        include_str!("sql/promote_key_heads.sql"),
    ),
    ("receive", include_str!("sql/receive.sql")),
    ("claim_cursor", include_str!("sql/claim_cursor.sql")),
    ("claim", include_str!("sql/claim.sql")),
    ("claim_runs", include_str!("sql/claim_runs.sql")),
    ("settle", include_str!("sql/settle.sql")),
    ("settle_one", include_str!("sql/settle_one.sql")),
    ("extend", include_str!("sql/extend.sql")),
    ("begin_any", include_str!("sql/begin_any.sql")),
    ("begin", include_str!("sql/begin.sql")),
    ("record", include_str!("sql/record.sql")),
    ("keep_result", include_str!("sql/keep_result.sql")),
    ("replay", include_str!("sql/replay.sql")),
    ("reschedule", include_str!("sql/reschedule.sql")),
    ("discard", include_str!("sql/discard.sql")),
    ("clear", include_str!("sql/clear.sql")),
    ("expired_handlers", include_str!("sql/expired_handlers.sql")),
    ("expired_shares", include_str!("sql/expired_shares.sql")),
    ("lock_expired", include_str!("sql/lock_expired.sql")),
    ("purge_done", include_str!("sql/purge_done.sql")),
    ("purge_dead", include_str!("sql/purge_dead.sql")),
    ("purge", include_str!("sql/purge.sql")),
    ("purge_keys", include_str!("sql/purge_keys.sql")),
    ("drop_payloads", include_str!("sql/drop_payloads.sql")),
    ("statistics", include_str!("sql/statistics.sql")),
];

/// Those that only an inbox in partitions has, in the same order.
const PARTITION_FUNCTIONS: &[(&str, &str)] = &[
    ("make_partition", include_str!("sql/make_partition.sql")),
    ("partition_upkeep", include_str!("sql/partition_upkeep.sql")),
    ("is_over", include_str!("sql/is_over.sql")),
    ("drop_partition", include_str!("sql/drop_partition.sql")),
    ("forget", include_str!("sql/forget.sql")),
];

/// The version that `steps` make.
pub(crate) fn version_of(steps: &[&str]) -> u32 {
    u32::try_from(steps.len()).unwrap_or(u32::MAX)
}

/// The functions of the inbox's layout by name, in the order in which they are made.
pub(crate) fn functions(
    names: &Names,
) -> impl Iterator<Item = &'static (&'static str, &'static str)> + use<> {
    let more: &[_] = if names.in_partitions {
        PARTITION_FUNCTIONS
    } else {
        &[]
    };
    FUNCTIONS.iter().chain(more)
}

/// What sets the functions and the view up, over whatever revision of them is there.
pub(crate) fn routines(names: &Names) -> String {
    functions(names)
        .map(|(_, template)| *template)
        .chain([VIEW])
        .map(|template| names.text(template) + "\n")
        .collect()
}

pub(crate) fn record_version(names: &Names, version: u32) -> String {
    let functions: Vec<String> = functions(names)
        .map(|(name, _)| format!("'{}_{name}'", names.inbox))
        .collect();
    names
        .text(include_str!("sql/schema_record_version.sql"))
        .replace("{marker}", MARKER)
        .replace("{version}", &version.to_string())
        .replace("{works_from}", &WORKS_FROM.to_string())
        .replace("{revision}", &REVISION.to_string())
        .replace("{functions}", &functions.join(", "))
}

/// All of it, for an inbox that is not there.
pub(crate) fn ddl(names: &Names) -> String {
    let mut text = names.text("CREATE SCHEMA IF NOT EXISTS {schema};\n\n");
    for step in STEPS {
        text.push_str(&names.text(step));
        text.push('\n');
    }
    text + &routines(names) + &record_version(names, version_of(STEPS))
}
