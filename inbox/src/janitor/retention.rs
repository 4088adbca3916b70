//! For how long final messages are kept.

use std::{fmt, time::Duration};

use crate::{HandlerName, State};

/// For how long final messages are kept. What is not set is kept for ever.
///
/// ```
/// use std::time::Duration;
/// use inbox::{HandlerName, Janitor, Retention};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// let store = inbox::connect("memory://").await?;
/// let janitor = Janitor::builder(store)
///     .keep_processed(30 * DAY)
///     .keep_payloads(7 * DAY) // keys refuse duplicates for 23 days more
///     .handler(HandlerName::new("payments")?, Retention::new().keep_processed(400 * DAY))
///     .between(22, 4)
///     .build()?;
/// # let _ = janitor;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    processed: Option<Duration>,
    dead: Option<Duration>,
    discarded: Option<Duration>,
    payloads: Option<Duration>,
}

impl Retention {
    /// Keeps all for ever.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Deletes processed messages this long after they were processed.
    #[must_use]
    pub fn keep_processed(mut self, retention: Duration) -> Self {
        self.processed = Some(retention);
        self
    }

    /// Deletes dead messages this long after they died.
    #[must_use]
    pub fn keep_dead(mut self, retention: Duration) -> Self {
        self.dead = Some(retention);
        self
    }

    /// Deletes discarded messages this long after they were discarded.
    #[must_use]
    pub fn keep_discarded(mut self, retention: Duration) -> Self {
        self.discarded = Some(retention);
        self
    }

    /// Drops payload and result of processed messages this long after they were processed. Their keys go
    /// on refusing duplicates until they are deleted; duplicates are given no result any more, and a
    /// replay has to bring a payload. Dead messages keep theirs, to be replayed.
    #[must_use]
    pub fn keep_payloads(mut self, retention: Duration) -> Self {
        self.payloads = Some(retention);
        self
    }

    /// The states that are not kept for ever.
    pub(super) fn states(&self) -> impl Iterator<Item = (State, Duration)> {
        let states = [
            (State::Processed, self.processed),
            (State::Dead, self.dead),
            (State::Discarded, self.discarded),
        ];
        let set = states.into_iter();
        set.filter_map(|(state, retention)| Some((state, retention?)))
    }

    pub(super) fn payloads(&self) -> Option<Duration> {
        self.payloads
    }

    pub(super) fn warnings(
        &self,
        handler: Option<&HandlerName>,
        window: Option<Duration>,
    ) -> Vec<RetentionWarning> {
        let window = window.unwrap_or_default();
        let short = self.states().filter(|(_, retention)| *retention < window);
        short
            .map(|(state, retention)| RetentionWarning {
                handler: handler.cloned(),
                state,
                retention,
                window,
            })
            .collect()
    }
}

/// A retention that is shorter than the longest retry window: if the producer retries for as long
/// as the consumer does, copies can arrive after their key was deleted, and are handled again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetentionWarning {
    /// The handler, if the retention is its own.
    pub handler: Option<HandlerName>,
    /// Whose retention it is.
    pub state: State,
    /// The retention.
    pub retention: Duration,
    /// The longest retry window.
    pub window: Duration,
}

impl fmt::Display for RetentionWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            handler,
            state,
            retention,
            window,
        } = self;
        write!(f, "{state} messages ")?;
        if let Some(handler) = handler {
            write!(f, "of {handler} ")?;
        }
        write!(
            f,
            "are kept for {retention:?}, less than the longest retry window of {window:?}: a late copy \
             would be handled again"
        )
    }
}
