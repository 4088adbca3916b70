//! What a handler writes in the inbox's transactions, and what it should not do in them.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use async_trait::async_trait;
use conformance_tests::{BoxError, BusinessWrites, Mishap, Offered, Unable};
use sqlx::{AssertSqlSafe, Postgres, Transaction};

use super::TestSchema;

static NEXT_TABLE: AtomicU32 = AtomicU32::new(0);

/// A handler's table `effects` in the inbox's schema.
#[derive(Debug)]
pub struct Effects(Arc<TestSchema>);

impl Effects {
    /// In the schema of this inbox.
    #[must_use]
    pub fn of(schema: Arc<TestSchema>) -> Self {
        Self(schema)
    }

    /// Makes the table.
    ///
    /// # Errors
    /// [`Unable::Failed`], with the driver's error.
    pub async fn create(&self) -> Offered<()> {
        let created = self
            .0
            .run("CREATE TABLE {schema}.effects (note text NOT NULL)")
            .await;
        created.map_err(Unable::failed)
    }
}

#[async_trait]
impl BusinessWrites<Transaction<'static, Postgres>> for Effects {
    async fn write(
        &self,
        transaction: &mut Transaction<'static, Postgres>,
        note: &str,
    ) -> Result<(), BoxError> {
        let sql = self
            .0
            .sql("INSERT INTO {schema}.effects (note) VALUES ($1)");
        sqlx::query(AssertSqlSafe(sql))
            .bind(note)
            .persistent(false)
            .execute(&mut **transaction)
            .await?;
        Ok(())
    }

    async fn mishap(
        &self,
        transaction: &mut Transaction<'static, Postgres>,
        mishap: Mishap,
    ) -> Offered<()> {
        let sql = match mishap {
            Mishap::FailedStatement => "INSERT INTO {schema}.effects (note) VALUES (NULL)",
            // As the server breaks a deadlock up.
            Mishap::RolledBackByServer => {
                "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'deadlock_detected'; END $$"
            }
            Mishap::Commit => "COMMIT",
            Mishap::RollBack => "ROLLBACK",
            Mishap::SchemaChange => {
                let number = NEXT_TABLE.fetch_add(1, Ordering::Relaxed);
                &format!("CREATE TABLE {{schema}}.own_{number} (note text)")
            }
        };
        let fails = matches!(mishap, Mishap::FailedStatement | Mishap::RolledBackByServer);
        let done = sqlx::raw_sql(AssertSqlSafe(self.0.sql(sql)))
            .execute(&mut **transaction)
            .await;
        if done.is_err() != fails {
            return Err(Unable::failed(format!("{mishap:?}: {done:?}")));
        }
        Ok(())
    }

    async fn written(&self) -> Result<Vec<String>, BoxError> {
        Ok(self.0.column("SELECT note FROM {schema}.effects").await?)
    }
}
