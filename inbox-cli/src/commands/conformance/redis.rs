//! Cases on Redis.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use conformance_tests::{Fixture, Harness, Need, Offered, SchemaVariant, Settings, Unable};
use inbox::{ClockOffset, Inbox, InboxName, Schema as _};
use inbox_redis::{RedisOptions, RedisStore};

use super::{Rig, needs_raw_access};

/// Every case gets its own inbox on the server that the URL names.
pub(super) struct Redis {
    options: RedisOptions,
    /// What the names of a run's inboxes begin with.
    prefix: String,
    next: AtomicU32,
    inboxes: Arc<Inboxes>,
}

/// The inboxes of a run. A fixture cannot wait for the server when it is dropped, so it only says
/// that it has done with its own, and the next case removes it.
#[derive(Default)]
struct Inboxes {
    all: Mutex<Vec<RedisOptions>>,
    done_with: Mutex<Vec<RedisOptions>>,
}

fn lock(list: &Mutex<Vec<RedisOptions>>) -> MutexGuard<'_, Vec<RedisOptions>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn remove(options: &RedisOptions) -> inbox::Result<()> {
    let store = RedisStore::connect(options.clone()).await?;
    store.remove().await
}

impl Redis {
    /// Tries everything that each case needs, so that what is missing is said once.
    pub(super) async fn new(url: &str) -> inbox::Result<Self> {
        let redis = Self {
            options: RedisOptions::from_url(url)?,
            prefix: format!(
                "conf{}_{:06x}",
                std::process::id(),
                fastrand::u32(..1 << 24)
            ),
            next: AtomicU32::new(0),
            inboxes: Arc::default(),
        };
        let options = redis.fresh_options()?;
        let created = async {
            let store = RedisStore::connect(options.clone()).await?;
            store.create().await
        };
        let created = created.await;
        if created.is_ok() {
            redis.clean_up().await;
        }
        created?;
        Ok(redis)
    }

    fn fresh_options(&self) -> inbox::Result<RedisOptions> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = InboxName::new(format!("{}_{number}", self.prefix))
            .map_err(|invalid| invalid.in_operation("connect"))?;
        let options = self.options.clone().inbox_name(name);
        lock(&self.inboxes.all).push(options.clone());
        Ok(options)
    }

    async fn place(&self, settings: &Settings) -> Offered<OneInbox> {
        let done_with = std::mem::take(&mut *lock(&self.inboxes.done_with));
        for options in done_with {
            if remove(&options).await.is_ok() {
                lock(&self.inboxes.all).retain(|other| other.name() != options.name());
            }
        }
        let offset = ClockOffset::default();
        let mut options = self
            .fresh_options()?
            .drop_processed_payloads(settings.drop_processed_payloads)
            .clock_offset(offset.clone());
        if let Some(limit) = settings.payload_limit {
            options = options.payload_limit(limit);
        }
        Ok(OneInbox {
            store: Arc::new(RedisStore::connect(options.clone()).await?),
            options,
            offset,
            inboxes: Arc::clone(&self.inboxes),
        })
    }
}

#[async_trait]
impl Rig for Redis {
    async fn clean_up(&self) {
        let all = std::mem::take(&mut *lock(&self.inboxes.all));
        for options in all {
            if let Err(error) = remove(&options).await {
                crate::output::note(format_args!(
                    "the inbox {} is left behind: {error}",
                    options.name()
                ));
            }
        }
    }
}

#[async_trait]
impl Harness for Redis {
    fn name(&self) -> String {
        "redis".into()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let place = self.place(settings).await?;
        place.store.create().await?;
        Ok(Box::new(place))
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        match variant {
            SchemaVariant::Missing => Ok(Box::new(self.place(&Settings::default()).await?)),
            _ => Err(Unable::NotOffered(Need::Schema(variant))),
        }
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        let mut needs = needs_raw_access();
        needs.extend([Need::Transactions, Need::BatchAtomicity]);
        needs
    }
}

struct OneInbox {
    store: Arc<RedisStore>,
    options: RedisOptions,
    offset: ClockOffset,
    inboxes: Arc<Inboxes>,
}

#[async_trait]
impl Fixture for OneInbox {
    fn inbox(&self) -> Arc<dyn Inbox> {
        Arc::<RedisStore>::clone(&self.store)
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        self.offset.advance(by);
        Ok(())
    }

    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        Ok(Arc::new(RedisStore::connect(self.options.clone()).await?))
    }
}

impl Drop for OneInbox {
    fn drop(&mut self) {
        lock(&self.inboxes.done_with).push(self.options.clone());
    }
}
