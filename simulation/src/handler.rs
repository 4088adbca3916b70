//! What handlers do, as planned.

use std::{sync::Arc, time::Duration};

use inbox::{Bytes, CancellationToken, Failure, Key, Leased};
use tokio::time::sleep;

use crate::{
    history::{PartId, RunEnd},
    scenario::{Behaviour, Does},
    store::Disturbed,
    world::{LIMIT, World},
};

/// A handler that runs, and says how it ended, whichever way that is.
struct Running {
    world: Arc<World>,
    part: PartId,
    key: Key,
    token: i64,
    end: RunEnd,
    cancellation: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        let end = if std::thread::panicking() {
            RunEnd::Panicked
        } else {
            self.end
        };
        let is_cancelled = self.cancellation.is_cancelled();
        let mut history = self.world.history();
        history.run_ends(&self.part, &self.key, self.token, end, is_cancelled);
    }
}

pub(crate) async fn handle(
    world: Arc<World>,
    part: PartId,
    leased: Leased,
    cancellation: CancellationToken,
) -> Result<Option<Bytes>, Failure> {
    let (key, token) = (leased.lease.key.clone(), leased.lease.token.get());
    let run = world.history().run_begins(&part, &key, token);
    let mut running = Running {
        world,
        part,
        key,
        token,
        end: RunEnd::Dropped,
        cancellation,
    };
    let Behaviour { takes, does, .. } = running.planned(run);
    let takes = Duration::from_millis(takes);
    let result = match does {
        Does::Block => {
            running.block(takes).await;
            Ok(None)
        }
        Does::Heed => tokio::select! {
            biased;
            () = running.cancellation.cancelled() => Err(Failure::retry("told to stop")),
            () = sleep(takes) => Ok(None),
        },
        _ => {
            sleep(takes).await;
            running.ending(does)
        }
    };
    running.end = match (&result, does) {
        (Ok(_), _) => RunEnd::Done,
        (Err(_), Does::Dead) => RunEnd::Dead,
        (Err(_), Does::Defer(_) | Does::Pause(_)) => RunEnd::Defer,
        (Err(_), _) => RunEnd::Retry,
    };
    result
}

impl Running {
    fn planned(&self, run: u32) -> Behaviour {
        let id = self.key.id.as_str();
        let message = id.strip_prefix('m').and_then(|number| number.parse().ok());
        let mut planned = self.world.scenario.behaviours.iter();
        let planned = planned.find(|one| Some(one.message) == message && one.run == run);
        let soon = Behaviour {
            message: message.unwrap_or_default(),
            run,
            takes: 10,
            does: Does::Succeed,
        };
        match planned {
            Some(planned) if !self.world.is_calm() => planned.clone(),
            _ => soon,
        }
    }

    /// As a handler that keeps its thread: the time passes at once, and nothing runs meanwhile.
    async fn block(&self, takes: Duration) {
        let _disturbed = Disturbed::new(&self.world);
        self.world.history().blocked += u64::try_from(takes.as_micros()).unwrap_or(u64::MAX);
        tokio::time::advance(takes).await;
    }

    #[allow(clippy::panic, reason = "as planned")]
    fn ending(&self, does: Does) -> Result<Option<Bytes>, Failure> {
        let millis = Duration::from_millis;
        match does {
            Does::Retry => Err(Failure::retry("planned")),
            Does::RetryAfter(after) => Err(Failure::retry_after(millis(after), "planned")),
            Does::Defer(after) => Err(Failure::defer(millis(after), "planned")),
            Does::Pause(length) => Err(Failure::pause(millis(length), "planned")),
            Does::Dead => Err(Failure::dead("planned")),
            Does::Panic => std::panic::panic_any(crate::PLANNED),
            Does::AnswerTooMuch => Ok(Some(Bytes::from(vec![0; LIMIT + 1]))),
            Does::Succeed | Does::Block | Does::Heed => Ok(None),
        }
    }
}
