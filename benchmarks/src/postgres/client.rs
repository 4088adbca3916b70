//! The store, on databases of its own.

use anyhow::Result;
use inbox::{
    Schema as _,
    postgres::{PostgresOptions, PostgresStore},
};

pub(crate) use crate::client::Client;
use crate::layouts::server::Server;

/// The database of the inbox.
pub(crate) const DATABASE: &str = "bench_inbox";

/// Makes the database anew, with an empty inbox.
pub(crate) async fn fresh(server: &mut Server, connections: u32) -> Result<PostgresStore> {
    server.drop(DATABASE).await?;
    server.run(format!("CREATE DATABASE {DATABASE}")).await?;
    let store = connect(server, connections).await?;
    store.create().await?;
    Ok(store)
}

pub(crate) async fn connect(server: &Server, connections: u32) -> Result<PostgresStore> {
    let connection = server.plain_options(DATABASE);
    let options = PostgresOptions::new().max_connections(connections);
    Ok(PostgresStore::connect(connection, options).await?)
}
