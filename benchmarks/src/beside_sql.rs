//! What a store came to beside hand-written SQL in two layouts: the same lines for each database.

use std::time::Duration;

use crate::report::{Report, rates_of, step};

/// A layout's name, and its times for receive, and for claim and settle, run by run.
pub(crate) type Bare<'a> = (&'static str, &'a [[Duration; 2]]);

/// Adds the rates of all and the store's ratios. Its times are those of receive, of receiving the
/// same again, and of claim and settle.
pub(crate) fn tell(
    report: &mut Report,
    store: &'static str,
    messages: u64,
    bare: [Bare<'_>; 2],
    times: &[[Duration; 3]],
) {
    for (layout, times) in bare {
        report.rates(layout, "receive (bare SQL)", messages, &step(times, 0));
        let work = step(times, 1);
        report.rates(layout, "claim and settle (bare SQL)", messages, &work);
    }
    let [receive, again, work] = [0, 1, 2].map(|place| step(times, place));
    report.rates(store, "receive", messages, &receive);
    report.rates(store, "receive again (all duplicates)", messages, &again);
    report.rates(store, "claim and settle", messages, &work);
    for (layout, times) in bare {
        for (what, own, of) in [("receive", &receive, 0), ("claim and settle", &work, 1)] {
            let ratios = rates_of(own, &step(times, of));
            report.figures(store, format!("{what}, of {layout}"), ratios, "ratio");
        }
    }
    let duplicates = rates_of(&again, &receive);
    report.figures(store, "duplicates, of its own receive", duplicates, "ratio");
}
