//! What runs around handlers.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Completion, Context, Failure, Handler};

/// Runs around every handler of a [`Router`](crate::Router) or a
/// [`Processor`](crate::ProcessorBuilder::middleware), for what they have in common: a tenant's
/// connection, a timer, a check that ends the attempt before the handler runs.
///
/// Closures `Fn(Context, Next) -> impl Future<Output = Result<Completion, Failure>>` are middleware
/// too.
///
/// ```
/// use std::time::Instant;
/// use inbox::{Context, Failure, Next, Router};
///
/// let router = Router::new("billing")
///     .on("order.placed", |_: Context| async { Ok::<_, Failure>(()) })
///     .middleware(|context: Context, next: Next| async move {
///         let began = Instant::now();
///         let ended = next.run(&context).await;
///         println!("{} took {:?}", context.message().kind(), began.elapsed());
///         ended
///     });
/// # let _ = router;
/// ```
#[async_trait]
pub trait Middleware: Send + Sync + 'static {
    /// Works on the message, as a rule by running [`next`](Next::run). It may run it not at all, and
    /// change how it ended; an error that the handler passed on is still
    /// [`Failure::from`] it, which the router's rules apply to behind all middleware.
    ///
    /// The time limit of a handler covers its middleware.
    ///
    /// It runs around each message of a [batch](crate::BatchHandler) by itself, once for each attempt.
    /// [`Next::run`] then waits for the batch, which begins when the middleware of all of its
    /// messages has come to that or has ended; or, when none of it has moved for a second, without those
    /// who have not, as middleware may let few through at a time. A next batch is of these, in the
    /// same attempt. What drops it before its answer does not stop the batch,
    /// and the message ends when both have ended, and those before it in its ordering key: where
    /// one fails, also behind the batch, those that follow are handed back. Before and after the batch, middleware has the time
    /// limit for itself.
    ///
    /// # Errors
    /// As [`Handler::handle`].
    async fn handle(&self, context: &Context, next: Next) -> Result<Completion, Failure>;
}

#[async_trait]
impl<F, Fut> Middleware for F
where
    F: Fn(Context, Next) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Completion, Failure>> + Send + 'static,
{
    async fn handle(&self, context: &Context, next: Next) -> Result<Completion, Failure> {
        self(context.clone(), next).await
    }
}

/// The rest of what runs on a message: further middleware, then the handler.
pub struct Next {
    middleware: std::vec::IntoIter<Arc<dyn Middleware>>,
    handler: Arc<dyn Handler>,
}

impl Next {
    /// A handler with middleware around it, the first being the outermost.
    pub(super) fn new(middleware: Vec<Arc<dyn Middleware>>, handler: Arc<dyn Handler>) -> Self {
        Self {
            middleware: middleware.into_iter(),
            handler,
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// As [`Handler::handle`].
    pub async fn run(mut self, context: &Context) -> Result<Completion, Failure> {
        match self.middleware.next() {
            Some(middleware) => middleware.handle(context, self).await,
            None => self.handler.handle(context).await,
        }
    }
}

impl std::fmt::Debug for Next {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Next")
            .field("middleware", &self.middleware.len())
            .finish_non_exhaustive()
    }
}
