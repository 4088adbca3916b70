//! The SQL texts of one inbox, expanded once. The only place where a name gets into SQL: it is an
//! [`InboxName`], which is a plain identifier by construction.

use inbox_api::{History, InboxName};
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::options::OWN;

/// Takes the write lock at once. A transaction that began by reading would have to be refused
/// when another one wrote in between.
pub(crate) const BEGIN: &str = "BEGIN IMMEDIATE";

/// Takes the write lock with the first change, and fails then if there was another in between.
pub(crate) const BEGIN_READING: &str = "BEGIN";

/// Every text is fixed for the life of the store, whatever the length of a batch, so that each
/// connection prepares it once.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) receive: SqlStr,
    pub(crate) shared: Shared,
    pub(crate) record: SqlStr,
    pub(crate) keep_result: SqlStr,
    pub(crate) get: SqlStr,
    pub(crate) subscribe_due: SqlStr,
    pub(crate) claim: SqlStr,
    pub(crate) claim_runs: SqlStr,
    pub(crate) claim_lease: SqlStr,
    pub(crate) claim_set_aside: SqlStr,
    pub(crate) settle: SqlStr,
    pub(crate) settle_processed: SqlStr,
    pub(crate) settle_and_commit: SqlStr,
    pub(crate) open: SqlStr,
    pub(crate) extend: SqlStr,
    pub(crate) settle_tokens: SqlStr,
    pub(crate) list: Paging,
    pub(crate) list_newest: Paging,
    pub(crate) count: ByStates,
    pub(crate) slice_select: Paging,
    pub(crate) statistics: SqlStr,
    pub(crate) replay: SqlStr,
    pub(crate) replay_edit: SqlStr,
    pub(crate) reschedule: SqlStr,
    pub(crate) discard: SqlStr,
    pub(crate) clear: SqlStr,
    pub(crate) pause: SqlStr,
    pub(crate) resume: SqlStr,
    pub(crate) paused: SqlStr,
    pub(crate) purge_select: SqlStr,
    pub(crate) purge: SqlStr,
    pub(crate) purge_messages: SqlStr,
    pub(crate) purge_keys: SqlStr,
    pub(crate) drop_select: SqlStr,
    pub(crate) drop_results: SqlStr,
    pub(crate) drop_payloads: SqlStr,
}

/// The parts of a shared transaction. All have the same parameters: $1 what is begun, $2 messages,
/// $3 their contents, $4 now, $5 settlements, $6 their results, $7 the rows of their leases.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) known: String,
    pub(crate) receive: String,
    pub(crate) begin: String,
    pub(crate) settle: String,
    pub(crate) settle_processed: String,
    pub(crate) settle_tokens: String,
}

impl Shared {
    fn new(inbox: &InboxName) -> Self {
        let part = |template: &str, parameters: &[u8]| {
            renumber(expand(template, inbox).as_str(), parameters)
        };
        Self {
            known: part(include_str!("sql/begin_known.sql"), &[1]),
            receive: part(include_str!("sql/receive.sql"), &[2, 3, 4]),
            begin: part(include_str!("sql/begin.sql"), &[1, 4]),
            settle: part(include_str!("sql/settle.sql"), &[5, 6, 4]),
            settle_processed: part(include_str!("sql/settle_processed.sql"), &[5, 4]),
            settle_tokens: part(include_str!("sql/settle_tokens.sql"), &[7]),
        }
    }
}

/// Begins a transaction of the store's own, with no step in it.
fn open() -> SqlStr {
    AssertSqlSafe(format!(
        "PRAGMA analysis_limit = {OWN}; {BEGIN}; SAVEPOINT inbox_opened"
    ))
    .into_sql_str()
}

/// The settlement of processed messages in a transaction of the store's own, and its commit. Fails at the first or
/// second statement, and has done nothing, in another transaction or in none, and where a step is unfinished;
/// and before the commit unless so many leases as $3 says were ended. What follows the commit is for the driver.
fn settle_and_commit(inbox: &InboxName) -> SqlStr {
    let settle = expand(include_str!("sql/settle_processed.sql"), inbox);
    // The least number has no absolute value.
    let fail_if = |condition: &str| format!("SELECT abs(-9223372036854775807 - ({condition}))");
    let script = [
        format!(
            "{} FROM pragma_analysis_limit",
            fail_if(&format!("analysis_limit <> {OWN}"))
        ),
        "RELEASE inbox_opened".to_owned(),
        renumber(settle.as_str(), &[1, 2]),
        fail_if("changes() <> $3"),
        "COMMIT".to_owned(),
        "BEGIN".to_owned(),
    ];
    AssertSqlSafe(script.join(";\n")).into_sql_str()
}

