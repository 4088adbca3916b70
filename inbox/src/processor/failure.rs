//! What a handler answers when it fails, and how errors become that.

use std::{
    any::{Any, type_name},
    borrow::Cow,
    error::Error,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use inbox_api::{ErrorType, MAX_ERROR_BYTES, error_text};

use super::task::panic_text;
use crate::{AfterDead, Invalid, Outcome, RetryPolicy, retry::jittered};

type Source = Arc<dyn Error + Send + Sync>;

/// A handler's failure: an error, and what is to happen to the message.
///
/// Every error turns into one by `?`, and so does the error of a handler that has its own type (with
/// the feature `anyhow` also `anyhow::Error`). What happens then is up to the router
/// ([`Router::classify`](crate::Router::classify)) or the inline consumer
/// ([`InlineConsumer::classify`](crate::InlineConsumer::classify)), and unless that says otherwise the
/// message is tried again; where an [`Invalid`] is the error or among its sources, it is dead, since the same name, id or size
/// would be refused each time. A `Failure` that a handler makes itself decides by itself. (For the
/// conversion, a `Failure` itself cannot implement [`Error`].)
///
/// The text is kept as the message's last error and appears in logs: the type of an error that has
/// one (of one that has left it behind in a box or in `anyhow`, `std::error::Error` or `anyhow::Error`, but
/// for common ones), its text, and those of its [sources](Error::source) that it does not repeat itself. It should
/// not contain the payload.
#[derive(Clone, Debug)]
pub struct Failure {
    cause: Cause,
    text: String,
    source: Option<Source>,
    /// The policy of the rule that has decided, if it has one.
    policy: Option<Arc<RetryPolicy>>,
}

/// A rule for errors: what is to happen to a message that has failed so, if it says anything.
pub(crate) type Rule = dyn Fn(&Failure) -> Option<Ruling> + Send + Sync;

/// What a rule has decided.
pub(crate) struct Ruling {
    remedy: Remedy,
    policy: Option<Arc<RetryPolicy>>,
}

impl Ruling {
    /// The rule for errors of type `E`.
    pub(crate) fn classify<E: Error + 'static>(
        decide: impl Fn(&E) -> Remedy + Send + Sync + 'static,
    ) -> impl Fn(&Failure) -> Option<Self> + Send + Sync {
        move |failure| {
            failure.find().map(|error| Self {
                remedy: decide(error),
                policy: None,
            })
        }
    }

    /// The rule that errors of type `E` are tried again by this policy.
    pub(crate) fn retry<E: Error + 'static>(
        policy: RetryPolicy,
    ) -> impl Fn(&Failure) -> Option<Self> + Send + Sync {
        let policy = Arc::new(policy);
        move |failure| {
            failure.find::<E>().map(|_| Self {
                remedy: Remedy::Retry,
                policy: Some(policy.clone()),
            })
        }
    }
}

/// What is to happen to a message whose handler has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Try again as the [retry policy](crate::RetryPolicy) says; dead when its attempts are used up.
    Retry,
    /// Try again, no sooner than this from now; dead when the policy's attempts are used up. Up to a
    /// tenth is added at random, so that messages which failed together do not come back together.
    RetryAfter(Duration),
    /// Not now: due again this much later, and the attempt is not counted. For what will pass by itself
    /// however long that takes, such as a rate limit downstream.
    Defer(Duration),
    /// The same for all messages of the router: it starts nothing more for this long. What runs goes
    /// on, and what this processor has claimed and not started is handed back. Other processors are
    /// not told. An inline consumer only puts the message off.
    Pause(Duration),
    /// Never try again by itself: the message will not succeed as it stands.
    Dead,
}

/// Why a handler failed, as far as this processor treats it differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// An error that the router has yet to look at.
    Error,
    /// The handler has decided.
    Decided(Remedy),
    LeaseLost,
    Conflict,
    Interrupted,
    NotReached,
}

impl Failure {
    /// Try again as the retry policy says; dead when its attempts are used up.
    #[must_use]
    pub fn retry(error: impl Into<Box<dyn Error + Send + Sync>> + 'static) -> Self {
        Self::with(Remedy::Retry, error)
    }

    /// Try again, no sooner than `after` from now: [`Remedy::RetryAfter`]. When the processor had [cut
    /// the attempt short](crate::Context::cancellation), the message is handed back instead and due at
    /// once.
    #[must_use]
    pub fn retry_after(
        after: Duration,
        error: impl Into<Box<dyn Error + Send + Sync>> + 'static,
    ) -> Self {
        Self::with(Remedy::RetryAfter(after), error)
    }

