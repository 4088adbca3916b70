//! A store with its type, for what `Arc<dyn Inbox>` does not know.

use std::sync::Arc;

use inbox::{
    Inbox, memory::MemoryStore, mongo::MongoStore, mysql::MySqlStore, postgres::PostgresStore,
    redis::RedisStore, sqlite::SqliteStore,
};

/// Clones share their connections.
#[derive(Clone)]
pub(crate) enum AnyStore {
    Memory(MemoryStore),
    Sqlite(SqliteStore),
    Postgres(PostgresStore),
    MySql(MySqlStore),
    Redis(RedisStore),
    Mongo(MongoStore),
}

impl AnyStore {
    pub(crate) fn inbox(&self) -> Arc<dyn Inbox> {
        match self.clone() {
            Self::Memory(store) => Arc::new(store),
            Self::Sqlite(store) => Arc::new(store),
            Self::Postgres(store) => Arc::new(store),
            Self::MySql(store) => Arc::new(store),
            Self::Redis(store) => Arc::new(store),
            Self::Mongo(store) => Arc::new(store),
        }
    }
}
