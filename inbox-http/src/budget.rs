//! How many bytes of bodies are in memory at one time.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// How many bytes of request bodies may be in memory at one time: 128 MiB unless set. Clones share it, so that
/// one may be given to all endpoints of a service:
///
/// ```
/// use inbox_http::{BodyBudget, IdempotencyLayer, WebhookReceiver};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// # let store = inbox::connect("memory://").await?;
/// let budget = BodyBudget::new(64 * 1024 * 1024);
/// let webhooks = WebhookReceiver::new(store.clone()).body_budget(budget.clone());
/// let layer = IdempotencyLayer::new(store, "payments")?.body_budget(budget);
/// # let _ = (webhooks, layer);
/// # Ok(())
/// # }
/// ```
///
/// A body counts as it comes, from its first byte until its request is answered, and what came in it for as
/// long as that goes on afterwards: a webhook that waits for a store that is away, until it is stored; work
/// that has begun, until its end. What a client announces and does not send counts nothing. One that may not
/// grow is refused with 503 and `Retry-After`. It may not become larger than what is left for all others,
/// itself included: a single body has half of the budget at most, and a hundred that compete a hundredth each,
/// so that small ones find room however many large ones do not come to their end. Those have to, within the
/// time that a client is given to send a body.
///
/// Not counted are what the server itself reads ahead on each connection, and a body's second copy while it grows.
#[derive(Clone)]
pub struct BodyBudget(Arc<Inner>);

struct Inner {
    limit: usize,
    held: AtomicUsize,
}

impl BodyBudget {
    /// The bytes of a budget unless set: 128 MiB.
    pub const USUAL: usize = 128 * 1024 * 1024;

    /// A budget of so many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Inner {
            limit: bytes,
            held: AtomicUsize::new(0),
        }))
    }

    /// How many bytes are in memory now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.held.load(Ordering::Relaxed)
    }

    /// The most that one body can have.
    pub(crate) fn most(&self) -> usize {
        self.0.limit / 2
    }

    /// Of a body that has not begun.
    pub(crate) fn share(&self) -> Share {
        Share {
            budget: self.clone(),
            bytes: 0,
        }
    }
}

impl Default for BodyBudget {
    fn default() -> Self {
        Self::new(Self::USUAL)
    }
}

impl fmt::Debug for BodyBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyBudget")
            .field("limit", &self.0.limit)
            .field("held", &self.held())
            .finish()
    }
}

/// What one body has of a budget, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: BodyBudget,
    bytes: usize,
}

impl Share {
    /// Whether the body could be so much longer at present.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        self.after(more, self.budget.held()).is_some()
    }

    /// Takes so much more, if there is room for it.
    pub(crate) fn grow(&mut self, more: usize) -> bool {
        let held = &self.budget.0.held;
        let grown = held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            self.after(more, held)
        });
        if grown.is_ok() {
            self.bytes += more;
        }
        grown.is_ok()
    }

    /// What is held when this has grown, if it may: it is not to be more than what is left then.
    fn after(&self, more: usize, held: usize) -> Option<usize> {
        let (own, held) = (self.bytes.checked_add(more)?, held.checked_add(more)?);
        (own <= self.budget.0.limit.checked_sub(held)?).then_some(held)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let held = &self.budget.0.held;
        held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_half_and_leaves_room_for_others() {
        let budget = BodyBudget::new(100);
        let mut one = budget.share();
        assert!(!one.has_room(51) && !one.grow(51));
        assert!(one.grow(30) && one.grow(20));
        assert!(!one.grow(1));
        assert_eq!((budget.held(), budget.most()), (50, 50));
        let mut other = budget.share();
        assert!(other.grow(25) && !other.grow(1));
        let mut third = budget.share();
        assert!(third.grow(12) && !third.grow(1));
        drop(one);
        assert_eq!(budget.held(), 37);
        assert!(other.grow(19) && !other.grow(1));
        drop((other, third));
        assert_eq!(budget.held(), 0);
        assert!(!budget.share().grow(usize::MAX));
        assert!(!BodyBudget::new(usize::MAX).share().grow(usize::MAX));
        assert!(BodyBudget::new(0).share().grow(0));
    }

    #[test]
    fn no_more_is_held_than_the_limit_however_many_grow_at_once() {
        let budget = BodyBudget::new(10_000);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let mut shares: Vec<_> = (0..20).map(|_| budget.share()).collect();
                        for share in &mut shares {
                            while share.grow(7) {}
                        }
                        assert!(budget.held() <= 10_000);
                    }
                });
            }
        });
        assert_eq!(budget.held(), 0);
    }
}
