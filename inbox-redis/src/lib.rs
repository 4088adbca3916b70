//! An inbox store on Redis.

mod beside;
mod checks;
mod error;
mod keys;
mod link;
mod operate;
mod options;
mod receive;
mod reply;
mod rows;
mod schema;
mod scripts;
mod store;
mod wakeups;
mod work;

/// The driver, whose values [`RedisStore::settle_with`] answers.
pub use redis;

pub use beside::Command;
pub use options::{Confirmations, RedisOptions, StartChecks, TimeOffset};
pub use store::RedisStore;

/// What a user of the server needs, for `ACL SETUSER name on >password` and these words, with the
/// inbox's name in place of `INBOX`. `config|get` may be left out: connecting then does not see
/// whether snapshots are on. A cluster's clients need the last four, and `waitaof` exists from
/// Redis 7.2; a server that knows neither refuses the rule, which is then to be left out as well.
pub const ACL_RULES: &str = "~{INBOX:*}* &INBOX:wake:* \
    +evalsha +script|load +info +config|get +psubscribe +punsubscribe +ping +wait \
    +time +type +exists +publish \
    +hget +hmget +hset +hdel +hincrby +hkeys \
    +zadd +zrem +zscore +zcount +zrangebylex +zrangebyscore +zrevrangebyscore +zremrangebyscore \
    +xadd +xdel +xrange +xrevrange \
    +cluster|slots +cluster|shards +asking +readonly";
