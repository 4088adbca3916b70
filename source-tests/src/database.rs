//! Where a chaos run stores.

use tempfile::TempDir;

use crate::Failure;

pub(crate) enum Database {
    File(TempDir),
    #[cfg(feature = "servers")]
    Server(std::sync::Arc<std::sync::Mutex<test_servers::Server>>),
}

impl Database {
    pub(crate) async fn start(store: &str) -> Result<Self, Failure> {
        match store {
            "sqlite" => Ok(Self::File(tempfile::tempdir()?)),
            #[cfg(feature = "servers")]
            "postgres" => {
                let start = || test_servers::find_own(test_servers::Kind::Postgres, &[]);
                let server = tokio::task::spawn_blocking(start).await??;
                Ok(Self::Server(std::sync::Arc::new(std::sync::Mutex::new(
                    server,
                ))))
            }
            other => Err(format!(
                "no store {other} here: sqlite, or postgres with the feature servers"
            )
            .into()),
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::File(directory) => {
                format!("sqlite://{}/inbox.db", directory.path().display())
            }
            #[cfg(feature = "servers")]
            Self::Server(server) => lock(server).url().to_owned(),
        }
    }

    /// Whether it is a process of its own.
    pub(crate) fn is_server(&self) -> bool {
        !matches!(self, Self::File(_))
    }

    /// Kills the server and starts it again.
    pub(crate) async fn restart(&self) -> Result<(), Failure> {
        match self {
            Self::File(_) => Ok(()),
            #[cfg(feature = "servers")]
            Self::Server(server) => {
                let server = std::sync::Arc::clone(server);
                let restart = move || {
                    let mut server = lock(&server);
                    server.kill()?;
                    server.start()
                };
                Ok(tokio::task::spawn_blocking(restart).await??)
            }
        }
    }
}

#[cfg(feature = "servers")]
fn lock(
    server: &std::sync::Mutex<test_servers::Server>,
) -> std::sync::MutexGuard<'_, test_servers::Server> {
    server
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
