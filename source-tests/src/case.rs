//! What a case is, and how one is run.

use std::{
    any::Any,
    fmt,
    io::Write as _,
    panic::AssertUnwindSafe,
    sync::{Arc, LazyLock, PoisonError},
    time::{Duration, Instant},
};

use futures_util::FutureExt as _;
use tokio::{
    runtime::Runtime,
    sync::{Mutex, OnceCell},
    time::timeout,
};

use crate::{
    Abilities, Broker, Failure, NotOffered, chaos,
    context::{Channels, Context, PATIENCE},
};

/// The longest that a case may take: one that hangs fails rather than stopping the suite. A run that the environment makes
/// so many times larger may take so many times longer.
const LONGEST_CASE: Duration = Duration::from_secs(300);
/// How long removing a channel may take.
const REMOVAL: Duration = Duration::from_secs(10);

/// What comes of a case within it.
pub(crate) type CaseResult = Result<(), Failure>;

/// One rule of the contract, and how it is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Case {
    /// `group::name`, by which test runners know it.
    pub name: &'static str,
    /// The rule, in a sentence.
    pub rule: &'static str,
    /// Whether the broker is harmed, so that the case needs one that nothing else uses meanwhile.
    pub harms: bool,
    /// What the broker has to be able to do for the rule to mean something.
    pub needs: &'static [Need],
}

/// Something that a broker has to be able to do for a case to apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// [`Abilities::stable_positions`].
    StablePositions,
    /// [`Abilities::order_by_key`].
    OrderByKey,
    /// [`Abilities::order_across_consumers`].
    OrderAcrossConsumers,
    /// Any consumer may get any message: not [`Abilities::order_across_consumers`].
    AnyConsumer,
    /// [`Abilities::dead_letters`].
    DeadLetters,
    /// [`Abilities::id_property`].
    IdProperty,
    /// [`Abilities::kind_property`].
    KindProperty,
    /// [`Abilities::key_property`].
    KeyProperty,
}

impl Need {
    fn is_met(self, abilities: Abilities) -> bool {
        match self {
            Self::StablePositions => abilities.stable_positions,
            Self::OrderByKey => abilities.order_by_key,
            Self::OrderAcrossConsumers => abilities.order_across_consumers,
            Self::AnyConsumer => !abilities.order_across_consumers,
            Self::DeadLetters => abilities.dead_letters,
            Self::IdProperty => abilities.id_property,
            Self::KindProperty => abilities.kind_property,
            Self::KeyProperty => abilities.key_property,
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StablePositions => "its positions are not stable",
            Self::OrderByKey => "it keeps no order by key",
            Self::OrderAcrossConsumers => "it keeps no order across consumers",
            Self::AnyConsumer => "a key's messages are for one consumer only",
            Self::DeadLetters => "it has no dead letters",
            Self::IdProperty => "it has no property for ids",
            Self::KindProperty => "it has no property for kinds",
            Self::KeyProperty => "it has no property for keys",
        })
    }
}

/// What came of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The rule held.
    Passed,
    /// The rule does not apply to this broker, or cannot be checked here, for this reason.
    NotChecked(String),
    /// What was seen instead.
    Failed(String),
}

/// Runs one case on a broker, waiting for things at most for `patience` ([`PATIENCE`](crate::PATIENCE)
/// for real brokers). Needs a multi-threaded tokio runtime.
pub async fn run<B: Broker>(case: &Case, broker: Arc<B>, patience: Duration) -> Verdict {
    run_at(case, broker, patience, None).await
}

/// As [`run`]; `path` is that of the test, by which this program can be started to run it.
async fn run_at<B: Broker>(
    case: &Case,
    broker: Arc<B>,
    patience: Duration,
    path: Option<&str>,
) -> Verdict {
    let lacking = case.needs.iter();
    let abilities = broker.abilities();
    if let Some(need) = lacking.copied().find(|need| !need.is_met(abilities)) {
        return Verdict::NotChecked(need.to_string());
    }
    let path = path.map(String::from);
    let context = Context::new(Arc::clone(&broker), case.name, patience, path);
    let channels = context.channels();
    // A panic ends this case and no other.
    let running = AssertUnwindSafe(crate::list::start(case.name, context)).catch_unwind();
    let result = match timeout(LONGEST_CASE * chaos::times_larger(), running).await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => Err(format!("it panicked: {}", panic_text(&*panic)).into()),
        Err(_) => Err("it did not end".into()),
    };
    match result {
        Ok(()) => {
            remove(&*broker, &channels).await;
            Verdict::Passed
        }
        Err(failure) => match failure.downcast::<NotOffered>() {
            Ok(not_offered) => Verdict::NotChecked(not_offered.0),
            Err(failure) => Verdict::Failed(failure.to_string()),
        },
    }
}

