//! The suite of sources: whole on streams of RabbitMQ 4, and parts of it on those of the version that the machine has and with a
//! single active consumer.
//!
//! `INBOX_TEST_SUITE_ON=rabbitmq` or `single` takes the whole to these, by hand. RabbitMQ 3.10 that is killed does not always
//! bring its streams back.

use std::time::Duration;

use async_trait::async_trait;
use inbox_rabbitmq::{RabbitMqPublisher, RabbitMqStreamSource};
use inbox_source::{Envelope, Mapping};
use source_tests::{Abilities, Broker, Failure, Harm};
use test_servers::{Kind, Server};
use tokio::task::block_in_place;

use super::harness::Streams;
use crate::harness::dead;

/// A channel is a stream of the name.
struct StreamBroker(Streams);

#[async_trait]
impl Broker for StreamBroker {
    type Source = RabbitMqStreamSource;
    type Publisher = RabbitMqPublisher;

    fn abilities(&self) -> Abilities {
        Abilities {
            stable_positions: true,
            order_by_key: true,
            // Each reads in order, whether others read the same or not.
            order_across_consumers: true,
            order_after_a_kill: true,
            dead_letters: true,
            id_property: true,
            kind_property: true,
            key_property: true,
            binary_headers: true,
            binary_payloads: true,
            empty_payloads: true,
            max_payload: 1_000_000,
            redelivery: match self.0.single_active_consumer {
                // Two heartbeats, and as long again for the server to look.
                true => Duration::from_secs(12),
                // Nothing is kept from others.
                false => Duration::from_secs(1),
            },
        }
    }

    async fn create(&self, channel: &str) -> Result<(), Failure> {
        self.0.create(channel).await
    }

    async fn publish(&self, channel: &str, messages: &[Envelope]) -> Result<(), Failure> {
        self.0.publish(channel, messages).await
    }

    fn source(&self, channel: &str, mapping: Mapping) -> Result<RabbitMqStreamSource, Failure> {
        let options = self.0.options(channel)?;
        Ok(RabbitMqStreamSource::new(options, mapping)?)
    }

    fn publisher(&self, limit: Duration) -> Result<RabbitMqPublisher, Failure> {
        Ok(self.0.rabbit.publisher()?.timeout(limit))
    }

    async fn outstanding(&self, channel: &str) -> Result<u64, Failure> {
        self.0.outstanding(channel).await
    }

    async fn dead_letters(&self, channel: &str) -> Result<Vec<Vec<u8>>, Failure> {
        self.0.payloads(&dead(channel)).await
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
        Some(self.0.name())
    }

    async fn attach(address: &str) -> Result<Self, Failure> {
        Ok(Self(Streams::at(address)?))
    }
}

fn broker(kind: Kind, single_active_consumer: bool) -> Result<Option<StreamBroker>, Failure> {
    let own = block_in_place(|| Streams::own(kind, single_active_consumer));
    Ok(own?.map(StreamBroker))
}

mod whole {
    use super::*;

    source_tests::cases!(async || -> Result<Option<StreamBroker>, Failure> {
        let on = std::env::var("INBOX_TEST_SUITE_ON").unwrap_or_default();
        match on.as_str() {
            "rabbitmq" => broker(Kind::RabbitMq, false),
            "single" => broker(Kind::RabbitMq4, true),
            _ => broker(Kind::RabbitMq4, false),
        }
    });
}

/// An earlier version speaks an earlier protocol, and makes other messages of AMQP 0.9.1's.
mod older {
    source_tests::some_cases! { async || super::broker(test_servers::Kind::RabbitMq, false);
        acknowledging {
            what_is_stored_and_no_more,
            all_at_a_shutdown_in_mid_flow,
            a_redelivery_has_the_same_position,
        }
        broker {
            cuts_in_mid_batch,
        }
        consumers {
            a_name_and_a_lag,
        }
        mapping {
            an_id_from_the_property,
            the_kind_from_the_property,
            the_key_from_the_property,
            headers_as_they_were_sent,
            the_content_type_and_the_time,
        }
        poison {
            it_goes_to_dead_letters,
        }
    }
}

/// One consumer follows another.
mod single {
    source_tests::some_cases! { async || super::broker(test_servers::Kind::RabbitMq4, true);
        acknowledging {
            what_is_stored_and_no_more,
            all_at_a_shutdown_in_mid_flow,
            a_redelivery_has_the_same_position,
            what_a_shutdown_leaves_comes_again,
            what_is_held_is_not_given_to_others,
        }
        broker {
            a_kill_in_mid_flow,
            the_order_after_cuts,
        }
        consumers {
            a_consumer_dropped_at_any_moment,
            a_name_and_a_lag,
        }
        mapping {
            the_kind_from_the_property,
            the_key_from_the_property,
            headers_as_they_were_sent,
        }
        order {
            by_key_while_consumers_come_and_go,
        }
        poison {
            it_goes_to_dead_letters,
        }
    }
}
