//! A TCP proxy on the loopback interface that stands between a store and its server and spoils
//! the connections between them on command.
//!
//! A store's tests connect through [`Proxy::address`] in place of the server's. The proxy forwards
//! until it is told otherwise: [`lose_next_reply`](Proxy::lose_next_reply) makes the hardest case,
//! in which the server has done the work and the client never learns of it;
//! [`cut`](Proxy::cut) closes all connections wherever they are; [`delay`](Proxy::delay) and
//! [`stall`](Proxy::stall) hold bytes back in both directions, for a while or until
//! [`forward`](Proxy::forward); [`silence`](Proxy::silence) makes the connections that are open
//! silent for good and goes on taking new ones.
//!
//! It knows nothing of the protocol. A *reply* is whatever the server sends on one connection
//! until it has been silent for a twentieth of a second, so a command is best given while the
//! client under test is idle. New connections are taken at any time and are treated like the
//! others, but for those that were silenced. Dropping the proxy closes everything.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::timeout,
};

/// A reply is over when the server has said nothing for so long.
const REPLY_IS_OVER: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Forward,
    Delay(Duration),
    Stall,
    LoseNextReply,
}

#[derive(Debug)]
struct Shared {
    /// Where the next connections go.
    server: watch::Sender<SocketAddr>,
    mode: watch::Sender<Mode>,
    /// How often all connections were cut.
    cuts: watch::Sender<u64>,
    /// How often all connections were silenced.
    silences: watch::Sender<u64>,
    replies_lost: AtomicU64,
}

/// A running proxy. Dropping it closes all its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

impl Proxy {
    /// Listens on a free port of the loopback interface and forwards to `server`.
    ///
    /// # Errors
    /// When there is no free port.
    pub async fn start(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            server: watch::Sender::new(server),
            mode: watch::Sender::new(Mode::Forward),
            cuts: watch::Sender::new(0),
            silences: watch::Sender::new(0),
            replies_lost: AtomicU64::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared))).abort_handle();
        Ok(Self {
            address,
            shared,
            accepting,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Forwards later connections to another server, as an address does that moves in a fail-over. Those that are open
    /// stay with the former one.
    pub fn redirect(&self, server: SocketAddr) {
        self.shared.server.send_replace(server);
    }

    /// Forwards again, and what was held back first.
    pub fn forward(&self) {
        self.shared.mode.send_replace(Mode::Forward);
    }

    /// From now on, holds every piece back for so long, in each direction.
    pub fn delay(&self, by: Duration) {
        self.shared.mode.send_replace(Mode::Delay(by));
    }

    /// From now on, holds everything back and leaves the connections open, as a network does that
    /// drops packets.
    pub fn stall(&self) {
        self.shared.mode.send_replace(Mode::Stall);
    }

    /// Swallows the server's next reply, on whichever connection it comes, and then cuts that
    /// connection. Forwards everything else, and everything afterwards.
    pub fn lose_next_reply(&self) {
        self.shared.mode.send_replace(Mode::LoseNextReply);
    }

    /// How many replies were swallowed so far: a test sees by it that its case has happened.
    #[must_use]
    pub fn replies_lost(&self) -> u64 {
        self.shared.replies_lost.load(Ordering::SeqCst)
    }

    /// Makes every connection that is open now silent for good, as a firewall does that has
    /// forgotten them: they stay open, on both sides, and nothing that is sent on them is delivered
    /// or refused. [`forward`](Self::forward) does not bring them back; [`cut`](Self::cut) ends
    /// them. Later connections are forwarded.
    ///
    /// A side that closes a silent connection is not noticed by the other one either.
    pub fn silence(&self) {
        self.shared.silences.send_modify(|silences| *silences += 1);
    }

    /// Closes all open connections, with whatever is on its way. Later connections are taken.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Owns all connections: aborting it closes them.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    connections.spawn(serve(client, Arc::clone(&shared)));
                }
                // Too many open files, or a client that is gone already.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Carries one connection until either side ends it, or it is cut. Errors end it too: the client
/// sees a closed connection, which is all that a proxy can tell.
async fn serve(client: TcpStream, shared: Arc<Shared>) {
    let mut cuts = shared.cuts.subscribe();
    let mut silences = shared.silences.subscribe();
    let mut carry = pin!(async {
        let server = *shared.server.borrow();
        let server = TcpStream::connect(server).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::try_join!(
            requests(from_client, to_server, &shared),
            replies(from_server, to_client, &shared),
        )
        .map(|_| ())
    });
    tokio::select! {
        outcome = &mut carry => drop::<io::Result<()>>(outcome),
        _ = cuts.changed() => {}
        // Holds both sides open and carries nothing any more.
        _ = silences.changed() => drop(cuts.changed().await),
    }
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        hold_back(shared).await;
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(buffer.get(..read).unwrap_or_default()).await?;
    }
}

async fn replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        hold_back(shared).await;
        if read == 0 {
            return to.shutdown().await;
        }
        // Of several connections, one takes the command.
        let taken = shared.mode.send_if_modified(|mode| {
            let taken = *mode == Mode::LoseNextReply;
            if taken {
                *mode = Mode::Forward;
            }
            taken
        });
        if taken {
            while let Ok(more) = timeout(REPLY_IS_OVER, from.read(&mut buffer)).await {
                if more? == 0 {
                    break;
                }
            }
            shared.replies_lost.fetch_add(1, Ordering::SeqCst);
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        to.write_all(buffer.get(..read).unwrap_or_default()).await?;
    }
}

