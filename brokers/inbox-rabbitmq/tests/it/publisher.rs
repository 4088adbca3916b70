//! The publisher where the server is late, silent or short of memory.

use std::{
    collections::BTreeSet,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use inbox_rabbitmq::{RabbitMqOptions, RabbitMqPublisher, RabbitMqSource};
use inbox_source::{Envelope, Mapping, Publisher as _, Source as _, SourceError};
use lapin::{ExchangeKind, types::FieldTable};
use test_servers::Kind;
use tokio::{
    io::{AsyncReadExt as _, copy},
    net::{TcpListener, TcpStream},
    task::block_in_place,
    time::{Instant, sleep, timeout},
};

use crate::{
    harness::{ALARMS, Outcome, Rabbit, Setup, connection},
    peer::{ALARM, NOWHERE, ODD, Peer, REFUSED, SLOW},
};

const PATIENCE: Duration = Duration::from_secs(60);
const SHORT: &str = "short of memory";

type Answer = Result<(), SourceError>;

/// Publishes one message.
async fn publish(publisher: &RabbitMqPublisher, address: &str) -> Outcome<Answer> {
    let message = Envelope::new(address, "{}");
    let answers = timeout(PATIENCE, publisher.publish(&[message])).await?;
    answers.into_iter().next().ok_or("no answer".into())
}

/// Publishes to `address` until the answer is the one that is waited for.
async fn publish_until(
    publisher: &RabbitMqPublisher,
    address: &str,
    is_it: impl Fn(&Answer) -> bool,
) -> Outcome {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = publish(publisher, address).await?;
        if is_it(&answer) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("in the end the answer is {answer:?}").into());
        }
        sleep(Duration::from_millis(100)).await;
    }
}

fn is_short(answer: &Answer) -> bool {
    let error = answer.as_ref().err();
    error.is_some_and(|error| error.is_transient() && error.to_string().contains(SHORT))
}

/// The client gives what was returned to whichever confirmation comes next: here, to one that nothing waits for.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_returned_is_told_after_a_call_that_was_dropped() -> Outcome {
    let peer = Peer::listen().await?;
    let publisher = RabbitMqPublisher::new(peer.connection()?);
    let slow = [Envelope::new(SLOW, "1")];
    tokio::select! {
        answers = publisher.publish(&slow) => return Err(format!("{answers:?}").into()),
        came = peer.until_messages(1) => came?,
    }
    let answer = publish(&publisher, NOWHERE).await?;
    assert!(answer.is_err());
    // And the connection of the other call ends.
    peer.until_others_end().await
}

