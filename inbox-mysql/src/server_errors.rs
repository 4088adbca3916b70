//! What the servers' error numbers mean to a caller: one table for MySQL and MariaDB, Galera and Group
//! Replication, and for what proxies in front of them answer themselves.
//!
//! Both servers' tables were gone through as a whole (MySQL 9.7 and MariaDB 10.11). Up to 1887 they
//! agree; from there on each has its own numbers, of which no two that matter here are the same. What
//! is not listed is `Other`: it does not happen to these statements, or only through a mistake in
//! them.

use inbox_api::{Effect, ErrorKind};

use self::{
    Effect::{None as Nothing, Unknown},
    ErrorKind::{
        Conflict, Corrupt, Denied, Invalid, SchemaMissing, SchemaVersion, Unavailable, Unsupported,
    },
};

/// Numbers that mean the same.
struct Class {
    numbers: &'static [u16],
    kind: ErrorKind,
    /// Whether a statement, or the commit, may have taken place although it failed so.
    effect: Effect,
    context: &'static str,
}

const fn class(
    kind: ErrorKind,
    effect: Effect,
    context: &'static str,
    numbers: &'static [u16],
) -> Class {
    Class {
        numbers,
        kind,
        effect,
        context,
    }
}

/// The server's error number, and what it means.
pub(crate) fn meaning(number: u16) -> Option<(ErrorKind, Effect, &'static str)> {
    let class = CLASSES
        .iter()
        .find(|class| class.numbers.contains(&number))?;
    Some((class.kind, class.effect, class.context))
}

/// Which privilege is missing, and for what, where the server says so in English. The user's name is left out.
pub(crate) fn what_is_denied(message: &str) -> Option<String> {
    let (privilege, rest) = message.split_once(" command denied to user ")?;
    let (_, object) = rest.rsplit_once(" for ")?;
    Some(format!("{privilege} for {object}"))
}

/// Whether a server that answers so takes no writes for now, or nothing at all: one that was the primary before a
/// fail-over, or a node that is cut off from its cluster. Behind the address may be another server by now.
pub(crate) fn refuses_writes(number: u16) -> bool {
    NOT_READY.contains(&number) || TAKES_NO_WRITES.contains(&number)
}

/// Unknown command (Galera, not synchronised); bad handshake; offline mode, twice; not available yet. Group
/// Replication: held back during a fail-over and timed out, or killed; waiting for consistency failed, twice; a hook
/// of the commit failed.
const NOT_READY: &[u16] = &[1043, 1047, 3032, 3100, 3168, 3781, 3782, 3797, 3798, 6400];

/// Table, server (read_only), transaction, server, InnoDB (twice) and schema read-only.
const TAKES_NO_WRITES: &[u16] = &[1036, 1290, 1792, 1836, 1874, 1881, 3989];