    /// Not now, and without counting the attempt: [`Remedy::Defer`].
    #[must_use]
    pub fn defer(
        after: Duration,
        error: impl Into<Box<dyn Error + Send + Sync>> + 'static,
    ) -> Self {
        Self::with(Remedy::Defer(after), error)
    }

    /// Nothing of this router's for a while, and without counting the attempt: [`Remedy::Pause`].
    #[must_use]
    pub fn pause(
        length: Duration,
        error: impl Into<Box<dyn Error + Send + Sync>> + 'static,
    ) -> Self {
        Self::with(Remedy::Pause(length), error)
    }

    /// Never try again by itself: the message will not succeed as it stands.
    #[must_use]
    pub fn dead(error: impl Into<Box<dyn Error + Send + Sync>> + 'static) -> Self {
        Self::with(Remedy::Dead, error)
    }

    /// An error, and what is to happen.
    #[must_use]
    pub fn with(remedy: Remedy, error: impl Into<Box<dyn Error + Send + Sync>> + 'static) -> Self {
        Self::new(Cause::Decided(remedy), error)
    }

    /// The handler's own settlement was answered with
    /// [`Settled::LeaseLost`](crate::Settled::LeaseLost) and its transaction rolled back: another worker
    /// has the message, and there is nothing to settle.
    #[must_use]
    pub fn lease_lost() -> Self {
        Self::new(Cause::LeaseLost, "the lease was lost")
    }

    /// The database gave the handler's transaction up in favour of another one, and nothing of it is
    /// there: [`in_transaction`](crate::in_transaction) runs the handler again in a new transaction, a
    /// few times and as part of the same attempt. Elsewhere, and after the last time, as
    /// [`retry`](Self::retry).
    #[must_use]
    pub fn conflict(error: impl Into<Box<dyn Error + Send + Sync>> + 'static) -> Self {
        Self::new(Cause::Conflict, error)
    }

    /// The work was ended from outside by what may end this process as well, such as a signal that a
    /// service manager sends to all of its processes. When the processor has been asked to stop, the
    /// message is handed back, which costs it no attempt; otherwise as [`retry`](Self::retry).
    #[must_use]
    pub fn interrupted(error: impl Into<Box<dyn Error + Send + Sync>> + 'static) -> Self {
        Self::new(Cause::Interrupted, error)
    }

    /// The message was not worked on, since one before it in its ordering key has not succeeded: it is handed
    /// back, which costs it no attempt. For what a [`BatchHandler`](crate::BatchHandler) gets in
    /// [runs](crate::Batches::runs). Of a message with no such before it in its batch, as
    /// [`retry`](Self::retry): handed back it would come again at once, for ever.
    #[must_use]
    pub fn not_reached() -> Self {
        Self::new(
            Cause::NotReached,
            "a message before it in its ordering key has not succeeded",
        )
    }