/// It was waiting for its turn, and the connection was there.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_returned_is_told_behind_a_call_that_is_late() -> Outcome {
    let peer = Peer::listen().await?;
    let limit = Duration::from_secs(4);
    let publisher = RabbitMqPublisher::new(peer.connection()?).timeout(limit);
    let next = async {
        peer.until_messages(1).await?;
        // It has time left when it is its turn.
        sleep(limit / 2).await;
        publish(&publisher, NOWHERE).await
    };
    let (late, next) = tokio::join!(publish(&publisher, SLOW), next);
    assert!(late?.is_err_and(|error| error.is_transient()));
    assert!(next?.is_err());
    peer.until_others_end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_short_of_memory_is_waited_for() -> Outcome {
    let peer = Peer::listen().await?;
    let limit = Duration::from_secs(3);
    let publisher = RabbitMqPublisher::new(peer.connection()?).timeout(limit);
    publish_until(&publisher, "queue", Result::is_ok).await?;
    // Late: it is told of the alarm by this message.
    let answer = publish(&publisher, ALARM).await?;
    assert!(answer.is_err_and(|error| error.is_transient()));
    let connections = peer.connections();
    for _ in 0..5 {
        let answer = publish(&publisher, "queue").await?;
        assert!(is_short(&answer), "{answer:?}");
    }
    assert_eq!(peer.connections(), connections);
    peer.relieve();
    publish_until(&publisher, "queue", Result::is_ok).await?;
    peer.until_others_end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_ends_the_channel_holds_up_no_other() -> Outcome {
    for bad in [REFUSED, ODD] {
        let peer = Peer::listen().await?;
        let publisher = RabbitMqPublisher::new(peer.connection()?).timeout(PATIENCE);
        let mut messages = ["a", "b", bad, "c", "d", bad, "e"].map(|address| {
            let mut message = Envelope::new(address, "{}");
            message.id = Some(address.into());
            message
        });
        // It must not come before the one of its key that failed.
        messages[2].key = Some("k".into());
        messages[4].key = Some("k".into());
        let answers = timeout(PATIENCE, publisher.publish(&messages)).await?;
        for (place, answer) in answers.iter().enumerate() {
            let fails = [2, 4, 5].contains(&place);
            assert_eq!(answer.is_err(), fails, "{bad}, {place}: {answer:?}");
            if let Err(error) = answer {
                assert!(error.is_transient(), "{bad}, {place}: {error}");
            }
        }
        if bad == REFUSED {
            // That no other message may go there is known then.
            assert_eq!(peer.connections(), 2);
        }
    }
    Ok(())
}

/// Defect: after ten nothing more was sent, and each further call began with the same ones.
#[tokio::test(flavor = "multi_thread")]
async fn many_that_end_the_channel_hold_up_none_behind_them() -> Outcome {
    let peer = Peer::listen().await?;
    let publisher = RabbitMqPublisher::new(peer.connection()?).timeout(PATIENCE);
    let mut messages = vec![Envelope::new(ODD, "{}"); 12];
    messages.push(Envelope::new("a", "{}"));
    let answers = timeout(PATIENCE, publisher.publish(&messages)).await?;
    assert_eq!(answers.len(), messages.len());
    for (message, answer) in messages.iter().zip(answers) {
        match message.address == ODD {
            true => assert!(answer.is_err_and(|error| error.is_transient())),
            false => assert!(answer.is_ok(), "{answer:?}"),
        }
    }
    Ok(())
}

/// Takes the next connection, and waits until the client has given it up.
async fn until_given_up(listener: &TcpListener) -> Outcome {
    let (client, _) = timeout(PATIENCE, listener.accept()).await??;
    until_gone(client).await
}

async fn until_gone(mut client: TcpStream) -> Outcome {
    let mut said = Vec::new();
    // However it ends.
    let _ = timeout(PATIENCE, client.read_to_end(&mut said)).await?;
    Ok(())
}

/// It takes connections, and says nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_says_nothing_keeps_no_connection() -> Outcome {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?.to_string();
    let publisher = RabbitMqPublisher::new(connection(&address)?);
    let message = [Envelope::new("queue", "{}")];
    let client = tokio::select! {
        answers = publisher.publish(&message) => return Err(format!("{answers:?}").into()),
        came = listener.accept() => came?.0,
    };
    until_gone(client).await?;
    let publisher = publisher.timeout(Duration::from_secs(3));
    let late = publish(&publisher, "queue");
    let (late, given_up) = tokio::join!(late, until_given_up(&listener));
    assert!(late?.is_err_and(|error| error.is_transient()));
    given_up?;
    let options = RabbitMqOptions::new(connection(&address)?, "queue")?;
    let mut source = RabbitMqSource::new(options, Mapping::new("billing")?)?;
    let late = timeout(PATIENCE, source.next());
    let (late, given_up) = tokio::join!(late, until_given_up(&listener));
    assert!(late?.is_err_and(|error| error.is_transient()));
    given_up
}

/// Stands before a server and counts the connections of clients.
struct Gate {
    address: String,
    all: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
}

impl Gate {
    async fn before(server: &str) -> Outcome<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?.to_string();
        let (all, open) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (counted, still) = (Arc::clone(&all), Arc::clone(&open));
        let server = server.to_owned();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                still.fetch_add(1, Ordering::SeqCst);
                let (server, still) = (server.clone(), Arc::clone(&still));
                tokio::spawn(async move {
                    let _ = forward(client, &server).await;
                    still.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Ok(Self { address, all, open })
    }

    fn all(&self) -> usize {
        self.all.load(Ordering::SeqCst)
    }

    async fn until_one_is_open(&self) -> Outcome {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.open.load(Ordering::SeqCst) {
                1 => return Ok(()),
                open if Instant::now() > deadline => {
                    return Err(format!("in the end {open} connections are open").into());
                }
                _ => sleep(Duration::from_millis(50)).await,
            }
        }
    }
}

