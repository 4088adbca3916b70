//! Reads a durable pull consumer.

use std::{borrow::Cow, collections::VecDeque, fmt, sync::Arc, time::Duration};

use async_nats::jetstream::Message;
use inbox_source::{Flow, Mapping, Positions, Source, SourceError};
use tokio::{task::JoinHandle, time::timeout};

use crate::{
    NatsDelivery, NatsOptions,
    envelope::envelope,
    held::{Size, Ticket},
    options::invalid,
    pull::Pull,
    session::Session,
    stop::Stop,
    unreadable::{self, Found, Unreadable},
};

/// How long connecting may take, with looking for stream and consumer.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);
/// How long what is on its way at the end is waited for.
const END_LIMIT: Duration = Duration::from_secs(3);

type Outcome<T> = Result<T, SourceError>;

/// A durable pull consumer of a stream. See the [crate](crate).
pub struct NatsSource {
    options: NatsOptions,
    mapping: Arc<Mapping>,
    /// As the receiver says.
    flow: Size,
    open: Option<Open>,
    opening: Option<Opening>,
    /// What a former connection had, to be given back over the next one.
    left: Option<Left>,
    /// Whether the last connection was lost before it brought anything: then one message is asked for at a
    /// time, so that one that nothing tells of keeps no others from coming.
    is_barren: bool,
    /// The latest message that came.
    seen: u64,
    /// Where looking for what the client does not read had no time left.
    stopped: Option<u64>,
    /// Set by the rejected delivery that ends the source.
    stop: Arc<Stop>,
}

struct Open {
    session: Arc<Session>,
    pull: Pull,
    keeper: JoinHandle<()>,
    /// What the client does not read, and was found in the stream.
    found: VecDeque<Unreadable>,
    stopped: Option<u64>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.session.lose();
        self.keeper.abort();
    }
}

/// The next connection, made by a task of its own: the receiver may drop [`Source::next`] at any time, and an
/// attempt would otherwise begin again and again.
struct Opening(JoinHandle<Outcome<Open>>);

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What was held of a stream that was created then.
#[derive(Clone)]
struct Left {
    created: i128,
    tickets: Vec<Ticket>,
    /// Whether messages may have been on their way.
    has_asked: bool,
    /// Where to look at first for what the client does not read.
    look_from: u64,
}

impl NatsSource {
    /// A source that connects when it is first asked.
    ///
    /// # Errors
    /// `Invalid` when the mapping names no place for an id.
    pub fn new(options: NatsOptions, mapping: Mapping) -> inbox_api::Result<Self> {
        let checked = mapping.check(Positions::Stable);
        checked.map_err(|error| invalid(error.to_string()))?;
        Ok(Self {
            options,
            mapping: Arc::new(mapping),
            flow: Size {
                count: 1000,
                bytes: usize::MAX,
            },
            open: None,
            opening: None,
            is_barren: false,
            seen: 0,
            stopped: None,
            left: None,
            stop: Arc::default(),
        })
    }

    async fn connect(&mut self) -> Outcome<&mut Open> {
        if self.open.is_none() {
            let most = self.most();
            let opening = self.opening.get_or_insert_with(|| {
                let (options, left) = (self.options.clone(), self.left.clone());
                Opening(tokio::spawn(async move {
                    let opened = timeout(CONNECT_LIMIT, open(&options, most, left)).await;
                    opened.unwrap_or_else(|_| {
                        Err(SourceError::transient(
                            "connecting: the server did not answer in time",
                        ))
                    })
                }))
            });
            let opened = (&mut opening.0).await;
            self.opening = None;
            let opened =
                opened.map_err(|_| SourceError::transient("connecting was given up"))??;
            self.left = None;
            // What was found is why.
            self.is_barren &= opened.found.is_empty();
            self.stopped = opened.stopped;
            return Ok(self.open.insert(opened));
        }
        let gone = || SourceError::transient("not connected");
        self.open.as_mut().ok_or_else(gone)
    }

    fn most(&self) -> Size {
        let count = if self.is_barren { 1 } else { self.flow.count };
        Size { count, ..self.flow }
    }

    fn found(&mut self) -> Option<NatsDelivery> {
        let open = self.open.as_mut()?;
        let found = open.found.pop_front()?;
        Some(NatsDelivery {
            envelope: found.envelope,
            headers: None,
            unreadable: Some(found.head),
            deliveries: 1,
            ticket: found.ticket,
            pause: Duration::ZERO,
            mapping: Arc::clone(&self.mapping),
            session: Arc::clone(&open.session),
            stop: Arc::clone(&self.stop),
        })
    }

