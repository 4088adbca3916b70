//! The runtime of an inbox, its receivers, processors, inline consumer and janitor, on the memory store
//! under faults that are drawn from a seed: the same seed is the same run, to the microsecond.
//!
//! One thread, and a clock that is paused: time passes when nothing is left to do. A [`Scenario`] says
//! what is delivered, what handlers do, which calls of the store go wrong and how, and which parts are
//! stopped or killed. Until [`CALM`]; from then on all works, and all that was accepted has to come to its
//! end. What really happened is held to the rules while it happens.
//!
//! The runtime measures leases by the tasks' common clock. The store's goes faster or slower than that, and jumps; and
//! workers have clocks that differ from each other, as their leases are longer or shorter at the store than they
//! asked for.

mod broker;
mod database;
mod flaws;
mod handler;
mod history;
mod operator;
mod parts;
mod scenario;
mod shrink;
mod store;
mod transaction;
mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    panic,
    sync::{Arc, Once},
    time::{Duration, UNIX_EPOCH},
};

use inbox::{CancellationToken, Clock, Filter, Page, State, Store};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

pub use flaws::Flaw;
pub use history::Violation;
pub use scenario::{CALM, Kind, Scenario};
pub use shrink::shrink;

use broker::Broker;
use database::Database;
use history::{History, RunEnd, Terms};
use scenario::{Part, Transactions};
use world::{HANDLERS, World};

/// The text of panics that are planned.
pub(crate) const PLANNED: &str = "planned panic";

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The first rule that was broken.
    pub broken: Option<Violation>,
    /// All that happened, line by line, if it was asked for.
    pub trace: Vec<String>,
}

/// Runs a scenario, on a store that is broken in this way, if in any.
///
/// # Errors
/// The text of what keeps the simulation itself from running.
pub fn run(scenario: Scenario, flaw: Option<Flaw>, is_traced: bool) -> Result<Ran, String> {
    quiet();
    fastrand::seed(scenario.seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(|error| error.to_string())?;
    runtime.block_on(simulate(scenario, flaw, is_traced))
}

/// Says nothing of panics that are planned.
fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let told = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if info.payload().downcast_ref::<&str>() != Some(&PLANNED) {
                told(info);
            }
        }));
    });
}

