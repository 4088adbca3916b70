//! Running a target, input by input.

use std::{
    cell::{Cell, RefCell},
    panic::{self, AssertUnwindSafe},
    sync::Once,
    time::{Duration, Instant},
};

use crate::{Broken, Finding, Target};

/// How many shorter inputs are tried in place of one that breaks a rule.
const ATTEMPTS: u32 = 5_000;

/// Which inputs to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What they are made from.
    pub seed: u64,
    /// The number of the first.
    pub from: u64,
    /// How many.
    pub inputs: u64,
    /// Whether each is printed before it is run: for what ends the process, as a stack that overflows does.
    pub trace: bool,
}

/// What a target has done with its inputs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// How many inputs were run.
    pub inputs: u64,
    /// The most bytes that one held.
    pub most_held: u64,
    /// The most of what was allowed that one held, from 0 to 1.
    pub most_of_allowed: f64,
    /// The longest time that one took.
    pub longest: Duration,
}

/// Runs a target, up to the first input that breaks a rule.
///
/// # Errors
/// That input.
pub fn check(target: &Target, plan: Plan) -> Result<Summary, Box<Finding>> {
    note_panics();
    // What is set up on first use is not the input's.
    let _ = measure(target, b"");
    let mut summary = Summary::default();
    for number in plan.from..plan.from.saturating_add(plan.inputs) {
        let input = target.mutator.input(plan.seed, number);
        if plan.trace {
            print_input(number, &input);
        }
        let began = Instant::now();
        let ran = run(target, &input);
        summary.longest = summary.longest.max(began.elapsed());
        if let Some(broken) = ran.broken {
            let (input, broken) = shrink(target, input, broken);
            return Err(Box::new(Finding {
                target: target.name,
                broken,
                input,
                seed: plan.seed,
                number,
            }));
        }
        summary.inputs += 1;
        summary.most_held = summary.most_held.max(ran.held);
        #[expect(clippy::cast_precision_loss, reason = "a share for people to read")]
        let share = ran.held as f64 / target.allowed(&input) as f64;
        summary.most_of_allowed = summary.most_of_allowed.max(share);
    }
    Ok(summary)
}

/// Runs a target as a test does: its corpus and 2,000 inputs, unless `HOSTILE_INPUTS`, `HOSTILE_SEED` and
/// `HOSTILE_FROM` say otherwise.
///
/// # Panics
/// When an input breaks a rule.
pub fn hold(target: &Target) {
    hold_for(target, 2_000 + target.corpus_len());
}

/// The same with another number of inputs, where each takes long.
///
/// # Panics
/// As [`hold`].
#[expect(clippy::panic, reason = "tests fail by it")]
pub fn hold_for(target: &Target, inputs: u64) {
    let number = |name| std::env::var(name).ok()?.parse().ok();
    let plan = Plan {
        seed: number("HOSTILE_SEED").unwrap_or(0),
        from: number("HOSTILE_FROM").unwrap_or(0),
        inputs: number("HOSTILE_INPUTS").unwrap_or(inputs),
        trace: false,
    };
    match check(target, plan) {
        Ok(summary) => println!("{}: {summary:?}", target.name),
        Err(finding) => panic!("{finding}"),
    }
}

/// Does what a target does before or between, without counting what it allocates.
pub fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    let mut done = None;
    allocation_counter::opt_out(|| done = Some(work()));
    match done {
        Some(done) => done,
        None => unreachable!("it has been called"),
    }
}

fn print_input(number: u64, input: &[u8]) {
    println!("{number}: {}", input.escape_ascii());
}

struct Ran {
    held: u64,
    broken: Option<Broken>,
}

fn run(target: &Target, input: &[u8]) -> Ran {
    let mut ran = measure(target, input);
    let allowed = target.allowed(input);
    if ran.broken.is_none() && ran.held > allowed {
        // What is set up on first use is not the input's.
        ran = measure(target, input);
        if ran.broken.is_none() && ran.held > allowed {
            let held = ran.held;
            ran.broken = Some(Broken::Memory { held, allowed });
        }
    }
    ran
}

thread_local! {
    /// Whether this thread runs a target.
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
    /// Where a target has panicked, be it caught on the way.
    static PANICKED: RefCell<Option<String>> = const { RefCell::new(None) };
}

fn measure(target: &Target, input: &[u8]) -> Ran {
    let mut outcome = Ok(Ok(()));
    IS_WATCHED.set(true);
    let counted = allocation_counter::measure(|| {
        outcome = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    });
    IS_WATCHED.set(false);
    let panicked = PANICKED.take();
    let broken = match (panicked, outcome) {
        (Some(said), _) => Some(Broken::Panic(said)),
        (None, Err(_)) => Some(Broken::Panic("an unknown place".into())),
        (None, Ok(Err(rule))) => Some(Broken::Rule(rule)),
        (None, Ok(Ok(()))) => None,
    };
    Ran {
        held: counted.bytes_max,
        broken,
    }
}

/// Panics of targets are kept instead of printed. Those of others are nobody's business here.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_WATCHED.get() {
                return others(info);
            }
            let place = info.location().map(ToString::to_string);
            let place = place.unwrap_or_else(|| "an unknown place".into());
            let said = info.payload_as_str().unwrap_or_default();
            PANICKED.set(Some(format!("{place}:\n{said}")));
        }));
    });
}

/// A shorter input that does the same: without parts that it does not need.
fn shrink(target: &Target, mut input: Vec<u8>, mut broken: Broken) -> (Vec<u8>, Broken) {
    let mut left = ATTEMPTS;
    let mut length = input.len().div_ceil(2);
    while length > 0 {
        let (mut at, before) = (0, input.len());
        while at < input.len() && left > 0 {
            left -= 1;
            let mut shorter = input.clone();
            shorter.drain(at..(at + length).min(input.len()));
            match run(target, &shorter).broken {
                Some(other) if other.is_like(&broken) => (input, broken) = (shorter, other),
                _ => at += length,
            }
        }
        if input.len() == before || left == 0 {
            length /= 2;
        }
    }
    (input, broken)
}
