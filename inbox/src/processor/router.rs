//! Which handler works on which kind of message, and on what terms.

use std::{
    borrow::Cow,
    collections::HashMap,
    error::Error,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use serde::de::DeserializeOwned;

use super::{
    BatchHandler, Batches, CircuitBreaker, Completion, Context, Failure, Handler, Middleware, Next,
    Rate, Remedy,
    failed_attempt::SettleFailed,
    failure::{Rule, Ruling},
    json,
};
use crate::{
    AfterDead, Event, HandlerName, Invalid, Kind, Message, RetryPolicy,
    patience::{SHORTEST, check_limit},
};

/// What happens to messages of a kind that no handler was registered for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// They are left for a worker that knows them, such as one of a newer version during a
    /// deployment: due again after half a minute, without counting an attempt, for as long as it takes. Their last error and history stay as they are; a
    /// warning names each such kind once. With an ordering key they hold up the messages behind them.
    #[default]
    Leave,
    /// They are dead at once, and can be replayed when there is a handler.
    DeadLetter,
    /// They are tried again by the retry policy, and dead in the end.
    Retry,
    /// They are settled as processed.
    Ignore,
}

/// The handlers of one handler name, by kind of message, and the terms on which they work.
///
/// Each router has its own room in a processor: its messages are claimed, run and limited apart from
/// those of other routers, so that one whose handlers are slow or fail does not hold up the rest.
///
/// ```
/// use std::time::Duration;
/// use inbox::{CircuitBreaker, Completion, Context, Failure, Rate, Remedy, Router};
///
/// #[derive(serde::Deserialize)]
/// struct OrderPlaced { order: u64 }
///
/// #[derive(Debug, thiserror::Error)]
/// enum ChargeError {
///     #[error("the card was declined")]
///     Declined,
///     #[error("the bank does not answer")]
///     Bank(#[from] std::io::Error),
/// }
///
/// async fn charge(event: OrderPlaced, context: Context) -> Result<(), ChargeError> {
///     let attempt = context.attempts().started;
///     println!("order {}, attempt {attempt}", event.order);
///     if event.order == 0 { Err(ChargeError::Declined) } else { Ok(()) }
/// }
///
/// let router = Router::new("billing")
///     .on_json("order.placed", charge)
///     .on("order.scanned", |context: Context| async move {
///         if context.message().payload().is_empty() {
///             return Err(Failure::dead("there is nothing in the scan"));
///         }
///         Ok(Completion::with_result("stored"))
///     })
///     .classify(|error: &ChargeError| match error {
///         ChargeError::Declined => Remedy::Dead,
///         ChargeError::Bank(_) => Remedy::Retry,
///     })
///     .concurrency(8)
///     .rate(Rate::new(100, Duration::from_secs(1)))
///     .circuit_breaker(CircuitBreaker::new());
/// # let _ = router;
/// ```
pub struct Router {
    handler: Result<HandlerName, Invalid>,
    kinds: HashMap<String, Target>,
    /// The longest first.
    prefixes: Vec<(String, Target)>,
    unknown: Unknown,
    options: HashMap<String, KindOptions>,
    choose: Option<Choose>,
    middleware: Vec<Arc<dyn Middleware>>,
    rules: Vec<Box<Rule>>,
    pub(super) settle_failed: Option<Arc<dyn SettleFailed>>,
    pub(super) terms: Terms,
    /// The first kind that is not valid, reported when the processor is built.
    invalid: Option<Invalid>,
}

/// What a router may have of its own, in place of the processor's.
#[derive(Clone, Debug, Default)]
pub(super) struct Terms {
    pub concurrency: Option<usize>,
    pub rate: Option<Rate>,
    pub retry: Option<RetryPolicy>,
    pub timeout: Option<Duration>,
    pub lease: Option<Duration>,
    pub after_dead: Option<AfterDead>,
    pub breaker: Option<CircuitBreaker>,
    pub batches: Option<Batches>,
}

