//! What is sent for each operation: the texts for one inbox, made once.

use sqlx::SqlStr;

use crate::names::Names;

/// Whether the transaction has the [mark](crate::connection::enter), of which nothing is left behind its end.
/// What runs in a [marked transaction](crate::connection::On::MarkedTransaction) gives a row if it has, and
/// otherwise none and does nothing.
const IS_MARKED: &str = "pg_catalog.current_setting('inbox.transaction', true) = 'on'";

/// What `claim.sql` and `claim_runs.sql` answer, and `begin.sql`. By name: functions of another build that answer
/// something else are told when the statement is planned, before a lease is taken whose row would not read.
const CLAIMED: &str =
    "seq, handler, id, kind, content_type, ordering_key, headers, accepted_at, token, started,
    finished, lease_until, payload, replays";
const BEGUN: &str = "answer, until, reason, kept_result, found_seq, new_token, attempts_started, attempts_finished,
    stored_at, stored_kind, stored_content_type, stored_ordering_key, stored_headers, stored_payload, replayed";

/// Every text is fixed for the life of the store, whatever the length of a batch, so that each
/// connection prepares it once.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) receive: SqlStr,
    pub(crate) claim_cursor: SqlStr,
    pub(crate) claim: SqlStr,
    pub(crate) claim_runs: SqlStr,
    pub(crate) settle: SqlStr,
    pub(crate) settle_one: SqlStr,
    pub(crate) settle_locked: SqlStr,
    pub(crate) extend: SqlStr,
    pub(crate) begin: SqlStr,
    pub(crate) record: SqlStr,
    pub(crate) keep_result: SqlStr,
    pub(crate) get: SqlStr,
    pub(crate) list: ByStates,
    pub(crate) list_newest: ByStates,
    pub(crate) count: ByStates,
    pub(crate) replay_slice: ByStates,
    pub(crate) reschedule_slice: ByStates,
    pub(crate) discard_slice: ByStates,
    pub(crate) clear_slice: ByStates,
    pub(crate) replay: SqlStr,
    pub(crate) reschedule: SqlStr,
    pub(crate) discard: SqlStr,
    pub(crate) statistics: SqlStr,
    pub(crate) expired_handlers: SqlStr,
    pub(crate) expired: SqlStr,
    pub(crate) purge: SqlStr,
    pub(crate) purge_keys: SqlStr,
    pub(crate) drop_payloads: SqlStr,
    pub(crate) pause: SqlStr,
    pub(crate) resume: SqlStr,
    pub(crate) paused: SqlStr,
    pub(crate) partition_upkeep: SqlStr,
    pub(crate) drop_partition: SqlStr,
    pub(crate) forget: SqlStr,
}

/// Texts that reach what they select by different indexes.
#[derive(Debug)]
pub(crate) struct ByStates {
    pub(crate) any: SqlStr,
    /// Those with an id of a list, by their keys.
    pub(crate) named: SqlStr,
    /// Dead or discarded messages only. Without a condition on `$3`, which says the same as `$10`
    /// and `$11` then, and which the planner would take for a rare one.
    pub(crate) set_aside: SqlStr,
    /// Leased messages only, by the index that claims use: they are few, however long the backlog.
    pub(crate) leased: SqlStr,
}

