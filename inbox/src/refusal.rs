//! What to do with an outcome that a store refuses.

use crate::Outcome;

/// The text in place of one that a store refuses.
const PLAIN: &str = "the error text was refused by the store";

/// The same outcome without what a store may object to; `None` when there is nothing left to
/// leave out. What was done stays what it is: a message that is to be retried or dead is never
/// settled as processed, nor work that is done as dead, to be replayed and done again.
pub(crate) fn plainer(outcome: Outcome) -> Option<Outcome> {
    match outcome {
        Outcome::Processed { result: Some(_) } => Some(Outcome::Processed { result: None }),
        Outcome::Retry { after, error } if error != PLAIN => {
            let error = PLAIN.to_owned();
            Some(Outcome::Retry { after, error })
        }
        Outcome::Dead { reason, after } if reason != PLAIN => {
            let reason = PLAIN.to_owned();
            Some(Outcome::Dead { reason, after })
        }
        Outcome::Defer {
            after,
            error: Some(error),
        } if error != PLAIN => {
            let error = Some(PLAIN.to_owned());
            Some(Outcome::Defer { after, error })
        }
        _ => None,
    }
}
