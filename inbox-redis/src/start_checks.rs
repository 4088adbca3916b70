//! What connecting looks at: the server's version, and settings that may lose messages.

use inbox_api::{Error, ErrorKind, Result};

use crate::{
    error,
    options::{RedisOptions, StartChecks},
    servers::Servers,
};

/// The value of a line `name:value` of `INFO`.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

fn unsupported(context: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Unsupported, context)
}

pub(crate) async fn check(servers: &Servers, options: &RedisOptions) -> Result<()> {
    let infos = servers
        .ask_primaries(&redis::cmd("INFO"))
        .await
        .map_err(error::connecting)?;
    for info in &infos {
        // Until it has loaded its data, a server shows its append-only file as off.
        if field(info, "loading") == Some("1") {
            let reason = "the server is loading its data";
            return Err(Error::new(ErrorKind::Unavailable, reason));
        }
        check_version(info)?;
        check_confirmations(info, options)?;
        if !options.cluster && field(info, "cluster_enabled") == Some("1") {
            let reason = "the server is a node of a cluster; use redis+cluster:// in the URL";
            return Err(Error::new(ErrorKind::Invalid, reason));
        }
    }
    if options.start_checks == StartChecks::Skip {
        return Ok(());
    }
    let mut problems: Vec<&str> = infos
        .iter()
        .filter_map(|info| eviction_problem(info))
        .collect();
    if infos
        .iter()
        .any(|info| field(info, "aof_enabled") != Some("1"))
        && !takes_snapshots(servers).await
    {
        problems.push(
            "it persists nothing: neither an append-only file nor snapshots (appendonly, save)",
        );
    }
    problems.sort_unstable();
    problems.dedup();
    let Some(first) = problems.first() else {
        return Ok(());
    };
    if options.start_checks == StartChecks::Refuse {
        return Err(unsupported(format!(
            "the server may lose messages: {first}; change that, or set start_checks to warn"
        )));
    }
    for problem in problems {
        tracing::warn!(problem, "the server may lose messages");
    }
    Ok(())
}

/// The first two numbers of the server's version.
fn version(info: &str) -> (u32, u32) {
    let version = field(info, "redis_version").unwrap_or_default();
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

fn check_version(info: &str) -> Result<()> {
    if version(info) < (7, 0) {
        return Err(unsupported(
            "the server must be Redis 7, Valkey 7.2 or later",
        ));
    }
    Ok(())
}

/// Whether the server can confirm what is asked of it.
fn check_confirmations(info: &str, options: &RedisOptions) -> Result<()> {
    let wanted = options.confirmations;
    if wanted.waits_for_aof() && version(info) < (7, 2) {
        return Err(unsupported(
            "waiting for append-only files (WAITAOF) needs Redis 7.2 or later",
        ));
    }
    if wanted.local_aof && field(info, "aof_enabled") == Some("0") {
        return Err(unsupported(
            "wait_aof_local needs an append-only file (appendonly yes)",
        ));
    }
    Ok(())
}

/// Our keys have no expiry time, so the volatile policies spare them.
fn eviction_problem(info: &str) -> Option<&'static str> {
    field(info, "maxmemory_policy")
        .is_some_and(|policy| policy.starts_with("allkeys-"))
        .then_some("its maxmemory-policy evicts any key (set noeviction)")
}

/// Whether the server takes snapshots. A managed server that does not say is taken at its
/// operator's word.
async fn takes_snapshots(servers: &Servers) -> bool {
    let mut config = redis::cmd("CONFIG");
    config.arg("GET").arg("save");
    match servers.first_setting(&config).await {
        Some(save) => !save.is_empty(),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let info = "# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n";
        assert_eq!(field(info, "maxmemory"), Some("0"));
        assert!(eviction_problem(info).is_some());
        assert!(eviction_problem("maxmemory_policy:volatile-lru\r\n").is_none());
    }

    #[test]
    fn what_cannot_confirm_is_refused_only_where_that_is_asked_for() {
        for (version, aof, wanted, is_refused) in [
            ("7.2.4", 0, "wait_aof_local=true", true),
            ("7.2.4", 1, "wait_aof_local=true", false),
            ("7.2.4", 0, "wait_aof_replicas=1", false),
            ("7.2.4", 0, "wait_replicas=1", false),
            ("7.0.15", 1, "wait_aof_local=true", true),
            ("7.0.15", 0, "wait_replicas=1", false),
        ] {
            let info = format!("redis_version:{version}\r\naof_enabled:{aof}\r\n");
            let options = RedisOptions::from_url(&format!("redis://h?{wanted}")).unwrap();
            let checked = check_confirmations(&info, &options);
            let kind = checked.err().map(|error| error.kind());
            let expected = is_refused.then_some(ErrorKind::Unsupported);
            assert_eq!(kind, expected, "{version} {aof} {wanted}");
        }
    }
}
