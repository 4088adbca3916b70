//! Servers whose clocks are moved while they run.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use test_servers::{Error, Kind, find_own, find_own_to_harm, or_skip};

use crate::Outcome;
use crate::client::Client;

/// By how much a time may differ that was read in between, in seconds.
const TOLERANCE: f64 = 0.05;

fn true_time() -> Result<f64, Box<dyn std::error::Error>> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64())
}

/// It shows the true time and so many seconds.
fn is_ahead(client: &Client, seconds: f64) -> Outcome {
    let before = true_time()?;
    let shown = client.time()?;
    let after = true_time()?;
    let expected = before + seconds - TOLERANCE..after + seconds + TOLERANCE;
    assert!(
        expected.contains(&shown),
        "it shows {shown}, expected {expected:?}"
    );
    Ok(())
}

fn is_moved(kind: Kind) -> Outcome {
    let Some(mut server) = or_skip(kind, find_own_to_harm(kind, &[]))? else {
        return Ok(());
    };
    if !server.has_movable_clock() {
        return crate::skip(kind, "its clock cannot be moved").map(|_: Option<()>| ());
    }
    let client = Client::of(&server)?;
    is_ahead(&client, 0.0)?;
    server.move_clock(2_500_000)?;
    is_ahead(&client, 2.5)?;
    server.move_clock(-300_001_000)?;
    is_ahead(&client, -300.001)?;
    client.write("word")?;
    server.kill()?;
    server.start()?;
    is_ahead(&client, -300.001)?;
    assert_eq!(client.read()?, "word");
    server.move_clock(0)?;
    is_ahead(&client, 0.0)?;

    // The library shares memory, and leaves it when its process is killed.
    let notes = server.directory().unwrap_or(Path::new("")).join("clocked");
    let processes = fs::read_to_string(notes)?;
    assert_eq!(processes.lines().count(), 2);
    drop(server);
    for process in processes.lines() {
        let left = format!("/dev/shm/faketime_shm_{process}");
        assert!(!Path::new(&left).exists(), "{left}");
    }
    Ok(())
}

macro_rules! kinds {
    ($($name:ident: $kind:expr,)*) => {$(
        #[test]
        fn $name() -> Outcome {
            is_moved($kind)
        }
    )*};
}

kinds! {
    postgres_any: Kind::Postgres,
    postgres_18: Kind::Postgres18,
    mysql: Kind::Mysql,
    mariadb: Kind::Mariadb,
    redis: Kind::Redis,
}

#[test]
fn a_usual_server_has_the_machines_clock() -> Outcome {
    let found = find_own(Kind::Redis, &[]);
    let Some(server) = or_skip(Kind::Redis, found)? else {
        return Ok(());
    };
    assert!(!server.has_movable_clock());
    let refused = server.move_clock(1);
    assert!(matches!(refused, Err(Error::NoMovableClock { .. })));
    Ok(())
}
