//! Reads a durable pull consumer.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use async_nats::{Subject, jetstream::Message};
use inbox_source::{Flow, Mapping, Positions, Source, SourceError};
use tokio::{task::JoinHandle, time::timeout};

use crate::{
    NatsDelivery, NatsOptions, envelope::envelope, held::Ticket, options::invalid, pull::Pull,
    session::Session,
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
    max_unacknowledged: usize,
    open: Option<Open>,
    opening: Option<Opening>,
    /// What a former connection had, to be given back over the next one.
    left: Option<Left>,
    /// As the latest message said.
    pending: Option<u64>,
}

struct Open {
    session: Arc<Session>,
    pull: Pull,
    keeper: JoinHandle<()>,
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

/// Reply subjects of a stream that was created then.
#[derive(Clone)]
struct Left {
    created: i128,
    replies: Vec<Subject>,
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
            max_unacknowledged: 1000,
            open: None,
            opening: None,
            left: None,
            pending: None,
        })
    }

    async fn connect(&mut self) -> Outcome<&mut Open> {
        if self.open.is_none() {
            let opening = self.opening.get_or_insert_with(|| {
                let (options, left) = (self.options.clone(), self.left.clone());
                let most = self.max_unacknowledged;
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
            return Ok(self.open.insert(opened));
        }
        let gone = || SourceError::transient("not connected");
        self.open.as_mut().ok_or_else(gone)
    }

    fn delivery(&mut self, message: Message) -> Option<NatsDelivery> {
        let session = Arc::clone(&self.open.as_ref()?.session);
        let (ticket, pending) = hold(&session, &message)?;
        self.pending = Some(pending);
        Some(NatsDelivery {
            envelope: envelope(&message, &message.info().ok()?, session.created),
            headers: message.message.headers,
            ticket,
            mapping: Arc::clone(&self.mapping),
            session,
        })
    }

    /// Keeps in mind what the connection had.
    fn lose(&mut self) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        open.session.lose();
        for message in open.pull.rest() {
            hold(&open.session, &message);
        }
        self.left = Some(Left {
            created: open.session.created,
            replies: open.session.held.take_all(),
        });
    }
}

/// Notes that the server waits for an answer, and says how many messages it has behind this one. `None` for what is no
/// message of the stream.
fn hold(session: &Session, message: &Message) -> Option<(Ticket, u64)> {
    let info = message.info().ok()?;
    let ticket = (info.stream_sequence, message.reply.clone()?);
    session.held.add(ticket.clone());
    Some((ticket, info.pending))
}

async fn open(options: &NatsOptions, most: usize, left: Option<Left>) -> Outcome<Open> {
    let (session, consumer) = Session::open(options).await?;
    let session = Arc::new(session);
    let mut pull = Pull::new(&session, consumer).await?;
    // Of a stream that was made again, the same numbers are other messages.
    if let Some(left) = left.filter(|left| left.created == session.created) {
        // Asked for first: a server gives what comes back to the request that is open, which would be
        // one of the former connection; it then takes the first message for delivered.
        pull.ask(most).await?;
        session.give_back(left.replies).await?;
    }
    let keeper = tokio::spawn(Arc::clone(&session).keep());
    Ok(Open {
        session,
        pull,
        keeper,
    })
}

impl Source for NatsSource {
    type Delivery = NatsDelivery;

    async fn next(&mut self) -> Outcome<Option<NatsDelivery>> {
        loop {
            let most = self.max_unacknowledged;
            let open = self.connect().await?;
            match open.pull.next(&open.session, most).await {
                Ok(message) => {
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
        self.max_unacknowledged = flow.max_unacknowledged.max(1);
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
        open.session.give_back(replies).await
    }

    fn name(&self) -> Cow<'static, str> {
        format!("nats/{}", self.options.stream).into()
    }

    fn lag(&self) -> Option<u64> {
        self.pending
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
