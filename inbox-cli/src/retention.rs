//! What `process` and `run` delete by themselves.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use inbox::{CancellationToken, HandlerName, Inbox, Janitor, Retention, RetryPolicy};

use crate::{
    args::{self, Global},
    output,
};

/// For how long processed messages are kept; `None` means for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keep(Option<Duration>);

/// Reads an age, or `forever`.
pub(crate) fn keep(text: &str) -> Result<Keep, String> {
    if text == "forever" {
        return Ok(Keep::FOREVER);
    }
    match args::duration(text)? {
        Duration::ZERO => Err("nothing would refuse duplicates".to_owned()),
        age => Ok(Keep(Some(age))),
    }
}

impl Keep {
    /// Nothing is deleted.
    pub(crate) const FOREVER: Self = Self(None);

    /// Does `work`, and meanwhile deletes what `handler` has processed long enough ago; says so first, and warns
    /// if its retries may take longer. Work that ends before a sweep does has one behind it, unless `token` is
    /// cancelled.
    pub(crate) async fn during<T>(
        self,
        global: &Global,
        store: &Arc<dyn Inbox>,
        handler: &HandlerName,
        retry: RetryPolicy,
        token: &CancellationToken,
        work: impl Future<Output = T>,
    ) -> Result<T> {
        let Some(age) = self.0 else {
            return Ok(work.await);
        };
        if !global.quiet {
            output::note(format_args!(
                "processed messages of `{handler}` are deleted after {}, and a copy that comes later is \
                 handled again; to keep them: --keep-processed forever",
                in_words(age)
            ));
        }
        let retention = Retention::new().keep_processed(age);
        let janitor = Janitor::builder(Arc::clone(store))
            .handler(handler.clone(), retention)
            .retry(retry)
            .build()?;
        let over = CancellationToken::new();
        let working = async {
            let _ends = over.clone().drop_guard();
            work.await
        };
        let (done, _) = tokio::join!(working, janitor.run(over.clone()));
        if !token.is_cancelled()
            && let Err(error) = janitor.sweep_until(token).await
        {
            tracing::warn!(%error, "old messages not deleted");
        }
        Ok(done)
    }
}

fn in_words(age: Duration) -> String {
    const DAY: u64 = 24 * 60 * 60;
    match age.as_secs() {
        seconds if seconds >= DAY && seconds.is_multiple_of(DAY) => {
            output::count_of(seconds / DAY, "day")
        }
        _ => output::duration(age),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_or_for_ever() {
        let days = |days: u64| Some(Duration::from_secs(days * 24 * 60 * 60));
        assert_eq!(keep("30d"), Ok(Keep(days(30))));
        assert_eq!(keep("forever"), Ok(Keep(None)));
        assert!(keep("0s").is_err());
        assert!(keep("never").is_err());
    }
}
