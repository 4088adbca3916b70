//! Random sequences of operations from several actors, run on the store and on the memory store
//! (the model) side by side, and shrunk when their answers differ.

mod compare;
mod operation;
mod requests;
mod sequence;
mod transaction;

use std::time::{Duration, Instant};

use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use tokio::runtime::Handle;

use crate::{
    check::{CaseResult, Unmet},
    test_inbox::Context,
};

/// Replays the sequence of one seed instead of drawing new ones.
const SEED: &str = "INBOX_CONFORMANCE_SEED";
/// How many sequences to draw.
const SEQUENCES: &str = "INBOX_CONFORMANCE_SEQUENCES";
const DEFAULT_SEQUENCES: u64 = 40;
/// Of these, how many are the same in each run: what failed once fails again.
const FIXED: u64 = 20;
/// When to draw no more.
const DEFAULT_BUDGET: Duration = Duration::from_secs(60);
/// How long to look for a shorter sequence that fails too.
const SHRINKING: Duration = Duration::from_secs(30);

fn number(variable: &str) -> CaseResult<Option<u64>> {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .map(Some)
            .map_err(|_| Unmet::Failed(format!("{variable} is not a number: {text}"))),
        Err(_) => Ok(None),
    }
}

pub(crate) async fn check(cx: &Context) -> CaseResult {
    cx.fresh().await?.need_clock()?;
    let options = &cx.options;
    let seeds: Vec<_> = match options.seed.or(number(SEED)?) {
        Some(seed) => vec![seed],
        None => {
            let sequences = options.sequences.or(number(SEQUENCES)?);
            (0..sequences.unwrap_or(DEFAULT_SEQUENCES))
                .map(|nth| if nth < FIXED { nth } else { fastrand::u64(..) })
                .collect()
        }
    };
    let budget = options.budget.unwrap_or(DEFAULT_BUDGET);
    let (cx, runtime, started) = (cx.clone(), Handle::current(), Instant::now());
    // What proptest draws from cannot move between threads, so it gets one of its own.
    tokio::task::spawn_blocking(move || {
        seeds
            .into_iter()
            .enumerate()
            .take_while(|(nth, _)| *nth == 0 || started.elapsed() < budget)
            .try_for_each(|(_, seed)| check_seed(&cx, &runtime, seed))
    })
    .await?
}

fn check_seed(cx: &Context, runtime: &Handle, seed: u64) -> CaseResult {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut tree = operation::sequences()
        .new_tree(&mut runner)
        .map_err(|reason| Unmet::Failed(format!("no sequence for the seed {seed}: {reason}")))?;
    let Err(first) = runtime.block_on(sequence::run(cx, &tree.current())) else {
        return Ok(());
    };
    let Unmet::Failed(mut seen) = first else {
        return Err(first);
    };
    let mut shortest = tree.current();
    let started = Instant::now();
    let mut more = tree.simplify();
    while more && started.elapsed() < SHRINKING {
        match runtime.block_on(sequence::run(cx, &tree.current())) {
            Err(Unmet::Failed(text)) => {
                (seen, shortest) = (text, tree.current());
                more = tree.simplify();
            }
            _ => more = tree.complicate(),
        }
    }
    // Proptest drops steps once, before it simplifies what is left; some can be spared only now.
    let mut position = 0;
    while position < shortest.operations.len() && started.elapsed() < SHRINKING {
        let mut shorter = shortest.clone();
        shorter.operations.remove(position);
        match runtime.block_on(sequence::run(cx, &shorter)) {
            Err(Unmet::Failed(text)) => {
                (seen, shortest) = (text, shorter);
                position = 0;
            }
            _ => position += 1,
        }
    }
    let steps: Vec<String> = shortest
        .operations
        .iter()
        .enumerate()
        .map(|(n, operation)| format!("{:>3}. {operation:?}", n + 1))
        .collect();
    Err(Unmet::Failed(format!(
        "{seen}\nafter this sequence, the shortest found that fails{}:\n{}\n\
         Replay it with {SEED}={seed}",
        if shortest.drop_processed_payloads {
            ", with processed payloads dropped"
        } else {
            ""
        },
        steps.join("\n")
    )))
}
