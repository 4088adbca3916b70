//! Ctrl-C and SIGTERM.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{exit::Exit, handler, output};

/// Whether the first signal was SIGTERM rather than Ctrl-C.
static IS_TERMINATED: AtomicBool = AtomicBool::new(false);

/// A token that the first Ctrl-C or SIGTERM cancels, for an orderly end. The second kills running
/// commands and ends the process at once; their leases simply run out.
///
/// Signals have a thread of their own, in which nothing is printed: a reader of our output that has
/// stopped reading holds up every thread that writes, and must not hold this one up.
pub(crate) fn token() -> anyhow::Result<CancellationToken> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    // Listened for from here on, not from when the thread gets to run.
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
        )
    };
    let token = CancellationToken::new();
    let cancel = token.clone();
    let watch = async move {
        for press in 0.. {
            let exit = tokio::select! {
                _ = interrupt.recv() => Exit::Interrupted,
                _ = terminate.recv() => Exit::Terminated,
            };
            if press > 0 {
                handler::kill_all();
                std::process::exit(exit.code().into());
            }
            IS_TERMINATED.store(exit == Exit::Terminated, Ordering::Relaxed);
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

/// How a command that watched `token` ended, if a signal leaves some of its work undone.
pub(crate) fn exit(token: &CancellationToken, otherwise: Exit) -> Exit {
    if !token.is_cancelled() {
        otherwise
    } else if IS_TERMINATED.load(Ordering::Relaxed) {
        Exit::Terminated
    } else {
        Exit::Interrupted
    }
}

/// The same of a command that goes on until it is told to end: SIGTERM is how that is done, so
/// that an `orderly` end by it is a success.
pub(crate) fn exit_of_service(token: &CancellationToken, orderly: bool, otherwise: Exit) -> Exit {
    match exit(token, otherwise) {
        Exit::Terminated if orderly => Exit::Ok,
        exit => exit,
    }
}
