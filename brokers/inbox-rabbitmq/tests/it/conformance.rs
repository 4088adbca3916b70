//! The suite of sources: whole on quorum queues of RabbitMQ 4, and parts of it, in which others may differ, on those of the version
//! that the machine has, with a single active consumer and on classic queues.
//!
//! `INBOX_TEST_SUITE_ON=rabbitmq`, `classic` or `ordered` takes the whole to these, by hand.

use std::time::Duration;

use async_trait::async_trait;
use inbox_rabbitmq::{RabbitMqPublisher, RabbitMqSource};
use inbox_source::{Envelope, Mapping};
use source_tests::{Abilities, Broker, Failure, Harm};
use test_servers::{Kind, Server};
use tokio::task::block_in_place;

use crate::harness::{Rabbit, Setup, dead};

/// A channel is a queue of the name.
struct RabbitBroker(Rabbit);

#[async_trait]
impl Broker for RabbitBroker {
    type Source = RabbitMqSource;
    type Publisher = RabbitMqPublisher;

    fn abilities(&self) -> Abilities {
        // Without a single active consumer, what a lost one had may come after what the next one gets at once.
        let is_ordered = self.0.setup.single_active_consumer;
        Abilities {
            stable_positions: false,
            order_by_key: is_ordered,
            order_across_consumers: is_ordered,
            order_after_a_kill: true,
            dead_letters: true,
            id_property: true,
            kind_property: true,
            key_property: true,
            binary_headers: true,
            binary_payloads: true,
            empty_payloads: true,
            max_payload: 1_000_000,
            // Two heartbeats, and as long again for the server to look.
            redelivery: Duration::from_secs(12),
        }
    }

    async fn create(&self, channel: &str) -> Result<(), Failure> {
        self.0.create(channel).await
    }

    /// A quorum queue is counted each 100 ms here: a hundred of them take a fifth of a core.
    async fn remove(&self, channel: &str) -> Result<(), Failure> {
        self.0.delete(channel).await?;
        self.0.delete(&dead(channel)).await
    }

    async fn publish(&self, channel: &str, messages: &[Envelope]) -> Result<(), Failure> {
        self.0.publish(channel, messages).await
    }

    fn source(&self, channel: &str, mapping: Mapping) -> Result<RabbitMqSource, Failure> {
        Ok(RabbitMqSource::new(self.0.options(channel)?, mapping)?)
    }

    fn publisher(&self, limit: Duration) -> Result<RabbitMqPublisher, Failure> {
        Ok(self.0.publisher()?.timeout(limit))
    }

    async fn outstanding(&self, channel: &str) -> Result<u64, Failure> {
        let (waiting, delivered) = self.0.outstanding(channel).await?;
        Ok(waiting + delivered)
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
        Ok(Self(Rabbit::at(address)?))
    }
}

fn broker(kind: Kind, setup: Setup) -> Result<Option<RabbitBroker>, Failure> {
    let own = || Rabbit::of_kind(kind, setup, &[]);
    Ok(block_in_place(own)?.map(RabbitBroker))
}

mod whole {
    use super::*;

    source_tests::cases!(async || -> Result<Option<RabbitBroker>, Failure> {
        let on = std::env::var("INBOX_TEST_SUITE_ON").unwrap_or_default();
        match on.as_str() {
            "rabbitmq" => broker(Kind::RabbitMq, Setup::QUORUM),
            "classic" => broker(Kind::RabbitMq, Setup::CLASSIC),
            "ordered" => broker(Kind::RabbitMq, Setup::ORDERED),
            _ => broker(Kind::RabbitMq4, Setup::QUORUM),
        }
    });
}

/// An earlier version gives back, counts and starts again in its own way.
mod older {
    source_tests::some_cases! { async || super::broker(super::Kind::RabbitMq, super::Setup::QUORUM);
        acknowledging {
            all_at_a_shutdown_in_mid_flow,
        }
        broker {
            a_kill_while_the_store_is_held,
            cuts_in_mid_batch,
        }
        consumers {
            killed_as_processes,
        }
        poison {
            it_goes_to_dead_letters,
        }
    }
}

/// What a single active consumer adds is order.
mod ordered {
    source_tests::some_cases! { async || super::broker(super::Kind::RabbitMq, super::Setup::ORDERED);
        acknowledging {
            what_a_shutdown_leaves_comes_again,
            what_is_held_is_not_given_to_others,
        }
        broker {
            a_kill_in_mid_flow,
            the_order_after_cuts,
        }
        consumers {
            a_consumer_dropped_at_any_moment,
        }
        order {
            by_key,
            by_key_while_consumers_come_and_go,
        }
    }
}

/// A classic queue has its own way to give back, to count and to restart.
mod classic {
    source_tests::some_cases! { async || super::broker(super::Kind::RabbitMq, super::Setup::CLASSIC);
        acknowledging {
            nothing_before_it_is_stored,
            what_is_stored_and_no_more,
            all_at_a_shutdown_in_mid_flow,
            a_redelivery_is_the_same,
        }
        broker {
            a_kill_in_mid_flow,
            cuts_in_mid_batch,
            an_old_delivery_acknowledges_nothing_else,
        }
        flow {
            no_more_than_may_be_unacknowledged,
        }
        order {
            none_lost_while_consumers_come_and_go,
        }
        poison {
            it_goes_to_dead_letters,
        }
    }
}