/// Gives the first parameter of a statement, `?1`, the first of these numbers, and so on. As `$5`, which is a
/// name to SQLite: with `?5` alone it counts five parameters, and the driver takes the four for others.
fn renumber(sql: &str, numbers: &[u8]) -> String {
    let mut renumbered = String::with_capacity(sql.len());
    let mut pieces = sql.split('?');
    renumbered.extend(pieces.next());
    for piece in pieces {
        let number = piece.bytes().next().unwrap_or_default().wrapping_sub(b'1');
        match numbers.get(usize::from(number)) {
            Some(new) => {
                renumbered.push('$');
                renumbered.push_str(&new.to_string());
                renumbered.extend(piece.get(1..));
            }
            None => {
                renumbered.push('?');
                renumbered.push_str(piece);
            }
        }
    }
    renumbered
}

/// In which order messages are looked at.
struct Order {
    /// How a number compares with `?1`, behind which it is.
    beyond: &'static str,
    /// No more of the next messages than there are of all that is in the states asked for.
    near: &'static str,
}

const OLDEST_FIRST: Order = Order {
    beyond: ">",
    near: "s.seq <= max(?1, (SELECT min(seq) FROM {inbox}_state)) + (\n    {unprocessed_count}\n)",
};

const NEWEST_FIRST: Order = Order {
    beyond: "<",
    near: "s.seq >= min(?1, (SELECT max(seq) FROM {inbox}_state)) - (\n    {unprocessed_count}\n)",
};

impl Order {
    fn numbers(&self) -> String {
        format!("s.seq {} ?1", self.beyond)
    }

    /// Those of the numbers that `subquery` gives, which SQLite sorts for it.
    fn numbers_in(&self, subquery: &str) -> String {
        let subquery = subquery.trim_end().replace("{beyond}", self.beyond);
        format!("s.seq IN (\n    {subquery}\n)")
    }
}

/// `template` for messages with these `numbers`.
fn select(template: &str, numbers: &str, inbox: &InboxName) -> SqlStr {
    let filter = include_str!("sql/filter.sql").trim_end();
    let text = template
        .replace("{numbers}", numbers)
        .replace("{filter}", filter);
    expand(&text, inbox)
}

/// One text for each group of states that indexes tell from the processed messages, which are most of an
/// inbox, and one for everything else.
#[derive(Debug)]
pub(crate) struct ByStates {
    pub(crate) any: SqlStr,
    pub(crate) dead: SqlStr,
    pub(crate) leased: SqlStr,
    /// For any states but processed. Sorts the numbers of all that is in them.
    pub(crate) unprocessed: SqlStr,
}

impl ByStates {
    fn new(template: &str, order: &Order, inbox: &InboxName) -> Self {
        let text = |numbers: &str| select(template, numbers, inbox);
        let numbers = order.numbers();
        Self {
            any: text(&numbers),
            dead: text(&format!("s.state = 3 AND {numbers}")),
            leased: text(&order.numbers_in(include_str!("sql/leased.sql"))),
            unprocessed: text(&order.numbers_in(include_str!("sql/unprocessed.sql"))),
        }
    }
}

/// What finds a page or a slice.
#[derive(Debug)]
pub(crate) struct Paging {
    pub(crate) all: ByStates,
    /// For any states but processed. Looks at no more of the next messages, in whatever state, than `unprocessed`
    /// sorts. Most pages of a long backlog are full then, and are spared the sorting.
    pub(crate) near: SqlStr,
}

impl Paging {
    fn new(template: &str, order: &Order, inbox: &InboxName) -> Self {
        let near = format!("{} AND {}", order.numbers(), order.near);
        Self {
            all: ByStates::new(template, order, inbox),
            near: select(template, &near, inbox),
        }
    }
}