async fn remove<B: Broker>(broker: &B, channels: &Channels) {
    let channels = std::mem::take(&mut *channels.lock().unwrap_or_else(PoisonError::into_inner));
    for channel in channels {
        // One that stays costs the broker some work, and the case nothing.
        let _ = timeout(REMOVAL, broker.remove(&channel)).await;
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    text.or(owned).unwrap_or("without words")
}

/// The brokers of one module of tests: one for all cases that do not harm theirs, and one for those
/// that do, which take turns. Made by [`cases!`](crate::cases).
#[derive(Debug, Default)]
pub struct Brokers {
    shared: OnceCell<Option<Arc<dyn Any + Send + Sync>>>,
    harmed: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
}

impl Brokers {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            shared: OnceCell::const_new(),
            harmed: Mutex::const_new(None),
        }
    }
}

/// Why a test failed. `Debug` is what the test runner prints.
pub struct TestFailure(String);

impl fmt::Debug for TestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// For all tests of a process, as clients of a shared broker outlive the test that made them.
static RUNTIME: LazyLock<std::io::Result<Runtime>> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(4).enable_all().build()
});

/// Runs the case `name` as a test: what [`cases!`](crate::cases) makes of each. `path` is where the
/// test is, as the test runner names it.
///
/// # Errors
/// When the case failed, or the broker could not be made.
pub fn test<B, F>(
    brokers: &'static Brokers,
    make: F,
    path: &str,
    name: &str,
) -> Result<(), TestFailure>
where
    B: Broker,
    F: AsyncFn() -> Result<Option<B>, Failure>,
{
    let case = crate::CASES.iter().find(|case| case.name == name);
    let case = case.ok_or_else(|| TestFailure(format!("there is no case {name}")))?;
    let runtime = RUNTIME
        .as_ref()
        .map_err(|error| TestFailure(format!("no runtime: {error}")))?;
    crate::process::be_one::<B>(runtime);
    let began = Instant::now();
    let verdict = runtime.block_on(run_on(brokers, make, case, path));
    match verdict {
        Ok(None) => Ok(()),
        Ok(Some(Verdict::Passed)) => {
            println!("{name}: {:.1} s", began.elapsed().as_secs_f64());
            Ok(())
        }
        Ok(Some(Verdict::NotChecked(reason))) => {
            // Straight to the stream, past the capture of what tests print: a case that was not
            // checked must not look like one that passed.
            let line = format!("source-tests: {path}: NOT CHECKED: {reason}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            Ok(())
        }
        Ok(Some(Verdict::Failed(seen))) => Err(TestFailure(format!(
            "\n  case: {name}\n  rule: {}\n  seen: {seen}\n",
            case.rule
        ))),
        Err(failure) => Err(TestFailure(format!("no broker: {failure}"))),
    }
}

/// `None` when there is no broker here.
async fn run_on<B, F>(
    brokers: &'static Brokers,
    make: F,
    case: &Case,
    path: &str,
) -> Result<Option<Verdict>, Failure>
where
    B: Broker,
    F: AsyncFn() -> Result<Option<B>, Failure>,
{
    let new = async || {
        let broker = make().await?;
        Ok::<_, Failure>(broker.map(|broker| Arc::new(broker) as Arc<dyn Any + Send + Sync>))
    };
    if !case.harms {
        let broker = brokers.shared.get_or_try_init(new).await?;
        return match known::<B>(broker.as_ref())? {
            Some(broker) => Ok(Some(run_at(case, broker, PATIENCE, Some(path)).await)),
            None => Ok(skipped(case)),
        };
    }
    let mut harmed = brokers.harmed.lock().await;
    let broker = match harmed.take() {
        Some(broker) => Some(broker),
        None => new().await?,
    };
    let Some(broker) = known::<B>(broker.as_ref())? else {
        return Ok(skipped(case));
    };
    let verdict = run_at(case, Arc::clone(&broker), PATIENCE, Some(path)).await;
    // One that a case failed on may still be down.
    if verdict == Verdict::Passed {
        *harmed = Some(broker);
    }
    Ok(Some(verdict))
}

fn known<B: Broker>(
    broker: Option<&Arc<dyn Any + Send + Sync>>,
) -> Result<Option<Arc<B>>, Failure> {
    let typed = broker.map(|broker| Arc::clone(broker).downcast::<B>());
    typed
        .transpose()
        .map_err(|_| "two kinds of brokers in one module".into())
}

fn skipped(case: &Case) -> Option<Verdict> {
    let line = format!("source-tests: {}: skipped: no broker here\n", case.name);
    let _ = std::io::stderr().write_all(line.as_bytes());
    None
}
