//! A broker that delivers at least once: every message one to three times, out of order.

use std::time::Duration;

use anyhow::{Context, Result};
use inbox::{
    HandlerName, Message,
    receiver::{Source, SourceError},
};
use tokio::sync::watch;

use crate::input;

/// Real webhook bodies; see `data/NOTICE.md`.
const WEBHOOKS: &str = include_str!("../../../data/github-webhooks.ndjson");

/// The deliveries, in the order in which the broker makes them.
pub(super) struct Broker {
    deliveries: std::vec::IntoIter<Message>,
    /// How many there are in all.
    all: u64,
    pace: tokio::time::Interval,
    /// How many workers are to be killed, and how many were.
    kills: u64,
    killed: watch::Receiver<u64>,
}

impl Broker {
    /// Every bundled webhook, one to three times, shuffled.
    pub(super) fn new(
        handler: &HandlerName,
        random: &mut fastrand::Rng,
        kills: u32,
        killed: watch::Receiver<u64>,
    ) -> Result<Self> {
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
            all: deliveries.len() as u64,
            deliveries: deliveries.into_iter(),
            pace,
            kills: kills.into(),
            killed,
        })
    }

    /// How many messages there are, however often they are delivered.
    pub(super) fn messages() -> u64 {
        WEBHOOKS.lines().count() as u64
    }

    /// How many deliveries there are in all.
    pub(super) fn deliveries(&self) -> u64 {
        self.all
    }
}

impl Source for Broker {
    type Delivery = Message;

    async fn next(&mut self) -> Result<Option<Message>, SourceError> {
        // Paced, so that receiving and processing overlap. A tick that is dropped is lost, a
        // delivery is not.
        self.pace.tick().await;
        // No further ahead of the kills than by a share, so that all of them meet work.
        let (all, kills) = (self.all, self.kills);
        let made = all - self.deliveries.len() as u64;
        let is_due = |killed: &u64| made * (kills + 1) <= all * (killed + 1);
        let _ = self.killed.wait_for(is_due).await;
        Ok(self.deliveries.next())
    }
}
