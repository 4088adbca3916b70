//! The SQL texts of one inbox, expanded once. The only place where a name gets into SQL: table
//! names are made of an [`InboxName`](inbox_api::InboxName), which is a plain identifier by
//! construction, and of a quoted database name.

use crate::options::{MySqlOptions, PayloadColumn};

/// The names of the tables, without the inbox's.
pub(crate) const TABLES: [&str; 8] = [
    "message", "work", "dead", "done", "ordering", "open", "tally", "meta",
];

/// Lists that a statement reads from session variables, which are set in the same packet.
const LISTS: [(&str, &str); 8] = [
    (
        "{seqs}",
        "JSON_TABLE(@inbox_seqs, '$[*]' COLUMNS (seq BIGINT PATH '$'))",
    ),
    (
        "{claimed}",
        "JSON_TABLE(@inbox_claimed, '$[*]' COLUMNS (due BIGINT PATH '$[0]', \
         seq BIGINT PATH '$[1]'))",
    ),
    (
        "{rows}",
        "JSON_TABLE(@inbox_rows, '$[*]' COLUMNS (n BIGINT PATH '$'))",
    ),
    (
        "{keys}",
        "JSON_TABLE(@inbox_keys, '$[*]' COLUMNS (h VARCHAR(256) PATH '$[0]', \
         k VARCHAR(510) PATH '$[1]'))",
    ),
    (
        "{ids}",
        "JSON_TABLE(@inbox_ids, '$[*]' COLUMNS (h VARCHAR(256) PATH '$[0]', \
         k VARCHAR(510) PATH '$[1]'))",
    ),
    (
        "{held}",
        "JSON_TABLE(@inbox_held, '$[*]' COLUMNS (seq BIGINT PATH '$[0]', \
         token BIGINT PATH '$[1]'))",
    ),
    (
        "{picked}",
        "JSON_TABLE(@inbox_picked, '$[*]' COLUMNS (seq BIGINT PATH '$[0]', \
         token BIGINT PATH '$[1]'))",
    ),
    (
        "{settled}",
        "JSON_TABLE(@inbox_settled, '$[*]' COLUMNS (seq BIGINT PATH '$[0]', \
         token BIGINT PATH '$[1]', outcome INT PATH '$[2]', retry INT PATH '$[3]', \
         after BIGINT PATH '$[4]', blocks INT PATH '$[5]', error VARCHAR(8192) PATH '$[6]', \
         result LONGTEXT PATH '$[7]'))",
    ),
];

// `/*!80000 … */` in the files is for MySQL, which has to be told that a list joined to a table is
// not to be locked with it; MariaDB does not look into such comments.

/// MariaDB cuts aggregated JSON at `group_concat_max_len`, which some servers set low. MySQL has
/// no such limit, and takes this for a comment.
const AGGREGATE: &str = "/*M! SET STATEMENT group_concat_max_len=33554432 FOR */";

/// Microseconds since 1970, whatever the session's time zone.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// One file of statements each.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) schema: Vec<String>,
    pub(crate) lock_keys: Vec<String>,
    pub(crate) keys_of: Vec<String>,
    pub(crate) demote: Vec<String>,
    pub(crate) rehead: Vec<String>,
    pub(crate) begin_new: Vec<String>,
    pub(crate) store_head: String,
    /// Leaves a known key as it is. A number that is in use is no known key: adding to it is out of
    /// range, whatever the SQL mode.
    pub(crate) store_tail: String,
    pub(crate) one: Storing,
    pub(crate) several: Storing,
    /// Queues those beyond the numbers of `several`.
    pub(crate) beyond: String,
    pub(crate) listed: Storing,
    /// `@inbox_seqs` for `listed`.
    pub(crate) list_stored: String,
    /// Those keys of a list that are there.
    pub(crate) known: Vec<String>,
    pub(crate) claim_rows: Vec<String>,
    /// The same, of what is there now.
    pub(crate) claim_rows_now: Vec<String>,
    pub(crate) settle_keys: Vec<String>,
    /// The same, of what is there now.
    pub(crate) settle_keys_now: Vec<String>,
    pub(crate) settle_lock: Vec<String>,
    pub(crate) settle_final: Vec<String>,
    pub(crate) settle_processed: Vec<String>,
    pub(crate) settle_drop: Vec<String>,
    pub(crate) settle_dead: Vec<String>,
    pub(crate) settle_open: Vec<String>,
    pub(crate) settle_gone: Vec<String>,
    pub(crate) settle_back: Vec<String>,
    pub(crate) simple_processed: Leases,
    pub(crate) simple_gone: Leases,
    pub(crate) newest: Vec<String>,
    pub(crate) held: Vec<String>,
    pub(crate) extend: Vec<String>,
    pub(crate) extend_ends: Vec<String>,
    pub(crate) statistics: Vec<String>,
    pub(crate) fold: Vec<String>,
    pub(crate) chosen: Vec<String>,
    pub(crate) replay_lock: Vec<String>,
    pub(crate) replay: Vec<String>,
    pub(crate) discard_lock: Vec<String>,
    pub(crate) discard: Vec<String>,
    pub(crate) purge_done: Vec<String>,
    pub(crate) purge_dead: Vec<String>,
    names: Names,
}

