//! A record that no client makes: one that has a header whose name is not UTF-8. Kafka itself does not look.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use crate::harness::Outcome;

const LIMIT: Duration = Duration::from_secs(20);

/// Appends one record to the first partition of a topic, by a request that is put together here.
pub(crate) fn produce(
    server: &str,
    topic: &str,
    key: &[u8],
    body: &[u8],
    header: (&[u8], &[u8]),
) -> Outcome {
    let batch = batch(&record(key, body, header));
    let mut request = Vec::new();
    for short in [0_i16, 3] {
        request.extend(short.to_be_bytes()); // Produce, in the third version
    }
    request.extend(1_i32.to_be_bytes());
    request.extend((-1_i16).to_be_bytes()); // without a client's name
    request.extend((-1_i16).to_be_bytes()); // without a transaction
    request.extend((-1_i16).to_be_bytes()); // all replicas
    request.extend(10_000_i32.to_be_bytes());
    request.extend(1_i32.to_be_bytes());
    request.extend(i16::try_from(topic.len())?.to_be_bytes());
    request.extend(topic.as_bytes());
    request.extend(1_i32.to_be_bytes());
    request.extend(0_i32.to_be_bytes());
    request.extend(i32::try_from(batch.len())?.to_be_bytes());
    request.extend(batch);

    let mut connection = TcpStream::connect(server)?;
    connection.set_read_timeout(Some(LIMIT))?;
    connection.write_all(&i32::try_from(request.len())?.to_be_bytes())?;
    connection.write_all(&request)?;
    let mut length = [0; 4];
    connection.read_exact(&mut length)?;
    let mut answer = vec![0; usize::try_from(i32::from_be_bytes(length))?];
    connection.read_exact(&mut answer)?;
    // Number, count and name of topics, count and number of partitions.
    let error = 4 + 4 + 2 + topic.len() + 4 + 4;
    match answer.get(error..error + 2) {
        Some([0, 0]) => Ok(()),
        code => Err(format!("the record was not taken: {code:?}").into()),
    }
}

fn batch(record: &[u8]) -> Vec<u8> {
    let mut checked = Vec::new();
    checked.extend(0_i16.to_be_bytes());
    checked.extend(0_i32.to_be_bytes());
    for _ in 0..2 {
        checked.extend(1_700_000_000_000_i64.to_be_bytes());
    }
    checked.extend((-1_i64).to_be_bytes());
    checked.extend((-1_i16).to_be_bytes());
    checked.extend((-1_i32).to_be_bytes());
    checked.extend(1_i32.to_be_bytes());
    checked.extend(record);
    let mut rest = Vec::new();
    rest.extend((-1_i32).to_be_bytes());
    rest.push(2);
    rest.extend(crc32c(&checked).to_be_bytes());
    rest.extend(checked);
    let mut batch = Vec::new();
    batch.extend(0_i64.to_be_bytes());
    batch.extend(i32::try_from(rest.len()).unwrap().to_be_bytes());
    batch.extend(rest);
    batch
}

fn record(key: &[u8], body: &[u8], (name, value): (&[u8], &[u8])) -> Vec<u8> {
    let mut record = vec![0, 0, 0];
    for bytes in [key, body] {
        put(&mut record, bytes);
    }
    varint(&mut record, 1);
    for bytes in [name, value] {
        put(&mut record, bytes);
    }
    let mut whole = Vec::new();
    put(&mut whole, &record);
    whole
}

fn put(to: &mut Vec<u8>, bytes: &[u8]) {
    varint(to, bytes.len());
    to.extend(bytes);
}

/// Of a number that is not negative.
fn varint(to: &mut Vec<u8>, number: usize) {
    let mut rest = number << 1;
    while rest > 0x7f {
        to.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
        rest >>= 7;
    }
    to.push(u8::try_from(rest).unwrap());
}

fn crc32c(bytes: &[u8]) -> u32 {
    let mut sum = !0_u32;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (0x82f6_3b78 * (sum & 1));
        }
    }
    !sum
}
