//! The task of one connection: hears the server, and says what is finished.

use std::{collections::BTreeMap, future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use inbox_source::SourceError;
use tokio::{
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender},
        oneshot,
    },
    time::{Instant, sleep_until, timeout},
};

use super::{
    chunk::Chunk,
    error::{Outcome, malformed, refused},
    frame::{self, Begin, Incoming, code, code_of, key},
    link::{HEARTBEAT, Link},
    open::kept_offset,
    options::RabbitMqStreamOptions,
    shared::Shared,
    wire::{Reader, Writer},
};

/// After so long without a word the server is gone.
const SILENCE: Duration = Duration::from_secs(2 * HEARTBEAT as u64);
/// After so long without a word to the server it gets one.
const SAY_EVERY: Duration = Duration::from_secs(HEARTBEAT as u64 / 2);
/// How often an offset is stored, at most: the server writes each into the stream.
const STORE_EVERY: Duration = Duration::from_millis(500);
/// How often the server is asked how much is behind.
const LAG_EVERY: Duration = Duration::from_secs(5);
/// The same, the first time: by then the first chunk is here, if there is one.
const LAG_FIRST: Duration = Duration::from_secs(1);
/// What is given up is read again so much later: if the source is dropped with it, it is not.
const MOMENT: Duration = Duration::from_millis(100);
/// How long an orderly end may take.
const END_LIMIT: Duration = Duration::from_secs(4);

/// How many chunks are asked for at a time. With the one whose records are handed out, two are in memory.
const CREDIT: u16 = 1;

/// What the source wants.
#[derive(Debug)]
pub(crate) enum Order {
    /// One more chunk, of this reading of the stream.
    More(u64),
    /// An end, and word of it.
    Close(oneshot::Sender<Outcome<()>>),
}

/// What the server was asked.
#[derive(Debug)]
enum Question {
    Subscribe,
    /// The offset that it keeps, to store a later one.
    Offset,
    /// The same, to answer that the subscription is active; with the number to answer under.
    Activate(u32),
    Lag,
}

/// Why the task ends in order. `None` when nobody waits for it.
type End = Option<oneshot::Sender<Outcome<()>>>;

pub(crate) struct Session {
    link: Link,
    options: RabbitMqStreamOptions,
    shared: Arc<Shared>,
    supply: UnboundedSender<Outcome<Chunk>>,
    orders: UnboundedReceiver<Order>,
    questions: BTreeMap<u32, Question>,
    subscription: u8,
    /// Whether a chunk was asked for that has not come.
    is_waiting: bool,
    stored_at: Instant,
    lag_at: Option<Instant>,
    has_warned: bool,
}

impl Session {
    pub(crate) fn new(
        link: Link,
        options: RabbitMqStreamOptions,
        shared: Arc<Shared>,
        supply: UnboundedSender<Outcome<Chunk>>,
        orders: UnboundedReceiver<Order>,
    ) -> Self {
        let now = Instant::now();
        Self {
            // Earlier servers end a connection over which they are asked.
            lag_at: (link.version >= (3, 11)).then(|| now + LAG_FIRST),
            link,
            options,
            shared,
            supply,
            orders,
            questions: BTreeMap::new(),
            subscription: 0,
            is_waiting: false,
            stored_at: now,
            has_warned: false,
        }
    }

    /// Until the source wants an end, or is dropped, or the connection is lost.
    pub(crate) async fn run(mut self) {
        let ended = self.serve().await;
        self.shared.ledger().end();
        match ended {
            Ok(end) => {
                let late = |_| SourceError::transient("closing: no answer in time");
                let closed = timeout(END_LIMIT, self.close()).await;
                let closed = closed.map_err(late).flatten();
                match (end, closed) {
                    (Some(end), closed) => drop(end.send(closed)),
                    (None, Err(error)) => tracing::debug!("{error}"),
                    (None, Ok(())) => {}
                }
            }
            Err(error) => drop(self.supply.send(Err(error))),
        }
    }