async fn simulate(scenario: Scenario, flaw: Option<Flaw>, traced: bool) -> Result<Ran, String> {
    let text = |invalid: inbox::Invalid| invalid.to_string();
    let clock = Clock::stopped_at(UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    let database = Database::new(scenario.kind, clock.clone())?;
    let store: Arc<dyn Store> = match flaw.filter(|flaw| flaw.is_of_store()) {
        None => database.store(),
        Some(flaw) => Arc::new(flaws::Flawed {
            flaw,
            store: database.store(),
            operate: database.operate(),
            clock: clock.clone(),
            newest: std::sync::Mutex::default(),
        }),
    };
    let settings = &scenario.settings;
    let terms = Terms {
        retention: i64::try_from(settings.retention * 1_000).unwrap_or(i64::MAX),
        attempts: settings.attempts,
        lease: settings.lease * 1_000,
        give_up_after: i64::try_from(settings.give_up_after * 1_000).unwrap_or(i64::MAX),
        store_timeout: settings.store_timeout,
        batches: (settings.runs || settings.whole.is_some()).then_some(HANDLERS[1]),
        dead_block: settings.block,
        in_transactions: settings.transactions != Transactions::None,
        has_turns: scenario.has_turns(),
        has_notes: settings.notes,
        inline_settles: settings.inline_settles,
        fallback: scenario.deployment.map(|one| RunEnd::of(one.fallback)),
        newer: BTreeSet::new(),
        drifts: scenario.clock_percent > 100
            || !scenario.jumps.is_empty()
            || settings.leases_percent.iter().any(|percent| *percent < 100),
        ordering_keys: BTreeMap::new(),
        earlier: BTreeMap::new(),
    };
    let history = History::new(terms, traced);
    let world = World::new(scenario, flaw, database, store, clock, history).map_err(text)?;
    let keys = world.ordering_keys();
    let earlier = world.earlier(&keys);
    world.history().ordered_by(keys, earlier);
    world.history().are_newer(world.newer());
    let world = Arc::new(world);
    let [broker, records] =
        [false, true].map(|is_of_records| Arc::new(Broker::new(world.clone(), is_of_records)));
    let waiting = Arc::new(parts::Inline::default());
    let end = CancellationToken::new();
    let mut all = JoinSet::new();
    let settings = &world.scenario.settings;
    for number in 0..settings.receivers {
        let (of, broker) = (world.clone(), broker.clone());
        let live =
            move |part, stop| parts::receiver(of.clone(), broker.clone(), number, part, stop);
        let part = Part::Receiver(number);
        all.spawn(parts::live_on(world.clone(), part, end.clone(), live));
    }
    let (of, recorded) = (world.clone(), records.clone());
    let live = move |part, stop| parts::recorder(of.clone(), recorded.clone(), part, stop);
    all.spawn(parts::live_on(
        world.clone(),
        Part::Recorder,
        end.clone(),
        live,
    ));
    for number in 0..settings.processors {
        let of = world.clone();
        let live = move |part, stop| parts::processor(of.clone(), part, stop);
        let part = Part::Processor(number);
        all.spawn(parts::live_on(world.clone(), part, end.clone(), live));
    }
    let of = world.clone();
    let live = move |part, stop| parts::inline(of.clone(), waiting.clone(), part, stop);
    all.spawn(parts::live_on(
        world.clone(),
        Part::Inline,
        end.clone(),
        live,
    ));
    let of = world.clone();
    let live = move |part, stop| parts::janitor(of.clone(), part, stop);
    all.spawn(parts::live_on(
        world.clone(),
        Part::Janitor,
        end.clone(),
        live,
    ));
    all.spawn(operator::operator(world.clone()));
    let broken = world.history().broken.clone();
    let whole = async {
        sleep_until(world.at(CALM)).await;
        operator::resume_all(&world).await;
        come_to_an_end(&world, [&broker, &records]).await;
        end.cancel();
        while all.join_next().await.is_some() {}
        world.history().all_late_is_back();
    };
    tokio::select! {
        biased;
        () = broken.notified() => {}
        () = whole => {}
    }
    let mut history = world.history();
    Ok(Ran {
        broken: history.violations.first().cloned(),
        trace: history.lines.take().unwrap_or_default(),
    })
}

/// Waits until all is done that was delivered, for as long as it may take.
async fn come_to_an_end(world: &Arc<World>, brokers: [&Broker; 2]) {
    let settings = &world.scenario.settings;
    // What is under way at the calm: a call that hangs, handlers, leases of the dead; and then each
    // message in turn.
    let limit = 300_000 + settings.store_timeout * 4 + settings.lease * 4;
    let limit = Instant::now() + Duration::from_millis(limit);
    loop {
        // As long as the janitor is at work, time has to move for the store, too.
        world.follow();
        let stuck = stuck(world).await;
        let is_delivered = brokers.iter().all(|broker| broker.is_empty());
        if stuck.is_empty() && is_delivered {
            return;
        }
        if Instant::now() >= limit {
            let what = format!("{} and deliveries: {}", stuck.join(", "), !is_delivered);
            return world.history().violated("nothing is stuck", what);
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// What was accepted, is not final, and has no dead message before it that blocks it.
async fn stuck(world: &World) -> Vec<String> {
    let unfinished = world.history().unfinished();
    if unfinished.is_empty() {
        return Vec::new();
    }
    let filter = Filter {
        states: vec![State::Dead],
        ..Filter::default()
    };
    let dead = world.operate.list(&filter, &Page::first(Page::MAX)).await;
    let dead = dead.map(|listing| listing.records).unwrap_or_default();
    let mut stuck = Vec::new();
    for key in unfinished {
        let Ok(Some(record)) = world.operate.get(&key).await else {
            stuck.push(format!("{key} is gone"));
            continue;
        };
        let is_blocked = record.ordering_key.is_some()
            && dead.iter().any(|dead| {
                dead.blocks_ordering_key
                    && dead.key.handler == key.handler
                    && dead.ordering_key == record.ordering_key
            });
        if !is_blocked {
            stuck.push(format!("{key} is {:?}", record.state));
        }
    }
    stuck
}
