//! The SQL texts of one inbox, expanded once. The only place where names get into SQL: they are
//! validated identifiers, and quoted.

use std::sync::Arc;

use inbox_api::InboxName;
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::{
    names::{self, SchemaName},
    options::{PayloadType, PostgresOptions},
};

/// The server-side functions, in the order in which they are made.
const FUNCTIONS: &[(&str, &str)] = &[
    ("now", include_str!("sql/now.sql")),
    ("fold", include_str!("sql/fold.sql")),
    ("lock_keys", include_str!("sql/lock_keys.sql")),
    ("lock_keys_of", include_str!("sql/lock_keys_of.sql")),
    ("rehead", include_str!("sql/rehead.sql")),
    ("receive", include_str!("sql/receive.sql")),
    ("front", include_str!("sql/front.sql")),
    ("claim", include_str!("sql/claim.sql")),
    ("settle", include_str!("sql/settle.sql")),
    ("extend", include_str!("sql/extend.sql")),
    ("begin", include_str!("sql/begin.sql")),
    ("record", include_str!("sql/record.sql")),
    ("replay", include_str!("sql/replay.sql")),
    ("discard", include_str!("sql/discard.sql")),
    ("purge_done", include_str!("sql/purge_done.sql")),
    ("purge_dead", include_str!("sql/purge_dead.sql")),
    ("purge", include_str!("sql/purge.sql")),
    ("purge_keys", include_str!("sql/purge_keys.sql")),
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

/// With which SQLSTATE functions refuse to run by themselves at another isolation level.
pub(crate) const NOT_READ_COMMITTED: &str = "IB001";

/// How many numbers a partition has. Single messages draw a thousand each, so that is ten thousand
/// million of them; and there are numbers for 900,000 partitions.
const PARTITION_WIDTH: &str = "10000000000000";

/// For how long everybody else may have to wait while a partition is taken out of its tables.
const PARTITION_LOCK_TIMEOUT: &str = "50ms";

/// What differs between the layouts: placeholder, text for one pair of tables, for partitions.
const LAYOUTS: &[(&str, &str, &str)] = &[
    (
        "{store}",
        include_str!("sql/store.sql"),
        include_str!("sql/store_partitioned.sql"),
    ),
    (
        "{store_one}",
        include_str!("sql/store_one.sql"),
        include_str!("sql/store_one_partitioned.sql"),
    ),
    (
        "{keep_partition}",
        "",
        include_str!("sql/keep_partition.sql"),
    ),
    (
        "{forget_key}",
        "",
        include_str!("sql/forget_key_partitioned.sql"),
    ),
    (
        "{forget_keys}",
        "",
        include_str!("sql/forget_keys_partitioned.sql"),
    ),
    (
        "{keys_1}",
        include_str!("sql/keys_1.sql"),
        include_str!("sql/keys_1_partitioned.sql"),
    ),
    ("{partitions_1}", "", include_str!("sql/partitions_1.sql")),
    ("{torn}", "", include_str!("sql/torn_partitioned.sql")),
    ("{by_range}", "", " PARTITION BY RANGE (seq)"),
    ("{named}", "m", "k"),
    (
        "{messages}",
        "{message} AS m",
        "{keys} AS k JOIN {message} AS m ON m.seq = k.seq",
    ),
    ("{keys}", "{message}", "{key}"),
];

/// Fills in the names of one inbox.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    schema: SchemaName,
    inbox: InboxName,
    payload: PayloadType,
    in_partitions: bool,
}

impl Names {
    pub(crate) fn new(options: &PostgresOptions) -> Self {
        Self {
            schema: options.schema.clone(),
            inbox: options.inbox.clone(),
            payload: options.payload_type,
            in_partitions: options.partitions.is_some(),
        }
    }

    pub(crate) fn in_partitions(&self) -> bool {
        self.in_partitions
    }

