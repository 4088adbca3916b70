//! What is particular to PostgreSQL: arguments, PgBouncer in front of a server, standbys.

use test_servers::{Error, Kind, find_own, find_own_to_harm, or_skip};

use crate::client::{Client, PostgresSession};
use crate::{Outcome, Server};

fn server(arguments: &[&str]) -> Result<Option<Server>, Error> {
    or_skip(Kind::Postgres, find_own(Kind::Postgres, arguments))
}

#[test]
fn is_started_with_more_arguments() -> Outcome {
    let arguments = [
        "-c",
        "max_connections=17",
        "-c",
        "shared_preload_libraries=auto_explain",
    ];
    let Some(mut server) = server(&arguments)? else {
        return Ok(());
    };
    let client = Client::of(&server)?;
    server.restart()?;
    assert_eq!(client.ask("SHOW max_connections")?, "17");
    assert_eq!(client.ask("SHOW auto_explain.log_min_duration")?, "-1");
    Ok(())
}

#[test]
fn its_disk_can_be_full() -> Outcome {
    let Some(server) = server(&[])? else {
        return Ok(());
    };
    assert!(!server.has_small_disk());
    let refused = server.fill_disk();
    assert!(matches!(refused, Err(Error::NoSmallDisk { .. })));
    drop(server);

    let found = find_own_to_harm(Kind::Postgres, &[]);
    let Some(mut server) = or_skip(Kind::Postgres, found)? else {
        return Ok(());
    };
    if !server.has_small_disk() {
        return crate::skip(Kind::Postgres, "only root can make a disk").map(|_: Option<()>| ());
    }
    let client = Client::of(&server)?;
    client.write("first")?;
    server.fill_disk()?;
    let large = "CREATE TABLE large AS SELECT repeat('x', 1000) FROM generate_series(1, 100000)";
    let error = client.ask(large).expect_err("there was room");
    assert!(error.to_string().contains("space left"), "{error}");
    server.clear_disk()?;
    server.start()?;
    assert_eq!(client.read()?, "first");
    client.ask(large)?;
    Ok(())
}

#[test]
fn pgbouncer_shares_connections_among_transactions() -> Outcome {
    let Some(mut server) = server(&[])? else {
        return Ok(());
    };
    let Some(mut pgbouncer) = or_skip(Kind::Pgbouncer, server.pgbouncer())? else {
        return Ok(());
    };
    assert_ne!(pgbouncer.url(), server.url());
    let (direct, through) = (Client::of(&server)?, Client::of(&pgbouncer)?);
    through.write("word")?;
    assert_eq!(direct.read()?, "word");

    // In session mode, the sixth session would wait for a connection and time out.
    let mut sessions = Vec::new();
    for _ in 0..20 {
        let mut session = PostgresSession::open(&pgbouncer)?;
        session.ask("SELECT 1")?;
        sessions.push(session);
    }
    let backends = "SELECT count(*) < 6 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    assert_eq!(direct.ask(backends)?, "t");

    // Each may go without the other.
    pgbouncer.kill()?;
    assert!(through.read().is_err());
    assert_eq!(direct.read()?, "word");
    pgbouncer.start()?;
    assert_eq!(through.read()?, "word");
    server.kill()?;
    server.start()?;
    assert!(pgbouncer.is_running()?);
    // Its connections broke, which the first to use one may notice.
    let _ = through.read();
    assert_eq!(through.read()?, "word");
    Ok(())
}

#[test]
fn a_standby_follows_takes_no_writes_and_is_promoted() -> Outcome {
    let Some(mut server) = server(&["-c", "synchronous_standby_names=*"])? else {
        return Ok(());
    };
    let primary = Client::of(&server)?;
    // Nobody is there yet to confirm it.
    primary.ask("SET synchronous_commit = local; CREATE TABLE before (a INT)")?;
    let Some(mut standby) = or_skip(Kind::Postgres, server.standby())? else {
        return Ok(());
    };
    let copy = Client::of(&standby)?;
    assert_eq!(copy.ask("SELECT count(*) FROM before")?, "0");
    primary.ask("SET synchronous_commit = remote_apply; CREATE TABLE after (a INT)")?;
    assert_eq!(copy.ask("SELECT count(*) FROM after")?, "0");
    let refused = copy.write("word").map_err(|error| error.to_string());
    assert!(refused.is_err_and(|error| error.contains("read-only transaction")));

    // It catches up after its own crash.
    standby.kill()?;
    primary.ask("SET synchronous_commit = local; INSERT INTO after VALUES (1)")?;
    standby.start()?;
    primary.ask("SET synchronous_commit = remote_apply; INSERT INTO after VALUES (2)")?;
    assert_eq!(copy.ask("SELECT count(*) FROM after")?, "2");

    assert!(matches!(server.promote(), Err(Error::NoStandby { .. })));
    server.kill()?;
    standby.promote()?;
    // The setting was copied too, and nobody follows the standby.
    copy.ask("SET synchronous_commit = local; INSERT INTO after VALUES (3)")?;
    assert_eq!(copy.ask("SELECT count(*) FROM after")?, "3");
    assert!(matches!(standby.promote(), Err(Error::NoStandby { .. })));

    // It stays what it has become.
    standby.kill()?;
    standby.start()?;
    copy.ask("SET synchronous_commit = local; INSERT INTO after VALUES (4)")?;
    server.start()?;
    assert_eq!(primary.ask("SELECT count(*) FROM after")?, "2");
    Ok(())
}

#[test]
fn pgbouncer_takes_settings_in_place_of_the_usual_ones() -> Outcome {
    let Some(server) = server(&[])? else {
        return Ok(());
    };
    let settings = ["pool_mode = session", "default_pool_size = 7"];
    let Some(pgbouncer) = or_skip(Kind::Pgbouncer, server.pgbouncer_with(&settings))? else {
        return Ok(());
    };
    let (direct, through) = (Client::of(&server)?, Client::of(&pgbouncer)?);
    through.write("word")?;
    let mut sessions = Vec::new();
    for _ in 0..7 {
        let mut session = PostgresSession::open(&pgbouncer)?;
        session.ask("SELECT 1")?;
        sessions.push(session);
    }
    let backends = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    assert_eq!(direct.ask(backends)?, "7", "each session has its own");
    Ok(())
}
