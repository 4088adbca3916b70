//! What processes a message for the command line: a command, or an HTTP endpoint.

mod command;
mod group;
mod http;
mod starts;

use std::sync::Arc;

use anyhow::Result;
use inbox::{Handler, Leased};

use clap::Args;

pub(crate) use self::{group::kill_all, starts::Starts};
use crate::commands::process::ProcessingArgs;

pub(crate) const HELP: &str = "\
A command is run once per message, with the payload on its standard input and in its environment:
  INBOX_ID, INBOX_HANDLER, INBOX_KIND, INBOX_ATTEMPT, INBOX_FENCING_TOKEN,
  INBOX_CONTENT_TYPE and INBOX_ORDERING_KEY (if any), INBOX_HEADER_<NAME> for each header
<NAME> is in upper case, with _ for what is neither letter nor digit. Where several headers have the
same <NAME>, as a-b and a_b, the first of them in the order of their bytes counts.
Its exit code is its answer:
  0   processed
  65  dead at once (the message is bad, do not try again)
  any other, or a signal: try again later; the end of its standard error is kept as the error
Its standard output is discarded. On a time-out it is killed, with all processes it has started.
One that cannot be started (it is being replaced, there is no memory) costs no attempt: no other is
started for two seconds, and so on until it can be. `inbox run` and `inbox process --drain` end with
exit code 1 when ten starts in a row have failed, which takes 18 seconds or more; what passes (no
memory, no room for processes or files) does not count.

A worker that is killed itself (SIGKILL, out of memory) cannot end its commands. They go on, and
their messages run again when the leases have run out, even while the first runs still go on. To
have the system end a command together with its worker, start it by `setpriv` (util-linux, Linux
only):
  inbox process -- setpriv --pdeathsig TERM -- ./charge-card
That ends the command itself, not what it has started: of a shell script, begin the last line with
`exec`. Where two runs of a message must never both have their effect, keep INBOX_FENCING_TOKEN with
the effect, and refuse one that comes with a lower token.

A URL gets an HTTP POST with the payload as its body, the same facts as headers (inbox-id, …; the
message's own headers as inbox-header-<name>, the first of those that differ in case only, and
without those that HTTP cannot carry) and an idempotency-key. That is \"HANDLER/ID\", a
structured-field string; where it is longer than 255 bytes, not printable ASCII, or the handler's
name has a slash, \"sha256:…\" of both. Proxies are those of http_proxy and https_proxy, but for
localhost and loopback addresses. Its answer:
  2xx                      processed
  400, 410, 413, 415, 422  dead at once
  any other, or no answer: try again later, and not before Retry-After if given
A server that cannot be reached (connection refused, no such host, a certificate that is not valid,
no connection within ten seconds or nine tenths of --timeout) has not seen the message, and costs no
attempt: as with a command that cannot be started, nothing is posted for two seconds, and so on, and
`inbox run` and `inbox process --drain` end with exit code 1 after ten failures in a row. What
breaks off later is an attempt.";

#[derive(Debug, Args)]
#[group(required = true, multiple = false, id = "target")]
pub(crate) struct TargetArgs {
    /// POST each message to this URL
    #[arg(long, value_name = "URL", group = "target")]
    pub(crate) post: Option<String>,
    /// Run this command for each message
    #[arg(last = true, value_name = "COMMAND", group = "target")]
    pub(crate) command: Vec<String>,
}

/// The handler that the command line asks for. Fails before anything is claimed when it cannot
/// work: a command that is not there, a URL that is not one. It is told how long it may run and when its messages are
/// tried again.
///
/// A command does not inherit the environment variables that are `secrets`. Whether it can be started, or the server be
/// reached, is counted in `starts`.
pub(crate) fn from_args(
    args: &TargetArgs,
    processing: &ProcessingArgs,
    secrets: &[String],
    starts: Arc<Starts>,
) -> Result<Arc<dyn Handler>> {
    match (&args.post, args.command.split_first()) {
        (Some(url), _) => {
            let (retry, limit) = (processing.retry_policy(), processing.time_limit(args));
            Ok(Arc::new(http::Post::new(url, retry, limit, starts)?))
        }
        (None, Some((program, arguments))) => {
            let run = command::Run::new(program, arguments, secrets, starts)?;
            Ok(Arc::new(run))
        }
        // Clap's group requires one of the two.
        (None, None) => anyhow::bail!("no handler: give --post URL or -- COMMAND"),
    }
}

/// The names of the facts about a message, but for its headers.
const FACTS: [&str; 7] = [
    "id",
    "handler",
    "kind",
    "attempt",
    "fencing-token",
    "content-type",
    "ordering-key",
];

/// The facts about a message that its handler is told, as lower-case dashed names and values.
fn facts(message: &Leased) -> Vec<(String, String)> {
    let content = &message.message;
    let values = [
        Some(content.id().to_string()),
        Some(content.handler().to_string()),
        Some(content.kind().to_string()),
        Some(message.attempts.started.to_string()),
        Some(message.lease.token.to_string()),
        content.content_type().map(ToString::to_string),
        content.ordering_key().map(ToString::to_string),
    ];
    let values = FACTS.into_iter().zip(values);
    let mut facts: Vec<_> = values
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect();
    for (name, value) in content.headers().iter() {
        facts.push((format!("header-{name}"), value.to_owned()));
    }
    facts
}
