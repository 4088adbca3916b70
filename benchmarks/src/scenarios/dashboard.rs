//! What an open dashboard costs a store: a backlog is drained without one, and with an overview that is renewed
//! every two seconds.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use axum::{body::Body, http::Request};
use http_body_util::BodyExt as _;
use inbox::Inbox;
use tokio::time::{MissedTickBehavior, interval};
use tower::ServiceExt as _;

use super::{Bench, Runs, drain, ratios, work};
use crate::{maker::Maker, target::Slot};

/// How often the overview is renewed. Its own page does so every five seconds.
const RENEWED: Duration = Duration::from_secs(2);

pub(super) async fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let (mut without, mut with) = (Runs::default(), Runs::default());
    for run in 0..bench.options.runs {
        // Each of the two is the first of every second pair.
        let is_first = run % 2 == 0;
        for is_open in [is_first, !is_first] {
            let number = bench.options.messages;
            let inbox = bench.fresh(Slot::First).await?.inbox();
            work::prefill(&inbox, &mut Maker::new(bench.shape.payload)?, number).await?;
            bench.site.rest().await?;
            let batch = bench.shape.batch;
            let drain = async { drain::drain(&inbox, batch, drain::idle()?, number).await };
            if is_open {
                let time = tokio::select! {
                    time = drain => time?,
                    failed = look(&inbox) => return failed,
                };
                with.add(number, time);
            } else {
                without.add(number, drain.await?);
            }
            inbox.close().await;
        }
    }
    let ratio = ratios(&with.rates, &without.rates);
    bench.rates("drain", None, &without);
    bench.rates("drain with a dashboard open", None, &with);
    bench.figures("drain with a dashboard open, of one without", ratio, "");
    Ok(())
}

/// Renews the overview, and returns only when that fails.
async fn look(inbox: &Arc<dyn Inbox>) -> Result<()> {
    let router = inbox_dashboard::dashboard(Arc::clone(inbox)).into_router();
    let mut renewed = interval(RENEWED);
    renewed.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        renewed.tick().await;
        let request = Request::get("/overview").body(Body::empty())?;
        let response = router.clone().oneshot(request).await?;
        ensure!(response.status().is_success(), "{}", response.status());
        response.into_body().collect().await?;
    }
}
