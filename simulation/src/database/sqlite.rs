//! SQLite in a simulation. Its driver has threads of its own and takes real time: so the simulation's thread
//! waits while a call is under way, and no time passes for the simulation, nor does anything else happen in it.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    time::Duration,
};

use async_trait::async_trait;
use futures_executor::block_on;
use inbox::{
    Begun, Capabilities, ClaimRequest, Claims, Clock, Due, Edit, Extended, Filter, HandlerName,
    Intervention, Key, Lease, LeaseTerms, Listing, Message, Operate, OperatorName, Page, Progress,
    PurgeRequest, Receipt, Record, Result, Schema as _, Settled, Settlement, Slice, Statistics,
    Store, Subscription, Transactional,
};
use inbox_sqlite::{SqliteOptions, SqliteStore, Synchronous};
use tempfile::TempDir;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::{Notify, OwnedMutexGuard},
    task::unconstrained,
};

use crate::world::LIMIT;

#[derive(Clone)]
pub(crate) struct Sqlite(Arc<Shared>);

struct Shared {
    store: SqliteStore,
    /// Of the simulation's time: nobody else writes while it is held.
    writer: Arc<tokio::sync::Mutex<()>>,
    subscribers: Mutex<Vec<Weak<Notify>>>,
    _folder: TempDir,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = wait(self.store.close());
    }
}

/// Where the driver's timers and tasks are, in real time.
fn elsewhere() -> std::io::Result<&'static Handle> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if RUNTIME.get().is_none() {
        let runtime = Builder::new_multi_thread().enable_all().build()?;
        // Another thread may have been first.
        if let Err(second) = RUNTIME.set(runtime) {
            second.shutdown_background();
        }
    }
    let runtime = RUNTIME.get().map(Runtime::handle);
    runtime.ok_or_else(|| std::io::Error::other("there is no runtime"))
}

/// Waits for a call as a blocking one.
fn wait<T>(call: impl Future<Output = T>) -> std::io::Result<T> {
    let _entered = elsewhere()?.enter();
    Ok(block_on(unconstrained(call)))
}

fn answer<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    let failed =
        |error| inbox::Error::new(inbox::ErrorKind::Other, "no runtime").with_source(error);
    wait(call).map_err(failed)?
}

impl Sqlite {
    pub(crate) fn new(clock: Clock) -> std::result::Result<Self, String> {
        let text = |error: std::io::Error| error.to_string();
        let folder = tempfile::tempdir().map_err(text)?;
        let options = SqliteOptions::new(folder.path().join("inbox.db"))
            .clock(clock)
            .payload_limit(LIMIT)
            .synchronous(Synchronous::Normal);
        let connect = async {
            let store = SqliteStore::connect(options).await?;
            store.create().await?;
            Ok::<_, inbox::Error>(store)
        };
        let store = wait(connect)
            .map_err(text)?
            .map_err(|error| error.to_string())?;
        Ok(Self(Arc::new(Shared {
            store,
            writer: Arc::default(),
            subscribers: Mutex::default(),
            _folder: folder,
        })))
    }

    fn store(&self) -> &SqliteStore {
        &self.0.store
    }

    /// What writes waits for its turn in the simulation's time.
    async fn write<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let _writer = self.0.writer.lock().await;
        answer(call)
    }

    /// Writes what may make others due.
    async fn change<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let answer = self.write(call).await;
        self.wake();
        answer
    }

    fn subscribers(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Notify>>> {
        let subscribers = self.0.subscribers.lock();
        subscribers.unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        self.subscribers().retain(|subscriber| {
            let subscriber = subscriber.upgrade();
            subscriber.inspect(|one| one.notify_one()).is_some()
        });
    }

    pub(crate) async fn open(&self) -> Result<SqliteTransaction> {
        let writer = self.0.writer.clone().lock_owned().await;
        let open = answer(self.store().open())?;
        Ok(SqliteTransaction {
            sqlite: self.clone(),
            open: Some(open),
            _writer: writer,
        })
    }
}

