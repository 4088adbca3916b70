//! A demo in its own tables.

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use inbox::{InboxName, Schema as _, Store as _, Transactional as _};
use inbox_mysql::{MySqlOptions, MySqlStore};
use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

use super::{Directions, Effects, Stage, Transaction};
use crate::mysql_tables;

const TABLES: [&str; 3] = ["effect", "message", "done"];

#[derive(Clone)]
pub(crate) struct OnMysql {
    url: String,
    inbox: InboxName,
    options: MySqlOptions,
    store: MySqlStore,
}

impl OnMysql {
    /// An inbox with this name in the database that `url` names.
    pub(crate) async fn open(url: &str, inbox: InboxName) -> inbox::Result<Self> {
        let options = MySqlOptions::from_url(url)?.inbox_name(inbox.clone());
        Ok(Self {
            url: url.to_owned(),
            inbox,
            store: MySqlStore::connect(options.clone()).await?,
            options,
        })
    }

    /// Drops the tables.
    pub(crate) async fn remove(&self) -> sqlx::Result<()> {
        self.store.close().await;
        let effects = self.options.table("effect");
        mysql_tables::drop_all(&self.options, &[effects]).await
    }

    /// `template` for this inbox, whose name is a validated identifier.
    fn sql(&self, template: &str) -> SqlStr {
        let sql = TABLES.iter().fold(template.to_owned(), |sql, table| {
            sql.replace(&format!("{{{table}}}"), &self.options.table(table))
        });
        AssertSqlSafe(sql).into_sql_str()
    }
}

#[async_trait]
impl Stage for OnMysql {
    type Store = MySqlStore;

    fn store(&self) -> &MySqlStore {
        &self.store
    }

    fn directions(&self) -> Directions {
        Directions {
            arguments: ["--inbox".into(), self.inbox.as_str().into()],
            store: Some(self.url.clone()),
        }
    }

    async fn set_up(&self) -> Result<()> {
        mysql_tables::try_out(&self.options).await?;
        self.store.create().await?;
        let mut transaction = self.store.open().await?;
        sqlx::raw_sql(self.sql(include_str!("mysql_effects.sql")))
            .execute(&mut *transaction)
            .await
            .context("cannot set up the table of effects")?;
        // CREATE TABLE has committed by itself, so there is no transaction to commit.
        Ok(self.store.roll_back(transaction).await?)
    }

    async fn write(
        &self,
        transaction: &mut Transaction<Self>,
        message_id: &str,
    ) -> sqlx::Result<()> {
        sqlx::query(self.sql("INSERT INTO {effect} (message_id) VALUES (?)"))
            .bind(message_id)
            .execute(&mut **transaction)
            .await?;
        Ok(())
    }

    async fn count(&self) -> Result<Effects> {
        let mut transaction = self.store.open().await?;
        let row = sqlx::raw_sql(self.sql(include_str!("mysql_count.sql")))
            .fetch_one(&mut *transaction)
            .await
            .context("cannot count the effects")?;
        self.store.roll_back(transaction).await?;
        Effects::from_row(&row)
    }
}