/// Until either side ends.
async fn forward(client: TcpStream, server: &str) -> io::Result<u64> {
    let server = TcpStream::connect(server).await?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    tokio::select! {
        copied = copy(&mut from_client, &mut to_server) => copied,
        copied = copy(&mut from_server, &mut to_client) => copied,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_server() -> Outcome {
    let server = || Rabbit::of_kind(Kind::RabbitMq, Setup::QUORUM, &ALARMS);
    let Some(server) = block_in_place(server)? else {
        return Ok(());
    };
    a_missing_exchange_is_waited_for(&server).await?;
    an_address_that_is_refused_holds_up_no_other(&server).await?;
    dropped_calls_hide_nothing(&server).await?;
    an_alarm_is_waited_for(&server).await
}

async fn a_missing_exchange_is_waited_for(server: &Rabbit) -> Outcome {
    let (queue, exchange) = ("of-exchange", "declared-later");
    server.create(queue).await?;
    let publisher = RabbitMqPublisher::new(server.direct()?).exchange(exchange)?;
    for _ in 0..3 {
        let answer = publish(&publisher, "key").await?;
        assert!(answer.is_err_and(|error| error.is_transient()));
    }
    let (connection, channel) = server.channel().await?;
    let none = FieldTable::default;
    let (kind, usual) = (ExchangeKind::Fanout, Default::default());
    let declared = channel.exchange_declare(exchange.into(), kind, usual, none());
    declared.await?;
    let usual = Default::default();
    let bound = channel.queue_bind(queue.into(), exchange.into(), "".into(), usual, none());
    bound.await?;
    publish_until(&publisher, "key", Result::is_ok).await?;
    connection.close(200, "".into()).await?;
    Ok(())
}

/// To a user who may not write to each topic.
async fn an_address_that_is_refused_holds_up_no_other(server: &Rabbit) -> Outcome {
    let (queue, exchange) = ("of-topics", "amq.topic");
    server.create(queue).await?;
    let (connection, channel) = server.channel().await?;
    let (usual, none) = (Default::default(), FieldTable::default());
    let bound = channel.queue_bind(queue.into(), exchange.into(), "#".into(), usual, none);
    bound.await?;
    connection.close(200, "".into()).await?;
    let user = r#"{"password":"ann","tags":""}"#;
    server.manage("users/ann", user).await?;
    let rights = r#"{"configure":"","write":".*","read":".*"}"#;
    server.manage("permissions/%2f/ann", rights).await?;
    let rights = r#"{"exchange":"amq.topic","write":"^allowed","read":".*"}"#;
    server.manage("topic-permissions/%2f/ann", rights).await?;
    let of_ann = self::connection(&format!("ann:ann@{}", server.plain()))?;
    let publisher = RabbitMqPublisher::new(of_ann).exchange(exchange)?;
    let mut messages = Vec::new();
    for number in 0..60 {
        let address = if number % 20 == 10 {
            "forbidden"
        } else {
            "allowed"
        };
        messages.push(Envelope::new(address, number.to_string()));
    }
    let answers = timeout(PATIENCE, publisher.publish(&messages)).await?;
    assert_eq!(answers.len(), messages.len());
    for (number, answer) in answers.iter().enumerate() {
        assert_eq!(answer.is_ok(), number % 20 != 10, "{number}: {answer:?}");
        if let Err(error) = answer {
            assert!(error.is_transient(), "{number}: {error}");
        }
    }
    let payloads: BTreeSet<_> = server.payloads(queue).await?.into_iter().collect();
    assert_eq!(payloads.len(), 57);
    Ok(())
}

async fn dropped_calls_hide_nothing(server: &Rabbit) -> Outcome {
    let queue = "of-dropped-calls";
    server.create(queue).await?;
    let publisher = RabbitMqPublisher::new(server.direct()?);
    let to = |address: &str| vec![Envelope::new(address, "{}"); 20];
    let (taken, returned) = (to(queue), to("nowhere"));
    publish_until(&publisher, queue, Result::is_ok).await?;
    for round in 0..20 {
        // Each time a little later.
        let limit = Duration::from_millis(round / 2);
        let _ = timeout(limit, publisher.publish(&taken)).await;
        let answers = timeout(PATIENCE, publisher.publish(&returned)).await?;
        assert!(answers.iter().all(Result::is_err), "{round}: {answers:?}");
    }
    Ok(())
}

async fn an_alarm_is_waited_for(server: &Rabbit) -> Outcome {
    let queue = "of-an-alarm";
    server.create(queue).await?;
    let gate = Gate::before(server.plain()).await?;
    let limit = Duration::from_secs(5);
    let publisher = RabbitMqPublisher::new(connection(&gate.address)?).timeout(limit);
    publish_until(&publisher, queue, Result::is_ok).await?;
    server.set_alarm(true)?;
    publish_until(&publisher, queue, is_short).await?;
    let connections = gate.all();
    for _ in 0..5 {
        let answer = publish(&publisher, queue).await?;
        assert!(is_short(&answer), "{answer:?}");
    }
    assert_eq!(gate.all(), connections);
    gate.until_one_is_open().await?;
    server.set_alarm(false)?;
    publish_until(&publisher, queue, Result::is_ok).await?;
    gate.until_one_is_open().await
}
