//! What the checker found, for people.

use std::{fmt::Debug, hash::Hash};

use stateright::{Checker, HasDiscoveries, Model};

/// What came of checking a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// How many different states there are.
    pub states: usize,
    /// A way to break a rule: its name, and the steps.
    pub broken: Option<(String, Vec<String>)>,
}

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some((rule, steps)) = &self.broken else {
            return write!(f, "{} states, and no rule is broken", self.states);
        };
        writeln!(f, "broken: {rule}")?;
        for (number, step) in steps.iter().enumerate() {
            writeln!(f, "{:>3}. {step}", number + 1)?;
        }
        Ok(())
    }
}

/// A model whose steps can be told.
pub trait Tell: Model {
    /// What happens, as a sentence.
    fn tell(&self, before: &Self::State, step: &Self::Action) -> String;
}

/// Checks all states, breadth first, until a rule is broken.
pub fn story<M>(model: M) -> Told
where
    M: Tell + Clone + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + PartialEq + Debug + Send + Sync + 'static,
{
    let teller = model.clone();
    // One thread, so that the same way is found each time.
    let checker = model.checker().finish_when(HasDiscoveries::Any);
    let checker = checker.spawn_bfs().join();
    let broken = checker.discoveries().into_iter().next();
    let broken = broken.map(|(rule, path)| {
        let steps = path.into_vec().into_iter();
        let steps = steps.filter_map(|(before, step)| Some(teller.tell(&before, &step?)));
        let steps = steps.collect();
        (rule.to_owned(), steps)
    });
    Told {
        states: checker.unique_state_count(),
        broken,
    }
}
