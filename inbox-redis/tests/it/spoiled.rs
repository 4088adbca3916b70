//! Keys that are not as the store has left them.

use hostile::{Target, hold_for};
use inbox_api::Schema as _;
use inbox_redis::RedisStore;
use redis::Value;

use crate::common::{Raw, SERVER, fresh_name, options, url};

async fn keys(raw: &mut Raw, pattern: &str) -> Vec<Vec<u8>> {
    let mut command = redis::cmd("KEYS");
    command.arg(pattern);
    let mut keys: Vec<Vec<u8>> = raw.run(&command).await.unwrap();
    keys.sort();
    keys
}

/// The first bytes are a key, a place in it, and what becomes of that; a value follows.
async fn spoil(raw: &mut Raw, keys: &[Vec<u8>], part: &[u8]) {
    let [key, place, kind, value @ ..] = part else {
        return;
    };
    let Some(key) = keys.get(usize::from(*key) % keys.len().max(1)) else {
        return;
    };
    let mut command = redis::cmd("TYPE");
    command.arg(key);
    let found: String = raw.run(&command).await.unwrap();
    let members = match found.as_str() {
        "hash" => ["HKEYS", "", ""],
        "zset" => ["ZRANGE", "0", "-1"],
        _ => ["", "", ""],
    };
    let mut member = value.to_vec();
    if !members[0].is_empty() && kind % 5 != 0 {
        let mut command = redis::cmd(members[0]);
        command.arg(key);
        if found == "zset" {
            command.arg(members[1]).arg(members[2]);
        }
        let all: Vec<Vec<u8>> = raw.run(&command).await.unwrap();
        member = all
            .get(usize::from(*place) % all.len().max(1))
            .cloned()
            .unwrap_or_default();
    }
    let mut command = match (found.as_str(), kind % 5) {
        (_, 4) => redis::cmd("DEL"),
        (_, 3) => redis::cmd("SET"),
        ("hash", _) => redis::cmd("HSET"),
        ("zset", _) => redis::cmd("ZADD"),
        ("stream", _) => redis::cmd("XADD"),
        _ => redis::cmd("SET"),
    };
    command.arg(key);
    match (found.as_str(), kind % 5) {
        (_, 4) => {}
        (_, 3) => drop(command.arg(value)),
        ("hash", _) => drop(command.arg(member).arg(value)),
        ("zset", _) => {
            let score = std::str::from_utf8(value).ok();
            let score = score.and_then(|score| score.parse().ok()).unwrap_or(1e300);
            command.arg::<f64>(score).arg(member);
        }
        ("stream", _) => drop(command.arg("*").arg(value).arg(value)),
        _ => drop(command.arg(value)),
    }
    let _: Result<Value, _> = raw.run(&command).await;
}

#[test]
fn keys_of_any_values_are_answered() {
    let Some(url) = url(&SERVER) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let name = fresh_name();
    let pattern = format!("{{{name}:*");
    let corpus = include_str!("../../../hostile/corpus/sqlite-rows.txt");
    let target = Target::new("redis-keys", corpus, move |input| {
        runtime.block_on(async {
            let mut raw = Raw::connect(&url, false).await.unwrap();
            let old = keys(&mut raw, &pattern).await;
            if !old.is_empty() {
                let mut command = redis::cmd("DEL");
                command.arg(old);
                let _: i64 = raw.run(&command).await.unwrap();
            }
            let options = options(&url, false, 2).inbox_name(name.clone());
            let store = RedisStore::connect(options).await.unwrap();
            store.create().await.map_err(|error| error.to_string())?;
            hostile::fill(&store)
                .await
                .map_err(|error| error.to_string())?;
            let keys = keys(&mut raw, &pattern).await;
            for part in input.split(|byte| *byte == 0).take(4) {
                spoil(&mut raw, &keys, part).await;
            }
            let used = hostile::use_every_operation(&store).await;
            inbox_api::Store::close(&store).await;
            used.map_err(|error| error.to_string())
        })
    });
    hold_for(&target.limit(1024, 8 * 1024 * 1024), 40);
}
