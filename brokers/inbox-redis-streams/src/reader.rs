//! Reads a stream: first what this consumer has already, then what others have left, then what is new.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use inbox_source::SourceError;
use redis::{Cmd, Value, aio::MultiplexedConnection, cmd};
use tokio::{
    sync::{mpsc::Sender, watch},
    time::{Instant, sleep, timeout},
};

use crate::{
    RedisStreamsDelivery,
    entry::{Entry, of_claim, of_read},
    envelope::envelope,
    error::{connecting, failed, late, reading, unreadable},
    link::connect,
    shared::{PATIENCE, Shared},
};

/// How long the server waits for a new entry before it answers that there is none.
const BLOCK: Duration = Duration::from_millis(500);
/// The most entries of one answer, and so the most that wait here for the receiver.
pub(crate) const PAGE: usize = 250;
/// How large the largest entry is taken to be before one was read.
const LARGEST: usize = 1024 * 1024;
/// It is read when this part of what may be held is free, so that one command does not bring one entry.
const PART: usize = 4;
/// How often, in the time after which it is claimed, is looked for what others have left.
const LOOKS: u32 = 4;

type Outcome<T> = Result<T, SourceError>;
type Queue = Sender<Outcome<RedisStreamsDelivery>>;

/// Reads until it fails or is stopped. It is a task of its own: an answer of the server must be read to its
/// end, while the receiver may drop [`Source::next`](inbox_source::Source::next) at any time.
pub(crate) async fn read(shared: Arc<Shared>, queue: Queue, stop: watch::Receiver<bool>) {
    let mut reader = Reader {
        shared,
        queue,
        stop,
        largest: LARGEST,
    };
    if let Err(error) = reader.run().await {
        let _ = reader.queue.send(Err(error)).await;
    }
}

struct Reader {
    shared: Arc<Shared>,
    queue: Queue,
    stop: watch::Receiver<bool>,
    /// The bytes of the largest entry of late, by which is told how many a page may have.
    largest: usize,
}

impl Reader {
    async fn run(&mut self) -> Outcome<()> {
        let options = self.shared.options.clone();
        let connected = timeout(PATIENCE, connect(&options.connection)).await;
        let tls = options.connection.is_tls();
        let connected = connected.map_err(|_| connecting(None, tls))?;
        let mut connection = connected.map_err(|error| connecting(Some(&error), tls))?;
        if options.create {
            self.create_group(&mut connection).await?;
        }
        let look_every = (options.claim_after / LOOKS).min(Duration::from_secs(5));
        let mut look_at = Instant::now();
        let mut cursor = "0-0".to_owned();
        // What came before the connection was lost and never arrived is among it, and before all that is new.
        let mut own_after = Some("0-0".to_owned());
        while !*self.stop.borrow() {
            if self.shared.held.take_dropped() {
                own_after = Some("0-0".into());
            }
            let most = self.shared.most.load(Ordering::Relaxed);
            let free = most.saturating_sub(self.shared.held.count());
            let most_bytes = self.shared.most_bytes.load(Ordering::Relaxed);
            let free_bytes = most_bytes.saturating_sub(self.shared.held.bytes());
            if free == 0 || free < most / PART || free_bytes == 0 {
                self.wait_for_room().await;
                continue;
            }
            let count = free.min(PAGE).min(free_bytes / self.largest + 1);
            if let Some(after) = own_after.take() {
                let entries = self
                    .read_group(&mut connection, count, &after, None)
                    .await?;
                own_after = entries.last().map(|entry| entry.id.clone());
                self.hand_out(&mut connection, entries).await?;
            } else if look_at <= Instant::now() {
                let (next, entries) = self.claim(&mut connection, count, &cursor).await?;
                self.hand_out(&mut connection, entries).await?;
                if next == "0-0" {
                    look_at = Instant::now() + look_every;
                }
                cursor = next;
            } else {
                let wait = BLOCK.min(look_at - Instant::now());
                let new = self.read_group(&mut connection, count, ">", Some(wait));
                let entries = new.await?;
                self.hand_out(&mut connection, entries).await?;
            }
        }
        Ok(())
    }

    async fn wait_for_room(&mut self) {
        tokio::select! {
            () = self.shared.held.freed.notified() => {}
            _ = self.stop.changed() => {}
            // What was freed in between is seen then.
            () = sleep(BLOCK) => {}
        }
    }