impl Statements {
    pub(crate) fn new(names: &Names) -> Self {
        let statement = |template: &str| names.statement(template);
        let by_states = |template: &str| {
            let of = |work: &str, done: &str| {
                // What blocks is dead, so among what is worked on.
                let work = format!("{work} AND (NOT $21 OR (s.state = 3 AND s.blocks))");
                let text = template
                    .replace("{work_states}", &work)
                    .replace("{done_states}", done);
                names.statement(&text)
            };
            // A lease that has run out counts as pending.
            let work = "($3::smallint[] IS NULL OR CASE WHEN s.state = 1 AND s.visible_at <= \
                        clock.instant THEN 0 ELSE s.state END = ANY ($3))";
            let done = "($3::smallint[] IS NULL OR s.state = ANY ($3))";
            let named = include_str!("sql/list_named.sql").trim_end();
            ByStates {
                any: of(work, done),
                named: of(
                    &format!("{work} AND {named}"),
                    &format!("{done} AND {named}"),
                ),
                set_aside: of("s.state = 3", "s.state = 4"),
                leased: of(include_str!("sql/list_leased.sql").trim_end(), "false"),
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
                "SELECT * FROM {{inbox}}_receive(
                    $1, $2, $3, $4, $5, $6, $7{cast_array}, $8, $9, $10, $11, $12, $13
                )"
            )),
            claim_cursor: statement("SELECT * FROM {inbox}_claim_cursor($1, $2, $3)"),
            claim: statement(&format!(
                "SELECT {CLAIMED} FROM {{inbox}}_claim($1, $2, $3, $4, $5, $6)"
            )),
            claim_runs: statement(&format!(
                "SELECT {CLAIMED} FROM {{inbox}}_claim_runs($1, $2, $3, $4, $5, $6, $7)"
            )),
            settle: statement(&format!(
                "SELECT * FROM {{inbox}}_settle(
                    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13
                ) WHERE $12 OR {IS_MARKED}"
            )),
            settle_one: statement(&format!(
                "SELECT * FROM {{inbox}}_settle_one($1, $2, $3, $4, $5, $6) WHERE $6 OR {IS_MARKED}"
            )),
            settle_locked: statement(include_str!("sql/settle_locked.sql")),
            extend: statement("SELECT * FROM {inbox}_extend($1, $2, $3)"),
            begin: statement(&format!(
                "SELECT {BEGUN} FROM {{inbox}}_begin(
                    $1, $2, $3, $4, $5, $6, $7{cast}, $8, $9, $10, $11, $12
                )"
            )),
            record: statement(&format!(
                "SELECT * FROM {{inbox}}_record(
                    $1, $2, $3, $4, $5, $6, $7{cast}, $8, $9, $10, $11, $12, $13
                ) WHERE {IS_MARKED}"
            )),
            keep_result: statement(&format!(
                "SELECT * FROM {{inbox}}_keep_result($1, $2, $3) WHERE {IS_MARKED}"
            )),
            get: statement(include_str!("sql/get.sql")),
            list: list(">", "ASC"),
            list_newest: list("<", "DESC"),
            count: by_states(include_str!("sql/count.sql")),
            replay_slice: change_slice("{inbox}_replay(selected, $3, NULL, NULL, $23, $24)"),
            reschedule_slice: change_slice("{inbox}_reschedule(selected, $25, $26, $23, $24)"),
            discard_slice: change_slice("{inbox}_discard(selected, $3, $23, $24)"),
            clear_slice: change_slice("{inbox}_clear(selected, $23)"),
            replay: statement(&format!(
                "SELECT {{inbox}}_replay({of_key}, ARRAY[2, 3, 4]::smallint[], $3{cast}, $4, $5, $6)"
            )),
            reschedule: statement(&format!(
                "SELECT {{inbox}}_reschedule({of_key}, $3, $4, $5, $6)"
            )),
            discard: statement(&format!(
                "SELECT {{inbox}}_discard({of_key}, ARRAY[0, 3]::smallint[], $3, $4)"
            )),
            statistics: statement("SELECT * FROM {inbox}_statistics($1)"),
            expired_handlers: statement("SELECT {inbox}_expired_handlers($1, $2, $3)"),
            expired: statement(include_str!("sql/expired.sql")),
            purge: statement("SELECT * FROM {inbox}_purge($1, $2, $3, $4, $5, $6)"),
            purge_keys: statement("SELECT {inbox}_purge_keys($1, $2, $3, $4, $5)"),
            drop_payloads: statement("SELECT {inbox}_drop_payloads($1, $2, $3, $4)"),
            pause: statement(
                "INSERT INTO {inbox}_paused (handler) VALUES ($1) ON CONFLICT DO NOTHING",
            ),
            resume: statement(include_str!("sql/resume.sql")),
            paused: statement("SELECT handler FROM {inbox}_paused ORDER BY handler"),
            partition_upkeep: statement("SELECT {inbox}_partition_upkeep($1)"),
            drop_partition: statement("SELECT {inbox}_drop_partition($1, $2, $3, $4)"),
            forget: statement("SELECT * FROM {inbox}_forget($1)"),
        }
    }
}
