//! The check that the conformance suite makes after each case finds each thing that it looks for.

use inbox_api::{AfterDead, InboxName, Outcome, Store as _, StoreExt as _};
use inbox_redis::{RedisStore, conformance::contradictions};

use crate::common::{
    self, Raw, SERVER,
    messages::{claim, message, ordered, processed},
    options, store, url,
};

/// A processed message with a result and a processed run, a blocking death, a leased message and a leased
/// run, a pending message and a pending run, an ordering key of two messages.
async fn fill(store: &RedisStore) {
    store.receive(&[message("done")]).await.unwrap();
    store.receive(&["r1", "r2"].map(message)).await.unwrap();
    for leased in claim(store, 3).await.unwrap() {
        let outcome = match leased.message.id().as_str() {
            "done" => Outcome::Processed {
                result: Some("result".into()),
            },
            _ => processed(),
        };
        let _ = store.settle_one(&leased.lease, outcome).await.unwrap();
    }
    store.receive(&["s1", "s2"].map(message)).await.unwrap();
    let whole: Vec<_> = claim(store, 2)
        .await
        .unwrap()
        .into_iter()
        .map(|leased| inbox_api::Settlement {
            lease: leased.lease,
            outcome: processed(),
        })
        .collect();
    let _ = store.settle(&whole).await.unwrap();
    store.receive(&[ordered("b1", "b")]).await.unwrap();
    let blocking = claim(store, 1).await.unwrap();
    let dead = Outcome::Dead {
        reason: "poison".into(),
        after: AfterDead::Block,
    };
    let _ = store.settle_one(&blocking[0].lease, dead).await.unwrap();
    store.receive(&[message("leased")]).await.unwrap();
    store.receive(&["l1", "l2"].map(message)).await.unwrap();
    assert_eq!(claim(store, 3).await.unwrap().len(), 3);
    store.receive(&[message("pending")]).await.unwrap();
    store.receive(&["p1", "p2"].map(message)).await.unwrap();
    let two = [ordered("a1", "a"), ordered("a2", "a")];
    store.receive(&two).await.unwrap();
}

/// Lua, with what the names of the shard's keys begin with in `p` and the handler in `h`, and what the check
/// then says.
const CONTRADICTIONS: &[(&str, &str)] = &[
    (
        "call('HDEL', p .. 'body', h .. '\\0pending')",
        "too little in body: 1",
    ),
    ("call('HSET', p .. 'body', 'x', '')", "too much in body: 1"),
    (
        "call('HDEL', p .. 'results', h .. '\\0done')",
        "too little in results: 1",
    ),
    (
        "call('HSET', p .. 'results', 'x', '')",
        "too much in results: 1",
    ),
    (
        "call('HDEL', p .. 'errors', h .. '\\0b1')",
        "too little in errors: 1",
    ),
    (
        "call('HINCRBY', p .. 'counts', h .. '\\0000', 1)",
        "another value in counts: 1",
    ),
    (
        "call('HINCRBY', p .. 'counts', h .. '\\0005', 1)",
        "another value in counts: 1",
    ),
    (
        "call('HSET', p .. 'counts', 'x', 1)",
        "too much in counts: 1",
    ),
    ("call('DEL', p .. 'counts')", "too little in counts"),
    ("call('ZPOPMIN', p .. 'due:' .. h)", "too little in due: 1"),
    (
        "call('ZADD', p .. 'due:' .. h, 1, 'x')",
        "too much in due: 1",
    ),
    (
        "call('ZADD', p .. 'due:other', 1, 'x')",
        "too much in due: 1",
    ),
    (
        "call('ZPOPMIN', p .. 'leased:' .. h)",
        "too little in leased: 1",
    ),
    (
        "call('ZPOPMIN', p .. 'run_due:' .. h)",
        "too little in run_due: 1",
    ),
    (
        "call('ZPOPMIN', p .. 'run_leased:' .. h)",
        "too little in run_leased: 1",
    ),
    (
        "call('ZPOPMIN', p .. 'open:' .. h)",
        "too little in open: 1",
    ),
    (
        "call('ZADD', p .. 'open:' .. h, 0, 'x')",
        "too much in open: 1",
    ),
    (
        "call('HDEL', p .. 'heads:' .. h, 'a')",
        "too little in heads: 1",
    ),
    (
        "call('HSET', p .. 'heads:' .. h, 'a', 'x')",
        "another value in heads: 1",
    ),
    ("call('ZPOPMIN', p .. 'dead')", "too little in dead: 1"),
    (
        "call('HSET', p .. 'blobs', '4711', '')",
        "too much in blobs: 1",
    ),
    ("call('DEL', p .. 'blobs')", "too little in blobs"),
    (
        "call('DEL', p .. 'done:processed:' .. h)",
        "a final message that retention does not find",
    ),
    (
        "call('DEL', p .. 'done:processed:' .. h)",
        "a processed run that retention does not find",
    ),
    (
        "call('DEL', p .. 'done:dead:' .. h)",
        "a final message that retention does not find: 1",
    ),
    (
        "call('DEL', p .. 'log')",
        "a message that is not in the log",
    ),
    (
        "call('HSET', p .. 'statics', 'x', '')",
        "a static part of no late or edited message: 1",
    ),
    (
        "call('ZADD', p .. 'late', 4711, 'x')",
        "a late message without its static part: 1",
    ),
    (
        "call('HDEL', p .. 'ids', h .. '\\0l1')",
        "a run with more or fewer messages than it says: 1",
    ),
    (
        "call('DEL', p .. 'runs')",
        "a message of a run that there is not",
    ),
    (
        // The last number of the first run.
        "(function()
            local raw = call('ZRANGE', p .. 'runs', 0, 0)[1]
            local run = {cmsgpack.unpack(raw)}
            run[3] = run[3] + 1000
            call('ZREM', p .. 'runs', raw)
            return call('ZADD', p .. 'runs', run[1], cmsgpack.pack(unpack(run)))
        end)()",
        "ranges of runs overlap: 1",
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_contradiction_is_found() {
    let Some(url) = url(&SERVER) else { return };
    let mut raw = Raw::connect(&url, false).await.unwrap();
    for (spoil, rule) in CONTRADICTIONS {
        let name: InboxName = common::fresh_name();
        let (store, _) = store(options(&url, false, 1).inbox_name(name.clone())).await;
        fill(&store).await;
        let found = contradictions(&store).await.unwrap();
        assert_eq!(found, [""; 0]);
        let script = format!("local call, p, h = redis.call, KEYS[1], 'billing' return {spoil}");
        let mut spoiling = redis::cmd("EVAL");
        spoiling.arg(script).arg(1).arg(format!("{{{name}:0}}:"));
        let _: redis::Value = raw.run(&spoiling).await.unwrap();
        let found = contradictions(&store).await.unwrap();
        let is_found = found.iter().any(|found| found.starts_with(rule));
        assert!(is_found, "{spoil}: {found:?}");
    }
}
