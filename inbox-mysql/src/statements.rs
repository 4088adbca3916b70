//! The SQL texts of one inbox, expanded once. The only place where a name gets into SQL: table
//! names are made of an [`InboxName`](inbox_api::InboxName), which is a plain identifier by
//! construction, and of a quoted database name.

use inbox_api::History;

use crate::{
    options::{MySqlOptions, PayloadType, TABLES},
    procedures::Procedure,
    statement::{Statement, Template},
};

/// Lists that a statement reads from session variables, which are set in the same packet.
///
/// Their texts are hexadecimal or in base 64. Without a character set they would have the database's, which may take
/// several bytes for a digit, and `UNHEX` reads bytes.
const LISTS: [(&str, &str); 9] = [
    (
        "seqs",
        "JSON_TABLE(@inbox_seqs, '$[*]' COLUMNS (seq BIGINT PATH '$'))",
    ),
    (
        "claimed",
        "JSON_TABLE(@inbox_claimed, '$[*]' COLUMNS (due BIGINT PATH '$[0]', \
         seq BIGINT PATH '$[1]', first BIGINT PATH '$[2]', in_run INT PATH '$[3]'))",
    ),
    (
        "heads",
        "JSON_TABLE(@inbox_heads, '$[*]' COLUMNS (n FOR ORDINALITY, due BIGINT PATH '$[0]', \
         seq BIGINT PATH '$[1]', lapsed INT PATH '$[2]', vanished INT PATH '$[3]', \
         h VARCHAR(256) CHARACTER SET ascii PATH '$[4]', k VARCHAR(510) CHARACTER SET ascii PATH '$[5]'))",
    ),
    (
        "rows",
        "JSON_TABLE(@inbox_rows, '$[*]' COLUMNS (n BIGINT PATH '$'))",
    ),
    (
        "keys",
        "JSON_TABLE(@inbox_keys, '$[*]' COLUMNS (h VARCHAR(256) CHARACTER SET ascii PATH '$[0]', \
         k VARCHAR(510) CHARACTER SET ascii PATH '$[1]'))",
    ),
    (
        "ids",
        "JSON_TABLE(@inbox_ids, '$[*]' COLUMNS (h VARCHAR(256) CHARACTER SET ascii PATH '$[0]', \
         k VARCHAR(510) CHARACTER SET ascii PATH '$[1]'))",
    ),
    (
        "held",
        "JSON_TABLE(@inbox_held, '$[*]' COLUMNS (seq BIGINT PATH '$[0]', \
         token BIGINT PATH '$[1]'))",
    ),
    (
        "picked",
        "JSON_TABLE(@inbox_picked, '$[*]' COLUMNS (seq BIGINT PATH '$[0]', \
         token BIGINT PATH '$[1]'))",
    ),
    (
        "settled",
        "JSON_TABLE(@inbox_settled, '$[*]' COLUMNS (seq BIGINT PATH '$[0]', \
         token BIGINT PATH '$[1]', outcome INT PATH '$[2]', back INT PATH '$[3]', \
         after BIGINT PATH '$[4]', blocks INT PATH '$[5]', error VARCHAR(8192) CHARACTER SET ascii PATH '$[6]', \
         short_bytes INT PATH '$[7]', result LONGTEXT CHARACTER SET ascii PATH '$[8]'))",
    ),
];

// `/*!80000 … */` in the files is for MySQL, which has to be told that a list joined to a table is
// not to be locked with it; MariaDB does not look into such comments.

/// MariaDB cuts aggregated JSON at `group_concat_max_len`, which some servers set low. MySQL has
/// no such limit, and takes this for a comment.
const AGGREGATE: &str = "/*M! SET STATEMENT group_concat_max_len=33554432 FOR */";

/// The same, and lets a query go as deep as the longest run, whatever the server's limit.
const AGGREGATE_DEEP: &str = "/*M! SET STATEMENT group_concat_max_len=33554432, \
                              max_recursive_iterations=100000 FOR */";
/// What MySQL takes for the latter, behind the first word of a query.
const DEEP: &str = "/*+ SET_VAR(cte_max_recursion_depth = 100000) */";

