//! The suite of sources, on real servers.

use std::time::Duration;

use async_trait::async_trait;
use inbox_nats::{NatsPublisher, NatsSource};
use inbox_source::{Envelope, Mapping};
use source_tests::{Abilities, Broker, Failure, Harm};
use test_servers::{Kind, Server};
use tokio::task::block_in_place;

use crate::harness::{ACK_WAIT, Nats, dead};

/// A channel is a stream of the name, with one consumer.
struct NatsBroker<const CONFIRM: bool>(Nats);

#[async_trait]
impl<const CONFIRM: bool> Broker for NatsBroker<CONFIRM> {
    type Source = NatsSource;
    type Publisher = NatsPublisher;

    fn abilities(&self) -> Abilities {
        Abilities {
            stable_positions: true,
            // What comes again after a lost connection comes later than its successors.
            order_by_key: false,
            order_across_consumers: false,
            order_after_a_kill: true,
            dead_letters: true,
            id_property: true,
            kind_property: true,
            key_property: true,
            binary_headers: false,
            binary_payloads: true,
            empty_payloads: true,
            // Of 1 MiB, with headers.
            max_payload: 1_000_000,
            // `ack_wait`, and what the server needs to look.
            redelivery: ACK_WAIT + Duration::from_secs(2),
        }
    }

    async fn create(&self, channel: &str) -> Result<(), Failure> {
        self.0.create(channel).await
    }

    async fn publish(&self, channel: &str, messages: &[Envelope]) -> Result<(), Failure> {
        self.0.publish(channel, messages).await
    }

    fn source(&self, channel: &str, mapping: Mapping) -> Result<NatsSource, Failure> {
        let options = self.0.options(channel)?.confirm(CONFIRM);
        let options = options.dead_letters(dead(channel))?;
        Ok(NatsSource::new(options, mapping)?)
    }

    fn publisher(&self, limit: Duration) -> Result<NatsPublisher, Failure> {
        Ok(self.0.publisher()?.timeout(limit))
    }

    async fn outstanding(&self, channel: &str) -> Result<u64, Failure> {
        let (waiting, delivered) = self.0.outstanding(channel).await?;
        Ok(waiting + delivered)
    }

    async fn dead_letters(&self, channel: &str) -> Result<Vec<Vec<u8>>, Failure> {
        let messages = self.0.messages(&dead(channel)).await?;
        Ok(messages.iter().map(|one| one.payload.to_vec()).collect())
    }

    async fn harm(&self, harm: Harm) -> Result<(), Failure> {
        block_in_place(|| match harm {
            Harm::Kill => self.0.harm(Server::kill),
            Harm::Start => self.0.harm(Server::start),
            Harm::Pause => self.0.harm(Server::pause),
            Harm::Resume => self.0.harm(Server::resume),
            Harm::Cut => self.0.cut(),
        })
    }

    fn address(&self) -> Option<String> {
        Some(self.0.address().to_owned())
    }

    async fn attach(address: &str) -> Result<Self, Failure> {
        Ok(Self(Nats::at(address)?))
    }
}

mod any {
    use super::*;

    source_tests::cases!(async || -> Result<Option<NatsBroker<false>>, Failure> {
        Ok(block_in_place(|| Nats::own(Kind::Nats))?.map(NatsBroker))
    });
}

/// With confirmed acknowledgements.
mod newest {
    use super::*;

    source_tests::cases!(async || -> Result<Option<NatsBroker<true>>, Failure> {
        Ok(block_in_place(|| Nats::own(Kind::NatsNewest))?.map(NatsBroker))
    });
}
