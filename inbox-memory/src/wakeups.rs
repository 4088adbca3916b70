//! Wake-ups within the process.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use async_trait::async_trait;
use inbox_api::{HandlerName, Subscription};
use tokio::sync::Notify;

/// Who wants to be woken for which handler. Each subscription has one signal, however many
/// handlers it is for.
#[derive(Default)]
pub(crate) struct Wakeups {
    signals: Mutex<HashMap<HandlerName, Vec<Weak<Notify>>>>,
}

impl Wakeups {
    pub(crate) fn subscribe(&self, handlers: &[HandlerName]) -> Box<dyn Subscription> {
        let signal = Arc::new(Notify::new());
        let mut signals = self.lock();
        for handler in handlers {
            let subscribers = signals.entry(handler.clone()).or_default();
            subscribers.retain(|subscriber| subscriber.strong_count() > 0);
            subscribers.push(Arc::downgrade(&signal));
        }
        Box::new(Signal(signal))
    }

    /// Wakes every subscription for one of `handlers`, and forgets those that are gone.
    pub(crate) fn wake(&self, handlers: &[HandlerName]) {
        if handlers.is_empty() {
            return;
        }
        let mut signals = self.lock();
        for handler in handlers {
            if let Some(subscribers) = signals.get_mut(handler) {
                subscribers.retain(wake);
            }
        }
    }

    /// Wakes every subscription.
    pub(crate) fn wake_all(&self) {
        for subscribers in self.lock().values_mut() {
            subscribers.retain(wake);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<HandlerName, Vec<Weak<Notify>>>> {
        self.signals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Wakeups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wakeups").finish_non_exhaustive()
    }
}

/// Leaves a permit, so that a subscription that is not waiting just now is woken when it next
/// does. Returns whether the subscription still exists.
fn wake(subscriber: &Weak<Notify>) -> bool {
    subscriber
        .upgrade()
        .map(|signal| signal.notify_one())
        .is_some()
}

struct Signal(Arc<Notify>);

#[async_trait]
impl Subscription for Signal {
    async fn woken(&mut self) {
        // A permit that reaches a future which is then dropped goes back to the signal.
        self.0.notified().await;
    }
}
