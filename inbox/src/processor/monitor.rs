//! Looks at the backlog every so often.

use std::{collections::HashSet, sync::Arc, time::Duration};

use super::Config;
use crate::{
    HandlerName, HandlerStatistics, Operate,
    hooks::Call,
    telemetry::{self, OUTAGE},
};

pub(super) struct Monitor {
    pub operate: Arc<dyn Operate>,
    pub limit: Duration,
    pub interval: Duration,
}

impl Monitor {
    /// Never returns.
    pub(super) async fn watch(&self, config: &Config) {
        // Handlers that had messages at the last look and may have vanished since.
        let mut unserved = HashSet::new();
        let mut is_known = true;
        loop {
            tokio::time::sleep(self.interval).await;
            let statistics = match config
                .store
                .patience
                .within("statistics", self.operate.statistics())
                .await
            {
                Ok(statistics) => statistics,
                Err(error) => {
                    if std::mem::take(&mut is_known) {
                        tracing::warn!(target: OUTAGE, %error, "backlog not known");
                    } else {
                        tracing::debug!(target: OUTAGE, %error, "backlog still not known");
                    }
                    continue;
                }
            };
            if !std::mem::replace(&mut is_known, true) {
                tracing::info!(target: OUTAGE, "backlog known again");
            }
            let has_vanished = |name: &&HandlerName| {
                let mut present = statistics.handlers.iter();
                !present.any(|handler| handler.handler == **name)
            };
            let names = config.served.iter().map(|served| &served.name);
            for name in names.filter(has_vanished) {
                telemetry::backlog(&HandlerStatistics::empty(name.clone()));
            }
            // Once is enough: there may be ever more of them.
            for name in unserved.extract_if(|name| has_vanished(&name)) {
                telemetry::unserved(&HandlerStatistics::empty(name));
            }
            for handler in &statistics.handlers {
                if config.place(&handler.handler).is_none() {
                    telemetry::unserved(handler);
                    unserved.insert(handler.handler.clone());
                    continue;
                }
                telemetry::backlog(handler);
                if handler.lag.is_some_and(|lag| lag > self.limit)
                    && let Some(hooks) = &config.hooks
                {
                    let call = Call::BacklogAge(handler.clone(), self.limit);
                    call.tell(&**hooks).await;
                }
            }
        }
    }
}
