//! What the suite needs of a broker.

use std::{convert::Infallible, error::Error as StdError, fmt, time::Duration};

use async_trait::async_trait;
use inbox::receiver::{Envelope, Mapping, Publisher, Source, SourceError};

/// Any failure of a broker or its client, which ends the case. [`NotOffered`] says that it cannot be
/// checked here.
pub type Failure = Box<dyn StdError + Send + Sync>;

/// What a case asks for cannot be had here: a server that others use is not to be killed, say. The
/// case is then reported as not checked, for this reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotOffered(pub String);

impl fmt::Display for NotOffered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for NotOffered {}

/// The [publisher](Broker::Publisher) of a broker that has none under test. There is no value of it.
#[derive(Clone, Copy, Debug)]
pub struct NoPublisher(Infallible);

impl Publisher for NoPublisher {
    async fn publish(&self, _: &[Envelope]) -> Vec<Result<(), SourceError>> {
        match self.0 {}
    }
}

/// A broker under test: how to send to it, how to open a source, and how to harm it.
///
/// A case gets a *channel* of its own (a queue, a topic, a stream), made empty by
/// [`create`](Self::create). All consumers of a channel share its messages: they are in one group.
/// Cases run side by side, so channels must not meet; those that harm the broker run alone, on a
/// broker made for them.
#[async_trait]
pub trait Broker: Send + Sync + 'static {
    /// The source under test.
    type Source: Source + 'static;

    /// The publisher under test; [`NoPublisher`] where there is only a source.
    type Publisher: Publisher;

    /// What the broker is able to do, which decides which cases apply.
    fn abilities(&self) -> Abilities;

    /// Makes an empty channel, with dead letters if the broker has them.
    ///
    /// # Errors
    /// Whatever the broker says.
    async fn create(&self, channel: &str) -> Result<(), Failure>;

    /// Removes a channel of a case that has passed. Some brokers have work with every channel that is there. Provided: does
    /// nothing.
    ///
    /// # Errors
    /// Whatever the broker says. The case has passed all the same.
    async fn remove(&self, channel: &str) -> Result<(), Failure> {
        let _ = channel;
        Ok(())
    }

    /// Sends messages in this order and returns when the broker has all of them durably. Of an
    /// envelope, payload, headers, id, kind, key and content type are sent as the broker has them; it
    /// goes to `channel` whatever its address. Tries again while the broker is away, and may so send
    /// one twice.
    ///
    /// # Errors
    /// When the broker refuses a message, or is away for more than a minute.
    async fn publish(&self, channel: &str, messages: &[Envelope]) -> Result<(), Failure>;

    /// A source on the channel, not yet connected. Messages that it rejects go to the broker's dead
    /// letters if it has them.
    ///
    /// # Errors
    /// When the mapping does not fit the broker.
    fn source(&self, channel: &str, mapping: Mapping) -> Result<Self::Source, Failure>;

    /// A publisher, not yet connected, each of whose calls takes at most `limit`. Its connections are cut by
    /// [`Harm::Cut`], as those of sources are.
    ///
    /// # Errors
    /// [`NotOffered`] where there is none: its cases are not checked.
    fn publisher(&self, limit: Duration) -> Result<Self::Publisher, Failure>;

    /// The address that brings a publisher's message to the channel. Provided: the channel's name.
    fn destination(&self, channel: &str) -> String {
        channel.to_owned()
    }

    /// How many messages the broker still has for the channel's consumers: not delivered, or
    /// delivered and not acknowledged.
    ///
    /// # Errors
    /// Whatever the broker says.
    async fn outstanding(&self, channel: &str) -> Result<u64, Failure>;

    /// The payloads of the channel's dead letters, in any order.
    ///
    /// # Errors
    /// Whatever the broker says.
    async fn dead_letters(&self, channel: &str) -> Result<Vec<Vec<u8>>, Failure>;

    /// Harms the broker, or heals it, and returns when that is done (not when clients have noticed).
    ///
    /// # Errors
    /// [`NotOffered`] when it cannot be done, such as on a server that others use.
    async fn harm(&self, harm: Harm) -> Result<(), Failure>;

    /// What [`attach`](Self::attach) needs to find this broker from another process: the URL, say.
    /// Provided: `None`, so that no consumers run as processes of their own, to be killed.
    fn address(&self) -> Option<String> {
        None
    }

    /// The broker at an [`address`](Self::address) of another process of the same program, which
    /// neither starts nor stops it. It is used for [`source`](Self::source) and [`publish`](Self::publish). Provided:
    /// fails.
    ///
    /// # Errors
    /// When the address cannot be read.
    async fn attach(address: &str) -> Result<Self, Failure>
    where
        Self: Sized,
    {
        let _ = address;
        Err(NotOffered("attach is not implemented".into()).into())
    }
}

/// What a broker is able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "a list of independent facts")]
pub struct Abilities {
    /// A delivery has the same position whenever it comes, so that it can be an id.
    pub stable_positions: bool,
    /// Messages of one key come in their order while one consumer has them.
    pub order_by_key: bool,
    /// That order is kept while consumers come and go, as no two have one key at once.
    pub order_across_consumers: bool,
    /// A kill of the broker changes nothing in the order that it keeps. An emulator may forget it.
    pub order_after_a_kill: bool,
    /// What is rejected goes to the broker's own dead letters.
    pub dead_letters: bool,
    /// An envelope's id travels in a property of its own.
    pub id_property: bool,
    /// An envelope's kind travels in a property of its own.
    pub kind_property: bool,
    /// An envelope's key travels in a property of its own.
    pub key_property: bool,
    /// Header values may be any bytes.
    pub binary_headers: bool,
    /// Payloads may be any bytes.
    pub binary_payloads: bool,
    /// Payloads may be empty.
    pub empty_payloads: bool,
    /// The largest payload, in bytes.
    pub max_payload: usize,
    /// How long a consumer that vanished without a word keeps its deliveries, at most, as the source
    /// is set up here.
    pub redelivery: Duration,
}

/// What is done to a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Kills its process at once (`SIGKILL`).
    Kill,
    /// Starts it again, with its data.
    Start,
    /// Stops its process (`SIGSTOP`): connections stay open and silent.
    Pause,
    /// Lets it go on.
    Resume,
    /// Closes or resets the connections of all consumers and publishers, the broker itself staying up.
    Cut,
}
