//! Ctrl-C, and SIGTERM, by which systemd and Kubernetes ask a process to end.

use inbox::CancellationToken;
use tokio::signal::unix::{SignalKind, signal};

/// Cancelled when the process is asked to end. When it is asked a second time, it ends at once.
pub(crate) fn shutdown() -> Result<CancellationToken, std::io::Error> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let token = CancellationToken::new();
    let stop = token.clone();
    tokio::spawn(async move {
        for _ in 0..2 {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            stop.cancel();
        }
        std::process::exit(1);
    });
    Ok(token)
}