    /// The functions of this inbox's layout, in the order in which they are made.
    pub(crate) fn functions(
        &self,
    ) -> impl Iterator<Item = &'static (&'static str, &'static str)> + use<> {
        let more: &[_] = if self.in_partitions {
            PARTITION_FUNCTIONS
        } else {
            &[]
        };
        FUNCTIONS.iter().chain(more)
    }

    fn relation(&self, name: &str) -> String {
        format!("\"{}\".\"{}_{name}\"", self.schema, self.inbox)
    }

    pub(crate) fn schema(&self) -> &SchemaName {
        &self.schema
    }

    pub(crate) fn inbox(&self) -> &InboxName {
        &self.inbox
    }

    pub(crate) fn channel(&self) -> String {
        names::channel(&self.schema, &self.inbox)
    }

    /// `template` for this inbox, as text.
    pub(crate) fn text(&self, template: &str) -> String {
        let (payload_out, payload_bytes) = match self.payload {
            PayloadType::Bytea => ("m.payload", "octet_length(m.payload)"),
            PayloadType::Json | PayloadType::Jsonb => (
                "convert_to(m.payload::text, 'UTF8')",
                "octet_length(m.payload::text)",
            ),
        };
        let number = names::number(&self.schema, &self.inbox);
        let mut text = template.replace("{pinned}", include_str!("sql/pinned.sql").trim_end());
        for (placeholder, plain, partitioned) in LAYOUTS {
            let part = if self.in_partitions {
                partitioned
            } else {
                plain
            };
            text = text.replace(placeholder, part.trim_end_matches('\n'));
        }
        text = text
            .replace(
                "{read_committed}",
                &include_str!("sql/read_committed.sql")
                    .trim_end()
                    .replace("{refusal}", NOT_READ_COMMITTED),
            )
            .replace(
                "{fold_sometimes}",
                include_str!("sql/fold_sometimes.sql").trim_end(),
            )
            .replace(
                "{columns}",
                include_str!("sql/message_columns.sql").trim_end(),
            )
            .replace("{filter}", include_str!("sql/filter.sql").trim_end())
            .replace("{shown}", include_str!("sql/shown.sql").trim_end())
            .replace("{payload_out}", payload_out)
            .replace("{payload_bytes}", payload_bytes)
            .replace("{payload}", self.payload.sql())
            .replace("{channel}", &self.channel())
            .replace("{tally_lock}", &format!("{TALLY_LOCK}, {number}"))
            .replace("{setup_lock}", &format!("{SETUP_LOCK}, {number}"))
            .replace("{partition_lock}", &format!("{PARTITION_LOCK}, {number}"))
            .replace("{lock_timeout}", PARTITION_LOCK_TIMEOUT)
            .replace("{width}", PARTITION_WIDTH)
            .replace("{sequence}", &self.relation("seq"))
            .replace("{schema}", &format!("\"{}\"", self.schema))
            .replace("{schema_name}", self.schema.as_str())
            .replace("{prefix}", self.inbox.as_str());
        for table in [
            "message",
            "work",
            "done",
            "ordering",
            "tally",
            "meta",
            "key",
            "partition",
        ] {
            text = text.replace(&format!("{{{table}}}"), &self.relation(table));
        }
        for (function, _) in self.functions() {
            text = text.replace(&format!("{{fn:{function}}}"), &self.relation(function));
        }
        text
    }

    pub(crate) fn expand(&self, template: &str) -> SqlStr {
        AssertSqlSafe(Arc::<str>::from(self.text(template))).into_sql_str()
    }
}

/// For errors.
impl std::fmt::Display for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "inbox {} in schema {}", self.inbox, self.schema)
    }
}

/// First halves of advisory locks' numbers; the second is [`names::number`].
const SETUP_LOCK: u32 = 0x1b0c_0001;
const TALLY_LOCK: u32 = 0x1b0c_0002;
const PARTITION_LOCK: u32 = 0x1b0c_0003;

/// Every text is fixed for the life of the store, whatever the length of a batch, so that each
/// connection prepares it once.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) receive: SqlStr,
    pub(crate) front: SqlStr,
    pub(crate) claim: SqlStr,
    pub(crate) settle: SqlStr,
    pub(crate) held: SqlStr,
    pub(crate) extend: SqlStr,
    pub(crate) begin: SqlStr,
    pub(crate) record: SqlStr,
    pub(crate) get: SqlStr,
    pub(crate) list: ByStates,
    pub(crate) list_newest: ByStates,
    pub(crate) count: ByStates,
    pub(crate) replay_slice: ByStates,
    pub(crate) discard_slice: ByStates,
    pub(crate) replay: SqlStr,
    pub(crate) discard: SqlStr,
    pub(crate) statistics: SqlStr,
    pub(crate) expired: SqlStr,
    pub(crate) purge: SqlStr,
    pub(crate) purge_keys: SqlStr,
    pub(crate) partition_upkeep: SqlStr,
    pub(crate) drop_partition: SqlStr,
    pub(crate) forget: SqlStr,
}

