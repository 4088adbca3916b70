//! Runs seeds, and tells of the first that breaks a rule, as short as it gets.

use std::{
    process::ExitCode,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Instant,
};

use lexopt::prelude::*;
use simulation::{Flaw, Kind, Scenario, run, shrink};

const HELP: &str = "usage: simulation [--seeds FROM..TO] [--jobs N] [--store memory|sqlite] [--flaw NAME]\n    [--trace SEED]";

#[derive(Clone, Copy)]
struct Asked {
    from: u64,
    to: u64,
    jobs: u64,
    kind: Kind,
    flaw: Option<Flaw>,
    trace: Option<u64>,
}

impl Asked {
    fn scenario(&self, seed: u64) -> Scenario {
        Scenario::new(seed).on(self.kind)
    }
}

fn main() -> ExitCode {
    match asked().and_then(simulate) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(wrong) => {
            eprintln!("{wrong}\n{HELP}");
            ExitCode::from(2)
        }
    }
}

fn asked() -> Result<Asked, String> {
    let mut asked = Asked {
        from: 0,
        to: 1_000,
        jobs: 1,
        kind: Kind::Memory,
        flaw: None,
        trace: None,
    };
    let mut arguments = lexopt::Parser::from_env();
    let mut read = || -> Result<(), lexopt::Error> {
        while let Some(argument) = arguments.next()? {
            match argument {
                Long("seeds") => {
                    let value = arguments.value()?.string()?;
                    let (from, to) = value.split_once("..").ok_or("seeds are FROM..TO")?;
                    let number = |text: &str| text.parse().map_err(|_| "seeds are numbers");
                    (asked.from, asked.to) = (number(from)?, number(to)?);
                }
                Long("jobs") => asked.jobs = arguments.value()?.parse()?,
                Long("trace") => asked.trace = Some(arguments.value()?.parse()?),
                Long("store") => {
                    asked.kind = match arguments.value()?.string()?.as_str() {
                        "memory" => Kind::Memory,
                        "sqlite" => Kind::Sqlite,
                        _ => return Err("stores are memory and sqlite".into()),
                    }
                }
                Long("flaw") => {
                    let name = arguments.value()?.string()?;
                    let all = Flaw::ALL.into_iter();
                    let mut named = all.filter(|flaw| format!("{flaw:?}") == name);
                    let names = || format!("flaws are {:?}", Flaw::ALL);
                    asked.flaw = Some(named.next().ok_or_else(names)?);
                }
                _ => return Err(argument.unexpected()),
            }
        }
        Ok(())
    };
    read().map_err(|error| error.to_string())?;
    asked.jobs = asked.jobs.max(1);
    Ok(asked)
}

fn simulate(asked: Asked) -> Result<bool, String> {
    if let Some(seed) = asked.trace {
        let scenario = asked.scenario(seed);
        println!("{scenario:#?}");
        let ran = run(scenario, asked.flaw, true)?;
        println!("{}", ran.trace.join("\n"));
        return Ok(ran.broken.is_none());
    }
    let began = Instant::now();
    let next = AtomicU64::new(asked.from);
    let is_found = AtomicBool::new(false);
    let found = std::thread::scope(|scope| {
        let look = || -> Result<Option<u64>, String> {
            while !is_found.load(Relaxed) {
                let seed = next.fetch_add(1, Relaxed);
                if seed >= asked.to {
                    break;
                }
                if run(asked.scenario(seed), asked.flaw, false)?
                    .broken
                    .is_some()
                {
                    is_found.store(true, Relaxed);
                    return Ok(Some(seed));
                }
            }
            Ok(None)
        };
        let jobs: Vec<_> = (0..asked.jobs).map(|_| scope.spawn(look)).collect();
        let found = jobs.into_iter().map(|job| {
            let ended = job.join();
            ended.map_err(|_| "the simulation itself panicked".to_owned())?
        });
        found.collect::<Result<Vec<_>, String>>()
    })?;
    let seeds = next.load(Relaxed).min(asked.to) - asked.from;
    println!("{seeds} seeds in {:.1?}", began.elapsed());
    let Some(seed) = found.into_iter().flatten().min() else {
        return Ok(true);
    };
    let (scenario, _) = shrink(asked.scenario(seed), asked.flaw)?;
    let ran = run(scenario.clone(), asked.flaw, true)?;
    println!("seed {seed}, as short as it gets:\n{scenario:#?}");
    println!("{}", ran.trace.join("\n"));
    if let Some(broken) = ran.broken {
        println!("seed {seed} breaks: {}: {}", broken.rule, broken.what);
    }
    Ok(false)
}
