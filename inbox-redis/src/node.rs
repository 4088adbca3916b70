//! One server: its connections, which are made when they are needed and given up when they fail.

pub(crate) mod confirmations;

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, Cmd, Pipeline, RedisError, RedisResult, ServerErrorKind, Value,
    aio::{ConnectionLike as _, MultiplexedConnection},
};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout_at},
};

use self::confirmations::{CONNECTIONS, Group};
use crate::{
    error::{Failed, garbled, late},
    options::RedisOptions,
};

/// A server, with one connection for what is answered at once, and others for what is confirmed
/// first, which makes its connection wait.
pub(crate) struct Node {
    client: Client,
    /// How long connecting may take.
    within: Duration,
    plain: Line,
    sure: [Line; CONNECTIONS],
    pub(crate) group: Group,
    /// How often a call had no answer in time. Connections from before the last one are given up.
    silences: AtomicU64,
}

impl Node {
    pub(crate) fn new(client: Client, options: &RedisOptions) -> Self {
        Self {
            client,
            within: options.connect_timeout(),
            plain: Line::new(),
            sure: std::array::from_fn(|_| Line::new()),
            group: Group::new(options.confirmations),
            silences: AtomicU64::new(0),
        }
    }

    /// Runs a command, and answers its value or error.
    pub(crate) async fn send(
        &self,
        command: &Cmd,
        asking: bool,
        until: Instant,
    ) -> Result<Value, Failed> {
        let mut pipeline = Pipeline::new();
        let commands = if asking {
            pipeline.cmd("ASKING").add_command(command.clone());
            Commands::Many(&pipeline)
        } else {
            Commands::One(command)
        };
        let mut values = self.send_on(&self.plain, until, commands).await?;
        values.pop().ok_or_else(|| Failed::Lost(garbled()))
    }

    /// Runs commands on one of the connections of those that are confirmed.
    pub(crate) async fn send_sure(
        &self,
        connection: usize,
        pipeline: &Pipeline,
        until: Instant,
    ) -> Result<Vec<Value>, Failed> {
        let line = self.sure.get(connection).unwrap_or(&self.plain);
        self.send_on(line, until, Commands::Many(pipeline)).await
    }

    async fn send_on(
        &self,
        line: &Line,
        until: Instant,
        commands: Commands<'_>,
    ) -> Result<Vec<Value>, Failed> {
        let answered = line.send(self, until, commands).await;
        if let Err(Failed::Lost(error)) = &answered
            && error.is_timeout()
        {
            self.give_up_connections();
        }
        answered
    }

    /// The next call connects, on each line: what makes one connection silent does so to the
    /// others, too. Those who wait on the old ones go on waiting.
    fn give_up_connections(&self) {
        self.silences.fetch_add(1, Ordering::SeqCst);
    }

    fn silences(&self) -> u64 {
        self.silences.load(Ordering::SeqCst)
    }
}

/// A connection that nobody has used for so long is asked for a sign of life first: what is sent on one
/// that was lost meanwhile would have an unknown effect.
const IDLE: Duration = Duration::from_secs(1);

/// A connection that many use at a time, each for its own commands.
#[derive(Clone)]
struct Open {
    number: u64,
    /// Those of the node when it was made.
    silences: u64,
    used: Instant,
    connection: MultiplexedConnection,
}

impl Open {
    async fn is_alive(&mut self, until: Instant) -> bool {
        if self.used.elapsed() < IDLE {
            return true;
        }
        let ping = redis::cmd("PING");
        let ping = timeout_at(until, self.connection.req_packed_command(&ping));
        matches!(ping.await, Ok(Ok(_)))
    }
}

/// The place of one connection. A caller that finds it empty connects; one that finds the connection
/// useless empties it, and others go on with what they have.
struct Line {
    open: Mutex<(u64, Option<Open>)>,
}

impl Line {
    fn new() -> Self {
        Self {
            open: Mutex::new((0, None)),
        }
    }

    async fn get(&self, node: &Node, until: Instant) -> RedisResult<Open> {
        let connected = async {
            let mut place = self.open.lock().await;
            let (number, open) = &mut *place;
            if let Some(found) = open {
                // A silent connection leaves time for another one.
                let now = Instant::now();
                let patience = node.within.min(until.saturating_duration_since(now) / 2);
                if found.silences == node.silences() && found.is_alive(now + patience).await {
                    found.used = Instant::now();
                    return Ok(found.clone());
                }
                *open = None;
            }
            // Calls have their own time limits.
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(node.within))
                .set_response_timeout(None);
            let connection = node
                .client
                .get_multiplexed_async_connection_with_config(&config)
                .await?;
            *number += 1;
            Ok(open
                .insert(Open {
                    number: *number,
                    silences: node.silences(),
                    used: Instant::now(),
                    connection,
                })
                .clone())
        };
        timeout_at(until, connected)
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    async fn give_up(&self, number: u64) {
        let mut place = self.open.lock().await;
        if place.1.as_ref().is_some_and(|open| open.number == number) {
            place.1 = None;
        }
    }

    /// Runs commands behind each other, and answers each one's value or error.
    async fn send(
        &self,
        node: &Node,
        until: Instant,
        commands: Commands<'_>,
    ) -> Result<Vec<Value>, Failed> {
        let mut open = self.get(node, until).await.map_err(Failed::NotSent)?;
        let answered = timeout_at(until, commands.run(&mut open.connection))
            .await
            .unwrap_or_else(|_| Err(late()));
        let is_useless = match &answered {
            Ok(values) => values.iter().any(|value| {
                matches!(value, Value::ServerError(error) if is_of_another_server(error.kind()))
            }),
            Err(_) => true,
        };
        if is_useless {
            self.give_up(open.number).await;
        }
        answered.map_err(Failed::Lost)
    }
}

enum Commands<'a> {
    One(&'a Cmd),
    Many(&'a Pipeline),
}

impl Commands<'_> {
    async fn run(self, connection: &mut MultiplexedConnection) -> RedisResult<Vec<Value>> {
        match self {
            Self::One(command) => match connection.req_packed_command(command).await {
                Ok(value) => Ok(vec![value]),
                Err(error) => as_value(error).map(|value| vec![value]),
            },
            Self::Many(pipeline) => {
                let count = pipeline.len();
                connection.req_packed_commands(pipeline, 0, count).await
            }
        }
    }
}

/// What a server answers is a value, be it an error.
fn as_value(error: RedisError) -> RedisResult<Value> {
    match error.clone().into_server_errors().as_deref() {
        Some([(_, server)]) => Ok(Value::ServerError(server.clone())),
        _ => Err(error),
    }
}

/// Errors of a server that is no longer the one to talk to, or not yet: behind the same address there
/// may be another by now.
fn is_of_another_server(kind: Option<ServerErrorKind>) -> bool {
    matches!(
        kind,
        Some(
            ServerErrorKind::ReadOnly | ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown
        )
    )
}
