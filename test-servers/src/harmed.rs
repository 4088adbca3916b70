//! A server that a crash run harms, with a proxy before it.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use conformance_tests::{
    BoxError, Offered, Unable,
    crash::{Fault, proxy::Proxy},
};

use crate::{Error, Server};

/// For how long a server is paused, and nothing passes or all is slow: longer than the leases of a crash run.
const A_WHILE: Duration = Duration::from_secs(2);
/// How late everything is that is slowed, in each direction.
const SLOW: Duration = Duration::from_millis(50);
/// How long an answer that is to be lost is waited for.
const ANSWER: Duration = Duration::from_secs(2);

/// A server of one node that nothing else uses, and a proxy through which its clients reach it: what the site of a
/// [crash run](conformance_tests::crash) needs for every [`Fault`]. Dropping it ends both.
#[derive(Debug)]
pub struct HarmedServer {
    server: Arc<Mutex<Server>>,
    proxy: Proxy,
    url: String,
    faults: Vec<Fault>,
}

impl HarmedServer {
    /// Puts a proxy before the server.
    ///
    /// # Errors
    /// When the server's URL does not name an address of this machine and a port, or there is no port for the
    /// proxy.
    pub async fn behind_proxy(server: Server) -> Result<Self, BoxError> {
        let url = server.url();
        let (before, rest) = url
            .split_once("127.0.0.1:")
            .ok_or("the server is not on this machine")?;
        let digits = rest.find(|c: char| !c.is_ascii_digit());
        let (port, after) = rest.split_at(digits.unwrap_or(rest.len()));
        let address = SocketAddr::from(([127, 0, 0, 1], port.parse()?));
        let proxy = Proxy::start(address).await?;
        let url = format!("{before}{}{after}", proxy.address());
        let possible = |fault: &Fault| match fault {
            Fault::Filled => server.has_small_disk(),
            Fault::ClockMoved => server.has_movable_clock(),
            _ => true,
        };
        let faults = Fault::ALL.into_iter().filter(possible).collect();
        Ok(Self {
            faults,
            server: Arc::new(Mutex::new(server)),
            proxy,
            url,
        })
    }

    /// Where clients connect, through the proxy.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What can be done to it: everything, but that only a small disk is filled, and only a clock of its own is moved
    /// ([`find_own_to_harm`](crate::find_own_to_harm)).
    #[must_use]
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// Lets the server's clock be ahead of the true time by so many microseconds, or behind it by a negative number:
    /// what [`Site::move_clock`](conformance_tests::crash::Site::move_clock) is to do.
    ///
    /// # Errors
    /// [`Unable::Failed`] when the server's clock cannot be moved.
    pub async fn move_clock(&self, ahead_micros: i64) -> Offered<()> {
        self.act(move |server| server.move_clock(ahead_micros))
            .await
    }

    /// Does this, and returns when it is over. A clock is moved by [`move_clock`](Self::move_clock) instead.
    ///
    /// # Errors
    /// [`Unable::Failed`] when the server does not do as it is told.
    pub async fn harm(&self, fault: Fault) -> Offered<()> {
        match fault {
            Fault::Killed => {
                self.act(Server::kill).await?;
                self.act(Server::start).await
            }
            Fault::Stopped => {
                self.act(Server::stop).await?;
                self.act(Server::start).await
            }
            Fault::Paused => {
                self.act(Server::pause).await?;
                tokio::time::sleep(A_WHILE).await;
                self.act(Server::resume).await
            }
            Fault::Cut => {
                self.proxy.cut();
                Ok(())
            }
            Fault::Stalled => {
                self.proxy.stall();
                self.end_after_a_while().await;
                Ok(())
            }
            Fault::Silenced => {
                self.proxy.silence();
                Ok(())
            }
            Fault::AnswerLost => {
                let before = self.proxy.replies_lost();
                self.proxy.lose_next_reply();
                let _ = tokio::time::timeout(ANSWER, async {
                    while self.proxy.replies_lost() == before {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                })
                .await;
                self.proxy.forward();
                Ok(())
            }
            Fault::Slowed => {
                self.proxy.delay(SLOW);
                self.end_after_a_while().await;
                Ok(())
            }
            Fault::Filled => {
                self.act(|server| server.fill_disk()).await?;
                tokio::time::sleep(A_WHILE).await;
                self.act(|server| {
                    server.clear_disk()?;
                    server.start()
                })
                .await
            }
            other => Err(Unable::failed(format!("a server cannot be {other}"))),
        }
    }

    async fn end_after_a_while(&self) {
        tokio::time::sleep(A_WHILE).await;
        self.proxy.forward();
    }

    /// Does something that may take a while.
    async fn act(
        &self,
        act: impl FnOnce(&mut Server) -> Result<(), Error> + Send + 'static,
    ) -> Offered<()> {
        let server = Arc::clone(&self.server);
        let acting = move || act(&mut server.lock().unwrap_or_else(PoisonError::into_inner));
        tokio::task::spawn_blocking(acting)
            .await
            .map_err(Unable::failed)?
            .map_err(Unable::failed)
    }
}
