//! The beginning of a delivery: whether it may run, and under which lease.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder, Retryable as _};
use futures_util::future::OptionFuture;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    InlineConsumer, OnBusy, REPEATED_FOR,
    answer::ConsumeError,
    memory::{Turn, Unrecorded},
};
use crate::{
    Begun, Effect, Error, ErrorKind, Extended, Leased, Message, Outcome, Result, Store as _,
    StoreExt as _, backoff::a_few_times,
};

impl InlineConsumer {
    /// Asks the store until the answer is final or the patience for busy messages is used up.
    /// With a lease comes a moment before it was granted. Until the turn is dropped no other copy asks.
    pub(super) async fn begin<E>(
        &self,
        message: &Message,
    ) -> Result<(Begun, Instant, Option<Turn>), ConsumeError<E>> {
        let patience = match self.on_busy {
            OnBusy::Wait(limit) => limit,
            OnBusy::Error | OnBusy::Skip => Duration::ZERO,
        };
        let began = Instant::now();
        let mut pauses = ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(10))
            .with_max_delay(Duration::from_secs(1))
            .with_jitter()
            .without_max_times()
            .build();
        let stop = self.under_way.stop();
        let leaves = || OptionFuture::from(self.gone.as_ref().map(CancellationToken::cancelled));
        loop {
            let left = patience.saturating_sub(began.elapsed());
            let turn = tokio::select! {
                biased;
                () = stop.cancelled() => return Err(ConsumeError::Stopped),
                turn = self.memory.turn(message.key()) => turn,
                Some(()) = leaves() => return self.without_turn(message),
                () = tokio::time::sleep(left.max(REPEATED_FOR)) => return self.without_turn(message),
            };
            let begun = self.begin_now(message).await;
            let (begun, asked) = begun.map_err(ConsumeError::Store)?;
            let left = patience.saturating_sub(began.elapsed());
            if !matches!(begun, Begun::Busy { .. } | Begun::Blocked) || left.is_zero() {
                return Ok((begun, asked, Some(turn)));
            }
            drop(turn);
            let pause = tokio::time::sleep(pauses.next().unwrap_or_default().min(left));
            tokio::select! {
                biased;
                () = stop.cancelled() => return Err(ConsumeError::Stopped),
                Some(()) = leaves() => return Ok((begun, asked, None)),
                () = pause => {}
            }
        }
    }

    /// The answer to a copy that no longer waits for another one: that runs, or the store does not answer it.
    fn without_turn<E>(
        &self,
        message: &Message,
    ) -> Result<(Begun, Instant, Option<Turn>), ConsumeError<E>> {
        if let Some(until) = self.memory.running(message.key()) {
            return Ok((Begun::Busy { until }, Instant::now(), None));
        }
        let context = "another copy of the message waits for the store";
        let error = Error::new(ErrorKind::Unavailable, context).with_effect(Effect::None);
        Err(ConsumeError::Store(error.in_operation("begin")))
    }

    async fn begin_now(&self, message: &Message) -> Result<(Begun, Instant)> {
        if let Some(until) = self.memory.running(message.key()) {
            return Ok((Begun::Busy { until }, Instant::now()));
        }
        // Also what a copy that was waited for has finished meanwhile.
        self.record_first(message).await?;
        let waiting = timeout(REPEATED_FOR, self.begins.acquire());
        let Ok(Ok(_turn)) = waiting.await else {
            let context = "too many messages wait to be begun";
            let error = Error::new(ErrorKind::Unavailable, context).with_effect(Effect::None);
            return Err(error.in_operation("begin"));
        };
        let called = Instant::now();
        // After a lost reply the lease may be ours without our holding its token; asking again
        // would only find the message busy.
        let begin = || async {
            let asked = Instant::now();
            let begun = self.store.begin(message, &self.terms).await?;
            self.outage.over();
            Ok((begun, asked))
        };
        let is_safe = |error: &Error| error.is_retryable() && error.effect() == Effect::None;
        let begun = begin
            .retry(a_few_times())
            .when(|error| is_safe(error) && called.elapsed() < REPEATED_FOR);
        match begun.await? {
            (Begun::Run(leased), asked) if asked.elapsed() >= self.terms.length() => {
                self.confirm(leased).await
            }
            begun => Ok(begun),
        }
    }

    /// What a lease is worth that had run out when the answer came: another worker may have taken the message
    /// since, and be done with it.
    async fn confirm(&self, mut leased: Box<Leased>) -> Result<(Begun, Instant)> {
        let asked = Instant::now();
        let extending = self.store.extend_one(&leased.lease, self.terms.length());
        let begun = match extending.await? {
            Extended::Until(until) => {
                leased.lease.until = until;
                Begun::Run(leased)
            }
            Extended::LeaseLost => Begun::Busy {
                until: leased.lease.until,
            },
        };
        Ok((begun, asked))
    }

    /// What was finished here and could not be recorded is, before the store is asked whether it
    /// may run: its lease has run out perhaps, which matters only once another worker has claimed it.
    async fn record_first(&self, message: &Message) -> Result<()> {
        let Some(Unrecorded { lease, result }) = self.memory.unrecorded(message.key()) else {
            return Ok(());
        };
        let settled = self.settle(&lease, Outcome::Processed { result }).await?;
        self.memory.forget(&lease);
        tracing::info!(key = %lease.key, ?settled, "completion recorded late");
        Ok(())
    }
}
