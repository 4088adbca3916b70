//! `inbox health`: is it well?

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use inbox::Statistics;
use reqwest::{Url, redirect};

use crate::{
    args::{self, Global},
    exit::Exit,
    http_client, output, store,
};

pub(crate) const HELP: &str = "\
Without --at it asks the store: can it be reached, is the inbox set up for this build, and, with
--max-lag, is no handler further behind. With --at it asks a running `inbox serve`, `inbox process
--listen` or `inbox dashboard`: do its loops turn, and can it reach the store. It asks the process
itself, through no proxy.

Prints a line for each thing that is not as it should be, or `well`. Exit code 0 when it is well or
only degraded (paused, held up, waiting for an outage to end), 1 when it is not, as HEALTHCHECK of
a container has it.

Examples:
  inbox health --max-lag 5m
  inbox health --at http://127.0.0.1:8080";

/// How long a process may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(crate) struct HealthArgs {
    /// Ask the process that listens there
    #[arg(long, value_name = "URL", value_parser = address, conflicts_with = "max_lag")]
    pub(crate) at: Option<Url>,
    /// Not well is a handler whose longest-due message has been due for longer, unless it is paused
    #[arg(long, value_name = "TIME", value_parser = args::duration)]
    pub(crate) max_lag: Option<Duration>,
}

fn address(text: &str) -> Result<Url, String> {
    let expected = || "expected an http or https URL, such as http://127.0.0.1:8080".to_owned();
    http_client::parse(text).ok_or_else(expected)
}

/// What is not as it should be.
#[derive(Debug, Default, PartialEq, Eq)]
struct Findings {
    unwell: Vec<String>,
    degraded: Vec<String>,
}

pub(crate) async fn run(global: &Global, args: HealthArgs) -> Result<Exit> {
    let findings = match &args.at {
        Some(url) => of_process(url).await?,
        None => match statistics(global).await {
            Ok(statistics) => of_store(&statistics, args.max_lag),
            Err(error) => Findings {
                unwell: vec![crate::causes(&error)],
                ..Findings::default()
            },
        },
    };
    if global.json {
        output::json(&serde_json::json!({
            "is_well": findings.unwell.is_empty(),
            "unwell": findings.unwell,
            "degraded": findings.degraded,
        }))?;
    } else {
        for reason in &findings.unwell {
            output::line(output::cell(reason, usize::MAX))?;
        }
        for reason in &findings.degraded {
            let reason = output::cell(reason, usize::MAX);
            output::line(format!("degraded: {reason}"))?;
        }
        if findings == Findings::default() {
            output::line("well")?;
        }
    }
    Ok(if findings.unwell.is_empty() {
        Exit::Ok
    } else {
        Exit::Unhealthy
    })
}

async fn statistics(global: &Global) -> Result<Statistics> {
    let store = store::open(&global.store).await?;
    Ok(store.statistics().await?)
}

fn of_store(statistics: &Statistics, max_lag: Option<Duration>) -> Findings {
    let mut findings = Findings::default();
    for of_handler in &statistics.handlers {
        let name = &of_handler.handler;
        if let (Some(lag), Some(limit)) = (of_handler.lag, max_lag)
            && lag > limit
            // It is behind because an operator wants that.
            && !of_handler.paused
        {
            let lag = output::duration(lag);
            findings
                .unwell
                .push(format!("handler {name} is behind by {lag}"));
        }
        if of_handler.paused {
            findings.degraded.push(format!("handler {name} is paused"));
        }
        if of_handler.blocking > 0 {
            let dead = output::count(of_handler.blocking);
            findings.degraded.push(format!(
                "handler {name} has {dead} dead that hold up their ordering keys"
            ));
        }
    }
    findings
}

/// Asks both probes. What they answer is one reason a line.
async fn of_process(url: &Url) -> Result<Findings> {
    let client = http_client::build(url, |client| {
        // A proxy would answer for a process that is not there.
        let client = client.no_proxy().timeout(PATIENCE);
        client.redirect(redirect::Policy::default())
    })?;
    let mut findings = Findings::default();
    for probe in ["healthz", "readyz"] {
        let mut place = url.clone();
        place.set_path(probe);
        // The URL may hold credentials.
        let answer = match client.get(place).send().await {
            Ok(answer) => answer,
            Err(error) => {
                let reason = crate::causes(&error.without_url().into());
                findings
                    .unwell
                    .push(format!("it does not answer: {reason}"));
                break;
            }
        };
        let is_well = answer.status().is_success();
        let text = answer.text().await.unwrap_or_default();
        for line in text.lines() {
            match line.strip_prefix("degraded: ") {
                Some(reason) => findings.degraded.push(reason.to_owned()),
                None if !is_well => findings.unwell.push(line.to_owned()),
                None => {}
            }
        }
        if !is_well && findings.unwell.is_empty() {
            findings.unwell.push(format!("/{probe} refuses"));
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use inbox::{HandlerName, HandlerStatistics};

    use super::*;

    #[test]
    fn lag_is_unwell_and_the_rest_degraded() {
        let late = |name: &str| HandlerStatistics {
            lag: Some(Duration::from_secs(90)),
            ..HandlerStatistics::empty(HandlerName::new(name).unwrap())
        };
        let statistics = Statistics {
            handlers: vec![
                HandlerStatistics {
                    blocking: 2,
                    ..late("h")
                },
                HandlerStatistics {
                    paused: true,
                    ..late("paused")
                },
            ],
        };
        let minute = Some(Duration::from_secs(60));
        let findings = of_store(&statistics, minute);
        assert_eq!(findings.unwell, ["handler h is behind by 1m 30s"]);
        assert_eq!(findings.degraded.len(), 2);
        assert!(
            of_store(&statistics, minute.map(|m| m * 2))
                .unwell
                .is_empty()
        );
        assert!(of_store(&statistics, None).unwell.is_empty());
    }
}