/// `template` for the inbox of that name. In the templates, `{inbox}` stands for the name, `{columns}`
/// for what `rows::read_stored` reads, `{expired}` and `{unprocessed_count}` for the files of these names, `{kept}`
/// for how many entries of a history are kept, and, in those that select by a filter, `{filter}` for the conditions
/// of `filter.sql` and `{numbers}` for which sequence numbers are looked at.
pub(crate) fn expand(template: &str, inbox: &InboxName) -> SqlStr {
    AssertSqlSafe(std::sync::Arc::<str>::from(
        template
            .replace("{expired}", include_str!("sql/expired.sql").trim_end())
            .replace(
                "{unprocessed_count}",
                include_str!("sql/unprocessed_count.sql").trim_end(),
            )
            .replace("{columns}", include_str!("sql/columns.sql").trim_end())
            .replace("{kept}", &History::KEPT.to_string())
            .replace("{inbox}", inbox.as_str()),
    ))
    .into_sql_str()
}

impl Statements {
    pub(crate) fn new(inbox: &InboxName) -> Self {
        let plain = |template: &str| expand(template, inbox);
        let signed = |template: &str, kind: &str| {
            let history = include_str!("sql/signed.sql").trim_end();
            plain(&template.replace("{signed}", &history.replace("{kind}", kind)))
        };
        Self {
            receive: plain(include_str!("sql/receive.sql")),
            shared: Shared::new(inbox),
            record: plain(include_str!("sql/record.sql")),
            keep_result: plain(include_str!("sql/keep_result.sql")),
            get: plain(include_str!("sql/get.sql")),
            subscribe_due: plain(include_str!("sql/subscribe_due.sql")),
            claim: plain(include_str!("sql/claim.sql")),
            claim_runs: plain(include_str!("sql/claim_runs.sql")),
            claim_lease: plain(include_str!("sql/claim_lease.sql")),
            claim_set_aside: plain(include_str!("sql/claim_set_aside.sql")),
            settle: plain(include_str!("sql/settle.sql")),
            settle_processed: plain(include_str!("sql/settle_processed.sql")),
            settle_and_commit: settle_and_commit(inbox),
            open: open(),
            extend: plain(include_str!("sql/extend.sql")),
            settle_tokens: plain(include_str!("sql/settle_tokens.sql")),
            list: Paging::new(include_str!("sql/list.sql"), &OLDEST_FIRST, inbox),
            list_newest: Paging::new(include_str!("sql/list_newest.sql"), &NEWEST_FIRST, inbox),
            count: ByStates::new(include_str!("sql/count.sql"), &OLDEST_FIRST, inbox),
            slice_select: Paging::new(include_str!("sql/slice_select.sql"), &OLDEST_FIRST, inbox),
            statistics: plain(include_str!("sql/statistics.sql")),
            replay: signed(
                include_str!("sql/replay.sql"),
                "iif(?4, 'edited', 'replayed')",
            ),
            replay_edit: plain(include_str!("sql/replay_edit.sql")),
            reschedule: signed(include_str!("sql/reschedule.sql"), "'rescheduled'"),
            discard: signed(include_str!("sql/discard.sql"), "'discarded'"),
            clear: plain(include_str!("sql/clear.sql")),
            pause: plain(include_str!("sql/pause.sql")),
            resume: plain(include_str!("sql/resume.sql")),
            paused: plain(include_str!("sql/paused.sql")),
            purge_select: plain(include_str!("sql/purge_select.sql")),
            purge: plain(include_str!("sql/purge.sql")),
            purge_messages: plain(include_str!("sql/purge_messages.sql")),
            purge_keys: plain(include_str!("sql/purge_keys.sql")),
            drop_select: plain(include_str!("sql/drop_select.sql")),
            drop_results: plain(include_str!("sql/drop_results.sql")),
            drop_payloads: plain(include_str!("sql/drop_payloads.sql")),
        }
    }
}

#[cfg(test)]
mod tests {
    use sqlx::{ConnectOptions as _, Row as _, SqliteConnection, sqlite::SqliteConnectOptions};

    use super::*;

    async fn plan(connection: &mut SqliteConnection, sql: &str) -> Vec<String> {
        let rows = sqlx::query(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}")))
            .fetch_all(connection)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
        rows.iter().map(|row| row.get(3)).collect()
    }

    /// Lines that read a whole table or index of the inbox. `n` is the table of counts, as it is by its name, the
    /// others are what a subquery gave.
    fn scans(plan: &[String]) -> Vec<&String> {
        plan.iter()
            .filter(|line| line.starts_with("SCAN"))
            .filter(|line| !line.contains("VIRTUAL TABLE") && !line.contains("CONSTANT ROW"))
            .filter(|line| !line.contains("VALUES CLAUSE"))
            .filter(|line| {
                let given = ["n", "inbox_count", "c", "due", "first_due", "run", "e"];
                !given.iter().any(|name| **line == format!("SCAN {name}"))
            })
            .collect()
    }

