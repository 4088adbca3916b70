//! `inbox schema`: setting up, and checking that it is.

use anyhow::Result;
use clap::Subcommand;
use serde_json::json;

use crate::{
    args::Global,
    exit::Exit,
    output,
    store::{check, connect, waiting, without_creating, without_password},
};

#[derive(Debug, Subcommand)]
pub(crate) enum SchemaCommand {
    /// Print the statements that set the inbox up
    Ddl,
    /// Print the query that tells whether a complete inbox of this version is there
    ExistsQuery,
    /// Check that a complete inbox of this version is there (exit code 4 if not)
    Exists,
    /// Set the inbox up if there is none
    Create,
    /// Bring the inbox to this version, or set it up
    Migrate,
    /// Print the version of the inbox
    Version,
    /// Remove the inbox with all that is in it
    Drop {
        /// Remove it. Without it, nothing is
        #[arg(long, required = true)]
        yes: bool,
    },
}

pub(crate) async fn run(global: &Global, command: &SchemaCommand) -> Result<Exit> {
    let url = &global.store;
    match command {
        SchemaCommand::Ddl => {
            check(url)?;
            let ddl = inbox::ddl(url)?;
            if global.json {
                output::json(&json!({ "ddl": ddl }))?;
            } else {
                output::line(ddl.trim_end())?;
            }
        }
        SchemaCommand::ExistsQuery => {
            check(url)?;
            let query = inbox::exists_query(url)?;
            if global.json {
                output::json(&json!({ "exists_query": query }))?;
            } else {
                output::line(query.trim_end())?;
            }
        }
        SchemaCommand::Drop { .. } => {
            match connect(&without_creating(url)).await {
                Ok(store) => waiting(url, store.remove()).await?,
                Err(e) if missing(&e) => {}
                Err(e) => return Err(e),
            }
            if global.json {
                output::json(&json!({ "exists": false }))?;
            } else {
                let place = without_password(url);
                say(global, &format!("there is no inbox at {place} any more"))?;
            }
        }
        SchemaCommand::Exists => {
            let exists = match connect(&without_creating(url)).await {
                Ok(store) => waiting(url, store.exists()).await?,
                // The file itself may be what does not exist.
                Err(e) if missing(&e) => false,
                Err(e) => return Err(e),
            };
            if global.json {
                output::json(&json!({ "exists": exists }))?;
            } else if !global.quiet {
                output::line(if exists { "yes" } else { "no" })?;
            }
            return Ok(if exists { Exit::Ok } else { Exit::No });
        }
        SchemaCommand::Create => {
            let store = connect(url).await?;
            waiting(url, store.create()).await?;
            if global.json {
                output::json(&json!({ "version": store.expected_version() }))?;
            } else {
                say(
                    global,
                    &format!("the inbox at {} is set up", without_password(url)),
                )?;
            }
        }
        SchemaCommand::Migrate => {
            let store = connect(url).await?;
            let migration = waiting(url, store.migrate()).await?;
            let from = migration
                .from
                .map_or_else(|| "nothing".to_owned(), |v| format!("version {v}"));
            let to = migration.to;
            if global.json {
                output::json(&json!({ "from": migration.from, "to": to }))?;
            } else if migration.from == Some(to) {
                say(global, &format!("already at version {to}"))?;
            } else {
                say(global, &format!("from {from} to version {to}"))?;
            }
        }
        SchemaCommand::Version => {
            let (found, expected) = match connect(&without_creating(url)).await {
                Ok(store) => (
                    waiting(url, store.version()).await?,
                    Some(store.expected_version()),
                ),
                Err(e) if missing(&e) => (None, None),
                Err(e) => return Err(e),
            };
            if global.json {
                output::json(&json!({ "version": found, "expected": expected }))?;
            } else {
                match found {
                    Some(found) => output::line(found.to_string())?,
                    None => output::line("none")?,
                }
            }
            return Ok(if found.is_some() && found == expected {
                Exit::Ok
            } else {
                Exit::No
            });
        }
    }
    Ok(Exit::Ok)
}

fn missing(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<inbox::Error>()
        .is_some_and(|e| e.kind() == inbox::ErrorKind::SchemaMissing)
}

fn say(global: &Global, text: &str) -> Result<()> {
    if global.quiet {
        return Ok(());
    }
    output::line(text)
}
