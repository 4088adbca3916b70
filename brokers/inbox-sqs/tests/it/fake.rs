//! A service that answers as a test tells it, where no emulator would.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use inbox_sqs::Connection;
use serde_json::Value;

use crate::harness::Outcome;

/// Status and content.
pub(crate) type Answer = (u16, Value);

/// Makes an answer of a request's name and what it says.
type Answers = dyn Fn(&str, &Value) -> Answer + Send + Sync;

/// Serves until the process ends.
pub(crate) fn serve(
    answers: impl Fn(&str, &Value) -> Answer + Send + Sync + 'static,
) -> Outcome<Connection> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    let answers: Arc<Answers> = Arc::new(answers);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answers = Arc::clone(&answers);
            // It ends with the client's connection.
            thread::spawn(move || {
                let _ = talk(stream, &*answers);
            });
        }
    });
    let url = format!("sqs+http://key:secret@{address}/000000000000?region=r");
    Ok(Connection::from_url(&url)?)
}

fn talk(mut stream: TcpStream, answers: &Answers) -> Outcome {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let (mut name, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            let (header, value) = line.split_once(':').unwrap_or_default();
            let value = value.trim();
            if header.eq_ignore_ascii_case("x-amz-target") {
                name = value.trim_start_matches("AmazonSQS.").to_owned();
            } else if header.eq_ignore_ascii_case("content-length") {
                length = value.parse()?;
            }
        }
        let mut request = vec![0; length];
        reader.read_exact(&mut request)?;
        let (status, content) = answers(&name, &serde_json::from_slice(&request)?);
        let content = content.to_string();
        let length = content.len();
        let head = format!(
            "HTTP/1.1 {status} said\r\ncontent-type: application/x-amz-json-1.0\r\n\
             content-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(content.as_bytes())?;
    }
}
