//! Checks a model within the bounds that are asked for, and prints what came of it.

use std::process::ExitCode;

use model::{
    marks::Marks,
    protocol::{Bounds, Protocol},
    story,
};

const HELP: &str = "usage: model protocol|marks [--messages N] [--workers N] [--copies N] [--crashes N] \
                    [--lost N] [--lapses N] [--attempts N] [--replays N] [--purges N] [--unordered]";

fn main() -> ExitCode {
    match run() {
        Ok(is_whole) => ExitCode::from(u8::from(!is_whole)),
        Err(wrong) => {
            eprintln!("{wrong}\n{HELP}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, String> {
    let mut arguments = std::env::args().skip(1);
    let which = arguments.next().ok_or("which model?")?;
    let mut bounds = Bounds::default();
    while let Some(name) = arguments.next() {
        if name == "--unordered" {
            bounds.ordered = false;
            continue;
        }
        let value = arguments.next().ok_or(format!("{name} needs a number"))?;
        let value: u8 = value.parse().map_err(|_| format!("{value} is no number"))?;
        match name.as_str() {
            "--messages" => bounds.messages = value.into(),
            "--workers" => bounds.workers = value.into(),
            "--copies" => bounds.copies = value,
            "--crashes" => bounds.crashes = value,
            "--lost" => bounds.lost = value,
            "--lapses" => bounds.lapses = value,
            "--attempts" => bounds.attempts = value,
            "--replays" => bounds.replays = value,
            "--purges" => bounds.purges = value,
            _ => return Err(format!("there is no {name}")),
        }
    }
    let told = match which.as_str() {
        "protocol" => story(Protocol { bounds, flaw: None }),
        "marks" => story(Marks {
            messages: bounds.messages,
            workers: bounds.workers,
            crashes: bounds.crashes,
            replays: bounds.replays,
            flaw: None,
        }),
        _ => return Err(format!("there is no model {which}")),
    };
    println!("{told}");
    Ok(told.broken.is_none())
}
