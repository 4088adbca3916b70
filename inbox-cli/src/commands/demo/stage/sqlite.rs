//! A demo in a file.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use inbox::{Schema as _, Transactional as _};
use inbox_sqlite::{SqliteOptions, SqliteStore};

use super::{Directions, Effects, Stage, Transaction};

#[derive(Clone)]
pub(crate) struct OnSqlite {
    file: PathBuf,
    store: SqliteStore,
}

impl OnSqlite {
    pub(crate) async fn open(file: &Path) -> Result<Self> {
        let options = SqliteOptions::new(file);
        Ok(Self {
            file: file.to_owned(),
            store: SqliteStore::connect(options).await?,
        })
    }
}

#[async_trait]
impl Stage for OnSqlite {
    type Store = SqliteStore;

    fn store(&self) -> &SqliteStore {
        &self.store
    }

    fn directions(&self) -> Directions {
        Directions {
            arguments: ["--file".into(), self.file.clone().into()],
            store: None,
        }
    }

    async fn set_up(&self) -> Result<()> {
        self.store.create().await?;
        let mut transaction = self.store.open().await?;
        sqlx::query(include_str!("sqlite_effects.sql"))
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
        sqlx::query("INSERT INTO demo_effect (message_id) VALUES (?)")
            .bind(message_id)
            .execute(&mut **transaction)
            .await?;
        Ok(())
    }

    async fn count(&self) -> Result<Effects> {
        let mut transaction = self.store.open().await?;
        let row = sqlx::query(include_str!("sqlite_count.sql"))
            .fetch_one(&mut *transaction)
            .await
            .context("cannot count the effects")?;
        self.store.roll_back(transaction).await?;
        Effects::from_row(&row)
    }
}