    async fn serve(&mut self) -> Outcome<End> {
        self.subscribe().await?;
        loop {
            let wake = self.next_work();
            let wake = async {
                match wake {
                    Some(wake) => sleep_until(wake).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                order = self.orders.recv() => match order {
                    Some(Order::More(reading)) => self.more(reading).await?,
                    Some(Order::Close(end)) => return Ok(Some(end)),
                    None => return Ok(None),
                },
                said = self.link.read() => self.hear(said?).await?,
                () = self.shared.changed.notified() => {}
                () = wake => {}
            }
            self.work().await?;
        }
    }

    /// Begins where the ledger is, under a new number: what still comes under the old one is not taken.
    async fn subscribe(&mut self) -> Outcome<()> {
        self.subscription = self.subscription.wrapping_add(1);
        self.is_waiting = true;
        let subscription = self.subscription;
        let begin = self.begin();
        let name = &self.options.consumer;
        let mut properties = vec![("name", name.as_str())];
        if self.options.single_active_consumer {
            properties.push(("single-active-consumer", "true"));
            // The server says when it is this one's turn.
            self.shared.ledger().end();
        } else {
            self.shared.ledger().open();
        }
        let stream = &self.options.stream;
        let asking = self.link.ask(key::SUBSCRIBE, |writer| {
            let writer = begin.write(writer.u8(subscription).text(stream));
            writer.u16(CREDIT).pairs(&properties)
        });
        let asked = asking.await?;
        self.questions.insert(asked, Question::Subscribe);
        Ok(())
    }

    fn begin(&self) -> Begin {
        let next = self.shared.ledger().next();
        next.map_or_else(|| self.options.start.begin(), Begin::Offset)
    }

    async fn more(&mut self, reading: u64) -> Outcome<()> {
        if self.shared.ledger().reading() != Some(reading) {
            return Ok(());
        }
        self.is_waiting = true;
        let credit = Writer::default().u8(self.subscription).u16(CREDIT);
        self.link.say(key::CREDIT, credit).await
    }

    /// When there is something to do next, without anything being heard.
    fn next_work(&self) -> Option<Instant> {
        let ledger = self.shared.ledger();
        let is_storing = self.is_asked(|question| matches!(question, Question::Offset));
        let store =
            (ledger.has_to_ask() && !is_storing).then(|| self.stored_at.checked_add(STORE_EVERY));
        let rewind = ledger.rewinds_since();
        let rewind = rewind.map(|since| Instant::from_std(since).checked_add(MOMENT));
        let times = [
            self.link.heard.checked_add(SILENCE),
            self.link.said.checked_add(SAY_EVERY),
            store.flatten(),
            rewind.flatten(),
            self.lag_at,
        ];
        times.into_iter().flatten().min()
    }

    fn is_asked(&self, which: impl Fn(&Question) -> bool) -> bool {
        self.questions.values().any(which)
    }

    /// Does what is due.
    async fn work(&mut self) -> Outcome<()> {
        if self.link.heard.elapsed() >= SILENCE {
            return Err(SourceError::transient("the server is silent"));
        }
        let (has_to_ask, rewinds_since) = {
            let ledger = self.shared.ledger();
            (ledger.has_to_ask(), ledger.rewinds_since())
        };
        let is_storing = self.is_asked(|question| matches!(question, Question::Offset));
        if has_to_ask && !is_storing && self.stored_at.elapsed() >= STORE_EVERY {
            self.ask_offset(Question::Offset).await?;
        }
        if rewinds_since.is_some_and(|since| since.elapsed() >= MOMENT) {
            self.rewind().await?;
        }
        if self.lag_at.is_some_and(|at| at <= Instant::now()) {
            self.lag_at = Instant::now().checked_add(LAG_EVERY);
            let stream = &self.options.stream;
            let asking = self
                .link
                .ask(key::STREAM_STATS, |writer| writer.text(stream));
            let asked = asking.await?;
            self.questions.insert(asked, Question::Lag);
        }
        if self.link.said.elapsed() >= SAY_EVERY {
            self.link.say(key::HEARTBEAT, Writer::default()).await?;
        }
        Ok(())
    }

    async fn rewind(&mut self) -> Outcome<()> {
        let subscription = self.subscription;
        // Its answer tells nothing.
        let end = |writer: Writer| writer.u8(subscription);
        self.link.ask(key::UNSUBSCRIBE, end).await?;
        self.shared.ledger().rewind();
        self.subscribe().await
    }

    async fn ask_offset(&mut self, question: Question) -> Outcome<()> {
        let (consumer, stream) = (&self.options.consumer, &self.options.stream);
        let asking = self.link.ask(key::QUERY_OFFSET, |writer| {
            writer.text(consumer).text(stream)
        });
        let asked = asking.await?;
        self.questions.insert(asked, question);
        Ok(())
    }

    async fn hear(&mut self, said: Incoming) -> Outcome<()> {
        match said {
            Incoming::Deliver(subscription, bytes) => {
                if subscription != self.subscription {
                    return Ok(());
                }
                self.is_waiting = false;
                let reading = self.shared.ledger().reading();
                if let Some(reading) = reading {
                    let chunk = Chunk::read(reading, bytes).map_err(malformed)?;
                    // Where the source is gone, an end is near.
                    let _ = self.supply.send(Ok(chunk));
                }
                Ok(())
            }
            Incoming::Answer(asked, answer) => match self.questions.remove(&asked) {
                Some(question) => self.learn(question, answer).await,
                None => Ok(()),
            },
            Incoming::ConsumerUpdate(number, true) => {
                self.ask_offset(Question::Activate(number)).await
            }
            Incoming::ConsumerUpdate(number, false) => self.rest(number).await,
            Incoming::Moved => Err(SourceError::transient(
                "the server has ended the subscription; the stream has moved or is gone",
            )),
            Incoming::Close(number, reason) => {
                let content = Writer::default().u32(number).u16(code::OK);
                self.link.send(&frame::answer(key::CLOSE, content)).await?;
                Err(SourceError::transient(format!(
                    "the server has closed the connection: {reason}"
                )))
            }
            Incoming::Tune { .. }
            | Incoming::Confirmed
            | Incoming::NotPublished(_)
            | Incoming::Nothing => Ok(()),
        }
    }

    async fn learn(&mut self, question: Question, answer: Bytes) -> Outcome<()> {
        match question {
            Question::Subscribe => match code_of(&answer).map_err(malformed)? {
                code::OK => Ok(()),
                refusal => Err(refused("subscribing", refusal)),
            },
            Question::Offset => {
                self.stored_at = Instant::now();
                let kept = kept_offset(&answer)?;
                self.store_behind(kept).await.map(drop)
            }
            Question::Activate(number) => {
                let kept = kept_offset(&answer)?;
                let reading = {
                    let mut ledger = self.shared.ledger();
                    ledger.restart(kept);
                    ledger.reading()
                };
                self.answer_update(number, self.begin()).await?;
                match reading {
                    // What was asked for came when another one was to be active.
                    Some(reading) if !self.is_waiting => self.more(reading).await,
                    _ => Ok(()),
                }
            }
            Question::Lag => {
                let newest = newest(&answer).map_err(malformed)?;
                let ledger = self.shared.ledger();
                // Behind the last message there may be offsets of the server's own.
                let is_at_end = self.is_waiting && ledger.reading().is_some();
                let behind = newest.and_then(|newest| ledger.behind(newest));
                self.shared
                    .set_lag(if is_at_end { Some(0) } else { behind });
                Ok(())
            }
        }
    }

    /// Another consumer of the name is to be active. It goes on behind what is stored here.
    async fn rest(&mut self, number: u32) -> Outcome<()> {
        self.shared.ledger().end();
        let kept = self.shared.ledger().stored();
        self.store_behind(kept).await?;
        self.answer_update(number, Begin::Nowhere).await
    }

    async fn answer_update(&mut self, number: u32, begin: Begin) -> Outcome<()> {
        let content = begin.write(Writer::default().u32(number).u16(code::OK));
        let answer = frame::answer(key::CONSUMER_UPDATE, content);
        self.link.send(&answer).await
    }

    /// Stores what is finished if the server keeps an earlier offset, or none: another consumer of the name may
    /// have come further, and is not to be set back. Returns what was stored.
    async fn store_behind(&mut self, kept: Option<u64>) -> Outcome<Option<u64>> {
        let (before, to_store) = {
            let mut ledger = self.shared.ledger();
            let before = ledger.stored();
            ledger.set_kept(kept);
            (before, ledger.to_store())
        };
        if kept < before && !self.has_warned {
            self.has_warned = true;
            self.shared.ledger().set_not_kept();
            tracing::warn!(
                stream = self.options.stream,
                consumer = self.options.consumer,
                "the server does not keep the offset that it was told; \
                 before RabbitMQ 3.13 it needs the right to write to the stream"
            );
        }
        let Some(offset) = to_store else {
            return Ok(None);
        };
        let (consumer, stream) = (&self.options.consumer, &self.options.stream);
        let content = Writer::default().text(consumer).text(stream).u64(offset);
        self.link.say(key::STORE_OFFSET, content).await?;
        self.shared.ledger().set_told(offset);
        Ok(Some(offset))
    }

    /// Stores what is finished, makes sure of it, and ends the connection.
    async fn close(&mut self) -> Outcome<()> {
        let stored = self.store_last().await;
        let end = |writer: Writer| writer.u16(code::OK).text("closing");
        let closed = self.link.answer(key::CLOSE, end).await;
        stored.and(closed.map(drop))
    }

    async fn store_last(&mut self) -> Outcome<()> {
        if self.shared.ledger().to_store().is_none() {
            return Ok(());
        }
        let kept = self.kept_offset().await?;
        let Some(offset) = self.store_behind(kept).await? else {
            return Ok(());
        };
        match self.kept_offset().await? >= Some(offset) {
            true => Ok(()),
            false => Err(SourceError::transient(
                "closing: the server does not keep the offset that it was told",
            )),
        }
    }

    async fn kept_offset(&mut self) -> Outcome<Option<u64>> {
        let (consumer, stream) = (&self.options.consumer, &self.options.stream);
        let asking = self.link.answer(key::QUERY_OFFSET, |writer| {
            writer.text(consumer).text(stream)
        });
        kept_offset(&asking.await?)
    }
}

/// The newest offset of a stream that a server tells of: older ones know only that of the last chunk's beginning.
fn newest(answer: &[u8]) -> Result<Option<u64>, super::wire::Malformed> {
    let mut reader = Reader::new(answer);
    let mut newest = None;
    if reader.u16()? == code::OK {
        for _ in 0..reader.u32()? {
            let (name, value) = (reader.text()?, reader.i64()?);
            if ["committed_chunk_id", "committed_offset"].contains(&name) {
                newest = newest.max(u64::try_from(value).ok());
            }
        }
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_offset_is_what_is_known_of_it() {
        let stats = Writer::default().u16(code::OK).u32(2);
        let stats = stats.text("first_chunk_id").u64(0);
        let chunk = stats.text("committed_chunk_id").u64(90).0;
        assert_eq!(newest(&chunk), Ok(Some(90)));
        let empty = Writer::default().u16(code::OK).u32(1);
        let empty = empty.text("committed_offset").u64(u64::MAX).0;
        assert_eq!(newest(&empty), Ok(None));
        assert_eq!(newest(&code::STREAM_AWAY.to_be_bytes()), Ok(None));
    }
}
