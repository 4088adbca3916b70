//! The form with every field of a filter. It is a GET: what it finds has a link that can be shared.

use inbox::State;
use maud::{Markup, html};

use crate::query::Wanted;

/// The form, with what is wanted now. Groups have their own states, and no order.
pub(super) fn filter_form(
    wanted: &Wanted,
    page: &str,
    with_states: bool,
    is_oldest: bool,
) -> Markup {
    let rare = [
        ("id", "Message id", wanted.id.first()),
        ("ordering_key", "Ordering key", wanted.ordering_key.as_ref()),
        (
            "correlation_id",
            "Correlation id",
            wanted.correlation_id.as_ref(),
        ),
        ("error", "Last error contains", wanted.error.as_ref()),
        (
            "error_type",
            "Type of the last error",
            wanted.error_type.as_ref(),
        ),
        (
            "error_shape",
            "Shape of the last error",
            wanted.error_shape.as_ref(),
        ),
    ];
    let times = [
        (
            "older_than",
            "Accepted at least … ago",
            wanted.older_than.as_ref(),
        ),
        (
            "newer_than",
            "Accepted less than … ago",
            wanted.newer_than.as_ref(),
        ),
        (
            "finished_longer_ago",
            "Finished at least … ago",
            wanted.finished_longer_ago.as_ref(),
        ),
        (
            "finished_within",
            "Finished less than … ago",
            wanted.finished_within.as_ref(),
        ),
        (
            "due_later_than",
            "Due more than … from now",
            wanted.due_later_than.as_ref(),
        ),
        (
            "due_within",
            "Due within … from now",
            wanted.due_within.as_ref(),
        ),
    ];
    let set =
        |fields: &[(&str, &str, Option<&String>)]| fields.iter().any(|field| field.2.is_some());
    let attempts = [
        ("min_attempts", "Attempts, at least", wanted.min_attempts),
        ("max_attempts", "Attempts, at most", wanted.max_attempts),
    ];
    let flags = [
        (
            "blocking",
            "Blocks its ordering key (dead)",
            wanted.blocking,
        ),
        ("no_error", "Without an error", wanted.no_error),
    ];
    let is_open = set(&rare)
        || set(&times)
        || attempts.iter().any(|field| field.2.is_some())
        || flags.iter().any(|flag| flag.2);
    let more_ids = wanted.id.iter().skip(1);
    html! {
        search {
            form.filter method="get" action=(page) {
                @if with_states {
                    fieldset {
                        legend { "State" }
                        @for state in State::ALL {
                            label {
                                input type="checkbox" name="state" value=(state)
                                    checked[wanted.state.iter().any(|own| own == state.as_str())];
                                " " (state)
                            }
                        }
                    }
                }
                (field("handler", "Handler", wanted.handler.as_ref(), ""))
                (field("kind", "Kind", wanted.kind.as_ref(), ""))
                details open[is_open] {
                    summary { "More filters" }
                    div.fields {
                        @for (name, label, value) in rare { (field(name, label, value, "")) }
                        @for id in more_ids { (field("id", "or", Some(id), "")) }
                        @for (name, label, value) in times { (field(name, label, value, "30s, 12h, 7d")) }
                        @for (name, label, value) in attempts {
                            label {
                                span { (label) }
                                input type="number" name=(name) min="0" value=[value];
                            }
                        }
                        @for (name, label, is_set) in flags {
                            label {
                                input type="checkbox" name=(name) value="true" checked[is_set];
                                " " (label)
                            }
                        }
                    }
                }
                @if with_states {
                    label {
                        input type="checkbox" name="order" value="oldest" checked[is_oldest];
                        " Oldest first"
                    }
                }
                button { "Filter" }
                " " a href=(page) { "Clear" }
            }
        }
    }
}

fn field(name: &str, label: &str, value: Option<&String>, hint: &str) -> Markup {
    html! {
        label {
            span { (label) }
            input type="text" name=(name) value=[value] autocomplete="off" spellcheck="false"
                placeholder=[(!hint.is_empty()).then_some(hint)];
        }
    }
}
