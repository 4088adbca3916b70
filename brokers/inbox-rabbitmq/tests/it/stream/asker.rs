//! A client of the stream protocol that shares nothing with the source.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::harness::Outcome;

/// Longer than a server takes for a chunk that is there.
const NOTHING: Duration = Duration::from_secs(5);

pub(crate) struct Asker(TcpStream);

fn text(text: &str) -> Vec<u8> {
    let length = u16::try_from(text.len()).unwrap().to_be_bytes();
    [&length, text.as_bytes()].concat()
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

impl Asker {
    pub(crate) async fn connect(address: &str) -> Outcome<Self> {
        let mut asker = Self(TcpStream::connect(address).await?);
        asker.ask(17, &[0; 4]).await?;
        asker.ask(18, &[]).await?;
        let proof = b"\0guest\0guest";
        let length = u32::try_from(proof.len())?.to_be_bytes();
        let proof = [&text("PLAIN")[..], &length, proof].concat();
        asker.ask(19, &proof).await?;
        while asker.frame().await?.0 != 20 {}
        // Frames as large as the server takes, and no heartbeats.
        asker.send(20, &[0, 16, 0, 0, 0, 0, 0, 0]).await?;
        let opened = asker.ask(21, &text("/")).await?;
        match number(&opened[..2]) {
            1 => Ok(asker),
            code => Err(format!("not let in: {code}").into()),
        }
    }

    /// What the server keeps for a consumer.
    pub(crate) async fn stored(&mut self, consumer: &str, stream: &str) -> Outcome<Option<u64>> {
        let question = [text(consumer), text(stream)].concat();
        let answer = self.ask(11, &question).await?;
        match number(&answer[..2]) {
            1 => Ok(Some(number(&answer[2..]))),
            19 => Ok(None),
            code => Err(format!("no offset: {code}").into()),
        }
    }

    pub(crate) async fn store(&mut self, consumer: &str, stream: &str, offset: u64) -> Outcome {
        let order = [text(consumer), text(stream), offset.to_be_bytes().into()];
        self.send(10, &order.concat()).await?;
        // It is done when the next question is answered.
        self.stored(consumer, stream).await?;
        Ok(())
    }

    /// The offset behind the last message.
    pub(crate) async fn end(&mut self, stream: &str) -> Outcome<u64> {
        self.subscribe(stream, &[0, 2]).await?;
        let chunk = timeout(NOTHING, self.chunk()).await;
        self.ask(12, &[1]).await?;
        match chunk {
            Ok(chunk) => chunk.map(|(offset, records)| offset + records),
            Err(_) => Ok(0),
        }
    }

    /// How many messages there are from this offset on. The server uses offsets for itself, too.
    pub(crate) async fn count(&mut self, stream: &str, from: u64) -> Outcome<u64> {
        let end = self.end(stream).await?;
        if end <= from {
            return Ok(0);
        }
        let begin = [&[0, 4][..], &from.to_be_bytes()].concat();
        self.subscribe(stream, &begin).await?;
        let mut count = 0;
        loop {
            let (offset, records) = self.chunk().await?;
            count += (offset + records).saturating_sub(from.max(offset));
            if offset + records >= end {
                break;
            }
            self.send(9, &[1, 0, 1]).await?;
        }
        self.ask(12, &[1]).await?;
        Ok(count)
    }

    async fn subscribe(&mut self, stream: &str, begin: &[u8]) -> Outcome {
        let order = [&[1][..], &text(stream), begin, &[0, 1]].concat();
        let answer = self.ask(7, &order).await?;
        match number(&answer[..2]) {
            1 => Ok(()),
            code => Err(format!("no subscription: {code}").into()),
        }
    }

    /// The first offset of the next chunk, and how many records it has.
    async fn chunk(&mut self) -> Outcome<(u64, u64)> {
        loop {
            let (key, chunk) = self.frame().await?;
            if key == 8 {
                // Behind the subscription's number, the version, the kind and how many entries.
                return Ok((number(&chunk[25..33]), number(&chunk[5..9])));
            }
        }
    }

    /// Sends entries as they are to be in the stream, each with its length, and returns when they are.
    pub(crate) async fn publish(&mut self, stream: &str, entries: &[Vec<u8>]) -> Outcome {
        let publisher = [&[1][..], &text(""), &text(stream)].concat();
        let answer = self.ask(1, &publisher).await?;
        if number(&answer[..2]) != 1 {
            return Err(format!("no publisher: {}", number(&answer[..2])).into());
        }
        let count = u32::try_from(entries.len())?;
        let mut order = [&[1][..], &count.to_be_bytes()].concat();
        for (id, entry) in (1_u64..).zip(entries) {
            order.extend(id.to_be_bytes());
            order.extend(entry);
        }
        self.send(2, &order).await?;
        let mut confirmed = 0;
        while confirmed < entries.len() {
            match self.frame().await? {
                (3, content) => confirmed += usize::try_from(number(&content[1..5]))?,
                (4, _) => return Err("it was not written".into()),
                _ => {}
            }
        }
        self.ask(6, &[1]).await?;
        Ok(())
    }

    async fn send(&mut self, key: u16, content: &[u8]) -> Outcome {
        let length = u32::try_from(content.len() + 4)?.to_be_bytes();
        let head = [&length[..], &key.to_be_bytes(), &[0, 1]].concat();
        self.0.write_all(&[&head, content].concat()).await?;
        Ok(())
    }

    /// One question at a time, so all have the same number.
    async fn ask(&mut self, key: u16, content: &[u8]) -> Outcome<Vec<u8>> {
        self.send(key, &[&[0, 0, 0, 7], content].concat()).await?;
        loop {
            let (answered, content) = self.frame().await?;
            if answered == key | 0x8000 {
                return Ok(content[4..].to_vec());
            }
        }
    }

    async fn frame(&mut self) -> Outcome<(u16, Vec<u8>)> {
        let length = self.0.read_u32().await?;
        let mut frame = vec![0; usize::try_from(length)?];
        self.0.read_exact(&mut frame).await?;
        let key = u16::from_be_bytes([frame[0], frame[1]]);
        Ok((key, frame.split_off(4)))
    }
}