/// The attempts of a lease that have started, the present one included, be it counted yet or not.
const COUNTED: &str = "(w.started + (w.started <= w.finished))";

/// Microseconds since 1970, whatever the session's time zone.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// Whether what others commit is seen here before the replicas have it, as with MariaDB's default of semi-synchronous
/// replication. An answer that rests on others' writes then needs a commit that waits for the replicas as theirs do,
/// and so a row to commit. Asked each time, since another server may be behind the address by now. MySQL takes what is
/// made of it for a comment, which is why no value may stand in there.
macro_rules! seen_early {
    ($before:literal) => {
        concat!(
            "/*M! ",
            $before,
            " (@@GLOBAL.rpl_semi_sync_master_enabled \
             AND @@GLOBAL.rpl_semi_sync_master_wait_point = 'AFTER_COMMIT') */"
        )
    };
}

/// Ends a query that may answer with several rows, or lock them. Without a limit that of the session counts
/// (`sql_select_limit`), which may be the server's default; and a caller's session keeps what it is set to.
pub(crate) const ALL_ROWS: &str = "LIMIT 18446744073709551615";

/// The statements of a file.
type File = Vec<Template>;

macro_rules! statements {
    ($($name:ident)*) => {
        /// The statements of one inbox, most by the names of their files.
        #[derive(Debug)]
        pub(crate) struct Statements {
            pub(crate) receive: Template,
            /// What is done with the messages that a receive has stored: when it is one, when they are
            /// several, and when they are listed.
            pub(crate) one: OfStored,
            pub(crate) several: OfStored,
            pub(crate) listed: OfStored,
            /// Queues those beyond the numbers of `several`.
            pub(crate) queue_beyond: File,
            pub(crate) begin_procedure: Procedure,
            pub(crate) settle_procedure: Procedure,
            $(pub(crate) $name: File,)*
            names: Names,
        }

        impl Statements {
            pub(crate) fn new(options: &MySqlOptions) -> Self {
                let names = Names::new(options);
                let file = |text: &str| names.file(text);
                let of_stored = |text: &str, stored: &str| file(&text.replace("{stored}", stored));
                let receive = file(include_str!("sql/receive.sql"));
                let queue = include_str!("sql/receive_queue.sql");
                Self {
                    receive: receive.into_iter().next().unwrap_or_default(),
                    one: OfStored::new(&names, OfStored::ONE),
                    several: OfStored::new(&names, OfStored::SEVERAL),
                    listed: OfStored::new(&names, OfStored::LISTED),
                    queue_beyond: of_stored(queue, OfStored::BEYOND),
                    begin_procedure: Procedure::begin_one(&names, options),
                    settle_procedure: Procedure::settle_one(&names, options),
                    $($name: file(include_str!(concat!("sql/", stringify!($name), ".sql"))),)*
                    names,
                }
            }
        }
    };
}

statements! {
    receive_one receive_count receive_list receive_known receive_fingerprints
    claim claim_runs claim_queue claim_queue_from claim_lease claim_members claim_rows claim_rows_again claim_missed claim_due
    end_runs leave_run next_of_run no_run
    extend extend_ends
    rest_on_others
    settle_keys settle_keys_now settle_lock settle_count settle_processed settle_one settle_simple settle_simple_count settle_simple_delete settle_result settle_drop settle_dead settle_leave_run settle_close settle_delete settle_back settle_free settle_newest
    begin begin_lock begin_one
    record record_find record_delete record_drop
    keep_result keep_result_find
    find find_lock
    get get_found get_found_lock
    list
    count count_selected
    select_keys select_slice
    replay_lock replay replay_edit
    reschedule_lock reschedule
    clear_lock clear
    pause resume paused_list
    discard_lock discard
    sign
    final_handlers final_range final_ranges
    purge_keys purge_lock purge_dead purge_done
    drop_content
    expired
    statistics
    lock_keys
    unclaim_heads
    promote_key_heads
    compact_look compact_counters
}

/// Statements about the messages that a receive has stored. `{stored}` in their files says which, and
/// begins the condition. They are known by their batch; numbers only say where to look for them.
#[derive(Debug)]
pub(crate) struct OfStored {
    pub(crate) queue: File,
    pub(crate) count_handlers: File,
    pub(crate) open: File,
    pub(crate) new_keys: File,
}