/// What one kind of message may have of its own, in place of its router's.
#[derive(Clone, Debug, Default)]
pub struct KindOptions {
    pub(super) retry: Option<RetryPolicy>,
    pub(super) timeout: Option<Duration>,
}

impl KindOptions {
    /// All as the router has it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how often and when failed messages of the kind are tried again.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = Some(policy);
        self
    }

    /// Sets for how long a handler may run on a message of the kind: see
    /// [`ProcessorBuilder::handler_timeout`](crate::ProcessorBuilder::handler_timeout).
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }
}

type Choose = Box<dyn Fn(&Message) -> Option<KindOptions> + Send + Sync>;

enum Unknown {
    Fallback(Fallback),
    Target(Target),
}

/// What messages are handed to.
enum Target {
    Handler(Arc<dyn Handler>),
    Batch(Arc<dyn BatchHandler>),
}

/// Where one message goes.
pub(super) enum Route<'a> {
    Handler(&'a Arc<dyn Handler>),
    Batch(&'a Arc<dyn BatchHandler>),
    Fallback(Fallback),
}

impl Router {
    /// A router for the messages of this handler name, as yet without handlers.
    ///
    /// A name that breaks the rules of [`HandlerName`] fails
    /// [`ProcessorBuilder::build`](crate::ProcessorBuilder::build).
    #[must_use]
    pub fn new(handler: impl AsRef<str>) -> Self {
        Self {
            handler: HandlerName::new(handler),
            kinds: HashMap::new(),
            prefixes: Vec::new(),
            unknown: Unknown::Fallback(Fallback::default()),
            options: HashMap::new(),
            choose: None,
            middleware: Vec::new(),
            rules: Vec::new(),
            settle_failed: None,
            terms: Terms::default(),
            invalid: None,
        }
    }

    /// Hands messages of `kind` to `handler`, in place of an earlier one for that kind.
    ///
    /// A `kind` that breaks the rules of [`Kind`] fails
    /// [`ProcessorBuilder::build`](crate::ProcessorBuilder::build).
    #[must_use]
    pub fn on(mut self, kind: impl AsRef<str>, handler: impl Handler) -> Self {
        if let Some(kind) = self.valid(kind) {
            self.kinds.insert(kind, Target::Handler(Arc::new(handler)));
        }
        self
    }

    /// Hands messages of `kind` to `handler`, several at a time, in place of an earlier handler for that
    /// kind. [`batches`](Self::batches) sets how many.
    #[must_use]
    pub fn on_batch(mut self, kind: impl AsRef<str>, handler: impl BatchHandler) -> Self {
        if let Some(kind) = self.valid(kind) {
            self.kinds.insert(kind, Target::Batch(Arc::new(handler)));
        }
        self
    }

    /// Hands messages of `kind` to `handler` with their payload read as JSON: [`on`](Self::on) with
    /// [`json`].
    #[must_use]
    pub fn on_json<T, F, Fut, C, E>(self, kind: impl AsRef<str>, handler: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(T, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<C, E>> + Send + 'static,
        C: Into<Completion> + 'static,
        E: Into<Failure> + 'static,
    {
        self.on(kind, json(handler))
    }

    /// Hands messages of the kind that `T` [names](Event::KIND) to `handler`, as
    /// [`on_json`](Self::on_json) does.
    #[must_use]
    pub fn on_event<T, F, Fut, C, E>(self, handler: F) -> Self
    where
        T: Event + DeserializeOwned + Send + 'static,
        F: Fn(T, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<C, E>> + Send + 'static,
        C: Into<Completion> + 'static,
        E: Into<Failure> + 'static,
    {
        self.on_json(T::KIND, handler)
    }

    /// Hands messages whose kind begins with `prefix` to `handler`, unless there is one for the very
    /// kind, or for a longer prefix.
    #[must_use]
    pub fn on_prefix(self, prefix: impl AsRef<str>, handler: impl Handler) -> Self {
        self.with_prefix(prefix, Target::Handler(Arc::new(handler)))
    }

    /// Hands messages whose kind begins with `prefix` to `handler`, several at a time and of different kinds
    /// together, unless there is a handler for the very kind, or for a longer prefix.
    #[must_use]
    pub fn on_batch_prefix(self, prefix: impl AsRef<str>, handler: impl BatchHandler) -> Self {
        self.with_prefix(prefix, Target::Batch(Arc::new(handler)))
    }

    fn with_prefix(mut self, prefix: impl AsRef<str>, target: Target) -> Self {
        if let Some(prefix) = self.valid(prefix) {
            self.prefixes.retain(|(other, _)| *other != prefix);
            self.prefixes.push((prefix, target));
            self.prefixes
                .sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        }
        self
    }

    /// Sets what happens to messages of other kinds. Default: [`Fallback::Leave`].
    #[must_use]
    pub fn fallback(mut self, fallback: Fallback) -> Self {
        self.unknown = Unknown::Fallback(fallback);
        self
    }

    /// Hands messages of other kinds to `handler`.
    #[must_use]
    pub fn fallback_handler(mut self, handler: impl Handler) -> Self {
        self.unknown = Unknown::Target(Target::Handler(Arc::new(handler)));
        self
    }

    /// Hands messages of other kinds to `handler`, several at a time and of different kinds together: all
    /// messages of the router, if it has no other handler.
    #[must_use]
    pub fn fallback_batch_handler(mut self, handler: impl BatchHandler) -> Self {
        self.unknown = Unknown::Target(Target::Batch(Arc::new(handler)));
        self
    }

    /// Sets what messages of one kind have of their own, whichever handler they go to.
    #[must_use]
    pub fn kind_options(mut self, kind: impl AsRef<str>, options: KindOptions) -> Self {
        if let Some(kind) = self.valid(kind) {
            self.options.insert(kind, options);
        }
        self
    }

    /// Chooses what single messages have of their own, by their headers, say. What it leaves open is as
    /// the kind [has it](Self::kind_options), and so is all when it panics. A time limit below a
    /// millisecond is taken as one.
    ///
    /// It is asked several times for each message, in the processor's loop: keep it quick, and let it
    /// answer the same.
    ///
    /// ```
    /// use inbox::{KindOptions, Message, RetryPolicy, Router};
    ///
    /// let router = Router::new("billing").message_options(|message: &Message| {
    ///     let attempts = message.headers().get("max-attempts")?.parse().ok()?;
    ///     let policy = RetryPolicy::default().with_max_attempts(attempts);
    ///     Some(KindOptions::new().retry(policy))
    /// });
    /// # let _ = router;
    /// ```
    #[must_use]
    pub fn message_options(
        mut self,
        choose: impl Fn(&Message) -> Option<KindOptions> + Send + Sync + 'static,
    ) -> Self {
        self.choose = Some(Box::new(choose));
        self
    }

    /// Decides what happens to messages whose handler has passed on an error of type `E`, by itself or
    /// as the [source](Error::source) of another, at any depth. Without any such rule they are tried
    /// again, but for an [`Invalid`](crate::Invalid), with which the message is dead.
    ///
    /// The rule added first goes first. What a handler [decides](Failure) by itself stands.
    #[must_use]
    pub fn classify<E: Error + 'static>(
        mut self,
        decide: impl Fn(&E) -> Remedy + Send + Sync + 'static,
    ) -> Self {
        self.rules.push(Box::new(Ruling::classify(decide)));
        self
    }

    /// Tries messages again by this policy whose handler has passed on an error of type `E`: a
    /// [rule](Self::classify) like others. The policy counts all of a message's attempts, whatever they failed with, and
    /// allows no more of them than that of the [router](Self::retry), the kind or the message.
    ///
    /// ```
    /// use std::{io, time::Duration};
    /// use inbox::{RetryPolicy, Router};
    ///
    /// // What does not answer is asked again soon and often, all else as usual.
    /// let soon = RetryPolicy::default()
    ///     .with_delays(Duration::from_secs(1), Duration::from_secs(10));
    /// let router = Router::new("billing").retry_on::<io::Error>(soon);
    /// # let _ = router;
    /// ```
    #[must_use]
    pub fn retry_on<E: Error + 'static>(mut self, policy: RetryPolicy) -> Self {
        self.rules.push(Box::new(Ruling::retry::<E>(policy)));
        self
    }

    /// Adds something that runs around all of this router's handlers, around a
    /// [`fallback_handler`](Self::fallback_handler) too, and within what was added before.
    #[must_use]
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.middleware.push(Arc::new(middleware));
        self
    }

    /// Sets how large the batches of [batch handlers](Self::on_batch) are, and how many run at a time.
    /// Default: 100 messages, two batches. It says nothing for a router without batch handlers; one that
    /// has both kinds claims for all of its handlers as for a batch, so that they are better apart.
    #[must_use]
    pub fn batches(mut self, batches: Batches) -> Self {
        self.terms.batches = Some(batches);
        self
    }

    /// Sets how many of this router's handlers run at a time, in place of
    /// [`ProcessorBuilder::concurrency`](crate::ProcessorBuilder::concurrency). Each message of a batch
    /// counts. By default, a router with batch handlers has room for one full batch more than
    /// [run at once](Batches::at_once).
    #[must_use]
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.terms.concurrency = Some(messages);
        self
    }

    /// Limits how many of this router's handlers are started in a while. Default: no limit. Each
    /// processor has its own count.
    #[must_use]
    pub fn rate(mut self, rate: Rate) -> Self {
        self.terms.rate = Some(rate);
        self
    }

    /// Sets how often and when failed messages are tried again, in place of
    /// [`ProcessorBuilder::retry`](crate::ProcessorBuilder::retry).
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.terms.retry = Some(policy);
        self
    }

    /// Sets for how long a handler may run, in place of
    /// [`ProcessorBuilder::handler_timeout`](crate::ProcessorBuilder::handler_timeout).
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.terms.timeout = Some(limit);
        self
    }

    /// Sets the length of leases, in place of
    /// [`ProcessorBuilder::lease`](crate::ProcessorBuilder::lease).
    #[must_use]
    pub fn lease(mut self, length: Duration) -> Self {
        self.terms.lease = Some(length);
        self
    }

    /// Sets whether later messages of the same ordering key may pass a dead one, in place of
    /// [`ProcessorBuilder::after_dead`](crate::ProcessorBuilder::after_dead).
    #[must_use]
    pub fn after_dead(mut self, after: AfterDead) -> Self {
        self.terms.after_dead = Some(after);
        self
    }

    /// Stops this router for a while when its handlers fail one after the other. Default: it does not
    /// stop.
    #[must_use]
    pub fn circuit_breaker(mut self, breaker: CircuitBreaker) -> Self {
        self.terms.breaker = Some(breaker);
        self
    }

    /// The kind or the beginning of one, unless it is none.
    fn valid(&mut self, kind: impl AsRef<str>) -> Option<String> {
        match Kind::new(kind) {
            Ok(kind) => Some(kind.into()),
            Err(invalid) => {
                self.invalid.get_or_insert(invalid);
                None
            }
        }
    }

    pub(super) fn route(&self, kind: &Kind) -> Route<'_> {
        let kind = kind.as_str();
        let of_prefix = || {
            let mut prefixes = self.prefixes.iter();
            prefixes.find(|(prefix, _)| kind.starts_with(prefix.as_str()))
        };
        let target = self.kinds.get(kind);
        let target = target.or_else(|| of_prefix().map(|(_, target)| target));
        let target = match (target, &self.unknown) {
            (Some(target), _) | (None, Unknown::Target(target)) => target,
            (None, Unknown::Fallback(fallback)) => return Route::Fallback(*fallback),
        };
        match target {
            Target::Handler(handler) => Route::Handler(handler),
            Target::Batch(handler) => Route::Batch(handler),
        }
    }

    /// How its batches are, if it has batch handlers.
    pub(super) fn batching(&self) -> Option<Batches> {
        let is_batch = |target: &Target| matches!(target, Target::Batch(_));
        let mut of_prefixes = self.prefixes.iter().map(|(_, target)| target);
        let is_any = self.kinds.values().any(is_batch)
            || of_prefixes.any(is_batch)
            || matches!(&self.unknown, Unknown::Target(target) if is_batch(target));
        is_any.then(|| self.terms.batches.unwrap_or_default())
    }

    /// Runs a handler with the middleware around it.
    pub(super) async fn run(
        &self,
        handler: &Arc<dyn Handler>,
        context: &Context,
    ) -> Result<Completion, Failure> {
        if self.middleware.is_empty() {
            return handler.handle(context).await;
        }
        self.chain(handler.clone()).run(context).await
    }

    pub(super) fn has_middleware(&self) -> bool {
        !self.middleware.is_empty()
    }

    /// A handler with the middleware around it.
    pub(super) fn chain(&self, handler: Arc<dyn Handler>) -> Next {
        Next::new(self.middleware.clone(), handler)
    }

    /// Applies the rules to an error that was passed on.
    pub(super) fn decide(&self, failure: Failure) -> Failure {
        failure.decided(|failure| self.rules.iter().find_map(|rule| rule(failure)))
    }

    /// When a message is tried again, if it or its kind has that of its own.
    pub(super) fn retry_of(&self, message: &Message) -> Option<Cow<'_, RetryPolicy>> {
        let chosen = self.chosen(message).and_then(|options| options.retry);
        let of_kind = || self.options_of(message.kind())?.retry.as_ref();
        chosen
            .map(Cow::Owned)
            .or_else(|| of_kind().map(Cow::Borrowed))
    }

    /// How long a handler may run on a message, if it or its kind has that of its own.
    pub(super) fn timeout_of(&self, message: &Message) -> Option<Duration> {
        let chosen = self.chosen(message).and_then(|options| options.timeout);
        let chosen = chosen.map(|limit| limit.max(SHORTEST));
        chosen.or_else(|| self.options_of(message.kind())?.timeout)
    }

    fn chosen(&self, message: &Message) -> Option<KindOptions> {
        let choose = self.choose.as_ref()?;
        catch_unwind(AssertUnwindSafe(|| choose(message))).unwrap_or_else(|_| {
            tracing::error!(key = %message.key(), "choosing a message's options panicked");
            None
        })
    }

    /// What messages of this kind have of their own.
    fn options_of(&self, kind: &Kind) -> Option<&KindOptions> {
        // Most routers have none.
        (!self.options.is_empty())
            .then(|| self.options.get(kind.as_str()))
            .flatten()
    }

    /// Puts middleware around what there is.
    pub(super) fn surround(&mut self, middleware: &[Arc<dyn Middleware>]) {
        self.middleware.splice(0..0, middleware.iter().cloned());
    }

    pub(super) fn check(&self) -> Result<HandlerName, Invalid> {
        let name = self.handler.clone()?;
        if let Some(invalid) = &self.invalid {
            return Err(invalid.clone());
        }
        let timeouts = self.options.values().map(|options| options.timeout);
        for limit in timeouts.chain([self.terms.timeout]).flatten() {
            check_limit(limit, "handler timeout")?;
        }
        if let Some(rate) = &self.terms.rate {
            rate.check()?;
        }
        if let Some(breaker) = &self.terms.breaker {
            breaker.check()?;
        }
        if let Some(batches) = &self.terms.batches {
            batches.check()?;
        }
        Ok(name)
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("handler", &self.handler)
            .field("kinds", &self.kinds.keys())
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}
