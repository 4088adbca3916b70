//! Why the driver found no server to use. It says so in a text only: the topology, and of each
//! server its type and the last error of its monitor. The text decides nothing but the wording, and
//! only those parts are told that come from the connection: addresses, the name of the replica set
//! and errors of input and output. Monitors do not log in, so no credentials are in it.

/// What to say for the text of a failed server selection.
pub(crate) fn explain(text: &str) -> String {
    let Some((_, topology)) = text.split_once("Topology: { Type: ") else {
        // The driver and the server have no version of the protocol in common.
        let versions = text.starts_with("Server at ");
        let text = if versions { text } else { GENERAL };
        return text.to_owned();
    };
    let (head, servers) = topology
        .split_once(", Servers: [ ")
        .unwrap_or((topology.trim_end_matches(" }"), ""));
    let kind = head.split(',').next().unwrap_or_default();
    let servers: Vec<Seen<'_>> = servers
        .split("{ Address: ")
        .skip(1)
        .filter_map(Seen::read)
        .collect();
    if servers.is_empty() {
        return match between(head, "Set Name: ", ",") {
            Some(set) => format!(
                "none of the servers is a member of the replica set {set}; is replicaSet right? A \
                 standalone server has none"
            ),
            None if kind == "Unknown" => {
                "the URL names several servers that are no replica set".into()
            }
            None => GENERAL.into(),
        };
    }
    let no_primary = kind == "ReplicaSetNoPrimary" && servers.iter().any(|seen| seen.ty != UNKNOWN);
    let what = if no_primary {
        "the replica set has no primary"
    } else {
        "no server could be used"
    };
    let servers: Vec<String> = servers.iter().map(Seen::say).collect();
    format!(
        "{what}, within serverSelectionTimeoutMS: {}",
        servers.join("; ")
    )
}

const GENERAL: &str = "no suitable server answered in time; is there a primary?";
const UNKNOWN: &str = "Unknown";
/// Some servers wait for more when they are spoken to in TLS and do not speak it.
const SILENT: &str = "has not answered; are the host, the port and tls right?";

/// What stands between `start` and `end`, or behind `start` if there is no `end`.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(start)?;
    Some(rest.split_once(end).map_or(rest, |(part, _)| part))
}

/// A server as its monitor saw it last.
struct Seen<'a> {
    address: &'a str,
    ty: &'a str,
    /// The kind of the error and what it says.
    error: Option<&'a str>,
}

impl<'a> Seen<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let (address, rest) = text.split_once(", Type: ")?;
        Some(Self {
            address,
            ty: rest.split([',', ' ']).next().unwrap_or_default(),
            error: between(rest, "Error: Kind: ", ", labels: "),
        })
    }

    fn say(&self) -> String {
        let address = self.address;
        let Some(error) = self.error else {
            let standing = match self.ty {
                UNKNOWN => SILENT,
                "RsSecondary" => "is a secondary",
                "RsArbiter" => "is an arbiter",
                _ => "is not ready",
            };
            return format!("{address} {standing}");
        };
        if error == "I/O error: timed out" {
            return format!("{address} {SILENT}");
        }
        if let Some(error) = error.strip_prefix("I/O error: ") {
            return format!("{address}: {error}{}", hint(error));
        }
        let set = "An invalid argument was provided: Connection string replicaSet name ";
        if let Some(names) = error.strip_prefix(set) {
            return format!("{address}: replicaSet {names}");
        }
        if error.starts_with("The server returned an invalid reply") {
            return format!("{address}: what answers there is not MongoDB");
        }
        format!("{address}: it cannot be connected to")
    }
}

/// What to look at, for errors that do not say it themselves. The texts are those of rustls, tokio
/// and the system.
fn hint(error: &str) -> &'static str {
    if error.starts_with("received corrupt message") || error.starts_with("tls handshake") {
        "; does the server speak TLS, as the URL says?"
    } else if error.starts_with("invalid peer certificate") {
        "; tlsCAFile names the authority that signed the server's certificate"
    } else if error.contains("early eof")
        || error.contains("end of file")
        || error.contains("reset by peer")
    {
        "; does the server want TLS (tls=true)?"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the driver words it.
    fn topology(head: &str, servers: &[&str]) -> String {
        let servers = servers.join(", ");
        let servers = if servers.is_empty() {
            String::new()
        } else {
            format!(", Servers: [ {servers} ]")
        };
        format!(
            "Server selection timeout: No available servers. Topology: {{ Type: {head}{servers} }}"
        )
    }

    fn failed(address: &str, error: &str) -> String {
        format!(
            "{{ Address: {address}, Type: Unknown, Error: Kind: {error}, labels: {{}}, source: \
             None, server response: None }}"
        )
    }

    #[test]
    fn the_cause_of_each_server_is_told() {
        for (error, said) in [
            (
                "I/O error: Connection refused (os error 111)",
                "db:1: Connection refused (os error 111)",
            ),
            ("I/O error: timed out", "db:1 has not answered"),
            (
                "I/O error: received corrupt message of type InvalidContentType",
                "speak TLS",
            ),
            (
                "I/O error: invalid peer certificate: UnknownIssuer",
                "UnknownIssuer; tlsCAFile",
            ),
            ("I/O error: early eof", "tls=true"),
            (
                "The server returned an invalid reply to a database operation: secret",
                "not MongoDB",
            ),
            (
                "Command failed: Error code 1 (X): secret",
                "db:1: it cannot be connected to",
            ),
            (
                "An invalid argument was provided: Connection string replicaSet name \"a\" does \
                 not match actual name \"b\"",
                "db:1: replicaSet \"a\" does not match actual name \"b\"",
            ),
        ] {
            let text = topology("Unknown", &[&failed("db:1", error)]);
            let told = explain(&text);
            assert!(told.starts_with("no server could be used"), "{told}");
            assert!(told.contains(said), "{told}");
            assert!(!told.contains("secret"), "{told}");
        }
    }

    #[test]
    fn a_replica_set_without_a_primary_is_told_from_a_wrong_name() {
        let refused = failed("a:1", "I/O error: Connection refused (os error 111)");
        let secondary =
            "{ Address: b:2, Type: RsSecondary, Average RTT: 1ms, Replica Set Name: rs0 }";
        let set = "ReplicaSetNoPrimary, Set Name: rs0";
        assert_eq!(
            explain(&topology(set, &[&refused, secondary])),
            "the replica set has no primary, within serverSelectionTimeoutMS: a:1: Connection \
             refused (os error 111); b:2 is a secondary"
        );
        assert!(explain(&topology(set, &[&refused])).starts_with("no server could be used"));
        let none = explain(&topology(set, &[]));
        assert!(none.contains("a member of the replica set rs0;"), "{none}");
    }

    #[test]
    fn what_cannot_be_read_is_told_in_general() {
        for text in ["", "something secret", "Topology: { Type: Sharded }"] {
            assert_eq!(explain(text), GENERAL);
        }
        let silent = "{ Address: a:1, Type: Unknown }";
        let told = explain(&topology("Unknown", &[silent]));
        assert!(told.contains("a:1 has not answered"), "{told}");
    }
}
