//! Leaves out of a scenario what its finding does not need.

use crate::{Flaw, Scenario, Violation, run, scenario::Transactions};

/// The smallest scenario that was found to break the same rule, and how it does. Answers the given one
/// when that breaks none.
///
/// # Errors
/// As [`run`].
pub fn shrink(scenario: Scenario, flaw: Option<Flaw>) -> Result<(Scenario, Violation), String> {
    let broken = run(scenario.clone(), flaw, false)?.broken;
    let mut violation = broken.ok_or("this scenario breaks no rule")?;
    let mut smallest = scenario;
    loop {
        let mut is_smaller = false;
        for list in LISTS {
            let mut place = 0;
            loop {
                let mut smaller = smallest.clone();
                if !list(&mut smaller, place) {
                    break;
                }
                match run(smaller.clone(), flaw, false)?.broken {
                    Some(found) if found.rule == violation.rule => {
                        (smallest, violation, is_smaller) = (smaller, found, true);
                    }
                    _ => place += 1,
                }
            }
        }
        if !is_smaller {
            return Ok((smallest, violation));
        }
    }
}

/// Leaves out what stands at a place; answers whether anything does.
type LeaveOut = fn(&mut Scenario, usize) -> bool;

const LISTS: [LeaveOut; 14] = [
    |scenario, place| {
        let transactions = &mut scenario.settings.transactions;
        place == 0 && std::mem::replace(transactions, Transactions::None) != Transactions::None
    },
    |scenario, place| place == 0 && std::mem::take(&mut scenario.settings.notes),
    |scenario, place| place == 0 && scenario.settings.whole.take().is_some(),
    |scenario, place| {
        let percents = &mut scenario.settings.leases_percent;
        place == 0 && !std::mem::take(percents).is_empty()
    },
    |scenario, place| leave_out(&mut scenario.stops, place),
    |scenario, place| leave_out(&mut scenario.outages, place),
    |scenario, place| leave_out(&mut scenario.slow_claims, place),
    |scenario, place| leave_out(&mut scenario.faults, place),
    |scenario, place| leave_out(&mut scenario.refusals, place),
    |scenario, place| leave_out(&mut scenario.jumps, place),
    |scenario, place| leave_out(&mut scenario.interventions, place),
    |scenario, place| leave_out(&mut scenario.failed_acknowledgements, place),
    |scenario, place| leave_out(&mut scenario.deliveries, place),
    |scenario, place| leave_out(&mut scenario.behaviours, place),
];

fn leave_out<T>(list: &mut Vec<T>, place: usize) -> bool {
    let is_there = place < list.len();
    if is_there {
        list.remove(place);
    }
    is_there
}
