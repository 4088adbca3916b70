//! Handlers of payloads in JSON.

use std::marker::PhantomData;

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::{Completion, Context, Failure, Handler};

/// Makes a handler of a function that takes the payload, read as JSON.
///
/// A payload that does not read as `T` will not read better next time: the message is dead at
/// once. Its reason says where in the payload, but not what stands there.
pub fn json<T, F, Fut, C, E>(handler: F) -> impl Handler
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(T, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<C, E>> + Send + 'static,
    C: Into<Completion> + 'static,
    E: Into<Failure> + 'static,
{
    let payload = PhantomData;
    Json { handler, payload }
}

struct Json<T, F> {
    handler: F,
    payload: PhantomData<fn() -> T>,
}

#[async_trait]
impl<T, F, Fut, C, E> Handler for Json<T, F>
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(T, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<C, E>> + Send + 'static,
    C: Into<Completion> + 'static,
    E: Into<Failure> + 'static,
{
    async fn handle(&self, context: &Context) -> Result<Completion, Failure> {
        let event = context.json()?;
        let ended = (self.handler)(event, context.clone()).await;
        ended.map(Into::into).map_err(Into::into)
    }
}

impl Context {
    /// The payload, read as JSON: for handlers that [`json`] is not for, as those in transactions.
    ///
    /// # Errors
    /// A failure that makes the message dead, as it will not read better next time. Its reason says where in the
    /// payload, but not what stands there.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(self.message().payload()).map_err(|error| unreadable(&error))
    }
}

/// serde's own text may quote the payload, so only its place and category are kept.
fn unreadable(error: &serde_json::Error) -> Failure {
    let what = match error.classify() {
        Category::Syntax => "it is not JSON",
        Category::Eof => "the JSON is cut short",
        Category::Data => "the JSON is not of the expected form",
        Category::Io => "it cannot be read",
    };
    let (line, column) = (error.line(), error.column());
    Failure::dead(format!(
        "unreadable payload: {what} (line {line}, column {column})"
    ))
}
