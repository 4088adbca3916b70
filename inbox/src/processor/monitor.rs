//! Looks at the backlog every so often.

use std::{sync::Arc, time::Duration};

use super::Config;
use crate::{Operate, hooks::Call, patience::within, telemetry};

pub(super) struct Monitor {
    pub operate: Arc<dyn Operate>,
    pub limit: Duration,
    pub interval: Duration,
}

impl Monitor {
    /// Never returns.
    pub(super) async fn watch(&self, config: &Config) {
        loop {
            tokio::time::sleep(self.interval).await;
            let statistics =
                match within(config.store.limit, "statistics", self.operate.statistics()).await {
                    Ok(statistics) => statistics,
                    Err(error) => {
                        tracing::warn!(%error, "backlog not known");
                        continue;
                    }
                };
            for handler in &statistics.handlers {
                if !config.handlers.contains_key(&handler.handler) {
                    continue;
                }
                telemetry::backlog(handler);
                if handler.lag.is_some_and(|lag| lag > self.limit) {
                    if let Some(hooks) = &config.hooks {
                        let call = Call::BacklogAge(handler.clone(), self.limit);
                        call.tell(&**hooks).await;
                    }
                }
            }
        }
    }
}
