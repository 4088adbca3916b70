use std::fmt;
use std::str::FromStr;

/// The kinds of server a test can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// PostgreSQL, one server.
    Postgres,
    /// MySQL, one server. A `mysqld` that is MariaDB's does not count.
    Mysql,
    /// MariaDB, one server.
    Mariadb,
    /// Redis, one server.
    Redis,
    /// Redis Cluster: six processes, three of them primaries with one replica each, that are
    /// stopped, killed and paused together.
    RedisCluster,
    /// MongoDB: a replica set of one member, because transactions need a replica set.
    Mongodb,
}

impl Kind {
    /// Every kind, in the order in which they are listed.
    pub const ALL: [Self; 6] = [
        Self::Postgres,
        Self::Mysql,
        Self::Mariadb,
        Self::Redis,
        Self::RedisCluster,
        Self::Mongodb,
    ];

    /// The name used in `INBOX_TEST_REQUIRE`, on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
            Self::Mariadb => "mariadb",
            Self::Redis => "redis",
            Self::RedisCluster => "redis-cluster",
            Self::Mongodb => "mongodb",
        }
    }

    /// The environment variable that names a shared server of this kind by its URL.
    #[must_use]
    pub fn url_variable(self) -> &'static str {
        match self {
            Self::Postgres => "INBOX_TEST_POSTGRES_URL",
            Self::Mysql => "INBOX_TEST_MYSQL_URL",
            Self::Mariadb => "INBOX_TEST_MARIADB_URL",
            Self::Redis => "INBOX_TEST_REDIS_URL",
            Self::RedisCluster => "INBOX_TEST_REDIS_CLUSTER_URL",
            Self::Mongodb => "INBOX_TEST_MONGODB_URL",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The name is not one of [`Kind::ALL`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no kind of server is called {0:?}; there are {known}", known = Kind::ALL.map(Kind::name).join(", "))]
pub struct UnknownKind(
    /// The name that was given.
    pub String,
);

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| UnknownKind(name.to_owned()))
    }
}