    /// Nothing of other handlers, of other states, younger, or without content where that is asked for.
    const FINAL: &str =
        "INDEX inbox_final (handler=? AND state=? AND has_content=? AND finished_at<?)";

    const LEASED: &[&str] = &[
        "SEARCH s USING INTEGER PRIMARY KEY (rowid=?)",
        "INDEX inbox_leased (handler=? AND lease_until>?)",
    ];

    const UNPROCESSED: &[&str] = &[
        "SEARCH s USING INTEGER PRIMARY KEY (rowid=?)",
        "INDEX inbox_claim (handler=?)",
        "INDEX inbox_open (handler=? AND ordering_key>?)",
        "INDEX inbox_final (handler=? AND state=?)",
    ];

    const NEAR: &[&str] = &["SEARCH s USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"];

    async fn set_up(inbox: &InboxName) -> SqliteConnection {
        let options = SqliteConnectOptions::new().in_memory(true);
        let mut connection = options.connect().await.unwrap();
        for part in [
            include_str!("sql/schema_1.sql"),
            include_str!("sql/schema_triggers.sql"),
        ] {
            sqlx::raw_sql(expand(part, inbox))
                .execute(&mut connection)
                .await
                .unwrap();
        }
        connection
    }

    #[tokio::test]
    async fn no_statement_reads_the_backlog_or_the_history() {
        let inbox = InboxName::default();
        let mut connection = set_up(&inbox).await;
        let s = Statements::new(&inbox);
        let shared = |sql: &str| AssertSqlSafe(sql.to_owned()).into_sql_str();
        let (known, begin) = (shared(&s.shared.known), shared(&s.shared.begin));
        for (sql, parts) in [
            (&s.receive, &[][..]),
            (&known, &["sqlite_autoindex_inbox_message_1"][..]),
            (
                &begin,
                &["sqlite_autoindex_inbox_message_1", "INTEGER PRIMARY KEY"],
            ),
            (&s.record, &["sqlite_autoindex_inbox_message_1"]),
            (&s.keep_result, &["sqlite_autoindex_inbox_message_1"]),
            (&s.get, &["sqlite_autoindex_inbox_message_1"]),
            (
                &s.subscribe_due,
                &[
                    "INDEX inbox_claim (handler=? AND visible_at<?)",
                    "SEARCH p USING PRIMARY KEY (handler=?)",
                ],
            ),
            (
                &s.claim,
                &[
                    "INDEX inbox_claim (handler=? AND visible_at<?)",
                    "SEARCH p USING PRIMARY KEY (handler=?)",
                ],
            ),
            (
                &s.claim_runs,
                &[
                    "INDEX inbox_claim (handler=? AND visible_at<?)",
                    "INDEX inbox_open (handler=? AND ordering_key=? AND seq>?)",
                ],
            ),
            (&s.claim_lease, &["INTEGER PRIMARY KEY"]),
            (&s.claim_set_aside, &["INTEGER PRIMARY KEY"]),
            (&s.settle, &["INTEGER PRIMARY KEY"]),
            (&s.settle_processed, &["INTEGER PRIMARY KEY"]),
            (&s.extend, &["INTEGER PRIMARY KEY"]),
            (&s.settle_tokens, &["INTEGER PRIMARY KEY"]),
            (&s.drop_payloads, &["INTEGER PRIMARY KEY"]),
            (&s.drop_results, &["INTEGER PRIMARY KEY"]),
            (&s.list.all.any, &["rowid>?"]),
            (&s.list.all.dead, &["INDEX inbox_dead"]),
            (&s.list.all.leased, LEASED),
            (&s.list.all.unprocessed, UNPROCESSED),
            (&s.list.near, NEAR),
            (&s.list_newest.all.any, &["rowid<?"]),
            (&s.list_newest.all.dead, &["INDEX inbox_dead"]),
            (&s.list_newest.all.leased, LEASED),
            (&s.list_newest.all.unprocessed, UNPROCESSED),
            (&s.list_newest.near, NEAR),
            (&s.count.dead, &["INDEX inbox_dead"]),
            (&s.count.leased, LEASED),
            (&s.count.unprocessed, UNPROCESSED),
            (&s.slice_select.all.any, &["rowid>?"]),
            (&s.slice_select.all.dead, &["INDEX inbox_dead"]),
            (&s.slice_select.all.leased, LEASED),
            (&s.slice_select.all.unprocessed, UNPROCESSED),
            (&s.slice_select.near, NEAR),
            (
                &s.statistics,
                &[
                    "INDEX inbox_claim",
                    "INDEX inbox_leased (handler=? AND lease_until>?)",
                    "COVERING INDEX inbox_blocking (handler=?)",
                ],
            ),
            (&s.replay, &["INTEGER PRIMARY KEY"]),
            (&s.replay_edit, &["INTEGER PRIMARY KEY"]),
            (&s.reschedule, &["INTEGER PRIMARY KEY"]),
            (&s.discard, &["INTEGER PRIMARY KEY"]),
            (&s.clear, &["INTEGER PRIMARY KEY"]),
            (&s.pause, &[]),
            (&s.resume, &["PRIMARY KEY (handler=?)"]),
            (&s.purge_select, &[FINAL]),
            (&s.purge, &[FINAL]),
            (&s.purge_messages, &["INTEGER PRIMARY KEY"]),
            (&s.drop_select, &[FINAL]),
            (&s.purge_keys, &["sqlite_autoindex_inbox_message_1"]),
        ] {
            let mut lines = Vec::new();
            for statement in sql.as_str().split(";\n") {
                lines.extend(plan(&mut connection, statement).await);
            }
            assert_eq!(scans(&lines), [""; 0], "{}", sql.as_str());
            for part in parts {
                assert!(
                    lines.iter().any(|line| line.contains(part)),
                    "{part}: {lines:#?}"
                );
            }
        }
    }

