//! MariaDB and MySQL servers that the tests share.

use std::sync::LazyLock;

use test_servers::{Error, Kind, Server, require_or_skip};

type Found = LazyLock<Result<Option<Server>, Error>>;

static MARIADB: Found = LazyLock::new(|| require_or_skip(Kind::Mariadb));
static MYSQL: Found = LazyLock::new(|| require_or_skip(Kind::Mysql));

/// The URL of the server of a kind, without a database; `None` when there is none, which has been
/// reported.
pub async fn url(kind: Kind) -> Option<String> {
    let url = tokio::task::spawn_blocking(move || {
        let found = if kind == Kind::Mysql {
            &MYSQL
        } else {
            &MARIADB
        };
        let server = found.as_ref().unwrap_or_else(|error| panic!("{error}"));
        Some(server.as_ref()?.url().trim_end_matches('/').to_owned())
    });
    let url = url.await.unwrap()?;
    Some(format!("mysql://{}", url.split_once("://").unwrap().1))
}
