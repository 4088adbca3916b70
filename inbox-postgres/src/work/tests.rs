//! How batches are split.

use inbox_api::{HandlerName, Headers, Kind, MessageId};

use super::*;

const LIMIT: usize = 300 * 1024;

fn message(id: &str, payload: usize, headers: usize) -> Message {
    let mut all = Headers::new();
    all.insert("h", "x".repeat(headers)).unwrap();
    Message::new(
        HandlerName::new("h").unwrap(),
        MessageId::new(id).unwrap(),
        Kind::new("k").unwrap(),
        vec![0; payload],
    )
    .with_headers(all)
}

fn sizes(messages: &[Message]) -> Vec<usize> {
    let options = PostgresOptions::new();
    let work = Work::new(&options, &Names::new(&options));
    let (_, chunks) = work.lay_out_within(messages, LIMIT);
    chunks.iter().map(Vec::len).collect()
}

#[test]
fn a_batch_is_split_by_all_that_is_sent_for_it() {
    let many = |payload, headers| -> Vec<Message> {
        (0..10)
            .map(|n| message(&n.to_string(), payload, headers))
            .collect()
    };
    assert_eq!(sizes(&many(10, 10)), [10]);
    assert_eq!(sizes(&many(60_000, 10)), [5, 5]);
    assert_eq!(sizes(&many(10, 60_000)), [5, 5]);
    assert_eq!(sizes(&many(400_000, 10)), [1; 10]);
    assert_eq!(sizes(&[]), [0; 0]);
}

#[test]
fn settlements_are_split_by_results_and_errors() {
    let outcomes = [
        Outcome::Processed {
            result: Some(vec![0; 100_000].into()),
        },
        Outcome::Retry {
            after: std::time::Duration::ZERO,
            error: "x".repeat(60_000),
        },
        Outcome::Dead {
            reason: "x".repeat(60_000),
            after: AfterDead::Continue,
        },
    ];
    for (outcome, expected) in outcomes.iter().zip([vec![3, 3, 1], vec![7], vec![7]]) {
        let settle = Settle {
            refused: HashMap::new(),
            outcomes: (0..7).map(|n| ((n, n), outcome)).collect(),
            any_ordered: false,
        };
        let sizes: Vec<usize> = settle
            .chunks_within(LIMIT)
            .iter()
            .map(|chunk| chunk.len())
            .collect();
        assert_eq!(sizes, expected, "{outcome:?}");
        let whole: Vec<usize> = settle.chunks().iter().map(|chunk| chunk.len()).collect();
        assert_eq!(whole, [7]);
    }
}