    fn delivery(&mut self, message: Message) -> Option<NatsDelivery> {
        let session = Arc::clone(&self.open.as_ref()?.session);
        let (ticket, pending) = hold(&session, &message)?;
        session.set_lag(pending);
        self.seen = ticket.0;
        let info = message.info().ok()?;
        Some(NatsDelivery {
            envelope: envelope(&message, &info, session.created),
            deliveries: info.delivered,
            headers: message.message.headers,
            unreadable: None,
            ticket,
            pause: Duration::ZERO,
            mapping: Arc::clone(&self.mapping),
            session,
            stop: Arc::clone(&self.stop),
        })
    }

    /// Keeps in mind what the connection had.
    fn lose(&mut self) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        open.session.lose();
        let has_asked = open.pull.has_asked();
        self.is_barren = open.pull.is_barren();
        for message in open.pull.rest() {
            hold(&open.session, &message);
        }
        let mut tickets = open.session.held.take_all();
        tickets.retain(|ticket| !unreadable::was_found(ticket));
        self.left = Some(Left {
            created: open.session.created,
            tickets,
            has_asked,
            // It is behind what came last, most likely.
            look_from: self.stopped.unwrap_or(self.seen),
        });
    }
}

/// Notes that the server waits for an answer, and says how many messages it has behind this one. `None` for what is no
/// message of the stream.
fn hold(session: &Session, message: &Message) -> Option<(Ticket, u64)> {
    let info = message.info().ok()?;
    let ticket = (info.stream_sequence, message.reply.clone()?);
    session.held.add(ticket.clone(), message.length);
    Some((ticket, info.pending))
}

async fn open(options: &NatsOptions, most: Size, left: Option<Left>) -> Outcome<Open> {
    let (session, consumer) = Session::open(options).await?;
    let session = Arc::new(session);
    // Of a stream that was made again, the same numbers are other messages.
    let left = left.filter(|left| left.created == session.created);
    let mut found = Found::default();
    if let Some(left) = left.as_ref().filter(|left| left.has_asked) {
        let known = left.tickets.iter().map(|(sequence, _)| *sequence);
        found = unreadable::find(&session, &consumer, &known.collect(), left.look_from).await;
        for one in &found.messages {
            session.held.add(one.ticket.clone(), one.envelope.bytes());
        }
    }
    let mut pull = Pull::new(&session, consumer).await?;
    if let Some(left) = left {
        // Asked for first: a server gives what comes back to the request that is open, which would be
        // one of the former connection; it then takes the first message for delivered.
        pull.ask(most).await?;
        let replies = left.tickets.into_iter().map(|(_, reply)| reply);
        session.give_back(replies.collect()).await?;
    }
    let keeper = tokio::spawn(Arc::clone(&session).keep());
    Ok(Open {
        session,
        pull,
        keeper,
        found: found.messages.into(),
        stopped: found.stopped,
    })
}

impl Source for NatsSource {
    type Delivery = NatsDelivery;

    async fn next(&mut self) -> Outcome<Option<NatsDelivery>> {
        let stop = Arc::clone(&self.stop);
        loop {
            if let Some(error) = stop.error() {
                // The connection stays: what is in flight is to be acknowledged still.
                return Err(error);
            }
            self.connect().await?;
            if let Some(found) = self.found() {
                return Ok(Some(found));
            }
            let most = self.most();
            let open = self.connect().await?;
            let came = tokio::select! {
                biased;
                came = open.pull.next(&open.session, most) => came,
                () = stop.wait() => continue,
            };
            match came {
                Ok(message) => {
                    self.is_barren = false;
                    if let Some(delivery) = self.delivery(message) {
                        return Ok(Some(delivery));
                    }
                }
                Err(error) => {
                    self.lose();
                    return Err(error);
                }
            }
        }
    }

    fn set_flow(&mut self, flow: Flow) {
        self.flow = Size {
            count: flow.max_unacknowledged.max(1),
            bytes: flow.max_unacknowledged_bytes.max(1),
        };
    }

    async fn close(&mut self) -> Outcome<()> {
        self.opening = None;
        let Some(mut open) = self.open.take() else {
            return Ok(());
        };
        open.keeper.abort();
        let last = timeout(END_LIMIT, open.pull.end(&open.session)).await;
        for message in last.unwrap_or_default() {
            hold(&open.session, &message);
        }
        let replies = match open.session.can_give_back() {
            true => open.session.held.take_all(),
            false => Vec::new(),
        };
        let replies = replies.into_iter().map(|(_, reply)| reply);
        open.session.give_back(replies.collect()).await
    }

    fn name(&self) -> Cow<'static, str> {
        format!("nats/{}", self.options.stream).into()
    }

    fn lag(&self) -> Option<u64> {
        self.open.as_ref()?.session.lag()
    }
}

impl fmt::Debug for NatsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSource")
            .field("options", &self.options)
            .field("mapping", &self.mapping)
            .finish_non_exhaustive()
    }
}
