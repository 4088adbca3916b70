//! Memory has nothing to set up: its inbox is always there, in the version of this build.

use async_trait::async_trait;
use inbox_api::{Migration, Result, Schema};

use crate::MemoryStore;

const VERSION: u32 = 1;

#[async_trait]
impl Schema for MemoryStore {
    /// One line of comment: there is nothing to set up.
    fn ddl(&self) -> String {
        "-- The memory store has nothing to set up.\n".into()
    }

    fn expected_version(&self) -> u32 {
        VERSION
    }

    async fn version(&self) -> Result<Option<u32>> {
        self.check_open("version")?;
        Ok(Some(VERSION))
    }

    async fn exists(&self) -> Result<bool> {
        self.check_open("exists")?;
        Ok(true)
    }

    async fn create(&self) -> Result<()> {
        self.check_open("create")
    }

    async fn migrate(&self) -> Result<Migration> {
        self.check_open("migrate")?;
        Ok(Migration {
            from: Some(VERSION),
            to: VERSION,
        })
    }
}
