//! The suite of sources, on a real server.

use std::time::Duration;

use crate::harness::{Kafka, dead};
use async_trait::async_trait;
use inbox_kafka::{KafkaPublisher, KafkaSource};
use inbox_source::{Envelope, Mapping};
use rdkafka::Message as _;
use source_tests::{Abilities, Broker, Failure, Harm};
use test_servers::Server;
use tokio::task::block_in_place;

/// A channel is a topic of the name, and the group on it.
struct KafkaBroker(Kafka);

#[async_trait]
impl Broker for KafkaBroker {
    type Source = KafkaSource;
    type Publisher = KafkaPublisher;

    fn abilities(&self) -> Abilities {
        Abilities {
            stable_positions: true,
            order_by_key: true,
            order_across_consumers: true,
            order_after_a_kill: true,
            dead_letters: true,
            id_property: true,
            kind_property: true,
            key_property: true,
            binary_headers: true,
            binary_payloads: true,
            empty_payloads: true,
            // A record of 1 MiB, with its key and headers.
            max_payload: 1_000_000,
            // The session's length, and the rebalance that follows.
            redelivery: Duration::from_secs(15),
        }
    }

    async fn create(&self, channel: &str) -> Result<(), Failure> {
        self.0.create(channel, 4).await
    }

    async fn publish(&self, channel: &str, messages: &[Envelope]) -> Result<(), Failure> {
        self.0.publish(channel, messages).await
    }

    fn source(&self, channel: &str, mapping: Mapping) -> Result<KafkaSource, Failure> {
        Ok(KafkaSource::new(self.0.options(channel), mapping)?)
    }

    fn publisher(&self, limit: Duration) -> Result<KafkaPublisher, Failure> {
        Ok(self.0.publisher().timeout(limit))
    }

    async fn outstanding(&self, channel: &str) -> Result<u64, Failure> {
        block_in_place(|| self.0.outstanding(channel))
    }

    async fn dead_letters(&self, channel: &str) -> Result<Vec<Vec<u8>>, Failure> {
        let records = block_in_place(|| self.0.records(&dead(channel)))?;
        let payload =
            |record: &rdkafka::message::OwnedMessage| record.payload().map(<[u8]>::to_vec);
        Ok(records
            .iter()
            .map(|one| payload(one).unwrap_or_default())
            .collect())
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
        Some(self.0.servers.clone())
    }

    async fn attach(address: &str) -> Result<Self, Failure> {
        Ok(Self(Kafka::at(address)))
    }
}

source_tests::cases!(async || -> Result<Option<KafkaBroker>, Failure> {
    Ok(block_in_place(Kafka::own_behind_proxy)?.map(KafkaBroker))
});
