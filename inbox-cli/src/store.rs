//! Opening the inbox that `--store` names, and closing it.

use std::{
    path::Path,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use inbox::{ErrorKind, Inbox, StoreKind};

use crate::{archive, exit, output};

/// How long the end of the process may wait for servers.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// What was connected to, so that it is closed in the end, whatever the command came to: servers
/// note connections that just break off.
static CONNECTED: Mutex<Vec<Arc<dyn Inbox>>> = Mutex::new(Vec::new());

/// After this, a command that waits for the store says so.
const QUIET: Duration = Duration::from_secs(3);

/// Does what needs the store, and says that the store is waited for if it takes long.
pub(crate) async fn waiting<T>(url: &str, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    if let Ok(done) = tokio::time::timeout(QUIET, &mut work).await {
        return done;
    }
    tracing::warn!("waiting for the store at {}", without_password(url));
    work.await
}

/// Opens an existing inbox. Never creates anything: a mistyped path must not become an empty
/// inbox.
pub(crate) async fn open(url: &str) -> Result<Arc<dyn Inbox>> {
    waiting(url, open_existing(url)).await
}

async fn open_existing(url: &str) -> Result<Arc<dyn Inbox>> {
    check(url);
    let store = match connected(&without_creating(url)).await {
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
                    without_password(url)
                ),
                Some(_) => bail!(
                    "the inbox at {} is incomplete, or --store's settings differ from those that it \
                     was set up with: `inbox schema migrate` completes it or says what differs",
                    without_password(url)
                ),
            }
        }
        Err(e) => {
            Err(e).with_context(|| format!("cannot use the inbox at {}", without_password(url)))
        }
    }
}

/// Opens the inbox, and sets it up if there is none.
pub(crate) async fn open_or_create(url: &str) -> Result<Arc<dyn Inbox>> {
    let store = connect(url).await?;
    match waiting(url, store.create()).await {
        Ok(()) => Ok(store),
        Err(e) if e.kind() == ErrorKind::SchemaVersion => {
            Err(e).with_context(|| format!("cannot use the inbox at {}", without_password(url)))
        }
        Err(e) => {
            Err(e).with_context(|| format!("cannot set up an inbox at {}", without_password(url)))
        }
    }
}

/// Warns where what a command stores is gone with its end.
pub(crate) fn warn_if_not_kept(url: &str) {
    if StoreKind::of(url) == Some(StoreKind::Memory) {
        output::note(
            "inbox: nothing is kept in memory after this command; to keep it, name another store",
        );
    }
}

/// Connects without looking at the schema.
pub(crate) async fn connect(url: &str) -> Result<Arc<dyn Inbox>> {
    check(url);
    let connected = waiting(url, connected(url)).await;
    connected.with_context(|| cannot_open(url))
}

async fn connected(url: &str) -> inbox::Result<Arc<dyn Inbox>> {
    let store = inbox::connect(url).await?;
    let mut all = CONNECTED.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(Arc::clone(&store));
    Ok(store)
}

/// Closes what was opened. To be called when nothing uses it any more.
pub(crate) async fn close_all() {
    let all = std::mem::take(&mut *CONNECTED.lock().unwrap_or_else(PoisonError::into_inner));
    for store in all {
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, store.close()).await;
    }
}

pub(crate) fn cannot_open(url: &str) -> String {
    format!("cannot open the store {}", without_password(url))
}

fn no_inbox(url: &str) -> String {
    let shown = without_password(url);
    let settings = shown.split_once('?').map_or("", |(_, settings)| settings);
    let other = if settings
        .split('&')
        .any(|setting| setting.starts_with("inbox="))
    {
        ""
    } else {
        "; if yours has a name, add `inbox=NAME` behind a `?`"
    };
    format!("there is no inbox at {shown}; set one up with `inbox schema create`{other}")
}

/// Ends the program when no store of this build understands the URL, as any wrong option does.
pub(crate) fn check(url: &str) {
    if let Err(reason) = understand(url) {
        // One line, as of a store that cannot be opened.
        output::note(format_args!("inbox: the store's URL: {reason}"));
        std::process::exit(exit::USAGE.into())
    }
}

/// The same for a URL that the caller can point at: why this build does not understand it, and how to add its store
/// if it was left out.
pub(crate) fn understand(url: &str) -> Result<(), String> {
    if let Some(kind) = StoreKind::of(url).filter(|kind| !kind.is_built()) {
        let error = left_out(&format!("use {}", kind.name()), kind.feature());
        return Err(error.to_string());
    }
    match inbox::ddl(url) {
        Err(error) if error.kind() == ErrorKind::Invalid => Err(error.context().to_owned()),
        _ => Ok(()),
    }
}