    #[test]
    fn parameters_are_renumbered_in_place() {
        assert_eq!(
            renumber("-- ?1 and ?2\nSELECT ?2, f(?1), ?", &[5, 14]),
            "-- $5 and $14\nSELECT $14, f($5), ?"
        );
    }

    #[tokio::test]
    async fn lists_are_not_sorted() {
        let inbox = InboxName::default();
        let mut connection = set_up(&inbox).await;
        let s = Statements::new(&inbox);
        let (list, newest, slice) = (&s.list.all, &s.list_newest.all, &s.slice_select.all);
        for sql in [
            &list.any,
            &list.dead,
            &list.leased,
            &list.unprocessed,
            &newest.leased,
            &newest.unprocessed,
            &slice.dead,
            &slice.unprocessed,
        ] {
            let lines = plan(&mut connection, sql.as_str()).await;
            assert!(
                !lines.iter().any(|line| line.contains("TEMP B-TREE")),
                "{lines:#?}"
            );
        }
    }

    #[tokio::test]
    async fn a_claim_sorts_before_it_reads_messages() {
        let inbox = InboxName::default();
        let mut connection = set_up(&inbox).await;
        let s = Statements::new(&inbox);
        for sql in [&s.claim, &s.claim_runs] {
            let lines = plan(&mut connection, sql.as_str()).await;
            let place = |part: &str| lines.iter().position(|line| line.contains(part));
            let (sort, read) = (place("TEMP B-TREE").unwrap(), place("SEARCH m").unwrap());
            assert!(sort < read, "{lines:#?}");
            assert!(
                !lines[read..]
                    .iter()
                    .any(|line| line.contains("TEMP B-TREE"))
            );
        }
    }

    #[tokio::test]
    async fn no_trigger_reads_more_than_its_key() {
        let inbox = InboxName::default();
        let mut connection = set_up(&inbox).await;
        let triggers: Vec<String> =
            sqlx::query_scalar("SELECT sql FROM sqlite_master WHERE type = 'trigger'")
                .fetch_all(&mut connection)
                .await
                .unwrap();
        assert_eq!(triggers.len(), 7);
        let mut statements = 0;
        for trigger in triggers {
            let (_, body) = trigger.split_once("BEGIN\n").unwrap();
            let body = body.rsplit_once("END").unwrap().0;
            for statement in body
                .split(';')
                .filter(|statement| !statement.trim().is_empty())
            {
                // Stands for the changed row's values, which a trigger knows as constants.
                let mut sql = statement.to_owned();
                for row in ["NEW.", "OLD."] {
                    while let Some(at) = sql.find(row) {
                        let rest = &sql[at + row.len()..];
                        let name = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_');
                        let end = at + row.len() + name.unwrap_or(rest.len());
                        sql.replace_range(at..end, "?1");
                    }
                }
                let lines = plan(&mut connection, &sql).await;
                assert_eq!(scans(&lines), [""; 0], "{sql}");
                statements += 1;
            }
        }
        assert_eq!(statements, 10);
    }
}
