//! A publisher of the broker: what it confirms, how it fails, and that it goes on.

use std::{ops::Range, sync::Arc, time::Duration};

use inbox::receiver::{Envelope, Publisher, SourceError};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    Broker, Failure, Harm, NotOffered,
    case::CaseResult,
    context::{Context, apart, ensure, envelope},
    shelf::Shelf,
};

/// How long a call may take, where the broker answers.
const LIMIT: Duration = Duration::from_secs(20);
/// The same where it does not, or not soon.
const BRIEF: Duration = Duration::from_secs(4);
/// How much longer a call may take on a busy machine.
const SLACK: Duration = Duration::from_secs(10);
/// More than most brokers take, and no burden for those that do.
const HUGE: usize = 20 << 20;
/// Of five messages, the one that is not like the others.
const ODD: usize = 2;
/// Between calls that are made again.
const PAUSE: Duration = Duration::from_millis(100);

type Answers = Vec<Result<(), SourceError>>;

/// Sends these, and returns an answer for each.
async fn send(publisher: &impl Publisher, messages: &[Envelope]) -> Result<Answers, Failure> {
    let answers = publisher.publish(messages).await;
    let (sent, answered) = (messages.len(), answers.len());
    ensure!(
        answered == sent,
        "a call of {sent} messages got {answered} answers"
    );
    for error in answers.iter().filter_map(|answer| answer.as_ref().err()) {
        // A part of each payload.
        let told = format!("{error} {error:?}");
        ensure!(
            !told.contains(r#""number""#) && !told.contains(r#"\"number\""#),
            "an error has the payload in it: {error}"
        );
    }
    Ok(answers)
}

/// A channel of the case's own, and the address by which messages come to it.
async fn destination<B: Broker>(c: &Context<B>) -> Result<(String, String), Failure> {
    let channel = c.channel().await?;
    let address = c.broker.destination(&channel);
    Ok((channel, address))
}

fn numbered(address: &str, numbers: Range<usize>) -> Vec<Envelope> {
    numbers.map(|number| envelope(address, number)).collect()
}

/// Sends these, all of which have to be confirmed.
async fn send_well(publisher: &impl Publisher, messages: &[Envelope]) -> Result<(), Failure> {
    for (place, answer) in send(publisher, messages).await?.into_iter().enumerate() {
        let count = messages.len();
        answer.map_err(|error| format!("message {place} of {count} was not confirmed: {error}"))?;
    }
    Ok(())
}

/// Sends these again and again until all are confirmed, as an outbox does.
async fn insist<B: Broker>(
    c: &Context<B>,
    publisher: &impl Publisher,
    messages: &[Envelope],
) -> Result<(), Failure> {
    let deadline = Instant::now() + c.patience();
    let mut left = messages.to_vec();
    loop {
        let answers = send(publisher, &left).await?;
        let mut still = Vec::new();
        let mut reason = None;
        for (message, answer) in left.into_iter().zip(answers) {
            let Err(error) = answer else { continue };
            ensure!(error.is_transient(), "an error for good: {error}");
            reason = Some(error);
            still.push(message);
        }
        left = still;
        let Some(reason) = reason else { return Ok(()) };
        let count = left.len();
        ensure!(
            Instant::now() < deadline,
            "in the end {count} messages are not confirmed: {reason}"
        );
        sleep(PAUSE).await;
    }
}

/// Sends these while the broker does not answer: each has to fail for a while, in time.
async fn send_in_vain(publisher: &impl Publisher, messages: &[Envelope]) -> Result<(), Failure> {
    let began = Instant::now();
    let Ok(answers) = timeout(BRIEF + SLACK, send(publisher, messages)).await else {
        return Err(format!(
            "a call with a limit of {BRIEF:?} took {:?}",
            began.elapsed()
        )
        .into());
    };
    for answer in answers? {
        match answer {
            Ok(()) => return Err("a message was confirmed while the broker was away".into()),
            Err(error) => ensure!(
                error.is_transient(),
                "an outage is an error for good: {error}"
            ),
        }
    }
    Ok(())
}

/// Sends five, the third of which is made odd, and returns what becomes of that one. The others have to be confirmed.
async fn send_around(
    publisher: &impl Publisher,
    address: &str,
    make_odd: impl FnOnce(&mut Envelope),
) -> Result<Result<(), SourceError>, Failure> {
    let mut messages: Vec<_> = (0..5).map(|number| apart(address, number)).collect();
    make_odd(&mut messages[ODD]);
    let mut answers = send(publisher, &messages).await?;
    let odd = answers.remove(ODD);
    for answer in answers {
        answer.map_err(|error| format!("one next to the odd one was not confirmed: {error}"))?;
    }
    Ok(odd)
}

/// Takes what has arrived, which has to be these.
async fn arrive<B: Broker>(
    c: &Context<B>,
    channel: &str,
    numbers: Range<usize>,
) -> Result<Arc<Shelf>, Failure> {
    let shelf = c.shelf().await?;
    let consumer = c.consumer(channel, &shelf)?;
    c.until_stored(&shelf, numbers.len()).await?;
    c.until_done(channel).await?;
    consumer.stop().await?;
    c.all_is_done(channel, &shelf, numbers).await?;
    Ok(shelf)
}

pub(crate) async fn what_is_confirmed_arrives<B: Broker>(c: Context<B>) -> CaseResult {
    let (channel, address) = destination(&c).await?;
    let publisher = c.broker.publisher(LIMIT)?;
    send_well(&publisher, &[]).await?;
    send_well(&publisher, &numbered(&address, 0..1)).await?;
    send_well(&publisher, &numbered(&address, 1..60)).await?;
    arrive(&c, &channel, 0..60).await.map(drop)
}

pub(crate) async fn in_the_order_of_its_key<B: Broker>(c: Context<B>) -> CaseResult {
    let (channel, address) = destination(&c).await?;
    let publisher = c.broker.publisher(LIMIT)?;
    for first in (0..200).step_by(40) {
        send_well(&publisher, &numbered(&address, first..first + 40)).await?;
    }
    arrive(&c, &channel, 0..200).await?.in_order()
}

pub(crate) async fn calls_at_once<B: Broker>(c: Context<B>) -> CaseResult {
    const CALLS: usize = 8;
    const EACH: usize = 25;
    let (channel, address) = destination(&c).await?;
    let publisher = Arc::new(c.broker.publisher(LIMIT)?);
    let calls: Vec<_> = (0..CALLS)
        .map(|call| {
            let publisher = Arc::clone(&publisher);
            let messages = numbered(&address, call * EACH..(call + 1) * EACH);
            tokio::spawn(async move { send_well(&publisher, &messages).await })
        })
        .collect();
    for call in calls {
        call.await??;
    }
    arrive(&c, &channel, 0..CALLS * EACH).await.map(drop)
}

/// Defect: answers of a call that was dropped are taken for those of the next, or a message of it stays in the way.
pub(crate) async fn a_call_dropped_at_any_moment<B: Broker>(c: Context<B>) -> CaseResult {
    const ROUNDS: usize = 24;
    let (channel, address) = destination(&c).await?;
    let publisher = c.broker.publisher(LIMIT)?;
    // One call of six messages for each that is confirmed: those arrive, too, or do not.
    let dropped = |round: usize| numbered(&address, round * 7 + 1..round * 7 + 7);
    for round in 0..ROUNDS {
        let patience = match round % 3 {
            0 => Duration::ZERO,
            _ => Duration::from_micros(fastrand::u64(..4000)),
        };
        let _ = timeout(patience, publisher.publish(&dropped(round))).await;
        insist(
            &c,
            &publisher,
            &numbered(&address, round * 7..round * 7 + 1),
        )
        .await?;
    }
    // Now they have all been sent, some of them twice.
    for round in 0..ROUNDS {
        insist(&c, &publisher, &dropped(round)).await?;
    }
    arrive(&c, &channel, 0..ROUNDS * 7).await.map(drop)
}

pub(crate) async fn one_that_is_too_large<B: Broker>(c: Context<B>) -> CaseResult {
    let (channel, address) = destination(&c).await?;
    let publisher = c.broker.publisher(LIMIT)?;
    let enlarge = |message: &mut Envelope| message.payload = "x".repeat(HUGE).into();
    let Err(error) = send_around(&publisher, &address, enlarge).await? else {
        let what = format!("it takes a message of {} MiB", HUGE >> 20);
        return Err(NotOffered(what).into());
    };
    ensure!(
        !error.is_transient(),
        "a message that is too large is to be sent again: {error}"
    );
    // Its place is taken by a smaller one.
    send_well(&publisher, &[apart(&address, ODD)]).await?;
    arrive(&c, &channel, 0..5).await.map(drop)
}

pub(crate) async fn a_destination_that_is_missing<B: Broker>(c: Context<B>) -> CaseResult {
    let (channel, address) = destination(&c).await?;
    let missing = format!("missing-{:x}", fastrand::u64(..1 << 40));
    let missing = c.broker.destination(&missing);
    let publisher = c.broker.publisher(LIMIT)?;
    let misdirect = |message: &mut Envelope| message.address = missing;
    let Err(error) = send_around(&publisher, &address, misdirect).await? else {
        return Err(NotOffered("it makes a destination that is not there".into()).into());
    };
    ensure!(
        error.is_transient(),
        "a destination that may be made yet is an error for good: {error}"
    );
    send_well(&publisher, &[apart(&address, ODD)]).await?;
    arrive(&c, &channel, 0..5).await.map(drop)
}

pub(crate) async fn an_outage_of_the_broker<B: Broker>(c: Context<B>) -> CaseResult {
    let (channel, address) = destination(&c).await?;
    let publisher = c.broker.publisher(BRIEF)?;
    insist(&c, &publisher, &numbered(&address, 0..40)).await?;
    c.harm(Harm::Kill).await?;
    send_in_vain(&publisher, &numbered(&address, 40..50)).await?;
    c.harm(Harm::Start).await?;
    insist(&c, &publisher, &numbered(&address, 40..60)).await?;
    arrive(&c, &channel, 0..60).await.map(drop)
}

pub(crate) async fn a_broker_that_stands_still<B: Broker>(c: Context<B>) -> CaseResult {
    let (channel, address) = destination(&c).await?;
    let publisher = c.broker.publisher(BRIEF)?;
    insist(&c, &publisher, &numbered(&address, 0..20)).await?;
    c.harm(Harm::Pause).await?;
    let in_vain = send_in_vain(&publisher, &numbered(&address, 20..40)).await;
    c.harm(Harm::Resume).await?;
    in_vain?;
    insist(&c, &publisher, &numbered(&address, 20..60)).await?;
    arrive(&c, &channel, 0..60).await.map(drop)
}

pub(crate) async fn connections_that_are_cut<B: Broker>(c: Context<B>) -> CaseResult {
    const CUTS: usize = 4;
    const EACH: usize = 60;
    let (channel, address) = destination(&c).await?;
    let publisher = c.broker.publisher(LIMIT)?;
    for cut in 0..CUTS {
        let all = numbered(&address, cut * EACH..(cut + 1) * EACH);
        let publishing = async {
            for some in all.chunks(6) {
                insist(&c, &publisher, some).await?;
            }
            Ok::<_, Failure>(())
        };
        let cutting = async {
            sleep(Duration::from_millis(fastrand::u64(1..30))).await;
            c.harm(Harm::Cut).await
        };
        let (published, harmed) = tokio::join!(publishing, cutting);
        harmed?;
        published?;
    }
    arrive(&c, &channel, 0..CUTS * EACH).await.map(drop)
}