/// One text for the rare states, which have their own index, and one for everything else.
#[derive(Debug)]
pub(crate) struct ByStates {
    pub(crate) any: SqlStr,
    /// Dead or discarded messages only. Without a condition on `$3`, which says the same as `$10`
    /// and `$11` then, and which the planner would take for a rare one.
    pub(crate) set_aside: SqlStr,
}

impl Statements {
    pub(crate) fn new(names: &Names) -> Self {
        let by_states = |template: &str| {
            let filled = |work: &str, done: &str| {
                names.expand(
                    &template
                        .replace("{work_states}", work)
                        .replace("{done_states}", done),
                )
            };
            ByStates {
                any: filled(
                    "($3::smallint[] IS NULL OR {shown} = ANY ($3))",
                    "($3::smallint[] IS NULL OR s.state = ANY ($3))",
                ),
                set_aside: filled("s.state = 3", "s.state = 4"),
            }
        };
        let list = |beyond: &str, direction: &str| {
            by_states(
                &include_str!("sql/list.sql")
                    .replace("{beyond}", beyond)
                    .replace("{direction}", direction),
            )
        };
        let payloads = match names.payload {
            PayloadType::Bytea => "$7",
            PayloadType::Json => "$7::text[]::json[]",
            PayloadType::Jsonb => "$7::text[]::jsonb[]",
        };
        let payload = |parameter: &str| match names.payload {
            PayloadType::Bytea => parameter.to_owned(),
            PayloadType::Json => format!("{parameter}::text::json"),
            PayloadType::Jsonb => format!("{parameter}::text::jsonb"),
        };
        let eligible = include_str!("sql/eligible.sql");
        let key = "ARRAY(SELECT seq FROM {keys} WHERE handler = $1 AND id = $2)";
        // The rows that are chosen are in order of their numbers.
        let slice = |call: &str| {
            by_states(&format!(
                "SELECT {call}, cardinality(chosen), chosen[cardinality(chosen)]
                 FROM (SELECT ARRAY({eligible}) AS chosen OFFSET 0) AS slice"
            ))
        };
        Self {
            receive: names.expand(&format!(
                "SELECT {{fn:receive}}($1, $2, $3, $4, $5, $6, {payloads}, $8, $9, $10, $11, $12)"
            )),
            front: names.expand("SELECT * FROM {fn:front}($1, $2, $3)"),
            claim: names.expand("SELECT * FROM {fn:claim}($1, $2, $3, $4, $5, $6)"),
            settle: names.expand(
                "SELECT * FROM {fn:settle}($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
            ),
            held: names.expand(include_str!("sql/held.sql")),
            extend: names.expand("SELECT * FROM {fn:extend}($1, $2, $3)"),
            begin: names.expand(&format!(
                "SELECT * FROM {{fn:begin}}($1, $2, $3, $4, $5, $6, {}, $8, $9, $10, $11)",
                payload("$7")
            )),
            record: names.expand(&format!(
                "SELECT * FROM {{fn:record}}($1, $2, $3, $4, $5, $6, {}, $8, $9, $10, $11, $12)",
                payload("$7")
            )),
            get: names.expand(include_str!("sql/get.sql")),
            list: list(">", "ASC"),
            list_newest: list("<", "DESC"),
            count: by_states(include_str!("sql/count.sql")),
            replay_slice: slice("{fn:replay}(chosen, $3, NULL, $13)"),
            discard_slice: slice("{fn:discard}(chosen, $3, $13)"),
            replay: names.expand(&format!(
                "SELECT {{fn:replay}}({key}, ARRAY[2, 3, 4]::smallint[], {}, $4)",
                payload("$3")
            )),
            discard: names.expand(&format!(
                "SELECT {{fn:discard}}({key}, ARRAY[0, 3]::smallint[], $3)"
            )),
            statistics: names.expand("SELECT * FROM {fn:statistics}()"),
            expired: names.expand(include_str!("sql/expired.sql")),
            purge: names.expand("SELECT * FROM {fn:purge}($1, $2, $3, $4)"),
            purge_keys: names.expand("SELECT {fn:purge_keys}($1, $2, $3, $4, $5)"),
            partition_upkeep: names.expand("SELECT {fn:partition_upkeep}($1)"),
            drop_partition: names.expand("SELECT {fn:drop_partition}($1, $2, $3)"),
            forget: names.expand("SELECT * FROM {fn:forget}($1)"),
        }
    }
}
