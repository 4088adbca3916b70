//! Connections at hand.
//!
//! sqlx's pool takes each connection back in a task of its own, which asks the server, or SQLite's thread,
//! whether it is alive. With one message at a time that is a good part of the whole work. A connection that
//! has just answered is alive; so it is left here for the next operation.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use sqlx::{Database, Pool, pool::PoolConnection};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep, timeout},
};

/// How long a connection goes from operation to operation before the pool has it again, which looks whether
/// it is alive, and how old it is.
const ROUND: Duration = Duration::from_secs(1);

/// How long a connection that goes back to its pool has to answer.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// While an operation waits for it.
    pub patience: Duration,
    /// While none does.
    pub longest: Duration,
}

/// A pool, and those of its connections that are at hand between two operations.
///
/// - Those who wait for the pool come first: while there are any, a connection goes back to it.
/// - About once a second each connection goes through the pool.
/// - A pool of the application's has all of its connections back at once.
pub struct AtHand<DB: Database> {
    pool: Pool<DB>,
    keeps: bool,
    limits: Limits,
    state: Arc<Mutex<State<DB>>>,
}

struct State<DB: Database> {
    /// The last one that came is the first to go.
    idle: Vec<Held<DB>>,
    /// How many wait for the pool.
    waiting: usize,
    /// Whether a task gives those back that nobody uses.
    is_tidied: bool,
    /// When all were closed last. What the pool gave out before then goes back to it.
    cleared_at: Option<Instant>,
}

/// A connection in the hands of an operation. Dropped, it goes back to its pool, as sqlx has it.
pub struct Held<DB: Database> {
    connection: PoolConnection<DB>,
    /// When the pool gave it out; `None` if it is not to be kept.
    since: Option<Instant>,
}

impl<DB: Database> fmt::Debug for AtHand<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtHand").finish_non_exhaustive()
    }
}

impl<DB: Database> fmt::Debug for Held<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

impl<DB: Database> Held<DB> {
    /// One that goes back to its pool after use.
    pub fn once(connection: PoolConnection<DB>) -> Self {
        Self {
            connection,
            since: None,
        }
    }

    /// The connection, which goes back to its pool after use.
    pub fn into_inner(self) -> PoolConnection<DB> {
        self.connection
    }

    /// Has it closed when it is dropped.
    pub fn close_on_drop(&mut self) {
        self.connection.close_on_drop();
    }

    fn is_fresh(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() < ROUND)
    }
}

impl<DB: Database> Deref for Held<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        &self.connection
    }
}

impl<DB: Database> DerefMut for Held<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        &mut self.connection
    }
}

impl<DB: Database> AtHand<DB> {
    /// For a pool of the store's own.
    pub fn own(pool: Pool<DB>, limits: Limits) -> Self {
        Self::new(pool, limits, true)
    }

    /// For a pool of the application's: nothing is kept.
    pub fn of_application(pool: Pool<DB>, limits: Limits) -> Self {
        Self::new(pool, limits, false)
    }

