use std::fmt;
use std::str::FromStr;

/// The kinds of server a test can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// PostgreSQL, one server of the newest version that the machine has.
    Postgres,
    /// PostgreSQL 18, one server.
    Postgres18,
    /// PgBouncer in transaction mode, in front of a server of [`Kind::Postgres`] of its own. See
    /// [`Server::pgbouncer`](crate::Server::pgbouncer) for one in front of a given server.
    Pgbouncer,
    /// MySQL, one server. A `mysqld` that is MariaDB's does not count.
    Mysql,
    /// MariaDB, one server.
    Mariadb,
    /// MariaDB Galera Cluster of three nodes, each of which takes reads and writes.
    Galera,
    /// Redis, one server of the first version found.
    Redis,
    /// Redis 8, one server.
    Redis8,
    /// Valkey, one server.
    Valkey,
    /// Redis Cluster of three primaries, which are the nodes 0 to 2, and one replica each, the
    /// nodes 3 to 5. No replica takes over by itself.
    RedisCluster,
    /// The same of Redis 8.
    Redis8Cluster,
    /// The same of Valkey.
    ValkeyCluster,
    /// MongoDB: a replica set of one member, because transactions need a replica set.
    Mongodb,
    /// MongoDB: a replica set of three members. The first is the primary; when it is gone for two
    /// seconds, another takes over, and gives way some seconds after it is back.
    MongodbSet,
    /// MongoDB: a `mongos`, which is node 0, in front of a configuration server (node 1) and two shards (nodes
    /// 2 and 3), each a replica set of one member.
    MongodbSharded,
    /// FerretDB 2 in front of its own PostgreSQL 18 with the DocumentDB extension. It speaks
    /// MongoDB's protocol, but has no transactions and is no replica set.
    Ferretdb,
    /// ElasticMQ, which speaks the protocol of Amazon SQS. Its URL is what those of its queues begin with.
    Elasticmq,
    /// Apache Kafka in KRaft mode, one process that is broker and controller. Topics are not made by themselves. Its second
    /// listener, `EXTRA`, has no TLS unless it is given some; its port stands in `server.properties` in the server's directory.
    Kafka,
    /// RabbitMQ, one node, with streams and the management plug-in, whose ports stand in `rabbitmq.conf` in the server's
    /// directory.
    RabbitMq,
    /// The same of RabbitMQ 4.
    RabbitMq4,
    /// NATS with JetStream, one server of the version that the machine has.
    Nats,
    /// The newest NATS with JetStream, one server.
    NatsNewest,
    /// Prometheus, one server. Give it `--config.file=…` by [`find_own`](crate::find_own).
    Prometheus,
}

impl Kind {
    /// Every kind, in the order in which they are listed.
    pub const ALL: [Self; 23] = [
        Self::Postgres,
        Self::Postgres18,
        Self::Pgbouncer,
        Self::Mysql,
        Self::Mariadb,
        Self::Galera,
        Self::Redis,
        Self::Redis8,
        Self::Valkey,
        Self::RedisCluster,
        Self::Redis8Cluster,
        Self::ValkeyCluster,
        Self::Mongodb,
        Self::MongodbSet,
        Self::MongodbSharded,
        Self::Ferretdb,
        Self::Elasticmq,
        Self::Kafka,
        Self::RabbitMq,
        Self::RabbitMq4,
        Self::Nats,
        Self::NatsNewest,
        Self::Prometheus,
    ];

    pub(crate) fn is_postgres(self) -> bool {
        matches!(self, Self::Postgres | Self::Postgres18)
    }

    /// The name used in `INBOX_TEST_REQUIRE`, on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Postgres18 => "postgres-18",
            Self::Pgbouncer => "pgbouncer",
            Self::Mysql => "mysql",
            Self::Mariadb => "mariadb",
            Self::Galera => "galera",
            Self::Redis => "redis",
            Self::Redis8 => "redis-8",
            Self::Valkey => "valkey",
            Self::RedisCluster => "redis-cluster",
            Self::Redis8Cluster => "redis-8-cluster",
            Self::ValkeyCluster => "valkey-cluster",
            Self::Mongodb => "mongodb",
            Self::MongodbSet => "mongodb-set",
            Self::MongodbSharded => "mongodb-sharded",
            Self::Ferretdb => "ferretdb",
            Self::Elasticmq => "elasticmq",
            Self::Kafka => "kafka",
            Self::RabbitMq => "rabbitmq",
            Self::RabbitMq4 => "rabbitmq-4",
            Self::Nats => "nats",
            Self::NatsNewest => "nats-newest",
            Self::Prometheus => "prometheus",
        }
    }

    /// The environment variable that names a shared server of this kind by its URL.
    #[must_use]
    pub fn url_variable(self) -> &'static str {
        match self {
            Self::Postgres => "INBOX_TEST_POSTGRES_URL",
            Self::Postgres18 => "INBOX_TEST_POSTGRES_18_URL",
            Self::Pgbouncer => "INBOX_TEST_PGBOUNCER_URL",
            Self::Mysql => "INBOX_TEST_MYSQL_URL",
            Self::Mariadb => "INBOX_TEST_MARIADB_URL",
            Self::Galera => "INBOX_TEST_GALERA_URL",
            Self::Redis => "INBOX_TEST_REDIS_URL",
            Self::Redis8 => "INBOX_TEST_REDIS_8_URL",
            Self::Valkey => "INBOX_TEST_VALKEY_URL",
            Self::RedisCluster => "INBOX_TEST_REDIS_CLUSTER_URL",
            Self::Redis8Cluster => "INBOX_TEST_REDIS_8_CLUSTER_URL",
            Self::ValkeyCluster => "INBOX_TEST_VALKEY_CLUSTER_URL",
            Self::Mongodb => "INBOX_TEST_MONGODB_URL",
            Self::MongodbSet => "INBOX_TEST_MONGODB_SET_URL",
            Self::MongodbSharded => "INBOX_TEST_MONGODB_SHARDED_URL",
            Self::Ferretdb => "INBOX_TEST_FERRETDB_URL",
            Self::Elasticmq => "INBOX_TEST_ELASTICMQ_URL",
            Self::Kafka => "INBOX_TEST_KAFKA_URL",
            Self::RabbitMq => "INBOX_TEST_RABBITMQ_URL",
            Self::RabbitMq4 => "INBOX_TEST_RABBITMQ_4_URL",
            Self::Nats => "INBOX_TEST_NATS_URL",
            Self::NatsNewest => "INBOX_TEST_NATS_NEWEST_URL",
            Self::Prometheus => "INBOX_TEST_PROMETHEUS_URL",
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
