//! What the store has to know about the server.

use inbox_api::{Error, ErrorKind, Result};
use sqlx::{MySqlConnection, Row as _};

use crate::{error::before, multi_statement::Form};

/// Facts that hold for the life of a connection pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// The largest packet that the server takes, in bytes.
    pub(crate) max_packet: usize,
    /// Whether it is a node of a Galera cluster.
    pub(crate) galera: bool,
}

/// Each by itself: a session's limit of rows (`sql_select_limit`) goes for these, too, and they take no other.
const SETTINGS: &str = "SHOW GLOBAL VARIABLES LIKE 'version'; \
                        SHOW GLOBAL VARIABLES LIKE 'max_allowed_packet'; \
                        SHOW GLOBAL VARIABLES LIKE 'wsrep_on'";

impl Server {
    pub(crate) fn form(&self) -> Form {
        if self.galera {
            Form::Compound
        } else {
            Form::Sequence
        }
    }

    /// Asks the server, and refuses one that is too old.
    pub(crate) async fn of(connection: &mut MySqlConnection) -> Result<Self> {
        let mut server = Self {
            max_packet: 1024 * 1024,
            galera: false,
        };
        for row in sqlx::raw_sql(SETTINGS)
            .fetch_all(connection)
            .await
            .map_err(before)?
        {
            let name: &[u8] = row.try_get_unchecked(0).map_err(before)?;
            let value: &[u8] = row.try_get_unchecked(1).map_err(before)?;
            let value = std::str::from_utf8(value).unwrap_or_default();
            match name.to_ascii_lowercase().as_slice() {
                b"max_allowed_packet" => {
                    server.max_packet = value.parse().unwrap_or(server.max_packet);
                }
                b"wsrep_on" => server.galera = value.eq_ignore_ascii_case("on"),
                b"version" => check_version(value)?,
                _ => {}
            }
        }
        Ok(server)
    }
}

fn check_version(version: &str) -> Result<()> {
    let mariadb = version.contains("MariaDB");
    // Older MariaDB servers put a version of MySQL's in front.
    let numbers = version.strip_prefix("5.5.5-").unwrap_or(version);
    let mut numbers = numbers
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    let found = (next(), next(), next());
    let (name, least) = if mariadb {
        ("MariaDB", (10, 6, 0))
    } else {
        ("MySQL", (8, 0, 14))
    };
    if found >= least {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unsupported,
        format!(
            "the server is {name} {}.{}.{}; this store needs {name} {}.{}.{} or later",
            found.0, found.1, found.2, least.0, least.1, least.2
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_refused_by_name() {
        for version in [
            "8.0.14",
            "8.4.3",
            "9.5.0-1",
            "10.6.0-MariaDB",
            "5.5.5-10.11.9-MariaDB-log",
        ] {
            check_version(version).unwrap();
        }
        for (version, text) in [
            ("5.7.44-log", "MySQL 5.7.44; this store needs MySQL 8.0.14"),
            (
                "10.5.27-MariaDB",
                "MariaDB 10.5.27; this store needs MariaDB 10.6.0",
            ),
        ] {
            let error = check_version(version).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.context().contains(text), "{error}");
        }
    }
}
