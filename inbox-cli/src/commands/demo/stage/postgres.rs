//! A demo in its own schema.

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use inbox::{InboxName, Schema as _, Store as _, Transactional as _};
use inbox_postgres::{PostgresOptions, PostgresStore, SchemaName};
use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

use super::{Directions, Effects, Stage, Transaction};

#[derive(Clone)]
pub(crate) struct OnPostgres {
    url: String,
    schema: SchemaName,
    options: PostgresOptions,
    store: PostgresStore,
}

impl OnPostgres {
    /// The name of a schema that no other run takes.
    pub(crate) fn fresh_schema() -> inbox::Result<SchemaName> {
        let (process, random) = (std::process::id(), fastrand::u32(..));
        Ok(SchemaName::new(format!(
            "inbox_demo_{process}_{random:08x}"
        ))?)
    }

    /// In `schema` of the database that `url` names, with the URL's other settings.
    pub(crate) async fn open(url: &str, schema: SchemaName) -> inbox::Result<Self> {
        let options = PostgresOptions::from_url(url)?
            .inbox_name(InboxName::default())
            .schema(schema.clone());
        Ok(Self {
            url: url.to_owned(),
            store: PostgresStore::connect(options.clone()).await?,
            options,
            schema,
        })
    }

    /// Drops the schema with all that is in it. Does not wait for ever for those that still use it.
    pub(crate) async fn remove(&self) -> Result<()> {
        // The play has closed its store, or was left in the middle.
        let store = PostgresStore::connect(self.options.clone()).await?;
        let dropped = self.drop_schema(&store).await;
        store.close().await;
        dropped
    }

    async fn drop_schema(&self, store: &PostgresStore) -> Result<()> {
        let mut transaction = store.open().await?;
        let sql = "SET LOCAL lock_timeout = '5s'; DROP SCHEMA IF EXISTS {schema} CASCADE";
        sqlx::raw_sql(self.sql(sql))
            .execute(&mut *transaction)
            .await?;
        Ok(store.commit(transaction).await?)
    }

    /// `template` for this schema, whose name is a validated identifier.
    fn sql(&self, template: &str) -> SqlStr {
        AssertSqlSafe(template.replace("{schema}", &format!("\"{}\"", self.schema))).into_sql_str()
    }
}

#[async_trait]
impl Stage for OnPostgres {
    type Store = PostgresStore;

    fn store(&self) -> &PostgresStore {
        &self.store
    }

    fn directions(&self) -> Directions {
        Directions {
            arguments: ["--schema".into(), self.schema.as_str().into()],
            store: Some(self.url.clone()),
        }
    }

    async fn set_up(&self) -> Result<()> {
        self.store.create().await?;
        let mut transaction = self.store.open().await?;
        sqlx::query(self.sql(include_str!("postgres_effects.sql")))
            .execute(&mut *transaction)
            .await
            .context("cannot set up the table of effects")?;
        Ok(self.store.commit(transaction).await?)
    }

    async fn write(
        &self,
        transaction: &mut Transaction<Self>,
        message_id: &str,
    ) -> sqlx::Result<()> {
        sqlx::query(self.sql("INSERT INTO {schema}.demo_effect (message_id) VALUES ($1)"))
            .bind(message_id)
            .execute(&mut **transaction)
            .await?;
        Ok(())
    }

    async fn count(&self) -> Result<Effects> {
        let mut transaction = self.store.open().await?;
        let row = sqlx::query(self.sql(include_str!("postgres_count.sql")))
            .fetch_one(&mut *transaction)
            .await
            .context("cannot count the effects")?;
        self.store.roll_back(transaction).await?;
        Effects::from_row(&row)
    }
}
