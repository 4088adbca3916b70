//! What the conformance suite does to a server.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use conformance_tests::{Offered, OwnServer, Restart, ServerControl, StartServer, Unable};

use crate::{Error, Kind, Server, find_own};

/// How a server is kept from answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// It is stopped: connections end, and new ones are refused.
    Stopped,
    /// It is paused: connections stay open, and nothing answers.
    Paused,
}

/// Starts servers of `kind` for cases that harm theirs, with `arguments` on their command lines.
#[must_use]
pub fn own(kind: Kind, arguments: &[&str], outage: Outage) -> StartServer {
    let arguments: Vec<String> = arguments.iter().map(|&text| text.to_owned()).collect();
    StartServer::by(move || {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let server = find_own(kind, &arguments).map_err(Unable::failed)?;
        Ok(OwnServer {
            url: server.url().to_owned(),
            control: Box::new(Controlled {
                server: Arc::new(Mutex::new(server)),
                outage,
            }),
        })
    })
}

struct Controlled {
    server: Arc<Mutex<Server>>,
    outage: Outage,
}

impl Controlled {
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

#[async_trait]
impl ServerControl for Controlled {
    async fn begin_outage(&self) -> Offered<()> {
        self.act(match self.outage {
            Outage::Stopped => Server::stop,
            Outage::Paused => Server::pause,
        })
        .await
    }

    async fn end_outage(&self) -> Offered<()> {
        self.act(match self.outage {
            Outage::Stopped => Server::start,
            Outage::Paused => Server::resume,
        })
        .await
    }

    async fn restart(&self, how: Restart) -> Offered<()> {
        self.act(match how {
            Restart::Orderly => Server::stop,
            Restart::Killed => Server::kill,
        })
        .await?;
        self.act(Server::start).await
    }
}
