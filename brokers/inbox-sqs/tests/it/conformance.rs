//! The suite of sources, on a real server.

use std::time::Duration;

use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use inbox_source::{Envelope, Mapping};
use inbox_sqs::{ENCODING, Rejections, SqsPublisher, SqsSource};
use source_tests::{Abilities, Broker, Failure, Harm};
use test_servers::Server;
use tokio::task::block_in_place;

use crate::harness::{Sqs, VISIBILITY, dead};

/// What the names of FIFO queues end with, and in addresses stands for them.
const FIFO: &str = ".fifo";
const STANDARD: &str = "";

/// A channel is a queue.
struct SqsBroker {
    server: Sqs,
    kind: &'static str,
}

impl SqsBroker {
    fn own(kind: &'static str) -> Result<Option<Self>, Failure> {
        let server = block_in_place(Sqs::own)?;
        Ok(server.map(|server| Self { server, kind }))
    }

    fn queue(&self, channel: &str) -> String {
        format!("{channel}{}", self.kind)
    }
}

#[async_trait]
impl Broker for SqsBroker {
    type Source = SqsSource;
    type Publisher = SqsPublisher;

    fn abilities(&self) -> Abilities {
        let is_fifo = self.kind == FIFO;
        Abilities {
            // The message id.
            stable_positions: true,
            order_by_key: is_fifo,
            order_across_consumers: is_fifo,
            // ElasticMQ restores a FIFO queue as a standard one: what waits for others of its group comes at once.
            order_after_a_kill: false,
            dead_letters: true,
            id_property: true,
            kind_property: true,
            key_property: true,
            binary_headers: true,
            binary_payloads: true,
            empty_payloads: true,
            // Of 256 KiB, in base64 and with attributes.
            max_payload: 190_000,
            redelivery: VISIBILITY + Duration::from_secs(1),
        }
    }

    async fn create(&self, channel: &str) -> Result<(), Failure> {
        self.server.create(&self.queue(channel)).await
    }

    async fn publish(&self, channel: &str, messages: &[Envelope]) -> Result<(), Failure> {
        self.server.publish(&self.queue(channel), messages).await
    }

    fn source(&self, channel: &str, mapping: Mapping) -> Result<SqsSource, Failure> {
        let queue = self.queue(channel);
        let rejections = Rejections::DeadLetters(dead(&queue));
        let options = self.server.options(&queue)?.rejections(rejections)?;
        Ok(SqsSource::new(options, mapping)?)
    }

    fn publisher(&self, limit: Duration) -> Result<SqsPublisher, Failure> {
        Ok(self.server.publisher()?.timeout(limit))
    }

    fn destination(&self, channel: &str) -> String {
        self.queue(channel)
    }

    async fn outstanding(&self, channel: &str) -> Result<u64, Failure> {
        let (waiting, delivered) = self.server.outstanding(&self.queue(channel)).await?;
        Ok(waiting + delivered)
    }

    async fn dead_letters(&self, channel: &str) -> Result<Vec<Vec<u8>>, Failure> {
        let messages = self.server.messages(&dead(&self.queue(channel))).await?;
        let payload = |message: &aws_sdk_sqs::types::Message| {
            let attributes = message.message_attributes.as_ref();
            let encoding = attributes.and_then(|all| all.get(ENCODING)?.string_value.as_deref());
            let body = message.body.clone().unwrap_or_default().into_bytes();
            match encoding {
                Some("empty") => Ok(Vec::new()),
                Some(_) => Ok(BASE64_STANDARD.decode(body)?),
                None => Ok(body),
            }
        };
        messages.iter().map(payload).collect()
    }

    async fn harm(&self, harm: Harm) -> Result<(), Failure> {
        match harm {
            Harm::Kill => block_in_place(|| self.server.kill()),
            Harm::Start => self.server.start().await,
            Harm::Pause => block_in_place(|| self.server.harm(Server::pause)),
            Harm::Resume => block_in_place(|| self.server.harm(Server::resume)),
            Harm::Cut => self.server.cut(),
        }
    }

    fn address(&self) -> Option<String> {
        Some(format!("{}{}", self.server.address(), self.kind))
    }

    async fn attach(address: &str) -> Result<Self, Failure> {
        let (address, kind) = match address.strip_suffix(FIFO) {
            Some(address) => (address, FIFO),
            None => (address, STANDARD),
        };
        let server = Sqs::at(address)?;
        Ok(Self { server, kind })
    }
}

mod whole {
    use super::*;

    source_tests::cases!(async || -> Result<Option<SqsBroker>, Failure> {
        let on = std::env::var("INBOX_TEST_SUITE_ON").unwrap_or_default();
        SqsBroker::own(if on == "standard" { STANDARD } else { FIFO })
    });
}

/// A standard queue gives messages of one key to several consumers, takes requests at once, and knows no ids.
mod standard {
    source_tests::some_cases! { async || super::SqsBroker::own(super::STANDARD);
        acknowledging {
            nothing_before_it_is_stored,
            what_is_stored_and_no_more,
            all_at_a_shutdown_in_mid_flow,
            a_redelivery_is_the_same,
            what_is_held_is_not_given_to_others,
        }
        broker {
            a_kill_in_mid_flow,
            cuts_in_mid_batch,
        }
        consumers {
            killed_as_processes,
        }
        flow {
            no_more_than_may_be_unacknowledged,
            the_rest_is_for_others,
        }
        mapping {
            an_id_from_the_property,
            an_id_from_the_position,
            the_key_from_the_property,
        }
        order {
            none_lost_while_consumers_come_and_go,
        }
        poison {
            it_goes_to_dead_letters,
        }
    }
}
