//! Ctrl-C, SIGTERM and SIGHUP.

use std::{sync::OnceLock, thread, time::Duration};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{exit::Exit, handler, output};

/// What the first signal makes of the exit code.
static FIRST: OnceLock<Exit> = OnceLock::new();

/// A token that the first Ctrl-C, SIGTERM or SIGHUP cancels, for an orderly end. The second kills running
/// commands and ends the process at once; their leases simply run out.
///
/// Signals have their own thread, in which nothing is printed: a reader of our output that has
/// stopped reading holds up every thread that writes, and must not hold this one up.
pub(crate) fn token() -> anyhow::Result<CancellationToken> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    // Listened for from here on, not from when the thread gets to run.
    let (mut interrupt, mut terminate, mut hang_up) = {
        let _inside = runtime.enter();
        let hang_up = (!ignores_hang_ups()).then(|| signal(SignalKind::hangup()));
        (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            hang_up.transpose()?,
        )
    };
    let token = CancellationToken::new();
    let cancel = token.clone();
    let watch = async move {
        for press in 0.. {
            let exit = tokio::select! {
                _ = interrupt.recv() => Exit::Interrupted,
                _ = terminate.recv() => Exit::Terminated,
                Some(_) = hung_up(&mut hang_up) => Exit::HungUp,
            };
            if press > 0 {
                handler::kill_all();
                std::process::exit(exit.code().into());
            }
            FIRST.get_or_init(|| exit);
            cancel.cancel();
            // It ends without it, too.
            let _ = thread::Builder::new().spawn(|| {
                output::note("\nfinishing what is under way; once more to end at once");
            });
        }
    };
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || runtime.block_on(watch))?;
    Ok(token)
}

/// Whether this was started by `nohup`, which must not be undone. Where the system does not say so,
/// it is taken to be.
fn ignores_hang_ups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    // The first bit is of signal 1, SIGHUP.
    ignored.is_none_or(|set| set & 1 != 0)
}

async fn hung_up(signals: &mut Option<Signal>) -> Option<()> {
    signals.as_mut()?.recv().await
}

/// How long what is under way may take once the end was asked for.
const GRACE: Duration = Duration::from_secs(5);

/// Waits for `work`, which is over soon as a rule; `None` when it is not and a signal has come.
pub(crate) async fn unless_given_up<T>(
    token: &CancellationToken,
    work: impl Future<Output = T>,
) -> Option<T> {
    within(token, GRACE, work).await
}

/// Waits for `work`; `None` when it has not ended so long after `token` was cancelled, or after this was called if that
/// is later.
pub(crate) async fn within<T>(
    token: &CancellationToken,
    limit: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    let given_up = async {
        token.cancelled().await;
        tokio::time::sleep(limit).await;
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = given_up => None,
    }
}

/// How a command that watched `token` ended, if a signal leaves some of its work undone.
pub(crate) fn exit(token: &CancellationToken, otherwise: Exit) -> Exit {
    if !token.is_cancelled() {
        return otherwise;
    }
    FIRST.get().copied().unwrap_or(Exit::Interrupted)
}

/// The same of a command that goes on until it is told to end: SIGTERM is how that is done, so
/// that an `orderly` end by it is a success.
pub(crate) fn exit_of_service(token: &CancellationToken, orderly: bool, otherwise: Exit) -> Exit {
    match exit(token, otherwise) {
        Exit::Terminated if orderly => Exit::Ok,
        exit => exit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_given_up_only_once_the_end_was_asked_for() {
        let token = CancellationToken::new();
        let limit = Duration::ZERO;
        let slow = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            7
        };
        assert_eq!(within(&token, limit, slow).await, Some(7));
        token.cancel();
        let never = std::future::pending::<()>();
        assert_eq!(within(&token, limit, never).await, None);
        // What has ended counts.
        assert_eq!(within(&token, limit, async { 7 }).await, Some(7));
    }
}
