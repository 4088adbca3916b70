//! The stores that the project has, each with its names.

/// A kind of store, whether or not this build has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreKind {
    /// `inbox-memory`.
    Memory,
    /// `inbox-mongo`.
    Mongo,
    /// `inbox-mysql`, for MariaDB as well.
    MySql,
    /// `inbox-postgres`.
    Postgres,
    /// `inbox-redis`, for Valkey as well.
    Redis,
    /// `inbox-sqlite`.
    Sqlite,
}

impl StoreKind {
    /// All kinds, by name.
    pub const ALL: [Self; 6] = [
        Self::Memory,
        Self::Mongo,
        Self::MySql,
        Self::Postgres,
        Self::Redis,
        Self::Sqlite,
    ];

    /// What `url` names, by its scheme in upper or lower case.
    #[must_use]
    pub fn of(url: &str) -> Option<Self> {
        let (scheme, _) = url.split_once(':')?;
        let is_scheme = |known: &&str| known.eq_ignore_ascii_case(scheme);
        let mut kinds = Self::ALL.into_iter();
        kinds.find(|kind| kind.schemes().iter().any(is_scheme))
    }

    /// The database's name, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Mongo => "MongoDB",
            Self::MySql => "MySQL",
            Self::Postgres => "PostgreSQL",
            Self::Redis => "Redis",
            Self::Sqlite => "SQLite",
        }
    }

    /// The schemes of its URLs.
    #[must_use]
    pub fn schemes(self) -> &'static [&'static str] {
        match self {
            Self::Memory => &["memory"],
            Self::Mongo => &["mongodb", "mongodb+srv"],
            Self::MySql => &["mariadb", "mysql"],
            Self::Postgres => &["postgres", "postgresql"],
            Self::Redis => &["redis", "redis+cluster", "rediss", "rediss+cluster"],
            Self::Sqlite => &["sqlite"],
        }
    }

    /// The Cargo feature that adds it, of this crate and of the command.
    #[must_use]
    pub fn feature(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Mongo => "mongo",
            Self::MySql => "mysql",
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::Sqlite => "sqlite",
        }
    }

    /// Whether this build has it.
    #[must_use]
    pub fn is_built(self) -> bool {
        match self {
            Self::Memory => cfg!(feature = "memory"),
            Self::Mongo => cfg!(feature = "mongo"),
            Self::MySql => cfg!(feature = "mysql"),
            Self::Postgres => cfg!(feature = "postgres"),
            Self::Redis => cfg!(feature = "redis"),
            Self::Sqlite => cfg!(feature = "sqlite"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_its_store_in_upper_and_lower_case() {
        for (url, kind) in [
            ("sqlite://a.db", StoreKind::Sqlite),
            ("POSTGRES://app:Secret@h/d", StoreKind::Postgres),
            ("rediss+cluster://h", StoreKind::Redis),
            ("mongodb+srv://h", StoreKind::Mongo),
        ] {
            assert_eq!(StoreKind::of(url), Some(kind));
        }
        assert_eq!(StoreKind::of("orders.db"), None);
        assert_eq!(StoreKind::of("http://h"), None);
    }

    /// Each store reads its own URLs.
    #[test]
    #[cfg(all(
        feature = "mongo",
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "sqlite"
    ))]
    fn the_schemes_are_those_that_the_stores_read() {
        assert_eq!(StoreKind::Mongo.schemes(), inbox_mongo::SCHEMES);
        assert_eq!(StoreKind::MySql.schemes(), inbox_mysql::SCHEMES);
        assert_eq!(StoreKind::Postgres.schemes(), inbox_postgres::SCHEMES);
        assert_eq!(StoreKind::Redis.schemes(), inbox_redis::SCHEMES);
        assert_eq!(StoreKind::Sqlite.schemes(), inbox_sqlite::SCHEMES);
    }
}
