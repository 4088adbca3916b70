//! Just enough of MongoDB's protocol for a word in a document.

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

/// Waits until a member of a set that answers is the primary, as the first one is again some seconds after
/// it is back.
pub(crate) fn wait_for_primary(port: u16) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let is_secondary = |answer: Vec<u8>| holds(&answer, &element(0x08, "ismaster", &[0]));
    while run(port, &[integer("isMaster", 1)]).is_ok_and(is_secondary) && Instant::now() < deadline
    {
        thread::sleep(Duration::from_millis(100));
    }
}

pub(crate) fn write(port: u16, word: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let note = document(&[integer("_id", 1), text("word", word)]);
    let update = document(&[
        element(0x03, "q", &document(&[integer("_id", 1)])),
        element(0x03, "u", &note),
        element(0x08, "upsert", &[1]),
    ]);
    let updates = document(&[element(0x03, "0", &update)]);
    let answer = run(
        port,
        &[
            text("update", "note"),
            element(0x04, "updates", &updates),
            // What it says is there also after a fail-over.
            element(
                0x03,
                "writeConcern",
                &document(&[text("w", "majority"), integer("wtimeout", 10_000)]),
            ),
        ],
    )?;
    // The number of documents written.
    match holds(&answer, &integer("n", 1)) {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&answer).into()),
    }
}

pub(crate) fn read(port: u16) -> Result<String, Box<dyn Error + Send + Sync>> {
    let filter = document(&[integer("_id", 1)]);
    let answer = run(
        port,
        &[text("find", "note"), element(0x03, "filter", &filter)],
    )?;
    let name = b"\x02word\0";
    let start = answer
        .windows(name.len())
        .position(|bytes| bytes == name)
        .ok_or_else(|| String::from_utf8_lossy(&answer).into_owned())?;
    // After the name come the length and the word, which ends with a zero.
    let word = answer[start + name.len() + 4..].split(|&byte| byte == 0);
    let word = word.into_iter().next().unwrap_or_default();
    Ok(String::from_utf8(word.to_vec())?)
}

fn run(port: u16, elements: &[Vec<u8>]) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
    let mut elements = elements.to_vec();
    elements.push(text("$db", "inbox"));
    let body = document(&elements);
    let mut message = Vec::new();
    for field in [i32::try_from(body.len())? + 21, 1, 0, 2013, 0] {
        message.extend(field.to_le_bytes());
    }
    message.push(0);
    message.extend(body);
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(&message)?;
    let mut head = [0; 21];
    stream.read_exact(&mut head)?;
    let total = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let mut answer = vec![0; usize::try_from(total)? - head.len()];
    stream.read_exact(&mut answer)?;
    let succeeded = element(0x01, "ok", &1f64.to_le_bytes());
    match holds(&answer, &succeeded) {
        true => Ok(answer),
        false => Err(String::from_utf8_lossy(&answer).into()),
    }
}

fn holds(document: &[u8], element: &[u8]) -> bool {
    document
        .windows(element.len())
        .any(|bytes| bytes == element)
}

fn document(elements: &[Vec<u8>]) -> Vec<u8> {
    let elements = elements.concat();
    let length = u32::try_from(elements.len() + 5).unwrap_or(u32::MAX);
    [&length.to_le_bytes()[..], &elements, &[0]].concat()
}

fn element(tag: u8, name: &str, value: &[u8]) -> Vec<u8> {
    [&[tag], name.as_bytes(), &[0], value].concat()
}

fn integer(name: &str, value: i32) -> Vec<u8> {
    element(0x10, name, &value.to_le_bytes())
}

fn text(name: &str, value: &str) -> Vec<u8> {
    let length = u32::try_from(value.len() + 1).unwrap_or(u32::MAX);
    let value = [&length.to_le_bytes()[..], value.as_bytes(), &[0]].concat();
    element(0x02, name, &value)
}