    /// Whether this is [`interrupted`](Self::interrupted).
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.cause == Cause::Interrupted
    }

    /// What the handler has decided; `None` for an error that it passed on, which is up to the router.
    #[must_use]
    pub fn remedy(&self) -> Option<Remedy> {
        match self.cause {
            Cause::Error => None,
            Cause::Decided(remedy) => Some(remedy),
            Cause::LeaseLost | Cause::Conflict | Cause::Interrupted | Cause::NotReached => {
                Some(Remedy::Retry)
            }
        }
    }

    /// The same failure, with this in front of its text.
    pub(super) fn with_prefix(mut self, text: &str) -> Self {
        let text = format!("{text}: {}", self.text);
        self.text = error_text(&text).into_owned();
        self
    }

    /// The text: type, error and sources, cut to what stores keep.
    #[must_use]
    pub fn error(&self) -> &str {
        &self.text
    }

    /// The first error of type `E` among the error and its sources, also in a `Box` or an `Arc`. One that
    /// another error only passes through (`#[error(transparent)]`) is not among its sources.
    #[must_use]
    pub fn find<E: Error + 'static>(&self) -> Option<&E> {
        let error = self.source.as_deref()?;
        chain(error).find_map(|error| {
            let boxed = || error.downcast_ref::<Box<E>>().map(|error| &**error);
            let shared = || error.downcast_ref::<Arc<E>>().map(|error| &**error);
            error.downcast_ref::<E>().or_else(boxed).or_else(shared)
        })
    }

    fn new<E>(cause: Cause, error: E) -> Self
    where
        E: Into<Box<dyn Error + Send + Sync>> + 'static,
    {
        let (name, error) = into_source(error);
        let text = describe(name, &*error);
        Self {
            cause,
            text: error_text(&text).into_owned(),
            source: Some(error),
            policy: None,
        }
    }

    /// How a message is tried again that has failed so, of which the policy is `of_message`: by that of the rule for its
    /// error, if there is one. Attempts are as many as both allow.
    pub(crate) fn policy<'p>(&self, of_message: &'p RetryPolicy) -> Cow<'p, RetryPolicy> {
        let Some(policy) = &self.policy else {
            return Cow::Borrowed(of_message);
        };
        let most = policy.max_attempts().min(of_message.max_attempts());
        Cow::Owned(RetryPolicy::clone(policy).with_max_attempts(most))
    }

    /// What an error of the store says about its transaction.
    pub(super) fn of_transaction(error: crate::Error) -> Self {
        if error.kind() == crate::ErrorKind::Conflict && error.effect() == crate::Effect::None {
            Self::conflict(error)
        } else {
            Self::retry(error)
        }
    }

    /// Lets the rules of the router or consumer decide, where the handler has not. A rule that panics
    /// is a failed attempt, as a handler that does.
    pub(crate) fn decided(mut self, decide: impl FnOnce(&Self) -> Option<Ruling>) -> Self {
        if self.cause == Cause::Error {
            match catch_unwind(AssertUnwindSafe(|| decide(&self))) {
                Ok(None) => self.cause = Cause::Decided(self.remedy_by_itself()),
                Ok(Some(Ruling { remedy, policy })) => {
                    self.cause = Cause::Decided(remedy);
                    self.policy = policy;
                }
                Err(panic) => return Self::retry(panic_text(&*panic)),
            }
        }
        self
    }

    /// What happens after an error for which no rule is there.
    fn remedy_by_itself(&self) -> Remedy {
        match self.find::<Invalid>() {
            Some(_) => Remedy::Dead,
            None => Remedy::Retry,
        }
    }

    /// Whether it is another attempt that is counted.
    pub(super) fn is_retry(&self) -> bool {
        !matches!(
            self.cause,
            Cause::LeaseLost
                | Cause::NotReached
                | Cause::Decided(Remedy::Dead | Remedy::Defer(_) | Remedy::Pause(_))
        )
    }

    /// Whether it may be due to one message of a batch that has failed so.
    pub(super) fn may_be_of_one_message(&self) -> bool {
        !matches!(
            self.cause,
            Cause::Interrupted
                | Cause::NotReached
                | Cause::Decided(Remedy::Defer(_) | Remedy::Pause(_))
        )
    }

    pub(crate) fn is_lease_lost(&self) -> bool {
        self.cause == Cause::LeaseLost
    }

    pub(super) fn is_not_reached(&self) -> bool {
        self.cause == Cause::NotReached
    }

    /// What a handler says of a message that it was free to work on.
    pub(super) fn or_retry(mut self) -> Self {
        if self.is_not_reached() {
            self.cause = Cause::Decided(Remedy::Retry);
        }
        self
    }

    pub(super) fn is_conflict(&self) -> bool {
        self.cause == Cause::Conflict
    }

    /// What is to happen, unless the lease is lost.
    pub(super) fn remedy_if_held(&self) -> Option<Remedy> {
        (!self.is_lease_lost()).then(|| self.remedy().unwrap_or(Remedy::Retry))
    }
}

impl Remedy {
    /// What an attempt of this number is settled as that has failed with this error.
    pub(crate) fn outcome(
        self,
        error: String,
        attempt: u32,
        policy: &RetryPolicy,
        after_dead: AfterDead,
    ) -> Outcome {
        let after = match self {
            Self::Retry => Some(policy.delay(attempt)),
            Self::RetryAfter(after) => Some(jittered(after)),
            Self::Defer(after) | Self::Pause(after) => {
                let error = Some(error);
                return Outcome::Defer { after, error };
            }
            Self::Dead => None,
        };
        match after {
            Some(after) if attempt < policy.max_attempts() => Outcome::Retry { after, error },
            _ => Outcome::Dead {
                reason: error,
                after: after_dead,
            },
        }
    }
}

/// The text alone, as [`Failure::error`] answers it.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>> + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(Cause::Error, error)
    }
}

