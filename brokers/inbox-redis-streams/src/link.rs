//! A connection for commands, made when needed and again after a failure.

use std::time::Duration;

use inbox_source::SourceError;
use redis::{
    AsyncConnectionConfig, FromRedisValue, Pipeline, RedisError, RedisResult, ScriptInvocation,
    aio::MultiplexedConnection,
};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout_at},
};

use crate::{
    error::{failed, late},
    options::Connection,
};

/// How long connecting may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

pub(crate) struct Link {
    connection: Connection,
    open: Mutex<Option<MultiplexedConnection>>,
}

impl Link {
    pub(crate) fn new(connection: Connection) -> Self {
        Self {
            connection,
            open: Mutex::new(None),
        }
    }

    /// Runs commands until `deadline`. Whatever fails, the next call uses another connection: it is of another server,
    /// or silent, or broken.
    pub(crate) async fn run<T: FromRedisValue>(
        &self,
        doing: &str,
        commands: &Pipeline,
        deadline: Instant,
    ) -> Result<T, SourceError> {
        let sent = async {
            let mut open = self.get().await?;
            commands.query_async(&mut open).await
        };
        self.finish(doing, timeout_at(deadline, sent).await).await
    }

    /// Whether there is a connection, or another could be made.
    pub(crate) async fn is_up(&self, deadline: Instant) -> bool {
        matches!(timeout_at(deadline, self.get()).await, Ok(Ok(_)))
    }

    /// As [`run`](Self::run), of a script with its keys and arguments.
    pub(crate) async fn invoke<T: FromRedisValue>(
        &self,
        doing: &str,
        call: &ScriptInvocation<'_>,
        deadline: Instant,
    ) -> Result<T, SourceError> {
        let sent = async {
            let mut open = self.get().await?;
            call.invoke_async(&mut open).await
        };
        self.finish(doing, timeout_at(deadline, sent).await).await
    }

    async fn get(&self) -> RedisResult<MultiplexedConnection> {
        let mut place = self.open.lock().await;
        if let Some(open) = &*place {
            return Ok(open.clone());
        }
        Ok(place.insert(connect(&self.connection).await?).clone())
    }

    async fn finish<T>(
        &self,
        doing: &str,
        answer: Result<Result<T, RedisError>, tokio::time::error::Elapsed>,
    ) -> Result<T, SourceError> {
        let error = match answer {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => failed(doing, &error),
            Err(_) => late(doing),
        };
        self.reset().await;
        Err(error)
    }

    /// Lets the next call use another connection.
    pub(crate) async fn reset(&self) {
        *self.open.lock().await = None;
    }
}

/// A connection whose calls have their own limits of time.
pub(crate) async fn connect(connection: &Connection) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_LIMIT))
        .set_response_timeout(None);
    let client = &connection.client;
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
}
