//! Which server of a cluster has which slot.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use redis::{ConnectionAddr, ConnectionInfo, RedisError, RedisResult, Value};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout_at},
};

use crate::{
    client::open,
    error::{Failed, garbled, late},
    node::Node,
    options::RedisOptions,
    reply::{self, Reply, Taker, Unexpected},
};

/// How long one server may take to tell where the slots are, if others can be asked.
const TELLING: Duration = Duration::from_secs(2);

/// Host and port.
type Address = (String, u16);

/// First and last slot, and which server has them.
type Range = (u16, u16, Address);

#[derive(Default)]
struct Map {
    nodes: BTreeMap<Address, Arc<Node>>,
    ranges: Vec<Range>,
    /// What servers have said of single slots since.
    moved: BTreeMap<u16, Address>,
    /// Counts how often it was read.
    version: u64,
}

pub(crate) struct Slots {
    options: RedisOptions,
    map: RwLock<Map>,
    reading: Mutex<()>,
}

impl Slots {
    pub(crate) fn new(options: &RedisOptions) -> Self {
        Self {
            options: options.clone(),
            map: RwLock::default(),
            reading: Mutex::default(),
        }
    }

    fn read<T>(&self, look: impl FnOnce(&Map) -> T) -> T {
        look(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change<T>(&self, change: impl FnOnce(&mut Map) -> T) -> T {
        change(&mut self.map.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn version(&self) -> u64 {
        self.read(|map| map.version)
    }

    /// The server that has a slot, as far as is known.
    pub(crate) fn node_of(&self, slot: u16) -> Option<Arc<Node>> {
        self.read(|map| {
            let address = map.moved.get(&slot).or_else(|| {
                let has = |range: &&Range| (range.0..=range.1).contains(&slot);
                map.ranges.iter().find(has).map(|range| &range.2)
            })?;
            map.nodes.get(address).cloned()
        })
    }

    /// All servers that have slots.
    pub(crate) fn primaries(&self) -> Vec<Arc<Node>> {
        self.read(|map| {
            let mut addresses: Vec<&Address> = map.ranges.iter().map(|range| &range.2).collect();
            addresses.sort_unstable();
            addresses.dedup();
            let nodes = addresses.into_iter();
            nodes
                .filter_map(|address| map.nodes.get(address).cloned())
                .collect()
        })
    }

    /// The server at an address that another one has named.
    pub(crate) fn at(&self, address: &str) -> RedisResult<Arc<Node>> {
        let (host, port) = address.rsplit_once(':').ok_or_else(garbled)?;
        let port = port.parse().map_err(|_| garbled())?;
        self.node((host.to_owned(), port))
    }

    fn node(&self, address: Address) -> RedisResult<Arc<Node>> {
        if let Some(node) = self.read(|map| map.nodes.get(&address).cloned()) {
            return Ok(node);
        }
        let client = open(self.info(&address)?, &self.options)?;
        let node = Arc::new(Node::new(client, &self.options));
        Ok(self.change(|map| Arc::clone(map.nodes.entry(address).or_insert(node))))
    }

    /// How to connect to a server of the cluster: as to those in the URL.
    fn info(&self, (host, port): &Address) -> RedisResult<ConnectionInfo> {
        let first = self.options.nodes.first().cloned().ok_or_else(garbled)?;
        let (host, port) = (host.clone(), *port);
        let address = match first.addr() {
            ConnectionAddr::TcpTls { insecure, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: None,
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        Ok(first.set_addr(address))
    }

    /// Takes note that a server has sent us on, and answers where to.
    pub(crate) fn note_move(&self, slot: u16, address: &str) -> RedisResult<Arc<Node>> {
        let node = self.at(address)?;
        if let Some((host, port)) = address.rsplit_once(':')
            && let Ok(port) = port.parse()
        {
            self.change(|map| map.moved.insert(slot, (host.to_owned(), port)));
        }
        Ok(node)
    }

    /// Asks where the slots are, unless that was done since `version`.
    pub(crate) async fn refresh(&self, version: u64, until: Instant) -> RedisResult<()> {
        let reading = async {
            let _alone = self.reading.lock().await;
            if self.version() > version {
                return Ok(());
            }
            let mut failure: Option<RedisError> = None;
            for address in self.addresses_to_ask() {
                let within = until.min(Instant::now() + TELLING);
                match self.ask(address, within).await {
                    Ok(ranges) if !ranges.is_empty() => return self.put(ranges),
                    Ok(_) => {}
                    Err(error) => failure = Some(error),
                }
            }
            Err(failure.unwrap_or_else(garbled))
        };
        timeout_at(until, reading)
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    /// The servers to ask: those that are known, then those in the URL.
    fn addresses_to_ask(&self) -> Vec<Address> {
        let mut known: Vec<Address> = self.read(|map| map.nodes.keys().cloned().collect());
        // Not always the same one first, which may be the one that hangs.
        let turn = usize::try_from(self.version()).unwrap_or(0) % known.len().max(1);
        known.rotate_left(turn);
        let named = self
            .options
            .nodes
            .iter()
            .filter_map(|node| match node.addr() {
                ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                    Some((host.clone(), *port))
                }
                _ => None,
            });
        known.extend(named);
        known
    }

    async fn ask(&self, address: Address, until: Instant) -> RedisResult<Vec<Range>> {
        let host = address.0.clone();
        let node = self.node(address)?;
        let mut ask = redis::cmd("CLUSTER");
        ask.arg("SLOTS");
        let answer = match node.send(&ask, false, until).await {
            Ok(value) => value.extract_error()?,
            Err(Failed::NotSent(error) | Failed::Lost(error)) => return Err(error),
        };
        ranges(answer, &host).map_err(|Unexpected| garbled())
    }

    fn put(&self, ranges: Vec<Range>) -> RedisResult<()> {
        for (_, _, address) in &ranges {
            self.node(address.clone())?;
        }
        self.change(|map| {
            // Those that have left the cluster are not asked any more.
            let named = |address: &Address| ranges.iter().any(|range| range.2 == *address);
            map.nodes.retain(|address, _| named(address));
            map.ranges = ranges;
            map.moved.clear();
            map.version += 1;
        });
        Ok(())
    }
}

/// Of each range the first server is its primary. One that knows no name for itself means the one that
/// it was asked by.
fn ranges(answer: Value, asked: &str) -> Reply<Vec<Range>> {
    let ranges = reply::list(answer)?.into_iter().map(|range| {
        let mut range = Taker::of(range)?;
        let (first, last) = (range.small()?, range.small()?);
        let mut primary = Taker::of(range.next()?)?;
        let host = primary.next()?;
        let host = match reply::text(&host)? {
            None | Some("" | "?") => asked,
            Some(host) => host,
        };
        Ok((first, last, (host.to_owned(), primary.small()?)))
    });
    ranges.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots() -> Slots {
        let options = RedisOptions::from_url("redis+cluster://a:1,b:2").unwrap();
        Slots::new(&options)
    }

    #[test]
    fn slots_are_found_and_move() {
        let slots = slots();
        assert!(slots.node_of(0).is_none());
        let (a, b) = (("a".to_owned(), 1), ("b".to_owned(), 2));
        slots.put(vec![(0, 9, a), (10, 20, b)]).unwrap();
        assert_eq!(slots.version(), 1);
        assert_eq!(slots.primaries().len(), 2);
        let (first, second) = (slots.node_of(9).unwrap(), slots.node_of(10).unwrap());
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(slots.node_of(21).is_none());
        let moved = slots.note_move(9, "b:2").unwrap();
        assert!(Arc::ptr_eq(&moved, &second));
        assert!(Arc::ptr_eq(&slots.node_of(9).unwrap(), &second));
        assert!(slots.note_move(9, "nonsense").is_err());
        slots.note_move(8, "[::1]:3").unwrap();
        assert!(slots.node_of(8).is_some());
    }

    #[test]
    fn a_server_without_a_name_is_the_one_that_was_asked() {
        let node = |host: Value| {
            Value::Array(vec![
                Value::Int(0),
                Value::Int(5),
                Value::Array(vec![host, Value::Int(7)]),
            ])
        };
        let answer = Value::Array(vec![
            node(Value::Nil),
            node(Value::BulkString(b"c".to_vec())),
        ]);
        let hosts: Vec<String> = ranges(answer, "asked")
            .unwrap()
            .into_iter()
            .map(|range| range.2.0)
            .collect();
        assert_eq!(hosts, ["asked", "c"]);
        assert!(ranges(Value::Nil, "asked").is_err());
    }
}
