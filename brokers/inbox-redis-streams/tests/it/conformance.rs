//! The suite of sources, on a real server.

use std::time::Duration;

use async_trait::async_trait;
use inbox_redis_streams::{PAYLOAD, RedisStreamsPublisher, RedisStreamsSource};
use inbox_source::{Envelope, Mapping};
use source_tests::{Abilities, Broker, Failure, Harm};
use test_servers::{Kind, Server};
use tokio::task::block_in_place;

use crate::harness::{CLAIM_AFTER, Redis, dead};

/// A channel is a stream of the name, with one group.
struct RedisBroker(Redis);

#[async_trait]
impl Broker for RedisBroker {
    type Source = RedisStreamsSource;
    type Publisher = RedisStreamsPublisher;

    fn abilities(&self) -> Abilities {
        Abilities {
            stable_positions: true,
            order_by_key: true,
            // What a consumer leaves comes to others later than its successors.
            order_across_consumers: false,
            order_after_a_kill: true,
            dead_letters: true,
            id_property: true,
            kind_property: true,
            key_property: true,
            binary_headers: true,
            binary_payloads: true,
            empty_payloads: true,
            max_payload: 1_000_000,
            // `claim_after`, and how often is looked.
            redelivery: CLAIM_AFTER + Duration::from_secs(1),
        }
    }

    async fn create(&self, channel: &str) -> Result<(), Failure> {
        self.0.create(channel).await
    }

    async fn publish(&self, channel: &str, messages: &[Envelope]) -> Result<(), Failure> {
        self.0.publish(channel, messages).await
    }

    fn source(&self, channel: &str, mapping: Mapping) -> Result<RedisStreamsSource, Failure> {
        let options = self.0.options(channel)?.dead_letters(dead(channel))?;
        Ok(RedisStreamsSource::new(options, mapping)?)
    }

    fn publisher(&self, limit: Duration) -> Result<RedisStreamsPublisher, Failure> {
        Ok(self.0.publisher()?.timeout(limit))
    }

    async fn outstanding(&self, channel: &str) -> Result<u64, Failure> {
        let (waiting, delivered) = self.0.outstanding(channel).await?;
        Ok(waiting + delivered)
    }

    async fn dead_letters(&self, channel: &str) -> Result<Vec<Vec<u8>>, Failure> {
        let entries = self.0.entries(&dead(channel)).await?.into_iter();
        Ok(entries
            .filter_map(|(_, mut fields)| fields.remove(PAYLOAD))
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
        Some(self.0.address().to_owned())
    }

    async fn attach(address: &str) -> Result<Self, Failure> {
        Ok(Self(Redis::at(address)?))
    }
}

mod redis {
    use super::*;

    source_tests::cases!(async || -> Result<Option<RedisBroker>, Failure> {
        Ok(block_in_place(|| Redis::own(Kind::Redis))?.map(RedisBroker))
    });
}