    /// From the beginning of the stream.
    async fn create_group(&self, connection: &mut MultiplexedConnection) -> Outcome<()> {
        let options = &self.shared.options;
        let mut create = cmd("XGROUP");
        create
            .arg("CREATE")
            .arg(&options.stream)
            .arg(&options.group);
        create.arg("0").arg("MKSTREAM");
        let doing = "creating the group";
        match timeout(PATIENCE, create.query_async::<Value>(connection)).await {
            Ok(Ok(_)) => {
                tracing::info!(
                    stream = options.stream,
                    group = options.group,
                    "created the group"
                );
                Ok(())
            }
            Ok(Err(error)) if error.code() == Some("BUSYGROUP") => Ok(()),
            Ok(Err(error)) => Err(failed(doing, &error)),
            Err(_) => Err(late(doing)),
        }
    }

    /// New entries (`>`), for which the server may wait, or those that this consumer has already, after an id.
    async fn read_group(
        &self,
        connection: &mut MultiplexedConnection,
        count: usize,
        after: &str,
        wait: Option<Duration>,
    ) -> Outcome<Vec<Entry>> {
        let options = &self.shared.options;
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(&options.group).arg(&options.consumer);
        read.arg("COUNT").arg(count);
        if let Some(wait) = wait {
            // Without an end, if it were 0.
            let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1);
            read.arg("BLOCK").arg(millis);
        }
        read.arg("STREAMS").arg(&options.stream).arg(after);
        let answer = self.ask(connection, "receiving", &read).await?;
        of_read(answer).ok_or_else(|| unreadable("receiving"))
    }

    /// What another consumer had, or this one, and nobody has worked on for long.
    async fn claim(
        &self,
        connection: &mut MultiplexedConnection,
        count: usize,
        cursor: &str,
    ) -> Outcome<(String, Vec<Entry>)> {
        let options = &self.shared.options;
        let mut claim = cmd("XAUTOCLAIM");
        claim
            .arg(&options.stream)
            .arg(&options.group)
            .arg(&options.consumer);
        let idle = u64::try_from(options.claim_after.as_millis()).unwrap_or(u64::MAX);
        claim.arg(idle).arg(cursor).arg("COUNT").arg(count);
        let doing = "claiming what others left";
        let answer = self.ask(connection, doing, &claim).await?;
        of_claim(answer).ok_or_else(|| unreadable(doing))
    }

    /// In order, those that are not handed out already. Waits while the receiver takes none.
    async fn hand_out(
        &mut self,
        connection: &mut MultiplexedConnection,
        entries: Vec<Entry>,
    ) -> Outcome<()> {
        let mut gone = Vec::new();
        if !entries.is_empty() {
            let sizes = entries.iter().map(Entry::bytes);
            // It forgets a large one slowly: others of its kind may follow.
            self.largest = sizes.max().unwrap_or_default().max(self.largest / 2).max(1);
        }
        for Entry { id, fields } in entries {
            let Some(fields) = fields else {
                gone.push(id);
                continue;
            };
            let options = &self.shared.options;
            let envelope = envelope(&options.stream, &id, &options.payload, &fields);
            if !self.shared.held.add(&id, envelope.bytes()) {
                continue;
            }
            let delivery = RedisStreamsDelivery {
                envelope,
                // Only for dead letters.
                fields: options.dead_letters.as_ref().map(|_| fields),
                id,
                shared: Arc::clone(&self.shared),
                pause: Duration::ZERO,
            };
            // Dropped, it is given up.
            if self.queue.send(Ok(delivery)).await.is_err() {
                return Ok(());
            }
        }
        if !gone.is_empty() {
            let stream = &self.shared.options.stream;
            let count = gone.len();
            tracing::warn!(
                stream,
                count,
                "entries that were delivered were deleted or trimmed before they were acknowledged"
            );
            let ids = gone.iter().map(String::as_str);
            let commands = self.shared.acknowledging(ids);
            let doing = "acknowledging what was deleted";
            let sent = timeout(PATIENCE, commands.query_async::<Value>(connection)).await;
            sent.map_err(|_| late(doing))?
                .map_err(|error| failed(doing, &error))?;
        }
        Ok(())
    }

    async fn ask(
        &self,
        connection: &mut MultiplexedConnection,
        doing: &str,
        command: &Cmd,
    ) -> Outcome<Value> {
        let asked = timeout(BLOCK + PATIENCE, command.query_async(connection)).await;
        let answered = asked.map_err(|_| late(doing))?;
        answered.map_err(|error| reading(doing, &error, self.shared.options.create))
    }
}
