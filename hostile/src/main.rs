//! Runs targets, and tells the first input of each that breaks a rule, as short as it gets.

use std::process::ExitCode;

use hostile::{Plan, check, targets};
use lexopt::prelude::*;

const HELP: &str = "usage: hostile TARGET…|all [--inputs N] [--seed N] [--from NUMBER] [--trace]";

fn main() -> ExitCode {
    match asked().and_then(|(names, plan)| run(&names, plan)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(wrong) => {
            eprintln!("{wrong}\n{HELP}\ntargets: {}", targets::NAMES.join(", "));
            ExitCode::from(2)
        }
    }
}

fn asked() -> Result<(Vec<String>, Plan), String> {
    let mut names = Vec::new();
    let mut plan = Plan {
        seed: 0,
        from: 0,
        inputs: 1_000_000,
        trace: false,
    };
    let mut arguments = lexopt::Parser::from_env();
    let mut read = || -> Result<(), lexopt::Error> {
        while let Some(argument) = arguments.next()? {
            match argument {
                Long("inputs") => plan.inputs = arguments.value()?.parse()?,
                Long("seed") => plan.seed = arguments.value()?.parse()?,
                Long("from") => plan.from = arguments.value()?.parse()?,
                Long("trace") => plan.trace = true,
                Value(name) => names.push(name.string()?),
                _ => return Err(argument.unexpected()),
            }
        }
        Ok(())
    };
    read().map_err(|error| error.to_string())?;
    if names == ["all"] {
        names = targets::NAMES.map(String::from).to_vec();
    }
    if names.is_empty() {
        return Err("which target?".into());
    }
    Ok((names, plan))
}

/// Whether no input of any target breaks a rule.
fn run(names: &[String], plan: Plan) -> Result<bool, String> {
    let mut is_good = true;
    println!("target, inputs, most bytes held, most of what is allowed, longest");
    for name in names {
        let target = targets::of(name).ok_or_else(|| format!("there is no target {name}"))?;
        match check(&target, plan) {
            Ok(summary) => println!(
                "{name}, {}, {}, {:.0} %, {:?}",
                summary.inputs,
                summary.most_held,
                summary.most_of_allowed * 100.0,
                summary.longest,
            ),
            Err(finding) => {
                is_good = false;
                println!("{finding}");
            }
        }
    }
    Ok(is_good)
}
