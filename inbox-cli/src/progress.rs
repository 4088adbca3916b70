//! Progress bars, on standard error, when a person looks on.

use std::{io::IsTerminal, time::Duration};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::Global;

fn visible(global: &Global) -> ProgressDrawTarget {
    if global.quiet || global.json || !std::io::stderr().is_terminal() {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    }
}

/// A running count of something whose total is not known.
pub(crate) fn counter(global: &Global, label: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, visible(global));
    start(
        bar,
        label,
        "{spinner} {human_pos} {prefix} ({per_sec}) {msg}",
    )
}

/// A sign of life for work that does not tell how far it is.
pub(crate) fn spinner(global: &Global, label: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, visible(global));
    start(bar, label, "{spinner} {prefix} ({elapsed})")
}

/// A bar towards a known total.
pub(crate) fn bar(global: &Global, label: &'static str, total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), visible(global));
    start(
        bar,
        label,
        "{bar:30} {human_pos}/{human_len} {prefix} {msg}",
    )
}

fn start(bar: ProgressBar, label: &'static str, template: &str) -> ProgressBar {
    // The templates above are constants; should one be wrong, the default style shows.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_prefix(label);
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}
