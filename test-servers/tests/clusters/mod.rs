//! Servers of several nodes, of which one may go.

use std::thread;
use std::time::{Duration, Instant};

use test_servers::{Error, Kind};

use crate::client::Client;
use crate::{Outcome, own};

fn a_redis_node_comes_back(kind: Kind) -> Outcome {
    let Some(mut server) = own(kind)? else {
        return Ok(());
    };
    assert_eq!(server.urls().len(), 6);
    let client = Client::of_node(&server, 1)?;
    client.write("first")?;
    let nodes = client.ask("CLUSTER NODES")?;
    for url in server.urls() {
        let port = url.trim_end_matches('/').rsplit(':').next().unwrap_or(url);
        assert!(nodes.contains(port), "{url} is none of {nodes}");
    }

    let nobody = server.kill_node(6);
    assert!(matches!(nobody, Err(Error::NoSuchNode { node: 6, .. })));
    for node in [0, 4] {
        server.kill_node(node)?;
        assert!(!server.is_running()?);
        assert!(Client::of_node(&server, node)?.ask("PING").is_err());
        assert_eq!(client.ask("PING")?, "PONG");
        server.kill_node(node)?;
        server.start_node(node)?;
        server.start_node(node)?;
        assert!(server.is_running()?);
        assert_eq!(Client::of_node(&server, node)?.read()?, "first");
    }
    server.kill_node(2)?;
    server.kill_node(5)?;
    server.start()?;
    assert!(server.is_running()?);
    assert_eq!(client.read()?, "first");
    Ok(())
}

#[test]
fn a_node_of_redis_comes_back() -> Outcome {
    a_redis_node_comes_back(Kind::RedisCluster)
}

#[test]
fn a_node_of_redis_8_comes_back() -> Outcome {
    a_redis_node_comes_back(Kind::Redis8Cluster)
}

#[test]
fn a_node_of_valkey_comes_back() -> Outcome {
    a_redis_node_comes_back(Kind::ValkeyCluster)
}

/// Asks until the answer is this one: the others' changes take a moment, and a node that was left
/// takes one to go on without those that it misses.
fn comes_to(client: &Client, word: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let read = client.read();
        if read.as_ref().is_ok_and(|read| read == word) {
            return;
        }
        assert!(Instant::now() < deadline, "{read:?} instead of {word}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn writes(client: &Client, word: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while let Err(error) = client.write(word) {
        assert!(Instant::now() < deadline, "{error}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_node_of_galera_comes_back_with_what_it_missed() -> Outcome {
    let Some(mut server) = own(Kind::Galera)? else {
        return Ok(());
    };
    let clients: Vec<Client> = (0..3)
        .map(|node| Client::of_node(&server, node))
        .collect::<Result<_, _>>()?;
    for (node, client) in clients.iter().enumerate() {
        let word = format!("of-{node}");
        client.write(&word)?;
        for other in &clients {
            comes_to(other, &word);
        }
    }
    for node in 0..3 {
        server.kill_node(node)?;
        assert!(!server.is_running()?);
        assert!(clients[node].read().is_err());
        let word = format!("without-{node}");
        writes(&clients[(node + 1) % 3], &word);
        server.start_node(node)?;
        assert!(server.is_running()?);
        comes_to(&clients[node], &word);
    }
    Ok(())
}

/// The node to begin with is the one that has got most, not just any.
#[test]
fn galera_is_begun_again_from_the_node_that_was_left_last() -> Outcome {
    let Some(mut server) = own(Kind::Galera)? else {
        return Ok(());
    };
    let last = Client::of_node(&server, 2)?;
    last.write("of-all")?;
    server.kill_node(0)?;
    writes(&last, "of-two");
    server.kill()?;
    let early = server.start_node(0);
    assert!(matches!(early, Err(Error::DidNotStart { .. })), "{early:?}");
    server.start()?;
    for node in 0..3 {
        comes_to(&Client::of_node(&server, node)?, "of-two");
    }

    server.stop()?;
    server.start()?;
    assert_eq!(last.read()?, "of-two");
    Ok(())
}

/// Of three members, the others go on without one, and without the first another takes over.
#[test]
fn a_member_of_a_mongodb_set_comes_back() -> Outcome {
    let Some(mut server) = own(Kind::MongodbSet)? else {
        return Ok(());
    };
    assert_eq!(server.urls().len(), 3);
    Client::of(&server)?.write("first")?;
    server.kill_node(2)?;
    assert_eq!(Client::of(&server)?.read()?, "first");
    Client::of(&server)?.write("second")?;
    server.start_node(2)?;
    server.pause_node(0)?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while Client::of_node(&server, 1)?.write("third").is_err()
        && Client::of_node(&server, 2)?.write("third").is_err()
    {
        assert!(Instant::now() < deadline, "no other member took over");
        thread::sleep(Duration::from_millis(100));
    }
    server.resume_node(0)?;
    server.kill_node(0)?;
    server.start_node(0)?;
    assert_eq!(Client::of(&server)?.read()?, "third");
    Ok(())
}
