//! How a case says what it saw.

use std::fmt::Debug;

use crate::harness::{Need, Unable};

/// Why a case did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unmet {
    /// The store broke the rule: what was expected and what was seen.
    Failed(String),
    /// The case could not be run.
    NotChecked(Need),
}

/// What a case returns.
pub(crate) type CaseResult<T = ()> = Result<T, Unmet>;

impl From<inbox_api::Error> for Unmet {
    fn from(error: inbox_api::Error) -> Self {
        use std::error::Error as _;
        let source = error
            .source()
            .map_or_else(String::new, |source| format!(" (caused by: {source})"));
        Self::Failed(format!(
            "expected an answer, saw the error: {error}{source}"
        ))
    }
}

impl From<inbox_api::Invalid> for Unmet {
    fn from(invalid: inbox_api::Invalid) -> Self {
        Self::Failed(format!("a valid value was refused: {invalid}"))
    }
}

impl From<Unable> for Unmet {
    fn from(unable: Unable) -> Self {
        match unable {
            Unable::NotOffered(need) => Self::NotChecked(need),
            Unable::Failed(error) => Self::Failed(format!("the harness failed: {error}")),
        }
    }
}

impl From<tokio::task::JoinError> for Unmet {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::Failed(match error.try_into_panic() {
            Ok(panic) => format!("a task of the case panicked: {}", panic_text(&*panic)),
            Err(error) => format!("a task of the case did not finish: {error}"),
        })
    }
}

/// The text that a panic was raised with.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a text")
}

/// Fails unless `seen` equals `expected`.
pub(crate) fn same<T: PartialEq + Debug>(what: &str, seen: &T, expected: &T) -> CaseResult {
    if seen == expected {
        return Ok(());
    }
    Err(Unmet::Failed(format!(
        "{what}: expected {expected:?}, saw {seen:?}"
    )))
}

/// Fails with the formatted text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::check::Unmet::Failed(format!($($text)+)));
        }
    };
}
pub(crate) use ensure;
