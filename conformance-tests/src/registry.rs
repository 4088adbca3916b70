//! What a case is, and what the one list of all cases expands to.

use futures_util::future::BoxFuture;

use crate::{check::CaseResult, test_inbox::Context};

/// A case: one rule of the contract.
pub struct Case {
    /// The group, as the contract groups its rules.
    pub group: &'static str,
    /// The name within the group.
    pub name: &'static str,
    /// The rule, in words.
    pub rule: &'static str,
    pub(crate) run: fn(Context) -> BoxFuture<'static, CaseResult>,
}

impl Case {
    /// `group::name`, by which filters and test runners know it.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}::{}", self.group, self.name)
    }
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case")
            .field("id", &self.id())
            .field("rule", &self.rule)
            .finish_non_exhaustive()
    }
}

/// Cases that take minutes, and so are run only where they are asked for: by
/// [`Options::scale`](crate::Options::scale), or one by one by [`test`](crate::test).
pub static SCALE: &[Case] = &[
    Case {
        group: "scale",
        name: "the_history_costs_nothing",
        rule: "No operation takes longer with a long history of processed and dead messages.",
        run: |context| Box::pin(crate::cases::scale::the_history_costs_nothing(context)),
    },
    Case {
        group: "scale",
        name: "the_backlog_costs_nothing",
        rule: "No operation takes longer with a long backlog, half of it with ordering keys.",
        run: |context| Box::pin(crate::cases::scale::the_backlog_costs_nothing(context)),
    },
];

/// Makes both the list and the macro from one text, so that no case is in one and not the other.
/// `$d` is a dollar sign, which a macro cannot otherwise write into one that it makes.
macro_rules! register {
    ($d:tt $($group:ident ($home:ident) { $($name:ident: $rule:literal,)* })*) => {
        /// Every case, by group.
        pub static CASES: &[Case] = &[$($(
            Case {
                group: stringify!($group),
                name: stringify!($name),
                rule: $rule,
                run: |context| Box::pin(crate::cases::$home::$name(context)),
            },
        )*)*];

        /// Expands to one named test per case, `group::name`, of the store behind the
        /// [`Harness`](crate::Harness) that the expression makes. The expression is evaluated
        /// once per test.
        ///
        /// Each test runs on a multi-threaded tokio runtime of its own, so the crate that uses
        /// this needs no tokio. A case that could not be checked fails its test, unless the
        /// harness declares what it lacks
        /// ([`expected_not_checked`](crate::Harness::expected_not_checked)); then the test says
        /// so on standard error, past the test runner's capture.
        ///
        /// Use it once per module.
        #[macro_export]
        macro_rules! conformance {
            ($d harness:expr) => {
                fn conformance_harness() -> impl $d crate::Harness {
                    $d harness
                }

                $(
                    mod $group {
                        $(
                            #[test]
                            fn $name() -> ::std::result::Result<(), $d crate::TestFailure> {
                                $d crate::test(
                                    super::conformance_harness(),
                                    concat!(stringify!($group), "::", stringify!($name)),
                                )
                            }
                        )*
                    }
                )*
            };
        }
    };
}

mod list;

pub use list::CASES;
