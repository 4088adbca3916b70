//! What is sent for each operation: the texts for one inbox, made once.

use sqlx::SqlStr;

use crate::names::Names;

/// Every text is fixed for the life of the store, whatever the length of a batch, so that each
/// connection prepares it once.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) receive: SqlStr,
    pub(crate) claim_cursor: SqlStr,
    pub(crate) claim: SqlStr,
    pub(crate) settle: SqlStr,
    pub(crate) settle_locked: SqlStr,
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
        let statement = |template: &str| names.statement(template);
        let by_states = |template: &str| {
            let of = |work: &str, done: &str| {
                let text = template
                    .replace("{work_states}", work)
                    .replace("{done_states}", done);
                names.statement(&text)
            };
            ByStates {
                // A lease that has run out counts as pending.
                any: of(
                    "($3::smallint[] IS NULL OR CASE WHEN s.state = 1 AND s.visible_at <= \
                     clock.instant THEN 0 ELSE s.state END = ANY ($3))",
                    "($3::smallint[] IS NULL OR s.state = ANY ($3))",
                ),
                set_aside: of("s.state = 3", "s.state = 4"),
            }
        };
        let list = |beyond: &str, direction: &str| {
            by_states(
                &include_str!("sql/list.sql")
                    .replace("{beyond}", beyond)
                    .replace("{direction}", direction),
            )
        };
        let change_slice =
            |call: &str| by_states(&include_str!("sql/change_slice.sql").replace("{change}", call));
        let (cast, cast_array) = (names.payload_type.cast(), names.payload_type.cast_array());
        let of_key = "ARRAY(SELECT seq FROM {keys} WHERE handler = $1 AND id = $2)";
        Self {
            receive: statement(&format!(
                "SELECT {{inbox}}_receive(
                    $1, $2, $3, $4, $5, $6, $7{cast_array}, $8, $9, $10, $11, $12
                )"
            )),
            claim_cursor: statement("SELECT * FROM {inbox}_claim_cursor($1, $2, $3)"),
            claim: statement("SELECT * FROM {inbox}_claim($1, $2, $3, $4, $5, $6)"),
            settle: statement(
                "SELECT * FROM {inbox}_settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
            ),
            settle_locked: statement(include_str!("sql/settle_locked.sql")),
            extend: statement("SELECT * FROM {inbox}_extend($1, $2, $3)"),
            begin: statement(&format!(
                "SELECT * FROM {{inbox}}_begin(
                    $1, $2, $3, $4, $5, $6, $7{cast}, $8, $9, $10, $11
                )"
            )),
            record: statement(&format!(
                "SELECT * FROM {{inbox}}_record(
                    $1, $2, $3, $4, $5, $6, $7{cast}, $8, $9, $10, $11, $12
                )"
            )),
            get: statement(include_str!("sql/get.sql")),
            list: list(">", "ASC"),
            list_newest: list("<", "DESC"),
            count: by_states(include_str!("sql/count.sql")),
            replay_slice: change_slice("{inbox}_replay(selected, $3, NULL, $13)"),
            discard_slice: change_slice("{inbox}_discard(selected, $3, $13)"),
            replay: statement(&format!(
                "SELECT {{inbox}}_replay({of_key}, ARRAY[2, 3, 4]::smallint[], $3{cast}, $4)"
            )),
            discard: statement(&format!(
                "SELECT {{inbox}}_discard({of_key}, ARRAY[0, 3]::smallint[], $3)"
            )),
            statistics: statement("SELECT * FROM {inbox}_statistics()"),
            expired: statement(include_str!("sql/expired.sql")),
            purge: statement("SELECT * FROM {inbox}_purge($1, $2, $3, $4)"),
            purge_keys: statement("SELECT {inbox}_purge_keys($1, $2, $3, $4, $5)"),
            partition_upkeep: statement("SELECT {inbox}_partition_upkeep($1)"),
            drop_partition: statement("SELECT {inbox}_drop_partition($1, $2, $3)"),
            forget: statement("SELECT * FROM {inbox}_forget($1)"),
        }
    }
}
