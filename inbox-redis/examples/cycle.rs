//! Receive, claim and settle against a running server: messages a second, and memory.
#![allow(clippy::unwrap_used)]
use inbox_api::*;
use inbox_redis::*;
use std::time::{Duration, Instant};

#[tokio::main]
async fn main() {
    let url = std::env::args().nth(1).unwrap();
    let total: usize = std::env::args().nth(2).unwrap().parse().unwrap();
    let tasks: usize = std::env::args().nth(3).unwrap().parse().unwrap();
    let batch: usize = 100;
    let options = RedisOptions::from_url(&url)
        .unwrap()
        .start_checks(StartChecks::Warn)
        .drop_processed_payloads(true);
    let store = RedisStore::connect(options.clone()).await.unwrap();
    store.migrate().await.unwrap();
    let handler = HandlerName::new("billing").unwrap();
    let payload = Bytes::from(vec![7_u8; 1024]);
    let run = std::process::id();
    let phase = |name: &'static str, n: usize, since: Instant| {
        println!("{name}: {:.0}/s", n as f64 / since.elapsed().as_secs_f64())
    };
    let receive = |store: RedisStore, task: usize| {
        let (handler, payload) = (handler.clone(), payload.clone());
        async move {
            for b in 0..total / tasks / batch {
                let messages: Vec<Message> = (0..batch)
                    .map(|i| {
                        Message::new(
                            handler.clone(),
                            MessageId::new(format!(
                                "{run:08x}-{task:04x}-4a5b-8c6d-{b:06x}{i:06x}"
                            ))
                            .unwrap(),
                            Kind::new("order.placed").unwrap(),
                            payload.clone(),
                        )
                    })
                    .collect();
                let _ = store.receive(&messages).await.unwrap();
            }
        }
    };
    let work = |store: RedisStore, handler: HandlerName, end: usize| async move {
        let mut done = 0;
        let request = ClaimRequest {
            handlers: vec![handler],
            limit: 100,
            terms: LeaseTerms::new(
                Duration::from_secs(60),
                WorkerName::new("worker-1").unwrap(),
            )
            .unwrap(),
        };
        while done < end {
            let claims = store.claim(&request).await.unwrap();
            let settlements: Vec<Settlement> = claims
                .leased
                .into_iter()
                .map(|l| Settlement {
                    lease: l.lease,
                    outcome: Outcome::Processed { result: None },
                })
                .collect();
            if settlements.is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
                if store.statistics().await.unwrap().count(State::Pending) == 0 {
                    break;
                }
            }
            done += settlements.len();
            let _ = store.settle(&settlements).await.unwrap();
        }
    };
    let since = Instant::now();
    let jobs: Vec<_> = (0..tasks)
        .map(|t| tokio::spawn(receive(store.clone(), t)))
        .collect();
    for j in jobs {
        j.await.unwrap();
    }
    phase("receive", total, since);
    let since = Instant::now();
    let jobs: Vec<_> = (0..tasks)
        .map(|_| tokio::spawn(work(store.clone(), handler.clone(), total / tasks)))
        .collect();
    for j in jobs {
        j.await.unwrap();
    }
    phase("claim+settle", total, since);
}