    fn new(pool: Pool<DB>, limits: Limits, keeps: bool) -> Self {
        let state = State {
            idle: Vec::new(),
            waiting: 0,
            is_tidied: false,
            cleared_at: None,
        };
        Self {
            pool,
            keeps,
            limits,
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// The pool itself.
    pub fn pool(&self) -> &Pool<DB> {
        &self.pool
    }

    fn state(&self) -> MutexGuard<'_, State<DB>> {
        lock(&self.state)
    }

    /// A connection at hand, or else one of the pool, within the time that the pool gives for that. Safe to
    /// drop.
    ///
    /// # Errors
    /// As those of [`Pool::acquire`].
    pub async fn acquire(&self) -> sqlx::Result<Held<DB>> {
        let old = {
            let mut state = self.state();
            if !self.pool.is_closed()
                && let Some(place) = state.idle.iter().rposition(Held::is_fresh)
            {
                return Ok(state.idle.remove(place));
            }
            state.waiting += 1;
            state.idle.pop()
        };
        let _waiting = Waiting(self);
        let acquiring = async {
            if let Some(mut old) = old {
                // The pool has it again before it is asked, or it would make another one meanwhile. In a task, as
                // a connection that is dropped meanwhile would be closed.
                let returning = old.connection.return_to_pool();
                let returning = tokio::spawn(timeout(self.limits.longest, returning));
                let _ = timeout(self.limits.patience, returning).await;
            }
            self.pool.acquire().await
        };
        let most = self.pool.options().get_acquire_timeout();
        let acquired = timeout(most, acquiring).await;
        Ok(Held {
            connection: acquired.unwrap_or(Err(sqlx::Error::PoolTimedOut))?,
            since: self.keeps.then(Instant::now),
        })
    }

    /// Takes a connection back that has come to the end of its work: it has answered last, and is in no
    /// transaction.
    pub fn release(&self, held: Held<DB>) {
        let mut state = self.state();
        let is_kept = held.since > state.cleared_at;
        if !is_kept || state.waiting > 0 || self.pool.is_closed() {
            drop(state);
            return self.give_back(held.connection);
        }
        state.idle.push(held);
        let is_tidied = std::mem::replace(&mut state.is_tidied, true);
        drop(state);
        if !is_tidied && let Ok(runtime) = Handle::try_current() {
            runtime.spawn(tidy(Arc::downgrade(&self.state), self.limits.longest));
        }
    }

    /// Gives a connection back to the pool. The driver would wait without limit for a server that has gone
    /// silent; cut short, it closes the connection and makes room in the pool.
    pub fn give_back(&self, connection: PoolConnection<DB>) {
        give_back(connection, self.limits.longest);
    }

    /// Closes the pool and what is at hand. New work is refused from the call on, whether or not the future is
    /// polled, which ends when nothing has a connection any more.
    pub fn close(&self) -> impl Future<Output = ()> {
        // Behind this, nothing comes to hand any more.
        let closing = self.pool.close();
        let idle = std::mem::take(&mut self.state().idle);
        for held in idle {
            self.give_back(held.connection);
        }
        closing
    }

    /// Closes what is idle, at hand and in the pool, without a word to the server. Connections that operations have now
    /// go back to the pool after use.
    pub fn close_idle(&self) {
        self.clear();
        while let Some(connection) = self.pool.try_acquire() {
            drop(connection.detach());
        }
    }

    /// Closes what is at hand. What operations have now does not come to hand again.
    fn clear(&self) {
        let idle = {
            let mut state = self.state();
            state.cleared_at = Some(Instant::now());
            std::mem::take(&mut state.idle)
        };
        for held in idle {
            drop(held.connection.detach());
        }
    }
}

impl<DB: Database> Drop for AtHand<DB> {
    fn drop(&mut self) {
        // Outside of a runtime, too, where a connection that is dropped would panic.
        self.clear();
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn give_back<DB: Database>(mut connection: PoolConnection<DB>, longest: Duration) {
    match Handle::try_current() {
        Ok(runtime) => {
            runtime.spawn(timeout(longest, connection.return_to_pool()));
        }
        Err(_) => drop(connection.detach()),
    }
}

/// Gives back what is not used any more, until nothing is at hand.
async fn tidy<DB: Database>(state: Weak<Mutex<State<DB>>>, longest: Duration) {
    loop {
        sleep(ROUND).await;
        let Some(state) = state.upgrade() else {
            return;
        };
        let mut state = lock(&state);
        let old: Vec<_> = state.idle.extract_if(.., |held| !held.is_fresh()).collect();
        state.is_tidied = !state.idle.is_empty();
        let is_over = !state.is_tidied;
        drop(state);
        for held in old {
            give_back(held.connection, longest);
        }
        if is_over {
            return;
        }
    }
}

/// Stands for one who waits for the pool.
struct Waiting<'a, DB: Database>(&'a AtHand<DB>);

impl<DB: Database> Drop for Waiting<'_, DB> {
    fn drop(&mut self) {
        self.0.state().waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use sqlx::{
        Connection as _, Sqlite,
        sqlite::{SqliteConnectOptions, SqlitePoolOptions},
    };
    use tokio::{runtime::Runtime, time::sleep};

    use super::*;

    const LIMITS: Limits = Limits {
        patience: Duration::from_secs(5),
        longest: Duration::from_secs(10),
    };

    fn connections(size: u32) -> AtHand<Sqlite> {
        let options = SqliteConnectOptions::new().in_memory(true);
        let pool = SqlitePoolOptions::new().max_connections(size);
        AtHand::own(pool.connect_lazy_with(options), LIMITS)
    }

    fn at_hand(connections: &AtHand<Sqlite>) -> usize {
        connections.state().idle.len()
    }

    /// Waits until the pool has so many connections.
    async fn until_given_back(connections: &AtHand<Sqlite>, number: usize) {
        let pool = connections.pool();
        timeout(Duration::from_secs(10), async {
            while pool.num_idle() < number {
                sleep(Duration::from_millis(1)).await;
            }
        })
        .await
        .unwrap();
    }

    #[tokio::test]
    async fn a_connection_goes_from_hand_to_hand() {
        let connections = connections(2);
        for _ in 0..3 {
            let held = connections.acquire().await.unwrap();
            assert_eq!(at_hand(&connections), 0);
            connections.release(held);
            assert_eq!(at_hand(&connections), 1);
        }
        assert_eq!(connections.pool().size(), 1);
        assert_eq!(connections.pool().num_idle(), 0);
    }

    #[tokio::test]
    async fn those_who_wait_for_the_pool_are_served() {
        let connections = connections(1);
        for _ in 0..3 {
            let held = connections.acquire().await.unwrap();
            let mut first = Box::pin(connections.acquire());
            let mut second = Box::pin(connections.acquire());
            assert!(timeout(Duration::from_millis(5), &mut first).await.is_err());
            assert!(
                timeout(Duration::from_millis(5), &mut second)
                    .await
                    .is_err()
            );
            connections.release(held);
            let held = timeout(Duration::from_secs(10), first).await.unwrap();
            connections.release(held.unwrap());
            let held = timeout(Duration::from_secs(10), second).await.unwrap();
            connections.release(held.unwrap());
        }
    }

    #[tokio::test]
    async fn one_who_waited_in_vain_is_forgotten() {
        let connections = connections(1);
        let held = connections.acquire().await.unwrap();
        let waiting = timeout(Duration::from_millis(5), connections.acquire());
        assert!(waiting.await.is_err());
        connections.release(held);
        assert_eq!(at_hand(&connections), 1);
    }

    #[tokio::test]
    async fn the_pool_has_each_connection_again_after_a_while() {
        let connections = connections(2);
        let (one, other) = (connections.acquire(), connections.acquire());
        let (one, other) = (one.await.unwrap(), other.await.unwrap());
        connections.release(one);
        connections.release(other);
        assert_eq!(at_hand(&connections), 2);
        // Nobody uses them.
        until_given_back(&connections, 2).await;
        assert_eq!(at_hand(&connections), 0);
        let held = connections.acquire().await.unwrap();
        connections.release(held);
        until_given_back(&connections, 2).await;
    }

    #[tokio::test]
    async fn an_old_connection_is_given_back_before_another_is_made() {
        let connections = connections(2);
        let mut held = connections.acquire().await.unwrap();
        held.since = Instant::now().checked_sub(ROUND);
        connections.release(held);
        assert_eq!(at_hand(&connections), 1);
        let held = connections.acquire().await.unwrap();
        assert!(held.is_fresh());
        assert_eq!(connections.pool().size(), 1);
        // A fresh one behind an old one comes first.
        let mut old = connections.acquire().await.unwrap();
        connections.release(held);
        old.since = Instant::now().checked_sub(ROUND);
        connections.release(old);
        assert!(connections.acquire().await.unwrap().is_fresh());
        assert_eq!(at_hand(&connections), 1);
    }

    #[tokio::test]
    async fn nothing_of_an_application_is_kept() {
        let options = SqliteConnectOptions::new().in_memory(true);
        let pool = SqlitePoolOptions::new().connect_lazy_with(options);
        let connections = AtHand::of_application(pool, LIMITS);
        let held = connections.acquire().await.unwrap();
        connections.release(held);
        assert_eq!(at_hand(&connections), 0);
        until_given_back(&connections, 1).await;
    }

    #[tokio::test]
    async fn what_is_in_use_while_all_are_closed_goes_back_to_the_pool() {
        let connections = connections(2);
        let (one, other) = (connections.acquire(), connections.acquire());
        let (one, other) = (one.await.unwrap(), other.await.unwrap());
        connections.release(one);
        connections.clear();
        assert_eq!(at_hand(&connections), 0);
        connections.release(other);
        assert_eq!(at_hand(&connections), 0);
        until_given_back(&connections, 1).await;
        // Also one that the pool had before goes from hand to hand again.
        let later = connections.acquire().await.unwrap();
        connections.release(later);
        assert_eq!(at_hand(&connections), 1);
    }

    #[tokio::test]
    async fn what_is_at_hand_does_not_keep_a_pool_from_closing() {
        let connections = connections(2);
        let (one, other) = (connections.acquire(), connections.acquire());
        let (one, mut other) = (one.await.unwrap(), other.await.unwrap());
        connections.release(one);
        let closing = connections.close();
        assert!(matches!(
            connections.acquire().await,
            Err(sqlx::Error::PoolClosed)
        ));
        other.ping().await.unwrap();
        connections.release(other);
        assert_eq!(at_hand(&connections), 0);
        timeout(Duration::from_secs(10), closing).await.unwrap();
    }

    #[test]
    fn connections_may_outlive_their_runtime() {
        let runtime = Runtime::new().unwrap();
        let connections = runtime.block_on(async {
            let connections = connections(1);
            let held = connections.acquire().await.unwrap();
            connections.release(held);
            connections
        });
        drop(runtime);
        assert_eq!(at_hand(&connections), 1);
        drop(connections);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn many_share_few_connections() {
        let connections = std::sync::Arc::new(connections(3));
        let work = (0..50).map(|n| {
            let connections = std::sync::Arc::clone(&connections);
            tokio::spawn(async move {
                for m in 0..40 {
                    let mut held = connections.acquire().await.unwrap();
                    held.ping().await.unwrap();
                    match (n + m) % 7 {
                        0 => drop(held),
                        1 => connections.give_back(held.into_inner()),
                        _ => connections.release(held),
                    }
                }
            })
        });
        let work: Vec<_> = work.collect();
        for work in work {
            timeout(Duration::from_secs(60), work)
                .await
                .unwrap()
                .unwrap();
        }
        assert_eq!(connections.state().waiting, 0);
    }
}