/// A statement about leases; conditions are added at its end.
#[derive(Debug)]
pub(crate) struct Leases {
    /// About those in the list `@inbox_held`.
    pub(crate) all: String,
    /// About one, whose row and token are to be added. For one, the list would cost more than the
    /// rest of the statement.
    pub(crate) one: String,
}

impl Leases {
    fn new(names: &Names, template: &str) -> Self {
        let expanded = |leases: &str| names.expand(&template.replace("{leases}", leases));
        Self {
            all: expanded(
                "{held} AS j\nSTRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) \
                 ON w.seq = j.seq AND w.token = j.token",
            ),
            one: expanded("{work} AS w FORCE INDEX (PRIMARY)"),
        }
    }
}

/// What is done with the messages that a receive has stored. They are known by their batch; numbers
/// only say where to look for them.
#[derive(Debug)]
pub(crate) struct Storing {
    pub(crate) queue: String,
    pub(crate) count: String,
    pub(crate) open: String,
    /// Their keys.
    pub(crate) keys: String,
}

impl Storing {
    /// The one message, if it was new.
    const ONE: &str = "{message} AS m FORCE INDEX (PRIMARY) WHERE m.seq = @inbox_first AND m.batch = @inbox_batch";
    /// Those between the first number that was drawn and the last that can have been, when the server
    /// draws those of a statement in one go.
    const SEVERAL: &str = "{message} AS m FORCE INDEX (PRIMARY) WHERE @inbox_first > 0 \
                           AND m.seq >= @inbox_first AND m.seq < @inbox_end \
                           AND m.batch = @inbox_batch";
    /// Those behind, when it does not: for a table with triggers, it draws them little by little.
    const BEYOND: &str = "{message} AS m FORCE INDEX (PRIMARY) WHERE @inbox_first > 0 \
                          AND m.seq >= @inbox_end AND m.batch = @inbox_batch";
    /// Those of `@inbox_seqs`, which are found without locks. In a transaction of the caller's that is
    /// not `READ COMMITTED`, reading a range in order to insert locks what others are about to store.
    const LISTED: &str = "{seqs} AS j STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) \
                          ON m.seq = j.seq WHERE TRUE";
    const LIST: &str = "{agg} SELECT JSON_ARRAYAGG(m.seq) INTO @inbox_seqs \
                        FROM {message} AS m FORCE INDEX (PRIMARY) WHERE @inbox_first > 0 \
                        AND m.seq >= @inbox_first AND m.batch = @inbox_batch";

    fn new(names: &Names, stored: &str) -> Self {
        let file = |text: &str| {
            let text = names.expand(&file_text(text).replace("{stored}", stored));
            text.trim().trim_end_matches(';').to_owned()
        };
        Self {
            queue: file(include_str!("sql/queue.sql")),
            count: file(include_str!("sql/queue_count.sql")),
            open: file(include_str!("sql/open.sql")),
            keys: names.expand(&format!("SELECT m.handler, m.id FROM {stored}")),
        }
    }
}

/// What placeholders stand for.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    replacements: Vec<(String, String)>,
}

impl Names {
    pub(crate) fn new(options: &MySqlOptions) -> Self {
        let (payload_type, payload_bytes) = match options.payload_column {
            PayloadColumn::LongBlob => ("LONGBLOB", "m.payload_bytes"),
            // The server may write it down in other words than it was sent.
            PayloadColumn::Json => ("JSON", "LENGTH(m.payload)"),
        };
        let mut replacements = vec![
            (
                "{columns}".to_owned(),
                file_text(include_str!("sql/columns.sql")),
            ),
            (
                "{close}".to_owned(),
                file_text(include_str!("sql/close.sql")),
            ),
            ("{payload_type}".to_owned(), payload_type.to_owned()),
            ("{payload_bytes}".to_owned(), payload_bytes.to_owned()),
            ("{agg}".to_owned(), AGGREGATE.to_owned()),
            ("{now}".to_owned(), NOW.to_owned()),
        ];
        for (name, text) in LISTS {
            replacements.push((name.to_owned(), text.to_owned()));
        }
        for table in TABLES {
            replacements.push((format!("{{{table}}}"), options.table(table)));
        }
        Self { replacements }
    }

    pub(crate) fn expand(&self, template: &str) -> String {
        self.replacements
            .iter()
            .fold(template.to_owned(), |text, (name, meaning)| {
                text.replace(name, meaning)
            })
    }

    /// The statements of a file.
    pub(crate) fn statements(&self, file: &str) -> Vec<String> {
        let text = self.expand(&file_text(file));
        text.split(";\n")
            .map(|statement| statement.trim().trim_end_matches(';').to_owned())
            .filter(|statement| !statement.is_empty())
            .collect()
    }
}