const CLASSES: &[Class] = &[
    // Given up in favour of another transaction.
    class(
        Conflict,
        Nothing,
        "the server chose this transaction to end a deadlock",
        // Deadlock (on Galera also a certification conflict); of user locks.
        &[1213, 3058],
    ),
    class(
        Conflict,
        Nothing,
        "lock wait timed out",
        // Lock wait time-out; lock aborted for an exclusive one; NOWAIT; refused by the engine.
        &[1205, 1689, 3177, 3572],
    ),
    class(
        Conflict,
        Nothing,
        "another transaction was first, on this server or on another of its group",
        // Record changed since last read (MariaDB, innodb_snapshot_isolation); table definition
        // changed; to be prepared again; an earlier commit failed (MariaDB); rolled back during
        // commit by the certification of Group Replication.
        &[1020, 1412, 1615, 1964, 3101],
    ),
    class(
        Conflict,
        Nothing,
        "a number was drawn that another message has",
        // Out of range, which `receive.sql` provokes. The next one that is drawn is another.
        &[1690],
    ),
    // Refused before anything was done.
    class(
        Unavailable,
        Nothing,
        "the server has too many connections",
        &[1040],
    ),
    class(
        Unavailable,
        Nothing,
        "the user may not have more connections, or not do more for now",
        // Too many connections of the user; a limit of the user's.
        &[1203, 1226],
    ),
    class(Unavailable, Nothing, "this node is not ready", NOT_READY),
    class(
        Unavailable,
        Nothing,
        "the server takes no writes at the moment",
        TAKES_NO_WRITES,
    ),
    class(
        Unavailable,
        Nothing,
        "the server is out of disk space or memory, or of something else that is limited",
        // Of the operating system's errors: writing failed, no memory, disk full (20 and 28). Cannot
        // open a file; disk full; no memory, three times; table full; no thread; lock table full;
        // too many prepared statements; too many transactions; temporary file; no memory in the
        // engine; undo log full; capacity exceeded; disk full; no metadata locks left.
        // And of the files of MariaDB's own temporary tables, which a write that failed leaves damaged: index, rows,
        // file full, crashed, twice.
        &[
            3, 5, 20, 28, 126, 127, 135, 144, 145, 1016, 1021, 1037, 1038, 1041, 1114, 1135, 1206,
            1461, 1637, 1878, 3015, 3019, 3170, 3675, 3985,
        ],
    ),
    class(
        Unavailable,
        Nothing,
        "the storage engine failed for the time being",
        &[1297],
    ),
    // Cut off, perhaps while the commit was on its way.
    class(
        Unavailable,
        Unknown,
        "the server interrupted the operation",
        // Sort aborted; shutting down; normal shutdown, signal, shutdown complete, closing
        // forcibly; query killed; connection killed (MariaDB); session killed (MySQL); idle for
        // too long (MySQL).
        &[1028, 1053, 1077, 1078, 1079, 1080, 1317, 1927, 3169, 4031],
    ),
    class(
        Unavailable,
        Unknown,
        "the server's time limit for statements was reached",
        // max_statement_time (MariaDB), max_execution_time (MySQL).
        &[1969, 3024],
    ),
    class(
        Unavailable,
        Unknown,
        "the commit or the roll-back failed",
        // Error during commit (Galera: the write set was not replicated), during roll-back; fatal
        // error of the binary log; logging impossible.
        &[1180, 1181, 1593, 1598],
    ),
    class(
        Unavailable,
        Unknown,
        "the connection was lost",
        // Aborted; read, fcntl, order, decompression, read, read time-out, write, write time-out;
        // aborted; malformed packet.
        &[
            1152, 1154, 1155, 1156, 1157, 1158, 1159, 1160, 1161, 1184, 1835,
        ],
    ),
    class(
        Unavailable,
        Unknown,
        "a proxy cannot reach the server, or has lost it",
        // MySQL Router and ProxySQL pass on what their client library says: cannot connect, by a socket and by TCP;
        // the server has gone away; its handshake failed; lost during the query; lost, with the reason.
        // ProxySQL: no connection in time; too many failures to connect; the server is offline; it lags too far
        // behind; no answer to a ping; no answer to a change of user.
        &[
            2002, 2003, 2006, 2012, 2013, 2055, 9001, 9002, 9004, 9005, 9006, 9007,
        ],
    ),
    class(
        Unavailable,
        Unknown,
        "the server could not read or write its files",
        // A temporary file could not be made, read, closed, deleted, renamed, read to its end, resized,
        // synchronised or found. Reading and writing, by the server and by the engine.
        &[1, 2, 4, 6, 7, 9, 14, 27, 29, 1024, 1026, 1810, 1811],
    ),
    // A permission has to be granted.
    class(
        Denied,
        Nothing,
        "the server refused the user or the password",
        // Access denied; anonymous; authentication method not supported; without password; on a
        // change of user; plugin not loaded; no proxy grant, twice.
        &[1045, 1131, 1251, 1524, 1698, 1873, 6126, 6127],
    ),
    class(
        Denied,
        Nothing,
        "the server refuses connections from this host",
        // Blocked after many errors, until the hosts are flushed; not allowed.
        &[1129, 1130],
    ),
    class(
        Denied,
        Nothing,
        "the user's password has expired",
        &[1820, 1862],
    ),
    class(
        Denied,
        Nothing,
        "the user's account is locked",
        // MySQL; MySQL, after wrong passwords; MariaDB, after wrong passwords; MariaDB.
        &[3118, 3955, 4150, 4151],
    ),
    class(
        Denied,
        Nothing,
        "the server takes encrypted connections only: set ssl-mode",
        &[3159],
    ),
    class(
        Denied,
        Nothing,
        "the user has no privilege on the database",
        &[1044, 3879],
    ),
    class(
        Denied,
        Nothing,
        "a privilege is missing; SETUP.md of inbox-mysql lists those needed",
        // Kill, table, column, specific, routine, specific; refused by an audit plugin or a firewall.
        &[1095, 1142, 1143, 1227, 1370, 3164, 6038, 6444],
    ),
    // It has to be set up.
    class(
        SchemaMissing,
        Nothing,
        "the database or a table of the inbox does not exist",
        // Database, table to drop, table; database (MySQL).
        &[1049, 1051, 1146, 3503],
    ),
    class(
        SchemaVersion,
        Nothing,
        "a column or an index of the inbox is missing or different",
        // Unknown column; index missing; number of values; not a table; not updatable; no default
        // for a column that this build does not know; a column is too short.
        &[1054, 1136, 1176, 1288, 1347, 1364, 1406],
    ),
    // The request has to change, or a setting that it meets.
    class(
        Invalid,
        Nothing,
        "the server's max_allowed_packet is smaller than the message",
        // Packet too large; result string longer; result of a function longer.
        &[1153, 1162, 1301],
    ),
    class(
        Invalid,
        Nothing,
        "the transaction is larger than the server's binary log or group takes; use smaller batches",
        // max_binlog_cache_size; group_replication_transaction_size_limit.
        &[1197, 3231],
    ),
    class(Invalid, Nothing, "no database is selected", &[1046]),
    class(
        Invalid,
        Nothing,
        "a payload is not JSON that the server takes",
        // Not in the character set; MySQL: JSON data, text, in a parameter, binary, path, character
        // set, too large, key too large, too deep; MariaDB: the column's check.
        &[
            1300, 3069, 3140, 3141, 3142, 3143, 3144, 3150, 3151, 3157, 4025,
        ],
    ),
    // The server has to be set up differently.
    class(
        Unsupported,
        Nothing,
        "with binlog_format=STATEMENT the server takes no READ COMMITTED transactions; \
         set ROW or MIXED",
        &[1665],
    ),
    class(
        Unsupported,
        Nothing,
        "this session does not take changes and joins by lists: set sql_safe_updates=0 and sql_big_selects=1 in it",
        // Examines more than max_join_size rows; no key in the condition of a change.
        &[1104, 1175],
    ),
    class(
        Unsupported,
        Nothing,
        "the server has no InnoDB tables, or its replication does not take them",
        // Unknown, unsupported, disabled (MySQL), disabled (MariaDB) engine; refused by the checks
        // of Group Replication.
        &[1286, 1726, 3098, 3161, 4182],
    ),
    class(
        Corrupt,
        Nothing,
        "two tables have rows of the same number that exclude each other, as after loading a part of \
         a dump",
        // Duplicate key: no statement of the store's may meet one.
        &[1062],
    ),
    class(
        Corrupt,
        Nothing,
        "a table is damaged",
        // Definition file; key file, twice; crashed, twice; index; tablespace missing and discarded;
        // index; table; missing in the engine (MariaDB); file.
        &[
            1033, 1034, 1035, 1194, 1195, 1712, 1812, 1814, 1817, 1877, 1932, 3000,
        ],
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_privilege_is_named_and_the_user_is_not() {
        let message =
            "SELECT command denied to user 'app'@'db.example' for table `shop`.`inbox_messages`";
        let expected = "SELECT for table `shop`.`inbox_messages`";
        assert_eq!(what_is_denied(message).as_deref(), Some(expected));
        let routine = "execute command denied to user 'app'@'%' for routine 'shop.inbox_compact'";
        let expected = "execute for routine 'shop.inbox_compact'";
        assert_eq!(what_is_denied(routine).as_deref(), Some(expected));
        assert_eq!(what_is_denied("Access denied for user 'app'@'%'"), None);
    }

    /// Every number, as a caller has to take it.
    const EXPECTED: &[(ErrorKind, Effect, &[u16])] = &[
        (
            Conflict,
            Nothing,
            &[
                1020, 1205, 1213, 1412, 1615, 1689, 1690, 1964, 3058, 3101, 3177, 3572,
            ],
        ),
        (
            Unavailable,
            Nothing,
            &[
                3, 5, 20, 28, 126, 127, 135, 144, 145, 1016, 1021, 1036, 1037, 1038, 1040, 1041,
                1043, 1047, 1114, 1135, 1203, 1206, 1226, 1290, 1297, 1461, 1637, 1792, 1836, 1874,
                1878, 1881, 3015, 3019, 3032, 3100, 3168, 3170, 3675, 3781, 3782, 3797, 3798, 3985,
                3989, 6400,
            ],
        ),
        (
            Unavailable,
            Unknown,
            &[
                1, 2, 4, 6, 7, 9, 14, 27, 29, 1024, 1026, 1028, 1053, 1077, 1078, 1079, 1080, 1152,
                1154, 1155, 1156, 1157, 1158, 1159, 1160, 1161, 1180, 1181, 1184, 1317, 1593, 1598,
                1810, 1811, 1835, 1927, 1969, 2002, 2003, 2006, 2012, 2013, 2055, 3024, 3169, 4031,
                9001, 9002, 9004, 9005, 9006, 9007,
            ],
        ),
        (
            Denied,
            Nothing,
            &[
                1044, 1045, 1095, 1129, 1130, 1131, 1142, 1143, 1227, 1251, 1370, 1524, 1698, 1820,
                1862, 1873, 3118, 3159, 3164, 3879, 3955, 4150, 4151, 6038, 6126, 6127, 6444,
            ],
        ),
        (SchemaMissing, Nothing, &[1049, 1051, 1146, 3503]),
        (
            SchemaVersion,
            Nothing,
            &[1054, 1136, 1176, 1288, 1347, 1364, 1406],
        ),
        (
            Invalid,
            Nothing,
            &[
                1046, 1153, 1162, 1197, 1300, 1301, 3069, 3140, 3141, 3142, 3143, 3144, 3150, 3151,
                3157, 3231, 4025,
            ],
        ),
        (
            Unsupported,
            Nothing,
            &[1104, 1175, 1286, 1665, 1726, 3098, 3161, 4182],
        ),
        (
            Corrupt,
            Nothing,
            &[
                1033, 1034, 1035, 1062, 1194, 1195, 1712, 1812, 1814, 1817, 1877, 1932, 3000,
            ],
        ),
    ];

    #[test]
    fn every_number_means_what_a_caller_should_do() {
        let mut expected = HashSet::new();
        for (kind, effect, numbers) in EXPECTED {
            for number in *numbers {
                let found = meaning(*number).map(|(kind, effect, _)| (kind, effect));
                assert_eq!(found, Some((*kind, *effect)), "{number}");
                assert!(expected.insert(*number), "{number} is expected twice");
            }
        }
        let listed: Vec<u16> = CLASSES
            .iter()
            .flat_map(|class| class.numbers)
            .copied()
            .collect();
        assert_eq!(listed.len(), expected.len());
        assert!(listed.iter().all(|number| expected.contains(number)));
    }

    #[test]
    fn what_is_not_listed_means_nothing() {
        // A syntax error, a savepoint that is not there, a command that ProxySQL does not support.
        for number in [0, 1064, 1105, 1305, 9003, u16::MAX] {
            assert!(meaning(number).is_none(), "{number}");
        }
    }

    #[test]
    fn what_takes_no_writes_has_done_nothing() {
        for number in NOT_READY.iter().chain(TAKES_NO_WRITES) {
            assert!(refuses_writes(*number), "{number}");
            let found = meaning(*number).map(|(kind, effect, _)| (kind, effect));
            assert_eq!(found, Some((Unavailable, Nothing)), "{number}");
        }
        for number in [0, 1213, 1205, 2013, 9001] {
            assert!(!refuses_writes(number), "{number}");
        }
    }
}