/// Says that this build cannot do something, and how to get one that can.
pub(crate) fn left_out(what: &str, feature: &str) -> anyhow::Error {
    anyhow!(
        "this build of inbox cannot {what}: it was built without the feature `{feature}`. From the \
         source tree, `cargo install --path inbox-cli --features {feature}` installs one that can; \
         `--features all` adds everything"
    )
}

/// Fails when `path` is a file of the inbox at `url`, which reading or writing it would harm.
pub(crate) fn check_is_not_inbox(url: &str, path: &Path) -> Result<()> {
    match inbox_sqlite::SqliteOptions::from_url(url) {
        Ok(options) if is_file(url) => archive::check_is_not_inbox(path, options.path()),
        _ => Ok(()),
    }
}

fn is_file(url: &str) -> bool {
    StoreKind::of(url) == Some(StoreKind::Sqlite)
}

/// An SQLite URL that does not create the file. Servers do not create databases on connecting.
pub(crate) fn without_creating(url: &str) -> String {
    if !is_file(url) || url.contains("mode=") {
        return url.to_owned();
    }
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}mode=rw")
}

/// Where the inbox is, for messages: the URL without user and password, and of its settings those
/// that say which inbox. Nothing of what may be a part of a password, also in a URL that is
/// malformed because of one.
pub(crate) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        let is_plain = !url.contains([':', '@', '=', ' ']);
        return if is_plain { url } else { "(no URL)" }.to_owned();
    };
    let behind_credentials = match scheme {
        "sqlite" => rest,
        _ => rest.rsplit('@').next().unwrap_or_default(),
    };
    let (place, settings) = behind_credentials
        .split_once('?')
        .unwrap_or((behind_credentials, ""));
    let authority = place.split('/').next().unwrap_or_default();
    // `user:password` without a host looks like a host with a port.
    let is_place = scheme == "sqlite"
        || authority.split(',').all(|node| {
            node.contains('[')
                || node
                    .split_once(':')
                    .is_none_or(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()))
        });
    let place = if is_place { place } else { "…" };
    let which: Vec<&str> = settings
        .split('&')
        .filter(|setting| {
            setting.split_once('=').is_some_and(|(name, value)| {
                ["inbox", "schema", "database"].contains(&name)
                    && value
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
            })
        })
        .collect();
    let mark = if which.is_empty() { "" } else { "?" };
    format!("{scheme}://{place}{mark}{}", which.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_and_options_are_not_shown() {
        assert_eq!(
            without_password("postgres://user:p%40ss@host:5432/db?sslmode=require"),
            "postgres://host:5432/db"
        );
        assert_eq!(
            without_password("sqlite://a.db?synchronous=full"),
            "sqlite://a.db"
        );
        assert_eq!(without_password("orders.db"), "orders.db");
    }

    #[test]
    fn passwords_are_not_shown_when_they_break_the_url() {
        for url in [
            "postgres://app:Secret#Secret@host:5432/db",
            "mysql://app:Secret?Secret@host/db?inbox=orders",
            "redis://:Secret@Secret@host",
            "postgres://app:Secret",
            "postgres:Secret@host/db",
            "host=1 password=Secret",
            "//app:Secret@host",
        ] {
            assert!(
                !without_password(url).contains("Secret"),
                "{}",
                without_password(url)
            );
        }
    }

    #[test]
    fn which_inbox_it_is_is_shown() {
        assert_eq!(
            without_password("postgres://host/db?schema=shop&sslmode=require&inbox=orders"),
            "postgres://host/db?schema=shop&inbox=orders"
        );
        assert_eq!(
            without_password("redis+cluster://a:1,b:2?inbox=orders"),
            "redis+cluster://a:1,b:2?inbox=orders"
        );
    }

    #[test]
    fn what_is_left_out_names_its_feature() {
        let error = left_out("use MySQL", "mysql").to_string();
        assert!(error.contains("without the feature `mysql`"), "{error}");
        let install = "cargo install --path inbox-cli --features mysql";
        assert!(error.contains(install), "{error}");
    }

    #[test]
    fn opening_adds_the_mode_once() {
        assert_eq!(without_creating("sqlite://a.db"), "sqlite://a.db?mode=rw");
        assert_eq!(
            without_creating("sqlite://a.db?inbox=x"),
            "sqlite://a.db?inbox=x&mode=rw"
        );
        assert_eq!(without_creating("SQLITE://a.db"), "SQLITE://a.db?mode=rw");
        for url in ["memory://", "postgres://host/db"] {
            assert_eq!(without_creating(url), url);
        }
    }
}
