//! Opening the inbox that `--store` names.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use inbox::{ErrorKind, Inbox};

/// Opens an existing inbox. Never creates anything: a mistyped path must not become an empty
/// inbox.
pub(crate) async fn open(url: &str) -> Result<Arc<dyn Inbox>> {
    let store = match inbox::connect(&without_creating(url)).await {
        // Of a server it is the database that is missing, and that is not ours to create.
        Err(e) if e.kind() == ErrorKind::SchemaMissing && is_file(url) => bail!(no_inbox(url)),
        connected => connected.with_context(|| cannot_open(url))?,
    };
    match store.exists().await {
        Ok(true) => Ok(store),
        Ok(false) => {
            let found = store.version().await?;
            let expected = store.expected_version();
            match found {
                None => bail!(no_inbox(url)),
                Some(found) if found < expected => bail!(
                    "the inbox at {} has version {found}, this build needs {expected}; run \
                     `inbox schema migrate`",
                    shown(url)
                ),
                Some(_) => bail!(
                    "the inbox at {} is incomplete: compare it with `inbox schema ddl`",
                    shown(url)
                ),
            }
        }
        Err(e) => Err(e).with_context(|| format!("cannot use the inbox at {}", shown(url))),
    }
}

/// Opens the inbox, and sets it up if there is none.
pub(crate) async fn open_or_create(url: &str) -> Result<Arc<dyn Inbox>> {
    let store = connect(url).await?;
    match store.create().await {
        Ok(()) => Ok(store),
        Err(e) if e.kind() == ErrorKind::SchemaVersion => {
            Err(e).with_context(|| format!("cannot use the inbox at {}", shown(url)))
        }
        Err(e) => Err(e).with_context(|| format!("cannot set up an inbox at {}", shown(url))),
    }
}

/// Connects without looking at the schema.
pub(crate) async fn connect(url: &str) -> Result<Arc<dyn Inbox>> {
    inbox::connect(url).await.with_context(|| cannot_open(url))
}

pub(crate) fn cannot_open(url: &str) -> String {
    format!("cannot open the store {}", shown(url))
}

fn no_inbox(url: &str) -> String {
    format!(
        "there is no inbox at {}; set one up with `inbox schema create`",
        shown(url)
    )
}

pub(crate) fn is_mongodb(url: &str) -> bool {
    url.starts_with("mongodb:") || url.starts_with("mongodb+srv:")
}

pub(crate) fn is_mysql(url: &str) -> bool {
    url.starts_with("mysql:") || url.starts_with("mariadb:")
}

pub(crate) fn is_postgres(url: &str) -> bool {
    url.starts_with("postgres:") || url.starts_with("postgresql:")
}

pub(crate) fn is_redis(url: &str) -> bool {
    ["redis:", "rediss:", "redis+cluster:", "rediss+cluster:"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
}

fn is_file(url: &str) -> bool {
    url.starts_with("sqlite:")
}

/// An SQLite URL that does not create the file. Servers do not create databases on connecting.
pub(crate) fn without_creating(url: &str) -> String {
    if !is_file(url) || url.contains("mode=") {
        return url.to_owned();
    }
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}mode=rw")
}

/// The URL without its user, password and query, for messages.
pub(crate) fn shown(url: &str) -> String {
    let plain = url.split(['?', '#']).next().unwrap_or_default();
    match (plain.split_once("://"), plain.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => plain.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_and_options_are_not_shown() {
        assert_eq!(
            shown("postgres://user:p%40ss@host:5432/db?sslmode=require"),
            "postgres://host:5432/db"
        );
        assert_eq!(shown("sqlite://a.db?synchronous=full"), "sqlite://a.db");
    }

    #[test]
    fn opening_adds_the_mode_once() {
        assert_eq!(without_creating("sqlite://a.db"), "sqlite://a.db?mode=rw");
        assert_eq!(
            without_creating("sqlite://a.db?inbox=x"),
            "sqlite://a.db?inbox=x&mode=rw"
        );
        for url in ["memory://", "postgres://host/db"] {
            assert_eq!(without_creating(url), url);
        }
    }
}