/// Waits as long as the command of the moment says.
async fn hold_back(shared: &Shared) {
    let mut mode = shared.mode.subscribe();
    let current = *mode.borrow_and_update();
    match current {
        Mode::Forward | Mode::LoseNextReply => {}
        Mode::Delay(by) => tokio::time::sleep(by).await,
        Mode::Stall => {
            // The sender lives as long as this connection.
            let _ = mode.wait_for(|mode| *mode != Mode::Stall).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    /// Answers every line with the number of lines it has had so far, on all connections.
    async fn server() -> (SocketAddr, Arc<AtomicU64>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let lines = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&lines);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let counter = Arc::clone(&counter);
                tokio::spawn(async move {
                    while let Ok(b'\n') = stream.read_u8().await {
                        let count = counter.fetch_add(1, Ordering::SeqCst) + 1;
                        if stream.write_u64(count).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        (address, lines)
    }

    async fn ask(stream: &mut TcpStream) -> io::Result<u64> {
        stream.write_u8(b'\n').await?;
        timeout(SOON, stream.read_u64()).await.unwrap()
    }

    async fn start() -> (Proxy, TcpStream, Arc<AtomicU64>) {
        let (server, lines) = server().await;
        let proxy = Proxy::start(server).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(ask(&mut stream).await.unwrap(), 1);
        (proxy, stream, lines)
    }

    #[tokio::test]
    async fn a_lost_reply_is_lost_after_the_work_and_only_once() {
        let (proxy, mut stream, lines) = start().await;
        proxy.lose_next_reply();
        assert!(ask(&mut stream).await.is_err(), "the connection is cut");
        assert_eq!(lines.load(Ordering::SeqCst), 2, "the work was done");
        assert_eq!(proxy.replies_lost(), 1);
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(ask(&mut stream).await.unwrap(), 3);
        assert_eq!(proxy.replies_lost(), 1);
    }

    #[tokio::test]
    async fn of_several_connections_one_loses_its_reply() {
        let (proxy, mut one, _) = start().await;
        let mut other = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut other).await.unwrap();
        proxy.lose_next_reply();
        assert!(ask(&mut other).await.is_err());
        assert_eq!(ask(&mut one).await.unwrap(), 4);
    }

    #[tokio::test]
    async fn cut_connections_are_closed_and_new_ones_taken() {
        let (proxy, mut stream, _) = start().await;
        proxy.cut();
        assert!(ask(&mut stream).await.is_err());
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(ask(&mut stream).await.unwrap(), 2);
    }

    #[tokio::test]
    async fn delays_apply_in_each_direction_until_forwarding() {
        let (proxy, mut stream, _) = start().await;
        proxy.delay(Duration::from_millis(100));
        let began = Instant::now();
        assert_eq!(ask(&mut stream).await.unwrap(), 2);
        assert!(began.elapsed() >= Duration::from_millis(200));
        // Longer than anybody waits for an answer here.
        proxy.delay(Duration::from_secs(60));
        proxy.forward();
        assert_eq!(ask(&mut stream).await.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_stalled_connection_stays_open_and_loses_nothing() {
        let (proxy, mut stream, lines) = start().await;
        proxy.stall();
        stream.write_u8(b'\n').await.unwrap();
        let answer = timeout(Duration::from_millis(200), stream.read_u64()).await;
        assert!(answer.is_err(), "no answer and no end");
        assert_eq!(lines.load(Ordering::SeqCst), 1);
        proxy.forward();
        let answer = timeout(SOON, stream.read_u64()).await.unwrap().unwrap();
        assert_eq!(answer, 2);
    }

    #[tokio::test]
    async fn a_silenced_connection_stays_open_for_good_and_new_ones_work() {
        let (proxy, mut silent, lines) = start().await;
        proxy.silence();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(ask(&mut stream).await.unwrap(), 2, "new ones work");
        silent.write_u8(b'\n').await.unwrap();
        proxy.forward();
        let answer = timeout(Duration::from_millis(200), silent.read_u64()).await;
        assert!(answer.is_err(), "no answer and no end");
        assert_eq!(lines.load(Ordering::SeqCst), 2, "nothing was delivered");
        assert_eq!(ask(&mut stream).await.unwrap(), 3);
        proxy.silence();
        stream.write_u8(b'\n').await.unwrap();
        proxy.cut();
        for mut stream in [silent, stream] {
            let ended = timeout(SOON, stream.read_u64()).await.unwrap();
            assert!(ended.is_err(), "cut");
        }
    }

    #[tokio::test]
    async fn dropping_it_closes_everything() {
        let (proxy, mut stream, _) = start().await;
        let address = proxy.address();
        drop(proxy);
        assert!(ask(&mut stream).await.is_err());
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[tokio::test]
    async fn an_absent_server_ends_the_connection() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let nobody = listener.local_addr().unwrap();
        drop(listener);
        let proxy = Proxy::start(nobody).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert!(ask(&mut stream).await.is_err());
    }
}
