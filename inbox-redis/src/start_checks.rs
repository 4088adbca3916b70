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
        check_version(info, options)?;
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

fn check_version(info: &str, options: &RedisOptions) -> Result<()> {
    let version = field(info, "redis_version").unwrap_or_default();
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0_u32));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version < (7, 0) {
        return Err(unsupported(
            "the server must be Redis 7, Valkey 7.2 or later",
        ));
    }
    if options.confirmations.waits_for_aof() && version < (7, 2) {
        return Err(unsupported(
            "waiting for append-only files (WAITAOF) needs Redis 7.2 or later",
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
}
