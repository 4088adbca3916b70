//! A demo in its own schema.

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use inbox::{Schema as _, Transactional as _};
use inbox_postgres::{PostgresStore, SchemaName};
use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

use super::{Directions, Effects, Stage, Transaction};
use crate::scratch::Scratch;

#[derive(Clone)]
pub(crate) struct OnPostgres {
    url: String,
    schema: SchemaName,
    store: PostgresStore,
}

impl OnPostgres {
    /// In `schema` of the database that `url` names.
    pub(crate) async fn open(url: &str, schema: SchemaName) -> inbox::Result<Self> {
        let scratch = Scratch::at(url)?;
        let options = scratch.options(&schema);
        Ok(Self {
            url: url.to_owned(),
            store: scratch.connect(options).await?,
            schema,
        })
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