impl OfStored {
    /// The one message, if it was new.
    const ONE: &str = "{message} AS m FORCE INDEX (PRIMARY) \
                       WHERE m.seq = @inbox_first AND m.batch = @inbox_batch";
    /// Those between the first number that was drawn and the last that can have been, when the server
    /// draws those of a statement in one go.
    const SEVERAL: &str = "{message} AS m FORCE INDEX (PRIMARY) WHERE @inbox_first > 0 \
                           AND m.seq >= @inbox_first AND m.seq < @inbox_end \
                           AND m.batch = @inbox_batch";
    /// Those behind, when it does not: for a table with triggers, it draws them little by little.
    const BEYOND: &str = "{message} AS m FORCE INDEX (PRIMARY) WHERE @inbox_first > 0 \
                          AND m.seq >= @inbox_end AND m.batch = @inbox_batch \
                          AND @inbox_count < {most}";
    /// Those of `@inbox_seqs`, which are found without locks. In a transaction of the caller's that is
    /// not `READ COMMITTED`, reading a range in order to insert locks what others are about to store.
    const LISTED: &str = "{seqs} AS j STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) \
                          ON m.seq = j.seq WHERE TRUE";

    fn new(names: &Names, stored: &str) -> Self {
        let file = |text: &str| names.file(&text.replace("{stored}", stored));
        Self {
            queue: file(include_str!("sql/receive_queue.sql")),
            count_handlers: file(include_str!("sql/receive_count_handlers.sql")),
            open: file(include_str!("sql/receive_open.sql")),
            new_keys: file(include_str!("sql/receive_new.sql")),
        }
    }
}

/// What the names in files stand for.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    meanings: Vec<(&'static str, String)>,
}

impl Names {
    pub(crate) fn new(options: &MySqlOptions) -> Self {
        let (payload_type, payload_bytes) = match options.payload_type {
            PayloadType::LongBlob => ("LONGBLOB", "m.payload_bytes"),
            // The server may write it down in other words than it was sent.
            PayloadType::Json => ("JSON", "LENGTH(m.payload)"),
        };
        let columns = include_str!("sql/columns.sql").trim_end();
        let past_attempt = include_str!("sql/past_attempt.sql").trim_end();
        let kept = History::KEPT.to_string();
        let past_attempt = past_attempt
            .replace("{kept_entries}", &kept)
            .replace("{counted}", COUNTED);
        let mut meanings = vec![
            ("columns", columns.replace("{payload_bytes}", payload_bytes)),
            ("payload_type", payload_type.to_owned()),
            (
                "keeps",
                u8::from(!options.drop_processed_payloads).to_string(),
            ),
            ("agg", AGGREGATE.to_owned()),
            ("agg_deep", AGGREGATE_DEEP.to_owned()),
            ("deep", DEEP.to_owned()),
            ("counted", COUNTED.to_owned()),
            ("now", NOW.to_owned()),
            ("all_rows", ALL_ROWS.to_owned()),
            ("or_seen_early", seen_early!("OR").to_owned()),
            (
                "and_if_seen_early",
                seen_early!("UNION ALL SELECT '-', 0, 0, 0, 0 FROM DUAL WHERE").to_owned(),
            ),
            ("past_attempt", past_attempt),
            ("kept_entries", kept),
        ];
        meanings.extend(LISTS.map(|(name, text)| (name, text.to_owned())));
        meanings.extend(TABLES.map(|table| (table, options.table(table))));
        Self { meanings }
    }

    fn meaning(&self, name: &str) -> Option<String> {
        let known = self.meanings.iter().find(|(known, _)| *known == name);
        known.map(|(_, meaning)| meaning.clone())
    }

    /// A text that is all names and no values.
    pub(crate) fn expand(&self, text: &str) -> String {
        let template = Template::read(text, |name| self.meaning(name));
        template.fill(&[]).into_text()
    }

    /// The statements of a file.
    pub(crate) fn file(&self, file: &str) -> Vec<Template> {
        let text = without_comments(file);
        let statements = text
            .split(";\n")
            .map(|text| text.trim().trim_end_matches(';'));
        statements
            .filter(|statement| !statement.is_empty())
            .map(|statement| Template::read(statement, |name| self.meaning(name)))
            .collect()
    }
}

