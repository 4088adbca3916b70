//! What the server can do, by what it says about itself.

use mongodb::{
    Database,
    bson::{Document, doc},
    error::Error as DriverError,
};

use crate::error::{UNKNOWN_COMMAND, code};

/// How a deployment is put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Standalone,
    ReplicaSet,
    Sharded,
}

/// What the server said about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) topology: Topology,
    /// FerretDB takes validators and forgets them, and no writes that name an index.
    pub(crate) is_ferretdb: bool,
    /// The first two parts of the version.
    pub(crate) version: (u32, u32),
}

impl Server {
    pub(crate) async fn ask(database: &Database) -> Result<Self, DriverError> {
        let hello = match database.run_command(doc! { "hello": 1 }).await {
            // It came with 4.4.2.
            Err(error) if code(&error) == Some(UNKNOWN_COMMAND) => {
                database.run_command(doc! { "isMaster": 1 }).await?
            }
            answer => answer?,
        };
        let build = database.run_command(doc! { "buildInfo": 1 }).await?;
        Ok(Self::read(&hello, &build))
    }

    /// Reads the replies to `hello` and `buildInfo`.
    fn read(hello: &Document, build: &Document) -> Self {
        let topology = if hello.contains_key("setName") {
            Topology::ReplicaSet
        } else if hello.get_str("msg").is_ok_and(|text| text == "isdbgrid") {
            Topology::Sharded
        } else {
            Topology::Standalone
        };
        let mut parts = build
            .get_str("version")
            .unwrap_or_default()
            .split('.')
            .map(|part| part.parse().unwrap_or(0));
        Self {
            topology,
            is_ferretdb: build.contains_key("ferretdb"),
            version: (parts.next().unwrap_or(0), parts.next().unwrap_or(0)),
        }
    }

    /// Whether documents can be looked up (`$lookup`) in a collection that is sharded.
    pub(crate) fn looks_up_shards(&self) -> bool {
        self.topology != Topology::Sharded || self.version >= (5, 1)
    }

    /// Whether it has transactions of several documents, and change streams.
    pub(crate) fn replicates(&self) -> bool {
        self.topology != Topology::Standalone
    }

    /// Whether an update of many documents has changed as many as it says. On a cluster it may
    /// count one that is being moved to another shard, and change only what is left behind.
    pub(crate) fn counts_updates(&self) -> bool {
        self.topology != Topology::Sharded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_told_apart_by_their_replies() {
        let build = doc! { "version": "7.0.12" };
        for (hello, topology) in [
            (doc! { "isWritablePrimary": true }, Topology::Standalone),
            (doc! { "setName": "rs0" }, Topology::ReplicaSet),
            (doc! { "msg": "isdbgrid" }, Topology::Sharded),
        ] {
            let server = Server::read(&hello, &build);
            assert_eq!(server.topology, topology);
            assert_eq!(server.counts_updates(), topology != Topology::Sharded);
            assert!(!server.is_ferretdb);
            assert_eq!(server.version, (7, 0));
        }
        let ferret = doc! { "version": "7.0.77", "ferretdb": { "version": "v2.7.0" } };
        let server = Server::read(&doc! {}, &ferret);
        assert!(server.is_ferretdb && !server.replicates());
    }
}
