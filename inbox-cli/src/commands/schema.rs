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
    /// Print the version of the inbox and, where this build has another one, which workers may stay
    Version,
    /// Remove the inbox with all that is in it
    Drop {
        /// Has to be there, since nothing brings it back
        #[arg(long, required = true)]
        yes: bool,
    },
}

pub(crate) async fn run(global: &Global, command: &SchemaCommand) -> Result<Exit> {
    let url = &global.store;
    match command {
        SchemaCommand::Ddl => {
            check(url);
            let ddl = inbox::ddl(url)?;
            if global.json {
                output::json(&json!({ "ddl": ddl }))?;
            } else {
                output::line(ddl.trim_end())?;
            }
        }
        SchemaCommand::ExistsQuery => {
            check(url);
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
            let (to, works_from) = (migration.to, migration.works_from);
            if global.json {
                output::json(
                    &json!({ "from": migration.from, "to": to, "works_from": works_from }),
                )?;
            } else if migration.from == Some(to) {
                say(global, &format!("already at version {to}"))?;
            } else {
                let stay = may_stay(works_from);
                say(global, &format!("from {from} to version {to}; {stay}"))?;
            }
        }
        SchemaCommand::Version => {
            let (found, build) = match connect(&without_creating(url)).await {
                Ok(store) => (
                    waiting(url, store.version()).await?,
                    Some((store.expected_version(), store.works_from())),
                ),
                Err(e) if missing(&e) => (None, None),
                Err(e) => return Err(e),
            };
            let (expected, works_from) = build.unzip();
            if global.json {
                let build =
                    json!({ "version": found, "expected": expected, "works_from": works_from });
                output::json(&build)?;
            } else {
                match (found, build) {
                    (Some(found), Some((expected, works_from))) if found < expected => {
                        let stay = may_stay(works_from);
                        output::line(format!("{found}, this build's is {expected}; {stay}"))?;
                    }
                    (Some(found), _) => output::line(found.to_string())?,
                    (None, _) => output::line("none")?,
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

/// Which workers go on while an inbox is migrated, and after it.
fn may_stay(works_from: u32) -> String {
    format!("workers of builds from version {works_from} on may stay")
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
