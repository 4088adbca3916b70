//! Taking nothing more in while too much waits.

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    HandlerName, Invalid, Operate,
    patience::{Patience, STORE_TIMEOUT, answer_of, check_limit},
    telemetry::OUTAGE,
};

/// Closed while the backlog is over a limit, so that a source is held back, or a front answers
/// *come back later*, rather than the inbox growing for as long as handlers are slower than what comes.
///
/// It looks at the [statistics](Operate::statistics) once per interval, in a task that ends with the
/// last clone, and opens again at nine tenths of the limit. While the statistics cannot be read it stays
/// as it was; it is open before the first look, and when the runtime that it was built in is gone. The backlog may exceed the limit by what comes in
/// between two looks.
///
/// ```
/// use inbox::{BacklogGate, Receiver};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let inbox = inbox::connect("memory://").await?;
/// inbox.migrate().await?;
/// let gate = BacklogGate::builder(inbox.clone(), 100_000).build()?;
///
/// // A receiver takes nothing from its source while the gate is closed.
/// let receiver = Receiver::builder(inbox).backlog_gate(gate.clone()).build();
///
/// // A front that stores by itself asks.
/// let status = if gate.is_open() { 202 } else { 503 };
/// # let _ = (receiver, status);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct BacklogGate {
    is_open: watch::Receiver<bool>,
    limit: u64,
    _task: Arc<AbortOnDropHandle<()>>,
}

/// Sets up a [`BacklogGate`]; from [`BacklogGate::builder`].
#[must_use]
pub struct BacklogGateBuilder {
    operate: Arc<dyn Operate>,
    limit: u64,
    handlers: Option<HashSet<HandlerName>>,
    interval: Duration,
}

impl BacklogGate {
    /// A gate that is closed while more than `limit` messages of all handlers together are pending
    /// or leased. Those that are not due yet count too.
    pub fn builder(
        operate: Arc<impl Operate + ?Sized + 'static>,
        limit: u64,
    ) -> BacklogGateBuilder {
        BacklogGateBuilder {
            operate: Arc::new(operate),
            limit,
            handlers: None,
            interval: Duration::from_secs(1),
        }
    }

    /// Whether there is room for more, as far as the last look tells.
    #[must_use]
    pub fn is_open(&self) -> bool {
        *self.is_open.borrow() || self.is_abandoned()
    }

    /// Waits until it is open. Cancel-safe.
    pub async fn opened(&self) {
        // An error says that it is abandoned, and so open.
        let _ = self.is_open.clone().wait_for(|is_open| *is_open).await;
    }

    /// Whether its task is gone, with its runtime: what nothing looks at would stay as it was for ever.
    fn is_abandoned(&self) -> bool {
        self.is_open.has_changed().is_err()
    }
}

impl BacklogGateBuilder {
    /// Counts the messages of these handlers only. Default: of all.
    pub fn handlers(mut self, handlers: impl IntoIterator<Item = HandlerName>) -> Self {
        self.handlers = Some(handlers.into_iter().collect());
        self
    }

    /// Sets the time between two looks. Default: a second.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// The gate. Begins to look, in a task of the present runtime.
    ///
    /// # Errors
    /// [`Invalid::OutOfRange`] when the interval is shorter than a millisecond.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn build(self) -> Result<BacklogGate, Invalid> {
        check_limit(self.interval, "backlog gate's interval")?;
        let limit = self.limit;
        let (open, is_open) = watch::channel(true);
        let task = tokio::spawn(self.watch(open));
        Ok(BacklogGate {
            is_open,
            limit,
            _task: Arc::new(AbortOnDropHandle::new(task)),
        })
    }

    /// Never returns.
    async fn watch(self, open: watch::Sender<bool>) {
        let patience = Patience::new(STORE_TIMEOUT);
        let mut is_known = true;
        loop {
            match answer_of(self.backlog(&patience)).await {
                Ok(backlog) => {
                    is_known = true;
                    self.judge(backlog, &open);
                }
                Err(error) if std::mem::take(&mut is_known) => {
                    tracing::warn!(target: OUTAGE, %error, "backlog not known; the gate stays as it is");
                }
                Err(_) => {}
            }
            tokio::time::sleep(self.interval).await;
        }
    }

    async fn backlog(&self, patience: &Patience) -> crate::Result<u64> {
        let statistics = patience
            .within("statistics", self.operate.statistics())
            .await?;
        let counts = |handler: &&crate::HandlerStatistics| {
            let handlers = self.handlers.as_ref();
            handlers.is_none_or(|handlers| handlers.contains(&handler.handler))
        };
        let counted = statistics.handlers.iter().filter(counts);
        Ok(counted.map(crate::HandlerStatistics::backlog).sum())
    }

    fn judge(&self, backlog: u64, open: &watch::Sender<bool>) {
        let enough = self.limit - self.limit / 10;
        open.send_if_modified(|is_open| {
            let opens = backlog <= if *is_open { self.limit } else { enough };
            let changes = opens != *is_open;
            if changes && opens {
                tracing::info!(backlog, "the backlog is within its limit again");
            } else if changes {
                let limit = self.limit;
                tracing::warn!(
                    backlog,
                    limit,
                    "the backlog is over its limit; nothing more is taken in"
                );
            }
            *is_open = opens;
            changes
        });
    }
}

impl fmt::Debug for BacklogGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BacklogGate")
            .field("limit", &self.limit)
            .field("is_open", &self.is_open())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for BacklogGateBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BacklogGateBuilder")
            .field("limit", &self.limit)
            .field("handlers", &self.handlers)
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}