/// A file without its comments, which the server need not read each time.
fn without_comments(file: &str) -> String {
    let lines: Vec<&str> = file
        .lines()
        .filter(|line| !line.trim_start().starts_with("--"))
        .collect();
    lines.join("\n") + "\n"
}

impl Statements {
    /// The name of a table, as a value for a statement.
    pub(crate) fn table(&self, table: &str) -> Statement {
        Statement::new(self.names.meaning(table).unwrap_or_default())
    }

    /// Whether a message `w` can be taken without a look at its run; or, `with_run`, in any case.
    pub(crate) fn no_run(&self, with_run: bool) -> Statement {
        let condition = self.no_run.first().filter(|_| !with_run);
        condition.map_or_else(|| Statement::new("TRUE"), |condition| condition.fill(&[]))
    }

    /// A text that is put together elsewhere, with this inbox's names.
    pub(crate) fn expand(&self, template: &str) -> String {
        self.names.expand(template)
    }
}

/// The condition on a table of the server's information schema that it is in the inbox's database.
/// MariaDB finds a database by the very name, but compares names without regard to case.
pub(crate) fn in_database(options: &MySqlOptions) -> String {
    let mut name = Statement::default();
    match &options.database {
        Some(database) => name
            .push("CONVERT(")
            .bytes(database.as_bytes())
            .push(" USING utf8mb4)"),
        None => name.push("DATABASE()"),
    };
    let name = name.into_text();
    format!(
        "table_schema = {name} \
         AND (@@lower_case_table_names <> 0 OR HEX(table_schema) = HEX({name}))"
    )
}

#[cfg(test)]
mod tests {
    use sqlx::mysql::MySqlConnectOptions;

    use super::*;

    /// See `multi_statement.rs`: an ordinary read may miss a row that is locked, also where it is a part of an
    /// `INSERT`. `UPDATE` and `DELETE` of several tables read with locks.
    #[test]
    fn rows_that_are_locked_are_read_with_locking_reads() {
        let sql = Statements::new(&MySqlOptions::new(MySqlConnectOptions::new()));
        let of_locked_rows = [
            &sql.settle_lock,
            &sql.settle_count,
            &sql.settle_processed,
            &sql.settle_dead,
            &sql.settle_keys_now,
            &sql.extend,
            &sql.compact_counters,
            &sql.replay_lock,
            &sql.replay,
            &sql.discard_lock,
            &sql.discard,
            &sql.purge_done,
            &sql.purge_dead,
            &sql.reschedule_lock,
            &sql.reschedule,
            &sql.end_runs,
            &sql.leave_run,
            &sql.settle_leave_run,
            &sql.claim_members,
            &sql.clear_lock,
            &sql.clear,
            &sql.drop_content,
        ];
        let mut read = 0;
        for statement in of_locked_rows.into_iter().flatten() {
            let statement = statement.text();
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

    /// Files with queries that answer with one row.
    const ONE_ROW: [&str; 13] = [
        "begin_one",
        "claim_missed",
        "compact_look",
        "count",
        "count_selected",
        "get",
        "get_found",
        "get_found_lock",
        "keep_result_find",
        "receive_one",
        "record_find",
        "schema_numbers",
        "settle_one",
    ];

    #[test]
    fn queries_answer_with_all_rows_whatever_the_session_s_limit() {
        let names = Names::new(&MySqlOptions::new(MySqlConnectOptions::new()));
        let mut looked_at = 0;
        for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/sql")).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let text = std::fs::read_to_string(path).unwrap();
            for statement in names.file(&text) {
                let text = statement.text();
                let selects = text.starts_with("SELECT") && !text.contains(" INTO @inbox_");
                if selects && !ONE_ROW.contains(&name.as_str()) {
                    let limited = text.contains(ALL_ROWS) || text.ends_with("LIMIT {limit}");
                    assert!(limited, "{name}: {text}");
                    looked_at += 1;
                }
            }
        }
        assert!(looked_at > 15, "{looked_at} queries were looked at");
    }
}
