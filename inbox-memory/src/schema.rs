//! Memory has nothing to set up: its inbox is always there, in the version of this build.

use async_trait::async_trait;
use inbox_api::{Migration, Result, Schema};

use crate::{queues::Queues, store::MemoryStore};

const VERSION: u32 = 1;

#[async_trait]
impl Schema for MemoryStore {
    /// One line of comment: there is nothing to set up.
    fn ddl(&self) -> String {
        "-- The memory store has nothing to set up.\n".into()
    }

    /// One line of comment: there is nothing to look for.
    fn exists_query(&self) -> String {
        "-- The memory store's inbox is always there.\n".into()
    }

    fn expected_version(&self) -> u32 {
        VERSION
    }

    async fn version(&self) -> Result<Option<u32>> {
        self.open()
            .map(|_| Some(VERSION))
            .map_err(|error| error.in_operation("version"))
    }

    async fn exists(&self) -> Result<bool> {
        self.open()
            .map(|_| true)
            .map_err(|error| error.in_operation("exists"))
    }

    async fn create(&self) -> Result<()> {
        self.open()
            .map(|_| ())
            .map_err(|error| error.in_operation("create"))
    }

    async fn migrate(&self) -> Result<Migration> {
        self.open()
            .map(|_| Migration {
                from: Some(VERSION),
                to: VERSION,
                works_from: VERSION,
            })
            .map_err(|error| error.in_operation("migrate"))
    }

    /// Empties the inbox, which is there all the same.
    async fn remove(&self) -> Result<()> {
        self.open()
            .map(Queues::reset)
            .map_err(|error| error.in_operation("remove"))
    }
}