/// An open transaction, which is rolled back when it is dropped.
pub(crate) struct SqliteTransaction {
    sqlite: Sqlite,
    open: Option<<SqliteStore as Transactional>::Transaction>,
    _writer: OwnedMutexGuard<()>,
}

impl SqliteTransaction {
    pub(crate) fn settle(&mut self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let Some(open) = &mut self.open else {
            return Ok(Vec::new());
        };
        answer(self.sqlite.store().settle_in(open, settlements))
    }

    pub(crate) fn commit(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        answer(self.sqlite.store().commit(open))?;
        self.sqlite.wake();
        Ok(())
    }
}

impl Drop for SqliteTransaction {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            let _ = answer(self.sqlite.store().roll_back(open));
        }
    }
}

#[async_trait]
impl Store for Sqlite {
    fn capabilities(&self) -> Capabilities {
        self.store().capabilities()
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.change(self.store().receive(messages)).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        self.write(self.store().claim(request)).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.change(self.store().settle(settlements)).await
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        self.write(self.store().extend(leases, length)).await
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        self.write(self.store().begin(message, terms)).await
    }

    /// Its own would look at the file from time to time, in real time.
    async fn subscribe(&self, _: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        let woken = Arc::new(Notify::new());
        self.subscribers().push(Arc::downgrade(&woken));
        Ok(Box::new(Woken(woken)))
    }

    async fn close(&self) {}
}

struct Woken(Arc<Notify>);

#[async_trait]
impl Subscription for Woken {
    async fn woken(&mut self) {
        self.0.notified().await;
    }
}

#[async_trait]
impl Operate for Sqlite {
    fn signed_by(&self, _: &OperatorName) -> Arc<dyn Operate> {
        Arc::new(self.clone())
    }

    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        answer(self.store().get(key))
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        answer(self.store().list(filter, page))
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        answer(self.store().count(filter))
    }

    async fn statistics(&self) -> Result<Statistics> {
        answer(self.store().statistics())
    }

    async fn replay(&self, key: &Key, edit: &Edit) -> Result<Intervention> {
        self.change(self.store().replay(key, edit)).await
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        self.change(self.store().replay_slice(filter, slice)).await
    }

    async fn reschedule(&self, key: &Key, due: Due) -> Result<Intervention> {
        self.change(self.store().reschedule(key, due)).await
    }

    async fn reschedule_slice(&self, filter: &Filter, slice: &Slice, due: Due) -> Result<Progress> {
        self.change(self.store().reschedule_slice(filter, slice, due))
            .await
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        self.change(self.store().discard(key)).await
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        self.change(self.store().discard_slice(filter, slice)).await
    }

    async fn clear_slice(&self, handler: &HandlerName, slice: &Slice) -> Result<Progress> {
        self.change(self.store().clear_slice(handler, slice)).await
    }

    async fn pause(&self, handler: &HandlerName) -> Result<()> {
        self.write(self.store().pause(handler)).await
    }

    async fn resume(&self, handler: &HandlerName) -> Result<()> {
        self.change(self.store().resume(handler)).await
    }

    async fn paused(&self) -> Result<Vec<HandlerName>> {
        answer(self.store().paused())
    }

    async fn purge(&self, request: &PurgeRequest) -> Result<u64> {
        self.change(self.store().purge(request)).await
    }

    async fn expired(&self, request: &PurgeRequest) -> Result<Listing> {
        answer(self.store().expired(request))
    }

    async fn purge_archived(&self, request: &PurgeRequest, keys: &[Key]) -> Result<u64> {
        self.change(self.store().purge_archived(request, keys))
            .await
    }

    async fn drop_payloads(&self, request: &PurgeRequest) -> Result<u64> {
        self.write(self.store().drop_payloads(request)).await
    }
}
