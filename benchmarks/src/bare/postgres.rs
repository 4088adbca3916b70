//! Hand-written statements for PostgreSQL, one for each step.

use std::time::Duration;

use anyhow::{Result, ensure};
use inbox::Message;
use sqlx::{ConnectOptions as _, PgConnection, Row as _, postgres::PgConnectOptions};

use super::{HANDLER, Layout};

const LEASE: Duration = Duration::from_secs(3600);

/// Statements are planned once, perhaps while the tables are still empty: these keep to the
/// indexes whatever the tables look like.
const SESSION: [(&str, &str); 7] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_mergejoin", "off"),
    ("enable_hashjoin", "off"),
    ("enable_material", "off"),
    ("jit", "off"),
];

/// All statements take the same parameters in each layout.
struct Statements {
    tables: &'static str,
    /// `$1` handler, `$2` ids, `$3` kinds, `$4` headers, `$5` payloads; returns the ids that were
    /// new.
    receive: &'static str,
    /// `$1` handler, `$2` limit, `$3` microseconds of lease, `$4` worker.
    claim: &'static str,
    /// `$1` numbers, `$2` tokens; returns the numbers of those that stood.
    settle: &'static str,
}

macro_rules! statements {
    ($folder:literal) => {
        Statements {
            tables: include_str!(concat!("sql/", $folder, "/tables.sql")),
            receive: include_str!(concat!("sql/", $folder, "/receive.sql")),
            claim: include_str!(concat!("sql/", $folder, "/claim.sql")),
            settle: include_str!(concat!("sql/", $folder, "/settle.sql")),
        }
    };
}

static ONE_TABLE: Statements = statements!("postgres_one_table");
static OWN: Statements = statements!("postgres_own_layout");

pub(crate) struct Caller {
    connection: PgConnection,
    statements: &'static Statements,
    batch: u32,
}

/// That many connections, and new tables.
pub(super) async fn set_up(
    options: PgConnectOptions,
    layout: Layout,
    number: u32,
    batch: u32,
) -> Result<Vec<Caller>> {
    let options = options.options(SESSION).disable_statement_logging();
    let statements = match layout {
        Layout::OneTable => &ONE_TABLE,
        Layout::Own => &OWN,
    };
    let mut callers = Vec::new();
    for n in 0..number {
        let mut connection = options.connect().await?;
        if n == 0 {
            let tables = sqlx::raw_sql(statements.tables);
            tables.execute(&mut connection).await?;
        }
        callers.push(Caller {
            connection,
            statements,
            batch,
        });
    }
    Ok(callers)
}

/// A message in hand.
struct Held {
    seq: i64,
    token: i64,
}

impl Caller {
    async fn claim(&mut self) -> Result<Vec<Held>> {
        let rows = sqlx::query(self.statements.claim)
            .bind(HANDLER)
            .bind(i64::from(self.batch))
            .bind(i64::try_from(LEASE.as_micros())?)
            .bind("worker-1")
            .fetch_all(&mut self.connection)
            .await?;
        let held = rows.iter().map(|row| {
            // What a handler would be given.
            let _: (&str, &str, &[u8]) = (
                row.try_get("id")?,
                row.try_get("headers")?,
                row.try_get("payload")?,
            );
            Ok(Held {
                seq: row.try_get("seq")?,
                token: row.try_get("token")?,
            })
        });
        held.collect()
    }

    async fn settle(&mut self, mut held: Vec<Held>) -> Result<()> {
        held.sort_by_key(|held| held.seq);
        let seqs: Vec<i64> = held.iter().map(|held| held.seq).collect();
        let tokens: Vec<i64> = held.iter().map(|held| held.token).collect();
        let settled = sqlx::query(self.statements.settle)
            .bind(&seqs)
            .bind(&tokens)
            .fetch_all(&mut self.connection)
            .await?;
        ensure!(settled.len() == held.len(), "a lease was lost");
        Ok(())
    }
}

impl super::Caller for Caller {
    async fn receive(&mut self, batch: &[Message]) -> Result<()> {
        let ids: Vec<&str> = batch.iter().map(|message| message.id().as_str()).collect();
        let kinds: Vec<&str> = batch.iter().map(|m| m.kind().as_str()).collect();
        let headers: Vec<String> = batch.iter().map(|m| m.headers().to_json()).collect();
        let payloads: Vec<&[u8]> = batch.iter().map(|m| m.payload().as_ref()).collect();
        let accepted = sqlx::query(self.statements.receive)
            .bind(HANDLER)
            .bind(&ids)
            .bind(&kinds)
            .bind(&headers)
            .bind(&payloads)
            .fetch_all(&mut self.connection)
            .await?;
        ensure!(accepted.len() == batch.len(), "a fresh id was refused");
        Ok(())
    }

    async fn drain(&mut self) -> Result<u64> {
        let mut drained = 0;
        loop {
            let held = self.claim().await?;
            if held.is_empty() {
                return Ok(drained);
            }
            drained += held.len() as u64;
            self.settle(held).await?;
        }
    }
}
