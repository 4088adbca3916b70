//! What is done to one message at a time, as stored procedures where the user may have them.
//!
//! Half of such an operation's time is what the server takes to read and plan a packet's statements, which
//! it does once for a procedure in a session. The statements are the same ones, and so is what stands
//! around them: a procedure relies on nothing in its session, nor leaves anything there. Its name ends
//! with a hash of its text, so that each build calls those that it knows. Where they are not there, or
//! not for this user to call, and in a cluster (see [`Form::Compound`](crate::multi_statement::Form)),
//! packets do the same.

use inbox_api::Result;
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};

use crate::{
    error::{before, number},
    multi_statement::{BEGIN_WRITING, COMMIT, Script},
    options::{MySqlOptions, PayloadType},
    statement::Statement,
    statements::{ALL_ROWS, Names, in_database},
};

/// A name and a value for each parameter.
pub(crate) type Arguments = Vec<(&'static str, Statement)>;

/// An operation's statements, and the procedure that holds them.
#[derive(Debug)]
pub(crate) struct Procedure {
    /// Without the database's.
    name: String,
    quoted: String,
    parameters: Vec<&'static str>,
    /// The statement that makes it.
    pub(crate) ddl: String,
}

impl Procedure {
    pub(crate) fn begin_one(names: &Names, options: &MySqlOptions) -> Self {
        let payload = match options.payload_type {
            PayloadType::LongBlob => "LONGBLOB",
            PayloadType::Json => "LONGTEXT CHARACTER SET utf8mb4",
        };
        let parameters = [
            ("handler", "VARBINARY(128)"),
            ("id", "VARBINARY(255)"),
            ("kind", "VARBINARY(255)"),
            ("content_type", "VARBINARY(255)"),
            ("headers", "MEDIUMBLOB"),
            ("batch", "BIGINT"),
            ("fingerprint", "BIGINT"),
            ("payload_bytes", "BIGINT"),
            ("payload", payload),
            ("length", "BIGINT"),
            ("worker", "VARBINARY(128)"),
            ("offset", "BIGINT"),
        ];
        let text = include_str!("sql/begin_one.sql");
        Self::new(names, options, "begin", &parameters, text)
    }

    pub(crate) fn settle_one(names: &Names, options: &MySqlOptions) -> Self {
        let parameters = [
            ("seq", "BIGINT"),
            ("token", "BIGINT"),
            ("result", "LONGBLOB"),
            ("offset", "BIGINT"),
        ];
        let text = include_str!("sql/settle_one.sql");
        Self::new(names, options, "settle", &parameters, text)
    }

    fn new(
        names: &Names,
        options: &MySqlOptions,
        operation: &str,
        parameters: &[(&'static str, &str)],
        text: &str,
    ) -> Self {
        let declared: Vec<_> = parameters
            .iter()
            .map(|(name, kind)| format!("IN p_{name} {kind}"))
            .collect();
        let mut values: Arguments = parameters
            .iter()
            .map(|(name, _)| (*name, Statement::new(format!("p_{name}"))))
            .collect();
        values.push(("time", Statement::new(names.expand("{now} + p_offset"))));
        let mut statements: Vec<_> = BEGIN_WRITING.map(str::to_owned).into();
        let file = names.file(text);
        statements.extend(file.iter().map(|part| part.fill(&values).into_text()));
        statements.push(COMMIT.to_owned());
        let rest = format!(
            "({})\nMODIFIES SQL DATA SQL SECURITY INVOKER\nBEGIN\n{};\nEND",
            declared.join(", "),
            statements.join(";\n")
        );
        let suffix = format!("{operation}_{:016x}", fnv(rest.bytes()));
        let quoted = options.table(&suffix);
        Self {
            name: format!("{}_{suffix}", options.inbox),
            ddl: format!("CREATE PROCEDURE {quoted} {rest}"),
            quoted,
            parameters: parameters.iter().map(|(name, _)| *name).collect(),
        }
    }

    /// A call, unless one of its arguments has to be bound.
    pub(crate) fn call(&self, arguments: &Arguments) -> Option<Script> {
        let mut call = Statement::new(format!("CALL {}(", self.quoted));
        for (n, parameter) in self.parameters.iter().enumerate() {
            let (_, value) = arguments.iter().find(|(name, _)| name == parameter)?;
            call.push(if n == 0 { "" } else { ", " }).append(value);
        }
        call.push(")");
        let mut script = Script::default();
        let unbound = call.bound.is_empty();
        script.add(call);
        unbound.then_some(script)
    }
}

/// FNV-1a.
pub(crate) fn fnv(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325_u64;
    bytes.into_iter().fold(start, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Whether these procedures are there for this user to see, which is to call or to make them.
pub(crate) async fn are_there(
    connection: &mut MySqlConnection,
    options: &MySqlOptions,
    procedures: [&Procedure; 2],
) -> Result<bool> {
    let names = procedures.map(|procedure| format!("'{}'", procedure.name));
    let within = in_database(options).replace("table_schema", "routine_schema");
    let sql = format!(
        "SELECT COUNT(*) FROM information_schema.routines \
         WHERE {within} AND routine_type = 'PROCEDURE' AND routine_name IN ({})",
        names.join(", ")
    );
    let row = sqlx::raw_sql(AssertSqlSafe(sql))
        .fetch_one(connection)
        .await
        .map_err(before)?;
    let found: i64 = row.try_get_unchecked(0).map_err(before)?;
    Ok(found == procedures.len() as i64)
}

/// Makes these procedures if the server and the user's privileges let it.
pub(crate) async fn install(
    connection: &mut MySqlConnection,
    options: &MySqlOptions,
    procedures: [&Procedure; 2],
) -> Result<()> {
    if are_there(connection, options, procedures).await? {
        return Ok(());
    }
    for procedure in procedures {
        let ddl = sqlx::raw_sql(AssertSqlSafe(procedure.ddl.clone()));
        match ddl.execute(&mut *connection).await {
            Err(error) if number(&error).is_none() => return Err(before(error)),
            Err(error) => tracing::debug!(%error, "a procedure was not made"),
            Ok(_) => {}
        }
    }
    Ok(())
}

/// Drops the procedures of this inbox, of whichever build.
pub(crate) async fn drop_all(
    connection: &mut MySqlConnection,
    options: &MySqlOptions,
) -> sqlx::Result<()> {
    let within = in_database(options).replace("table_schema", "routine_schema");
    let prefix = format!("{}_", options.inbox);
    let sql = format!(
        "SELECT CAST(routine_name AS BINARY) FROM information_schema.routines \
         WHERE {within} AND routine_type = 'PROCEDURE' \
         AND routine_name REGEXP '^{prefix}(begin|settle)_[0-9a-f]{{16}}$' {ALL_ROWS}"
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut *connection);
    for row in rows.await? {
        let name: &[u8] = row.try_get_unchecked(0)?;
        let name = String::from_utf8_lossy(name);
        let quoted = options.table(name.strip_prefix(&prefix).unwrap_or_default());
        let drop = AssertSqlSafe(format!("DROP PROCEDURE IF EXISTS {quoted}"));
        sqlx::raw_sql(drop).execute(&mut *connection).await?;
    }
    Ok(())
}
