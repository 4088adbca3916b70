//! Inputs made to do harm, for everything that reads what others have written.
//!
//! A [`Target`] is a function of bytes with a corpus: a file of inputs that mean something to it. [`check`] runs those,
//! and then as many inputs as wanted that are made of them from a seed: cut, repeated, put together, with odd
//! characters and numbers in them. For each input the target must not panic, must keep its own rule, and must not hold
//! more memory at one time than a [limit](Target::limit) that grows with the input's length. An input that breaks this is
//! told as short as it gets.
//!
//! The targets that need nothing but public items are in `targets`, and the program runs them:
//!
//! ```sh
//! cargo run --profile hostile -p hostile -- urls --inputs 10000000 --seed 1
//! ```
//!
//! Those of private functions, and those that need a server, are tests of their crates, which call [`hold`].
//!
//! Memory is counted by a global allocator, which comes with this library: on the thread that runs the target, so
//! that tests may run side by side. What other threads allocate is not seen.

mod corpus;
mod finding;
mod mutator;
#[cfg(feature = "operations")]
mod operations;
mod parts;
mod password;
mod run;
#[cfg(feature = "targets")]
pub mod targets;

pub use finding::{Broken, Finding};
#[cfg(feature = "operations")]
pub use operations::{fill, use_every_operation};
pub use parts::{first_line, head};
pub use password::{SECRET, has_secret};
pub use run::{Plan, Summary, check, hold, hold_for, uncounted};

use mutator::Mutator;

/// Fails with what is wrong.
type Run = dyn Fn(&[u8]) -> Result<(), String>;

/// What reads input of others.
pub struct Target {
    name: &'static str,
    mutator: Mutator,
    per_byte: u64,
    base: u64,
    run: Box<Run>,
}

impl Target {
    /// A target with a corpus: a line for each input, written as [`slice::escape_ascii`] writes it; lines that
    /// begin with `#` are comments. `run` fails with what is wrong, where a rule of its own is broken; that it
    /// refuses an input is no failure.
    ///
    /// It may hold 64 bytes for each byte of the input, and 16 KiB, unless [`limit`](Self::limit) says
    /// otherwise.
    pub fn new(
        name: &'static str,
        corpus: &str,
        run: impl Fn(&[u8]) -> Result<(), String> + 'static,
    ) -> Self {
        Self {
            name,
            mutator: Mutator::new(corpus::read(corpus)),
            per_byte: 64,
            base: 16 * 1024,
            run: Box::new(run),
        }
    }

    /// Sets how many bytes may be held at one time: so many for each byte of the input, and so many in any case.
    #[must_use]
    pub fn limit(mut self, per_byte: u64, base: u64) -> Self {
        (self.per_byte, self.base) = (per_byte, base);
        self
    }

    /// Its name, by which it is asked for.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// How many inputs its corpus has.
    #[must_use]
    pub fn corpus_len(&self) -> u64 {
        self.mutator.corpus_len()
    }

    fn allowed(&self, input: &[u8]) -> u64 {
        let length = u64::try_from(input.len()).unwrap_or(u64::MAX);
        self.per_byte
            .saturating_mul(length)
            .saturating_add(self.base)
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
