//! Which handler works on which kind of message.

use std::{collections::HashMap, fmt, marker::PhantomData, sync::Arc};

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::{Completion, Context, Failure, Handler};
use crate::{HandlerName, Invalid, Kind};

/// What happens to messages of a kind that no handler was registered for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// They are dead at once, and can be replayed when there is a handler.
    #[default]
    DeadLetter,
    /// They are tried again by the retry policy: for a worker of a newer version that knows them.
    Retry,
    /// They are settled as processed.
    Ignore,
}

/// The handlers of one handler name, by kind of message.
///
/// ```
/// use inbox::{Completion, Context, Failure, HandlerName, Router};
///
/// #[derive(serde::Deserialize)]
/// struct OrderPlaced { order: u64 }
///
/// # fn main() -> Result<(), inbox::Invalid> {
/// let router = Router::new(HandlerName::new("billing")?)
///     .on_json("order.placed", |event: OrderPlaced, context| async move {
///         let attempt = context.attempts().started;
///         println!("order {}, attempt {attempt}", event.order);
///         Ok(())
///     })
///     .on("order.scanned", |context: Context| async move {
///         if context.message().payload().is_empty() {
///             return Err(Failure::dead("there is nothing in the scan"));
///         }
///         Ok(Completion::with_result("stored"))
///     });
/// # let _ = router;
/// # Ok(())
/// # }
/// ```
pub struct Router {
    handler: HandlerName,
    kinds: HashMap<String, Arc<dyn Handler>>,
    unknown: Unknown,
    /// The first kind that is not valid, reported when the processor is built.
    invalid: Option<Invalid>,
}

enum Unknown {
    Fallback(Fallback),
    Handler(Arc<dyn Handler>),
}

/// Where one message goes.
pub(super) enum Route<'a> {
    Handler(&'a dyn Handler),
    Fallback(Fallback),
}

impl Router {
    /// A router for the messages of this handler name, as yet without handlers.
    #[must_use]
    pub fn new(handler: HandlerName) -> Self {
        Self {
            handler,
            kinds: HashMap::new(),
            unknown: Unknown::Fallback(Fallback::default()),
            invalid: None,
        }
    }

    /// Hands messages of `kind` to `handler`, in place of an earlier one for that kind.
    ///
    /// A `kind` that breaks the rules of [`Kind`] fails
    /// [`ProcessorBuilder::build`](crate::ProcessorBuilder::build).
    #[must_use]
    pub fn on(mut self, kind: impl AsRef<str>, handler: impl Handler) -> Self {
        match Kind::new(kind) {
            Ok(kind) => {
                self.kinds.insert(kind.into(), Arc::new(handler));
            }
            Err(invalid) => {
                self.invalid.get_or_insert(invalid);
            }
        }
        self
    }

    /// Hands messages of `kind` to `handler` with their payload read as JSON.
    ///
    /// A payload that does not read as `T` will not read better next time: the message is dead at
    /// once. Its reason says where in the payload, but not what stands there.
    #[must_use]
    pub fn on_json<T, F, Fut, C>(self, kind: impl AsRef<str>, handler: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(T, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<C, Failure>> + Send + 'static,
        C: Into<Completion> + 'static,
    {
        let payload = PhantomData;
        self.on(kind, Json { handler, payload })
    }

    /// Sets what happens to messages of other kinds. Default: [`Fallback::DeadLetter`].
    #[must_use]
    pub fn fallback(mut self, fallback: Fallback) -> Self {
        self.unknown = Unknown::Fallback(fallback);
        self
    }

    /// Hands messages of other kinds to `handler`.
    #[must_use]
    pub fn fallback_handler(mut self, handler: impl Handler) -> Self {
        self.unknown = Unknown::Handler(Arc::new(handler));
        self
    }

    pub(super) fn route(&self, kind: &Kind) -> Route<'_> {
        match (self.kinds.get(kind.as_str()), &self.unknown) {
            (Some(handler), _) | (None, Unknown::Handler(handler)) => Route::Handler(&**handler),
            (None, Unknown::Fallback(fallback)) => Route::Fallback(*fallback),
        }
    }

    pub(super) fn name(&self) -> &HandlerName {
        &self.handler
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        self.invalid.clone().map_or(Ok(()), Err)
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("handler", &self.handler)
            .field("kinds", &self.kinds.keys())
            .finish_non_exhaustive()
    }
}

struct Json<T, F> {
    handler: F,
    payload: PhantomData<fn() -> T>,
}

#[async_trait]
impl<T, F, Fut, C> Handler for Json<T, F>
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(T, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<C, Failure>> + Send + 'static,
    C: Into<Completion> + 'static,
{
    async fn handle(&self, context: &Context) -> Result<Completion, Failure> {
        let event = serde_json::from_slice(context.message().payload()).map_err(unreadable)?;
        (self.handler)(event, context.clone()).await.map(Into::into)
    }
}

/// serde's own text may quote the payload, so only its place and category are kept.
fn unreadable(error: serde_json::Error) -> Failure {
    let what = match error.classify() {
        Category::Syntax => "it is not JSON",
        Category::Eof => "the JSON is cut short",
        Category::Data => "the JSON is not of the expected form",
        Category::Io => "it cannot be read",
    };
    let (line, column) = (error.line(), error.column());
    Failure::dead(format_args!(
        "unreadable payload: {what} (line {line}, column {column})"
    ))
}
