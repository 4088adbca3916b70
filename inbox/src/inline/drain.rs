//! The end of a consumer: what it has under way, and how it is waited for.

use std::time::Duration;

use tokio::{task::JoinHandle, time::timeout};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use super::InlineConsumer;

/// How long what was cut short may take to be handed back, and hooks to be called.
const GRACE: Duration = Duration::from_secs(5);

/// Of all clones of a consumer.
#[derive(Clone, Default)]
pub(super) struct UnderWay {
    all: TaskTracker,
    stop: CancellationToken,
}

impl UnderWay {
    /// Is waited for while this lives.
    pub(super) fn begin(&self) -> TaskTrackerToken {
        self.all.token()
    }

    /// Is waited for until it has ended.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.all.spawn(task)
    }

    /// Fires when the time for what is under way is over.
    pub(super) fn stop(&self) -> &CancellationToken {
        &self.stop
    }
}

impl InlineConsumer {
    /// Waits until everything has ended that this consumer and its clones have begun: messages
    /// being consumed, requests of an [`InboxLayer`](crate::InboxLayer) whose clients have left, and
    /// calls of hooks. To be awaited before the process ends; otherwise what is under way is killed
    /// with it, its messages stay leased, and their attempts count as crashed.
    ///
    /// What has not ended after `limit` is cut short: handlers are dropped and their messages handed
    /// back, which costs them no attempt. That takes five seconds at the most. From then on this
    /// consumer begins nothing more, and answers [`ConsumeError::Stopped`](super::ConsumeError).
    ///
    /// Returns whether everything came to its own end. Call it when nothing more comes in, such as
    /// after the graceful shutdown of a web server. With axum, and 30 seconds until the process is
    /// killed:
    ///
    /// ```text
    /// axum::serve(listener, app).with_graceful_shutdown(terminated()).await?;
    /// consumer.drain(Duration::from_secs(20)).await;
    /// ```
    pub async fn drain(&self, limit: Duration) -> bool {
        let UnderWay { all, stop } = &self.under_way;
        all.close();
        let has_ended = timeout(limit, all.wait()).await.is_ok();
        stop.cancel();
        if !has_ended {
            tracing::warn!(
                tasks = all.len(),
                "the shutdown cuts short what is consumed inline"
            );
            if timeout(GRACE, all.wait()).await.is_err() {
                tracing::warn!("some of it has not ended; its leases run out");
            }
        }
        has_ended
    }
}