/// A file without its comments, which the server need not read each time.
fn file_text(file: &str) -> String {
    let lines: Vec<&str> = file
        .lines()
        .filter(|line| !line.trim_start().starts_with("--"))
        .collect();
    lines.join("\n") + "\n"
}

impl Statements {
    pub(crate) fn new(options: &MySqlOptions) -> Self {
        let names = Names::new(options);
        let file = |text: &str| names.statements(text);
        let claim_rows =
            |locking: &str| include_str!("sql/claim_rows.sql").replace("{locking}", locking);
        let leases = |text: &str| Leases::new(&names, text.trim_end());
        Self {
            schema: file(include_str!("sql/schema_1.sql")),
            lock_keys: file(include_str!("sql/lock_keys.sql")),
            keys_of: file(include_str!("sql/keys_of.sql")),
            demote: file(include_str!("sql/demote.sql")),
            rehead: file(include_str!("sql/rehead.sql")),
            begin_new: file(
                &include_str!("sql/begin_new.sql").replace("{one_stored}", Storing::ONE),
            ),
            store_head: names.expand(include_str!("sql/store_head.sql")),
            store_tail: names.expand(include_str!("sql/store_tail.sql")),
            one: Storing::new(&names, Storing::ONE),
            several: Storing::new(&names, Storing::SEVERAL),
            beyond: Storing::new(&names, Storing::BEYOND).queue,
            listed: Storing::new(&names, Storing::LISTED),
            list_stored: names.expand(Storing::LIST),
            known: file(include_str!("sql/known.sql")),
            claim_rows: file(&claim_rows("")),
            claim_rows_now: file(&claim_rows("\nFOR UPDATE /*!80000 OF w, m */")),
            settle_keys: file(include_str!("sql/settle_keys.sql")),
            settle_keys_now: file(include_str!("sql/settle_keys_now.sql")),
            settle_lock: file(include_str!("sql/settle_lock.sql")),
            settle_final: file(include_str!("sql/settle_final.sql")),
            settle_processed: file(include_str!("sql/settle_processed.sql")),
            settle_drop: file(include_str!("sql/settle_drop.sql")),
            settle_dead: file(include_str!("sql/settle_dead.sql")),
            settle_open: file(include_str!("sql/settle_open.sql")),
            settle_gone: file(include_str!("sql/settle_gone.sql")),
            settle_back: file(include_str!("sql/settle_back.sql")),
            simple_processed: leases(include_str!("sql/simple_processed.sql")),
            simple_gone: leases(include_str!("sql/simple_gone.sql")),
            held: file(include_str!("sql/held.sql")),
            newest: file(include_str!("sql/newest.sql")),
            extend: file(include_str!("sql/extend.sql")),
            extend_ends: file(include_str!("sql/extend_ends.sql")),
            statistics: file(include_str!("sql/statistics.sql")),
            fold: file(include_str!("sql/fold.sql")),
            chosen: file(include_str!("sql/chosen.sql")),
            replay_lock: file(include_str!("sql/replay_lock.sql")),
            replay: file(include_str!("sql/replay.sql")),
            discard_lock: file(include_str!("sql/discard_lock.sql")),
            discard: file(include_str!("sql/discard.sql")),
            purge_done: file(include_str!("sql/purge_done.sql")),
            purge_dead: file(include_str!("sql/purge_dead.sql")),
            names,
        }
    }

    /// A text that is put together elsewhere, with this inbox's names.
    pub(crate) fn expand(&self, template: &str) -> String {
        self.names.expand(template)
    }
}

#[cfg(test)]
mod tests {
    use sqlx::mysql::MySqlConnectOptions;

    use super::*;

    /// See `script.rs`: an ordinary read may miss a row that is locked, also where it is a part of an
    /// `INSERT`. `UPDATE` and `DELETE` of several tables read with locks.
    #[test]
    fn rows_that_are_locked_are_read_with_locking_reads() {
        let sql = Statements::new(&MySqlOptions::new(MySqlConnectOptions::new()));
        let of_locked_rows = [
            &sql.settle_lock,
            &sql.settle_final,
            &sql.settle_processed,
            &sql.settle_dead,
            &sql.settle_keys_now,
            &sql.extend,
            &sql.fold,
            &sql.replay_lock,
            &sql.replay,
            &sql.discard_lock,
            &sql.discard,
            &sql.purge_done,
            &sql.purge_dead,
        ];
        let mut read = 0;
        for statement in of_locked_rows.into_iter().flatten() {
            let changes = statement.starts_with("UPDATE") || statement.starts_with("DELETE");
            if statement.contains("_work`")
                || statement.contains("_dead`")
                || statement.contains("_done`")
                || statement.contains("_message`")
            {
                let locks = statement.contains("FOR UPDATE");
                assert!(changes || locks, "{statement}");
                read += 1;
            }
        }
        assert!(read > 20, "{read} statements were looked at");
    }
}
