//! Ctrl-C and SIGTERM.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{exit::Exit, handler};

/// A token that the first Ctrl-C or SIGTERM cancels, for an orderly end. The second kills running
/// commands and ends the process at once; their leases simply run out.
pub(crate) fn token() -> anyhow::Result<CancellationToken> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let token = CancellationToken::new();
    let cancel = token.clone();
    tokio::spawn(async move {
        for press in 0.. {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if press > 0 {
                handler::kill_all();
                // The same code as an orderly interruption.
                std::process::exit(130);
            }
            eprintln!("\nfinishing what is under way; once more to end at once");
            cancel.cancel();
        }
    });
    Ok(token)
}

/// How a command that watched `token` ended.
pub(crate) fn exit(token: &CancellationToken, otherwise: Exit) -> Exit {
    if token.is_cancelled() {
        Exit::Interrupted
    } else {
        otherwise
    }
}
