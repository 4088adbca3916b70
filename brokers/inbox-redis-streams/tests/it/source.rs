//! What is peculiar to Redis Streams, on each server that the machine has.

use std::{collections::BTreeSet, time::Duration};

use inbox_redis_streams::{
    RedisStreamsDelivery, RedisStreamsOptions, RedisStreamsPublisher, RedisStreamsSource,
};
use inbox_source::{
    Delivery as _, Envelope, Flow, Mapping, Publisher as _, Rejection, Source as _, SourceError,
};
use redis::{Value, cmd};
use test_servers::{Kind, Server};
use tokio::{
    task::block_in_place,
    time::{Instant, sleep, timeout},
};

use crate::{
    harness::{GROUP, Outcome, Redis, dead},
    publisher,
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Much longer than a test waits.
const LONG: Duration = Duration::from_secs(600);

pub(crate) fn source(options: RedisStreamsOptions) -> RedisStreamsSource {
    RedisStreamsSource::new(options, Mapping::new("billing").unwrap()).unwrap()
}

/// The next delivery; what may pass is waited for.
async fn next(source: &mut RedisStreamsSource) -> Outcome<RedisStreamsDelivery> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match timeout(PATIENCE, source.next()).await? {
            Ok(delivery) => return Ok(delivery.ok_or("the source has ended")?),
            Err(error) if error.is_transient() && Instant::now() < deadline => {
                sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

pub(crate) async fn take(
    source: &mut RedisStreamsSource,
    count: usize,
) -> Outcome<Vec<RedisStreamsDelivery>> {
    let mut taken = Vec::new();
    for _ in 0..count {
        taken.push(next(source).await?);
    }
    Ok(taken)
}

async fn failure(source: &mut RedisStreamsSource) -> Outcome<SourceError> {
    match timeout(PATIENCE, source.next()).await? {
        Ok(_) => Err("a delivery came".into()),
        Err(error) => Ok(error),
    }
}

async fn refused(options: RedisStreamsOptions) -> Outcome<String> {
    let error = failure(&mut source(options)).await?;
    assert!(!error.is_transient(), "{error}");
    Ok(error.to_string())
}

fn text(delivery: &RedisStreamsDelivery) -> String {
    String::from_utf8_lossy(&delivery.envelope().payload).into_owned()
}

fn texts(all: &[RedisStreamsDelivery]) -> Vec<String> {
    all.iter().map(text).collect()
}

fn numbers(range: std::ops::RangeInclusive<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

pub(crate) async fn acknowledge(all: Vec<RedisStreamsDelivery>) {
    let failures = RedisStreamsDelivery::acknowledge_all(all).await;
    assert!(failures.is_empty(), "{failures:?}");
}

/// One server for what harms nothing.
async fn run(kind: Kind) -> Outcome {
    let Some(server) = block_in_place(|| Redis::own(kind))? else {
        return Ok(());
    };
    a_run_is_acknowledged(&server).await?;
    what_waits_is_kept_and_what_is_dropped_comes_again(&server).await?;
    no_more_is_read_than_may_be_held(&server).await?;
    no_more_bytes_are_read_than_may_be_held(&server).await?;
    a_close_gives_back_at_once(&server).await?;
    a_close_behind_a_failure_gives_back_at_once(&server).await?;
    a_cut_changes_nothing(&server).await?;
    a_named_consumer_goes_on_with_what_it_had(&server).await?;
    what_cannot_be_acknowledged_stays_away(&server).await?;
    a_rejected_entry_goes_to_its_stream(&server).await?;
    an_entry_whose_dead_letter_is_refused_stays(&server).await?;
    an_entry_of_many_fields_is_rejected_too(&server).await?;
    what_was_deleted_is_passed_over(&server).await?;
    what_is_not_there_is_permanent(&server).await?;
    a_lost_group_is_made_again(&server).await?;
    publisher::what_is_published_arrives_as_it_was(&server).await?;
    publisher::what_cannot_be_published_is_told(&server).await?;
    publisher::a_message_that_ends_the_connection_holds_up_no_other(&server).await?;
    publisher::many_that_end_the_connection_hold_up_none_behind_them(&server).await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_the_server_of_the_machine() -> Outcome {
    run(Kind::Redis).await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_redis_8() -> Outcome {
    run(Kind::Redis8).await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_valkey() -> Outcome {
    run(Kind::Valkey).await
}

async fn a_run_is_acknowledged(server: &Redis) -> Outcome {
    for delete in [false, true] {
        let stream = format!("run-{delete}");
        server.create(&stream).await?;
        server.publish_numbers(&stream, 600).await?;
        let mut source = source(server.options(&stream)?.delete(delete));
        let taken = take(&mut source, 600).await?;
        assert_eq!(texts(&taken), numbers(1..=600));
        server.until(&stream, (0, 600)).await?;
        acknowledge(taken).await;
        server.until(&stream, (0, 0)).await?;
        let left = if delete { 0 } else { 600 };
        assert_eq!(server.entries(&stream).await?.len(), left);
        source.close().await?;
        assert!(server.consumers(&stream).await?.is_empty());
    }
    Ok(())
}

async fn what_waits_is_kept_and_what_is_dropped_comes_again(server: &Redis) -> Outcome {
    let stream = "kept";
    server.create(stream).await?;
    server.publish_numbers(stream, 2).await?;
    // Kept in time by a machine that is slow.
    let claim_after = Duration::from_secs(10);
    // Each is a consumer of its own.
    let options = || {
        let options = server.options(stream);
        options.map(|options| options.claim_after(claim_after))
    };
    let mut source_of_both = source(options()??);
    let mut taken = take(&mut source_of_both, 2).await?;
    let mut other = source(options()??);
    drop(taken.pop());
    let again = next(&mut source_of_both).await?;
    assert_eq!(text(&again), "2");
    let stolen = timeout(claim_after * 2, other.next()).await;
    assert!(stolen.is_err(), "what is worked on was given to another");
    taken.push(again);
    acknowledge(taken).await;
    server.until(stream, (0, 0)).await?;
    source_of_both.close().await?;
    other.close().await?;
    Ok(())
}

async fn no_more_is_read_than_may_be_held(server: &Redis) -> Outcome {
    let stream = "flow";
    server.create(stream).await?;
    server.publish_numbers(stream, 20).await?;
    let mut source = source(server.options(stream)?);
    source.set_flow(Flow::new(7, 3));
    let mut taken = take(&mut source, 7).await?;
    let more = timeout(Duration::from_millis(300), source.next()).await;
    assert!(more.is_err());
    assert_eq!(server.outstanding(stream).await?, (13, 7));
    let rest = taken.split_off(3);
    acknowledge(taken).await;
    let some = take(&mut source, 3).await?;
    assert_eq!(texts(&some), numbers(8..=10));
    server.until(stream, (10, 7)).await?;
    drop((rest, some));
    source.close().await?;
    Ok(())
}

async fn no_more_bytes_are_read_than_may_be_held(server: &Redis) -> Outcome {
    let stream = "flow-of-bytes";
    server.create(stream).await?;
    let large = Envelope::new(stream, vec![b'x'; 200_000]);
    server.publish(stream, &vec![large; 20]).await?;
    let mut source = source(server.options(stream)?);
    source.set_flow(Flow::new(1000, 500).with_max_unacknowledged_bytes(500_000));
    let taken = take(&mut source, 3).await?;
    let more = timeout(Duration::from_millis(1500), source.next()).await;
    assert!(more.is_err());
    server.until(stream, (17, 3)).await?;
    acknowledge(taken).await;
    for _ in 0..17 {
        next(&mut source).await?.acknowledge().await?;
    }
    server.until(stream, (0, 0)).await?;
    source.close().await?;
    Ok(())
}

async fn a_close_gives_back_at_once(server: &Redis) -> Outcome {
    let stream = "close";
    server.create(stream).await?;
    server.publish_numbers(stream, 20).await?;
    let options = || {
        server
            .options(stream)
            .map(|options| options.claim_after(LONG))
    };
    let mut first = source(options()??);
    let mut taken = take(&mut first, 10).await?;
    let rest = taken.split_off(5);
    acknowledge(taken).await;
    first.close().await?;
    assert_eq!(text(&rest[0]), "6");
    let mut second = source(options()??);
    let mut came = BTreeSet::new();
    while came.len() < 15 {
        let delivery = next(&mut second).await?;
        came.insert(text(&delivery).parse::<u32>()?);
        delivery.acknowledge().await?;
    }
    assert!(came.into_iter().eq(6..=20));
    server.until(stream, (0, 0)).await?;
    second.close().await?;
    // The first had something pending when it left.
    assert_eq!(server.consumers(stream).await?.len(), 1);
    Ok(())
}

/// A source that has lost its connection, and is not asked again.
async fn a_close_behind_a_failure_gives_back_at_once(server: &Redis) -> Outcome {
    let stream = "close-behind-a-failure";
    server.create(stream).await?;
    server.publish_numbers(stream, 5).await?;
    let options = || -> Outcome<_> { Ok(server.options(stream)?.claim_after(LONG)?) };
    let mut first = source(options()?);
    let taken = take(&mut first, 5).await?;
    server.cut()?;
    let error = failure(&mut first).await?;
    assert!(error.is_transient(), "{error}");
    first.close().await?;
    let mut second = source(options()?);
    let again = take(&mut second, 5).await?;
    assert_eq!(texts(&again), texts(&taken));
    acknowledge(again).await;
    server.until(stream, (0, 0)).await?;
    second.close().await?;
    Ok(())
}

/// What was taken is acknowledged over the next connection, and nothing comes twice, or out of order.
async fn a_cut_changes_nothing(server: &Redis) -> Outcome {
    let stream = "cut";
    server.create(stream).await?;
    server.publish_numbers(stream, 30).await?;
    let mut source = source(server.options(stream)?.claim_after(LONG)?);
    source.set_flow(Flow::new(10, 10));
    let mut taken = take(&mut source, 10).await?;
    let mut order = texts(&taken);
    for _ in 0..4 {
        server.cut()?;
        // The first one over a connection that is lost fails, and comes again.
        let mut failures = Vec::new();
        for delivery in taken {
            failures.extend(delivery.acknowledge().await.err());
        }
        assert!(
            failures.iter().all(SourceError::is_transient),
            "{failures:?}"
        );
        taken = Vec::new();
        while order.len() < 30 && taken.len() < 5 {
            let delivery = next(&mut source).await?;
            if !order.contains(&text(&delivery)) {
                order.push(text(&delivery));
            }
            taken.push(delivery);
        }
    }
    while !taken.is_empty() || order.len() < 30 {
        acknowledge(std::mem::take(&mut taken)).await;
        if order.len() < 30 {
            let delivery = next(&mut source).await?;
            if !order.contains(&text(&delivery)) {
                order.push(text(&delivery));
            }
            taken.push(delivery);
        }
    }
    assert_eq!(order, numbers(1..=30));
    // What was dropped unanswered.
    while server.outstanding(stream).await? != (0, 0) {
        next(&mut source).await?.acknowledge().await?;
    }
    source.close().await?;
    Ok(())
}

async fn a_named_consumer_goes_on_with_what_it_had(server: &Redis) -> Outcome {
    let stream = "named";
    server.create(stream).await?;
    server.publish_numbers(stream, 20).await?;
    let options =
        || -> Outcome<_> { Ok(server.options(stream)?.claim_after(LONG)?.consumer("one")?) };
    let mut killed = source(options()?);
    killed.set_flow(Flow::new(10, 10));
    drop(take(&mut killed, 5).await?);
    drop(killed);
    let mut again = source(options()?);
    let taken = take(&mut again, 20).await?;
    assert_eq!(texts(&taken), numbers(1..=20));
    acknowledge(taken).await;
    again.close().await?;
    assert_eq!(server.consumers(stream).await?, ["one"]);
    Ok(())
}

/// For want of a right, say: the same would be said at once of what comes again at once.
async fn what_cannot_be_acknowledged_stays_away(server: &Redis) -> Outcome {
    let stream = "not-acknowledged";
    server.create(stream).await?;
    server.publish_numbers(stream, 1).await?;
    let mut user = cmd("ACL");
    user.arg(&[
        "SETUSER", "bob", "on", ">right", "~*", "&*", "+@all", "-xack",
    ]);
    server.ask::<Value>(&user).await?;
    let address = server.address();
    let url = format!("redis+stream://bob:right@{address}/0?stream={stream}&group={GROUP}");
    let mut source = source(RedisStreamsOptions::from_url(&url)?);
    let delivery = next(&mut source).await?;
    let begin = Instant::now();
    assert!(delivery.acknowledge().await.is_err());
    let again = next(&mut source).await?;
    let away = begin.elapsed();
    assert!(away >= Duration::from_millis(500), "{away:?}");
    drop(again);
    source.close().await?;
    Ok(())
}

async fn a_rejected_entry_goes_to_its_stream(server: &Redis) -> Outcome {
    let stream = "rejected";
    server.create(stream).await?;
    let add = |id: &'static str| {
        let mut add = cmd("XADD");
        add.arg(stream).arg(id).arg("payload").arg(&b"\xff\x00"[..]);
        add.arg("colour").arg(&b"\xfe"[..]);
        add
    };
    server.ask::<Value>(&add("5-1")).await?;
    let mut source = source(server.options(stream)?.dead_letters(dead(stream))?);
    let delivery = next(&mut source).await?;
    assert_eq!(delivery.envelope().header("colour-bin"), Some("/g=="));
    delivery.reject(Rejection::new("not an order")).await?;
    server.until(stream, (0, 0)).await?;
    let (_, fields) = server.entries(&dead(stream)).await?.remove(0);
    assert_eq!(fields["payload"], b"\xff\x00");
    assert_eq!(fields["colour"], b"\xfe");
    assert_eq!(fields["inbox-rejection"], b"not an order");
    assert_eq!(fields["inbox-position"], b"rejected/5-1");
    source.close().await?;
    Ok(())
}

/// The name of the dead letters' stream is that of something else.
async fn an_entry_whose_dead_letter_is_refused_stays(server: &Redis) -> Outcome {
    let stream = "refused";
    server.create(stream).await?;
    server.publish_numbers(stream, 1).await?;
    let list = dead(stream);
    server
        .ask::<Value>(cmd("LPUSH").arg(&list).arg("a text"))
        .await?;
    let options = server.options(stream)?.dead_letters(&list)?.delete(true);
    let mut source = source(options);
    let delivery = next(&mut source).await?;
    let refused = delivery.reject(Rejection::new("no")).await;
    assert!(refused.is_err());
    assert_eq!(server.outstanding(stream).await?, (0, 1));
    assert_eq!(server.entries(stream).await?.len(), 1);
    server.ask::<Value>(cmd("DEL").arg(&list)).await?;
    let again = next(&mut source).await?;
    assert_eq!(text(&again), "1");
    again.reject(Rejection::new("no")).await?;
    server.until(stream, (0, 0)).await?;
    assert_eq!(server.entries(&list).await?.len(), 1);
    assert!(server.entries(stream).await?.is_empty());
    source.close().await?;
    Ok(())
}

/// More than a script can hand to a command.
async fn an_entry_of_many_fields_is_rejected_too(server: &Redis) -> Outcome {
    let stream = "many-fields";
    server.create(stream).await?;
    let mut add = cmd("XADD");
    add.arg(stream).arg("*");
    for number in 0..10_000 {
        add.arg(format!("field-{number}")).arg(&b"\xff\x00"[..]);
    }
    server.ask::<Value>(&add).await?;
    let mut source = source(server.options(stream)?.dead_letters(dead(stream))?);
    let delivery = next(&mut source).await?;
    delivery.reject(Rejection::new("no")).await?;
    server.until(stream, (0, 0)).await?;
    let (_, fields) = server.entries(&dead(stream)).await?.remove(0);
    assert_eq!(fields.len(), 10_002);
    assert_eq!(fields["field-9999"], b"\xff\x00");
    source.close().await?;
    Ok(())
}

/// By a fail-over to an old replica, or by hand, under a source that is to make it.
async fn a_lost_group_is_made_again(server: &Redis) -> Outcome {
    let stream = "lost-group";
    server.publish_numbers(stream, 2).await?;
    let mut source = source(server.options(stream)?);
    acknowledge(take(&mut source, 2).await?).await;
    server
        .ask::<Value>(cmd("XGROUP").arg("DESTROY").arg(stream).arg(GROUP))
        .await?;
    let error = failure(&mut source).await?;
    assert!(error.is_transient(), "{error}");
    let again = take(&mut source, 2).await?;
    assert_eq!(texts(&again), numbers(1..=2));
    acknowledge(again).await;
    server.until(stream, (0, 0)).await?;
    source.close().await?;
    Ok(())
}

/// By a sender that trims the stream, before it was read and after.
async fn what_was_deleted_is_passed_over(server: &Redis) -> Outcome {
    let stream = "deleted";
    server.create(stream).await?;
    server.publish_numbers(stream, 10).await?;
    let mut killed = source(server.options(stream)?);
    killed.set_flow(Flow::new(4, 4));
    drop(take(&mut killed, 4).await?);
    drop(killed);
    let mut trim = cmd("XTRIM");
    server
        .ask::<Value>(trim.arg(stream).arg("MAXLEN").arg(7))
        .await?;
    let mut source = source(server.options(stream)?);
    let mut came = BTreeSet::new();
    while came.len() < 7 {
        let delivery = next(&mut source).await?;
        came.insert(text(&delivery).parse::<u32>()?);
        delivery.acknowledge().await?;
    }
    assert!(came.into_iter().eq(4..=10));
    server.until(stream, (0, 0)).await?;
    // One that this consumer has already, and whose delivery it drops.
    server.publish_numbers(stream, 2).await?;
    let taken = take(&mut source, 2).await?;
    server
        .ask::<Value>(cmd("XTRIM").arg(stream).arg("MAXLEN").arg(0))
        .await?;
    drop(taken);
    server.until(stream, (0, 0)).await?;
    source.close().await?;
    Ok(())
}

async fn what_is_not_there_is_permanent(server: &Redis) -> Outcome {
    let options = || -> Outcome<_> { Ok(server.options("nowhere")?.create(false)) };
    let error = refused(options()?).await?;
    assert!(error.contains("create"), "{error}");
    server
        .ask::<Value>(cmd("SET").arg("nowhere").arg("a text"))
        .await?;
    let error = refused(options()?).await?;
    assert!(error.contains("WRONGTYPE"), "{error}");
    let error = refused(options()?.create(true)).await?;
    assert!(error.contains("WRONGTYPE"), "{error}");
    // A group that is deleted while it is read, as a fail-over to an old replica does.
    server.create("vanishing").await?;
    server.publish_numbers("vanishing", 1).await?;
    let mut reading = source(server.options("vanishing")?.create(false));
    next(&mut reading).await?.acknowledge().await?;
    server
        .ask::<Value>(cmd("XGROUP").arg("DESTROY").arg("vanishing").arg(GROUP))
        .await?;
    let error = failure(&mut reading).await?;
    assert!(!error.is_transient(), "{error}");
    let mut again = source(server.options("vanishing")?);
    assert_eq!(text(&next(&mut again).await?), "1");
    again.close().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_is_survived() -> Outcome {
    let Some(server) = block_in_place(|| Redis::own(Kind::Redis))? else {
        return Ok(());
    };
    let stream = "killed";
    server.create(stream).await?;
    server.publish_numbers(stream, 3).await?;
    let mut source = source(server.options(stream)?);
    let old = next(&mut source).await?;
    block_in_place(|| server.harm(Server::kill))?;
    let lost = timeout(PATIENCE, async {
        loop {
            if let Err(error) = source.next().await {
                return error;
            }
        }
    });
    let lost = lost.await?;
    assert!(lost.is_transient(), "{lost}");
    let away = RedisStreamsPublisher::new(server.direct()?).timeout(Duration::from_secs(1));
    let answers = away.publish(&[Envelope::new(stream, "4")]).await;
    assert!(answers[0].as_ref().is_err_and(SourceError::is_transient));
    block_in_place(|| server.harm(Server::start))?;
    let mut seen = BTreeSet::from([text(&old)]);
    let deadline = Instant::now() + PATIENCE;
    let mut acknowledged = old.acknowledge().await;
    while let Err(error) = acknowledged {
        assert!(error.is_transient() && Instant::now() < deadline, "{error}");
        acknowledged = next(&mut source).await?.acknowledge().await;
    }
    while server.outstanding(stream).await? != (0, 0) {
        let delivery = next(&mut source).await?;
        seen.insert(text(&delivery));
        delivery.acknowledge().await?;
    }
    assert!(
        seen.iter().all(|text| numbers(1..=3).contains(text)),
        "{seen:?}"
    );
    source.close().await?;
    Ok(())
}

/// A server that says nothing any more is given up, also by a source that only waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_noticed() -> Outcome {
    let Some(server) = block_in_place(|| Redis::own(Kind::Redis))? else {
        return Ok(());
    };
    server.create("silent").await?;
    server.publish_numbers("silent", 1).await?;
    let mut source = source(server.options("silent")?);
    let old = next(&mut source).await?;
    block_in_place(|| server.harm(Server::pause))?;
    let begin = Instant::now();
    let error = failure(&mut source).await?;
    assert!(error.is_transient(), "{error}");
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    block_in_place(|| server.harm(Server::resume))?;
    old.acknowledge().await?;
    server.until("silent", (0, 0)).await?;
    source.close().await?;
    Ok(())
}

/// A wrong password does not pass by itself, and is never shown.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_permanent() -> Outcome {
    let Some(server) = block_in_place(|| Redis::own(Kind::Redis))? else {
        return Ok(());
    };
    let mut user = cmd("ACL");
    user.arg(&["SETUSER", "ann", "on", ">right", "~*", "&*", "+@all"]);
    server.ask::<Value>(&user).await?;
    let address = server.address();
    let url = |password: &str| format!("redis+stream://ann:{password}@{address}/0");
    let from = |password: &str| {
        let url = format!("{}?stream=S&group=g", url(password));
        RedisStreamsOptions::from_url(&url)
    };
    let mut wrong = source(from("s3cret")?);
    let error = failure(&mut wrong).await?;
    assert!(!error.is_transient(), "{error}");
    let shown = format!("{error} {error:?} {wrong:?}");
    assert!(!shown.contains("s3cret"), "{shown}");
    let publisher = RedisStreamsPublisher::from_url(&url("s3cret"))?;
    let answers = publisher.publish(&[Envelope::new("a", "b")]).await;
    let error = answers[0].as_ref().err().ok_or("no error")?;
    assert!(
        error.is_transient(),
        "it says nothing of the message: {error}"
    );
    let shown = format!("{error} {error:?} {publisher:?}");
    assert!(!shown.contains("s3cret"), "{shown}");
    // With the right one it is the group that is not there.
    let error = refused(from("right")?).await?;
    assert!(error.contains("group"), "{error}");
    Ok(())
}
