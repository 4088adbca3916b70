//! What is told of an input that breaks a rule.

use std::fmt;

/// What an input has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// It panicked: where, and with what message.
    Panic(String),
    /// It held more memory at one time than its length allows.
    Memory {
        /// The bytes that it held.
        held: u64,
        /// The bytes that it may hold.
        allowed: u64,
    },
    /// It broke the target's own rule.
    Rule(String),
}

impl Broken {
    /// Whether it is the same, as far as a shorter input goes.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Panic(one), Self::Panic(other)) => place(one) == place(other),
            (Self::Rule(one), Self::Rule(other)) => place(one) == place(other),
            (Self::Memory { .. }, Self::Memory { .. }) => true,
            _ => false,
        }
    }
}

/// What stands before the first line break: a panic's place, or the rule.
fn place(text: &str) -> Option<&str> {
    text.lines().next()
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panic(said) => write!(f, "panicked at {said}"),
            Self::Memory { held, allowed } => {
                write!(f, "held {held} bytes at one time, {allowed} are allowed")
            }
            Self::Rule(what) => f.write_str(what),
        }
    }
}

/// An input that breaks a rule.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The target's name.
    pub target: &'static str,
    /// What it has done.
    pub broken: Broken,
    /// The input, as short as it got.
    pub input: Vec<u8>,
    /// Of which the input was made, and its number.
    pub seed: u64,
    /// The number of the input before it was cut down.
    pub number: u64,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            target,
            broken,
            input,
            seed,
            number,
        } = self;
        writeln!(f, "{target}: {broken}")?;
        writeln!(f, "with {} bytes, a line for its corpus:", input.len())?;
        writeln!(f, "{}", input.escape_ascii())?;
        write!(
            f,
            "found as --seed {seed} --from {number} --inputs 1; in a test of a private function, \
             HOSTILE_SEED={seed} HOSTILE_FROM={number} HOSTILE_INPUTS=1"
        )
    }
}