/// The error as one that can be looked into, with the name of its type if that says anything.
fn into_source<E>(error: E) -> (Option<&'static str>, Source)
where
    E: Into<Box<dyn Error + Send + Sync>> + 'static,
{
    let mut error = Some(error);
    let any: &mut dyn Any = &mut error;
    #[cfg(feature = "anyhow")]
    if let Some(error) = any
        .downcast_mut::<Option<anyhow::Error>>()
        .and_then(Option::take)
    {
        // Boxed in the usual way it could not be found by its type.
        let boxed = error.reallocate_into_boxed_dyn_error_without_backtrace();
        let name = known_name(&*boxed).unwrap_or(type_name::<anyhow::Error>());
        return (Some(name), boxed.into());
    }
    let is_text = any.is::<Option<&'static str>>() || any.is::<Option<String>>();
    let is_boxed = any.is::<Option<Box<dyn Error + Send + Sync>>>();
    let boxed = error.map_or_else(|| "no error".into(), Into::into);
    let name = match is_boxed {
        true => name_in_box(&*boxed),
        false => (!is_text).then(type_name::<E>),
    };
    (name, boxed.into())
}

/// What an error in a box goes by; `None` for a text, which has no type of its own there either.
fn name_in_box(error: &(dyn Error + 'static)) -> Option<&'static str> {
    // The type of a text in a box has no name outside of the standard library, and shows as the text does.
    let is_text = || format!("{error:?}") == format!("{:?}", error.to_string());
    known_name(error).or_else(|| (!is_text()).then_some(BOXED))
}

/// What errors in boxes have in common, whose own types are not to be found out.
const BOXED: &str = "std::error::Error";

/// The type of an error whose type was left behind, if it is one that many have.
fn known_name(error: &(dyn Error + 'static)) -> Option<&'static str> {
    fn name_if<E: Error + 'static>(error: &(dyn Error + 'static)) -> Option<&'static str> {
        error.is::<E>().then(type_name::<E>)
    }

    let names = [
        name_if::<std::io::Error>,
        name_if::<crate::Error>,
        name_if::<crate::Invalid>,
        name_if::<serde_json::Error>,
        name_if::<tokio::time::error::Elapsed>,
        name_if::<std::num::ParseIntError>,
        name_if::<std::str::Utf8Error>,
        name_if::<std::string::FromUtf8Error>,
    ];
    names.iter().find_map(|name| name(error))
}

/// The error and its sources, without what an error says of its source by itself.
fn describe(name: Option<&str>, error: &(dyn Error + 'static)) -> String {
    let mut text = match name {
        Some(name) => ErrorType::before(name, error),
        None => error.to_string(),
    };
    for source in chain(error).skip(1) {
        let said = source.to_string();
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        if text.len() > MAX_ERROR_BYTES {
            break;
        }
    }
    text
}

/// How many sources are looked at: an error may be its own.
const MOST_SOURCES: usize = 64;

/// An error and its sources.
fn chain<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    let mut next = Some(error);
    let sources = std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    });
    sources.take(MOST_SOURCES)
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retry => f.write_str("retry"),
            Self::RetryAfter(after) => write!(f, "retry after {after:?}"),
            Self::Defer(after) => write!(f, "defer for {after:?}"),
            Self::Pause(length) => write!(f, "pause for {length:?}"),
            Self::Dead => f.write_str("dead"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Charge {
        #[error("io")]
        Io(#[from] io::Error),
        #[error("refused: {0}")]
        Refused(#[source] io::Error),
    }

    fn reset() -> io::Error {
        io::Error::new(io::ErrorKind::ConnectionReset, "the peer went away")
    }

    #[test]
    fn the_text_has_the_type_and_all_sources() {
        let failure = Failure::from(Charge::Io(reset()));
        let place = module_path!();
        assert_eq!(
            failure.error(),
            format!("{place}::Charge: io: the peer went away")
        );
        // It repeats its source by itself.
        let failure = Failure::from(Charge::Refused(reset()));
        assert!(
            failure
                .error()
                .ends_with("Charge: refused: the peer went away")
        );
        assert_eq!(Failure::retry("plain").error(), "plain");
        assert_eq!(Failure::retry(format!("{}", 7)).error(), "7");
        let long = Failure::retry("x".repeat(9000));
        assert_eq!(long.error().len(), 4096);
    }

    #[test]
    fn errors_are_found_by_their_type_at_any_depth() {
        let failure = Failure::from(Charge::Io(reset()));
        assert!(failure.find::<Charge>().is_some());
        let io = failure.find::<io::Error>().unwrap();
        assert_eq!(io.kind(), io::ErrorKind::ConnectionReset);
        assert!(failure.find::<fmt::Error>().is_none());
        assert!(Failure::dead("text").find::<io::Error>().is_none());
    }

    #[test]
    fn errors_are_found_in_boxes() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] Box<io::Error>);

        assert!(
            Failure::from(Outer(Box::new(reset())))
                .find::<io::Error>()
                .is_some()
        );
        assert!(
            Failure::from(Box::new(reset()))
                .find::<io::Error>()
                .is_some()
        );
        assert!(
            Failure::from(Arc::new(reset()))
                .find::<io::Error>()
                .is_some()
        );
    }

    #[test]
    fn an_error_that_is_its_own_source_has_an_end() {
        #[derive(Debug)]
        struct Circular;

        impl fmt::Display for Circular {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("round and round")
            }
        }

        impl Error for Circular {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(self)
            }
        }

        let failure = Failure::from(Circular);
        assert!(failure.error().ends_with("Circular: round and round"));
        assert!(failure.find::<io::Error>().is_none());
    }

    #[cfg(feature = "anyhow")]
    #[test]
    fn errors_are_found_in_anyhow() {
        let plain = Failure::from(anyhow::Error::from(Charge::Io(reset())));
        assert!(plain.find::<Charge>().is_some() && plain.find::<io::Error>().is_some());
        assert_eq!(plain.error(), "anyhow::Error: io: the peer went away");
        let error = anyhow::Error::from(Charge::Io(reset())).context("charging order 7");
        let failure = Failure::from(error);
        assert!(failure.find::<Charge>().is_some());
        assert_eq!(
            failure.error(),
            "anyhow::Error: charging order 7: io: the peer went away"
        );
        let known = Failure::from(anyhow::Error::from(reset()));
        assert_eq!(known.error(), Failure::from(reset()).error());
        let text = Failure::from(anyhow::anyhow!("no {}", "funds"));
        assert_eq!(text.error(), "anyhow::Error: no funds");
    }

    #[test]
    fn errors_in_boxes_are_of_a_type_too() {
        type Boxed = Box<dyn Error + Send + Sync>;

        let type_of = |error: Boxed| ErrorType::of(Failure::from(error).error());
        let unknown = type_of(Charge::Io(reset()).into()).unwrap();
        assert_eq!(unknown.as_str(), "std::error::Error");
        let known = type_of(reset().into());
        assert_eq!(known, ErrorType::of(Failure::from(reset()).error()));
        assert!(known.is_some());
        assert_eq!(type_of("a text".into()), None);
        assert_eq!(type_of("a \"text\" in lines\n".to_owned().into()), None);
    }

    #[test]
    fn who_decides() {
        let passed_on = Failure::from(reset());
        assert_eq!(passed_on.remedy(), None);
        let rule = Ruling::classify(|_: &io::Error| Remedy::Dead);
        let decided = passed_on.decided(&rule);
        assert_eq!(decided.remedy(), Some(Remedy::Dead));
        let own = Failure::retry("own").decided(&rule);
        assert_eq!(own.remedy(), Some(Remedy::Retry));
        assert!(Failure::from(reset()).decided(|_| None).is_retry());
        let invalid = inbox_api::MessageId::new("x".repeat(1000)).map_err(Failure::from);
        let dead = invalid.map(drop).unwrap_err().decided(|_| None);
        assert_eq!(dead.remedy(), Some(Remedy::Dead));
        assert!(!Failure::defer(Duration::ZERO, "later").is_retry());
    }

    #[test]
    fn a_policy_by_error_allows_no_more_attempts_than_that_of_the_message() {
        let soon = RetryPolicy::schedule([Duration::from_secs(1); 4]);
        let rule = Ruling::retry::<io::Error>(soon.clone());
        let failed = Failure::from(reset()).decided(&rule);
        let of_message = |attempts| RetryPolicy::default().with_max_attempts(attempts);
        assert_eq!(*failed.policy(&of_message(10)), soon);
        assert_eq!(*failed.policy(&of_message(3)), soon.with_max_attempts(3));
        let other = Failure::from(fmt::Error).decided(&rule);
        assert_eq!(*other.policy(&of_message(3)), of_message(3));
    }
}
