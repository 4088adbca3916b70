//! What the clones of a store share, and how an operation reaches the shards of its inbox: by calls of
//! scripts, each within the time limit of the options, and confirmed where these demand it.

use std::{
    ops::Deref,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use futures_util::future::{join_all, try_join_all};
use inbox_api::{Effect, Error, ErrorKind, HandlerName, Result};
use redis::Value;

use crate::{
    clocks::{Clocks, Moment},
    keys::Layout,
    options::RedisOptions,
    scripts::{Call, Caller, Script},
    servers::{Addressed, Servers},
    start_checks,
};

/// What the clones of a store share.
pub(crate) struct Shared {
    pub(crate) options: RedisOptions,
    pub(crate) caller: Caller,
    /// `None` once closed.
    servers: RwLock<Option<Servers>>,
}

/// The connection of one operation.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    operation: &'static str,
    /// Calls that have changed something, or may have.
    changes: AtomicUsize,
}

impl Deref for Connection {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Shared {
    /// Connects, and looks at the servers' settings.
    pub(crate) async fn open(options: RedisOptions) -> Result<Self> {
        let servers = Servers::connect(&options).await?;
        start_checks::check(&servers, &options).await?;
        let layout = Layout::new(&options.inbox, options.shards);
        let caller = Caller::new(layout, options.offset.clone());
        hear_clocks(&caller, &servers).await;
        Ok(Self {
            options,
            caller,
            servers: RwLock::new(Some(servers)),
        })
    }

    pub(crate) fn close(&self) {
        *self.servers.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn servers(&self) -> Result<Servers> {
        let servers = self.servers.read().unwrap_or_else(PoisonError::into_inner);
        let closed = || Error::new(ErrorKind::Unavailable, "the store is closed");
        servers.clone().ok_or_else(closed)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        self.servers().map(drop)
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.caller.layout
    }

    pub(crate) fn clocks(&self) -> &Clocks {
        &self.caller.clocks
    }

    /// Whether what changes something waits for replicas or disks.
    pub(crate) fn confirms(&self) -> bool {
        self.options.confirmations.any()
    }

    /// For one operation, by the name of the method that is called.
    pub(crate) fn operation(self: &Arc<Self>, name: &'static str) -> Connection {
        Connection {
            shared: Arc::clone(self),
            operation: name,
            changes: AtomicUsize::new(0),
        }
    }
}

impl Connection {
    /// The error of the operation: it has changed what its other calls have, or may have.
    pub(crate) fn failed(&self, error: Error) -> Error {
        let error = error.in_operation(self.operation);
        let is_refusal = matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unsupported);
        error.after_changes(!is_refusal && self.changes.load(Ordering::Relaxed) > 0)
    }

    /// One for what goes on behind the operation's answer.
    pub(crate) fn another(&self) -> Self {
        self.shared.operation(self.operation)
    }

    /// Begins a call of `script` in `shard` that may touch these handlers' keys.
    pub(crate) fn call<'a>(
        &self,
        script: &'static Script,
        shard: u16,
        handlers: impl IntoIterator<Item = &'a HandlerName>,
    ) -> Call {
        self.call_at(script, shard, handlers, Moment::default())
    }

    /// The same at a moment that other shards share.
    pub(crate) fn call_at<'a>(
        &self,
        script: &'static Script,
        shard: u16,
        handlers: impl IntoIterator<Item = &'a HandlerName>,
        moment: Moment,
    ) -> Call {
        self.caller.call_with(script, shard, handlers, &[], moment)
    }

    async fn send(&self, call: Call, confirmed: bool) -> Result<Value> {
        let (layout, changes) = (self.layout(), call.changes());
        let confirmed_by = confirmed.then(|| layout.meta(call.shard));
        let addressed = Addressed {
            slot: layout.slot(call.shard),
            script: call.script,
            command: call.command,
            confirmed_by,
        };
        let servers = self.servers()?;
        if !changes {
            return servers.run(addressed).await;
        }
        // Of one whose answer nobody waits for any more, it is not known.
        self.changes.fetch_add(1, Ordering::Relaxed);
        let answer = servers.run(addressed).await;
        if answer
            .as_ref()
            .is_err_and(|error| error.effect() == Effect::None)
        {
            self.changes.fetch_sub(1, Ordering::Relaxed);
        }
        answer
    }

    pub(crate) async fn run(&self, call: Call) -> Result<Value> {
        self.send(call, false).await
    }

    /// As [`Self::run`], and waits for the confirmations that the options demand.
    pub(crate) async fn run_confirmed(&self, call: Call) -> Result<Value> {
        self.send(call, self.confirms()).await
    }

    /// All at once; the first error is the answer.
    pub(crate) async fn run_all(&self, calls: Vec<Call>) -> Result<Vec<Value>> {
        try_join_all(calls.into_iter().map(|call| self.run(call))).await
    }

    /// All at once, confirmed. Lets every call end even if one fails, so that as much as can be
    /// done is done.
    pub(crate) async fn run_all_confirmed(&self, calls: Vec<Call>) -> Result<Vec<Value>> {
        let calls = calls.into_iter().map(|call| self.run_confirmed(call));
        join_all(calls).await.into_iter().collect()
    }
}

/// Looks at the clock of each shard's server, where there are several. One that does not answer is
/// heard later.
async fn hear_clocks(caller: &Caller, servers: &Servers) {
    if caller.layout.shards() == 1 {
        return;
    }
    let looks = caller.layout.all().map(|shard| async move {
        let sent = Instant::now();
        if let Some(time) = servers.time(caller.layout.slot(shard)).await {
            caller.clocks.hear(shard, time, sent);
        }
    });
    join_all(looks).await;
}
