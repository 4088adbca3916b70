//! A broker that delivers at least once: every message one to three times, out of order.

use std::time::Duration;

use anyhow::{Context, Result};
use inbox::{
    HandlerName, Message,
    receiver::{Source, SourceError},
};

use crate::input;

/// Real webhook bodies; see `data/NOTICE.md`.
const WEBHOOKS: &str = include_str!("../../../data/github-webhooks.ndjson");

/// The deliveries, in the order in which the broker makes them.
pub(super) struct Broker {
    deliveries: std::vec::IntoIter<Message>,
    pace: tokio::time::Interval,
}

impl Broker {
    /// Every bundled webhook, one to three times, shuffled.
    pub(super) fn new(handler: &HandlerName, random: &mut fastrand::Rng) -> Result<Self> {
        let mut deliveries = Vec::new();
        for (number, line) in WEBHOOKS.lines().enumerate() {
            let message = input::cloud_event(line.as_bytes(), handler)
                .map_err(anyhow::Error::msg)
                .with_context(|| format!("bundled webhook {}", number + 1))?;
            for _ in 0..random.u32(1..=3) {
                deliveries.push(message.clone());
            }
        }
        random.shuffle(&mut deliveries);
        let mut pace = tokio::time::interval(Duration::from_millis(8));
        pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        Ok(Self {
            deliveries: deliveries.into_iter(),
            pace,
        })
    }

    /// How many messages there are, however often they are delivered.
    pub(super) fn messages() -> u64 {
        WEBHOOKS.lines().count() as u64
    }

    pub(super) fn remaining(&self) -> usize {
        self.deliveries.len()
    }
}

impl Source for Broker {
    type Delivery = Message;

    async fn next(&mut self) -> Result<Option<Message>, SourceError> {
        // Paced, so that receiving and processing overlap. A tick that is dropped is lost, a
        // delivery is not.
        self.pace.tick().await;
        Ok(self.deliveries.next())
    }
}
