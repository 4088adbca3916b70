//! Lines of any bytes.

use std::future::Future as _;

use clap::Parser as _;
use hostile::{Target, hold};
use inbox::HandlerName;
use tokio::io::BufReader;

use super::{Contents, InputArgs, format::Format, lines::Lines};

const CORPUS: &str = include_str!("../../../hostile/corpus/ndjson.txt");
/// The longest line that is taken.
const LIMIT: usize = 4 * 1024;

#[derive(clap::Parser)]
struct Given {
    #[command(flatten)]
    input: InputArgs,
}

fn formats() -> Vec<Format> {
    let given: [&[&str]; 4] = [
        &[],
        &[
            "--id-field",
            "source",
            "--id-field",
            "id",
            "--ordering-field",
            "/data/a/0",
        ],
        &[
            "--id-field",
            "/order/id",
            "--kind-field",
            "event",
            "--ordering-field",
            "customer",
        ],
        &["--ordering-field", "partitionkey"],
    ];
    let args = |words: &[&str]| {
        let words = ["inbox", "-"].iter().chain(words);
        Given::try_parse_from(words).unwrap().input
    };
    let mut formats: Vec<_> = given.map(|words| Format::new(&args(words))).into();
    formats.push(Format::new(&InputArgs {
        contents: Contents::Key,
        ..args(&[])
    }));
    formats
}

#[test]
fn lines_of_any_bytes_are_messages_or_refused() {
    let handler = HandlerName::new("h").unwrap();
    let formats = formats();
    hold(&Target::new("ndjson", CORPUS, move |input| {
        let mut lines = Lines::new(BufReader::with_capacity(64, input), LIMIT);
        loop {
            // Memory is always ready.
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let next = std::pin::pin!(lines.next()).poll(&mut context);
            let std::task::Poll::Ready(Ok(next)) = next else {
                return Err("memory cannot be read".into());
            };
            let Some(line) = next else { return Ok(()) };
            let Ok(line) = line.content else { continue };
            for format in &formats {
                if let Err(reason) = format.message(&line, &handler)
                    && (reason.len() > 200 || reason.contains('\n'))
                {
                    return Err(format!("a refusal is more than a short line\n{reason}"));
                }
            }
        }
    }));
}
