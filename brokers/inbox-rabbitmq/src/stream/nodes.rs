//! Which nodes have a stream.

use super::{
    frame::code,
    wire::{Malformed, Reader},
};

/// Where a node says that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The nodes of one stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Nodes {
    pub(crate) leader: Option<Node>,
    pub(crate) replicas: Vec<Node>,
}

/// What a stream's metadata says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Metadata {
    Found(Nodes),
    /// It is not there, or not now; the server's code.
    Not(u16),
}

impl Metadata {
    /// Reads the answer to a question for one stream.
    pub(crate) fn read(answer: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(answer);
        let mut all = Vec::new();
        for _ in 0..reader.u32()? {
            let reference = reader.u16()?;
            let host = reader.text()?.to_owned();
            let port = u16::try_from(reader.u32()?).map_err(|_| Malformed)?;
            all.push((reference, Node { host, port }));
        }
        if reader.u32()? == 0 {
            return Ok(Self::Not(code::NO_SUCH_STREAM));
        }
        reader.text()?;
        let found = reader.u16()?;
        if found != code::OK {
            return Ok(Self::Not(found));
        }
        let node = |reference: u16| {
            let found = all.iter().find(|(one, _)| *one == reference);
            found.map(|(_, node)| node.clone())
        };
        let leader = node(reader.u16()?);
        let mut replicas = Vec::new();
        for _ in 0..reader.u32()? {
            replicas.extend(node(reader.u16()?));
        }
        Ok(Self::Found(Nodes { leader, replicas }))
    }
}

impl Nodes {
    /// Those that may be read from.
    pub(crate) fn readable(self) -> Vec<Node> {
        self.replicas.into_iter().chain(self.leader).collect()
    }

    /// The one that takes messages.
    pub(crate) fn writable(self) -> Vec<Node> {
        self.leader.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::wire::Writer;

    fn node(host: &str) -> Node {
        let (host, port) = (host.to_owned(), 5552);
        Node { host, port }
    }

    #[test]
    fn a_stream_has_a_leader_and_replicas() {
        let nodes = Writer::default().u32(2);
        let nodes = nodes.u16(0).text("a").u32(5552).u16(1).text("b").u32(5552);
        let stream = nodes.u32(1).text("orders").u16(1).u16(1);
        let answer = stream.u32(2).u16(0).u16(9).0;
        let Ok(Metadata::Found(nodes)) = Metadata::read(&answer) else {
            unreachable!("{answer:?}");
        };
        assert_eq!(nodes.leader, Some(node("b")));
        assert_eq!(nodes.readable(), [node("a"), node("b")]);
        assert_eq!(Metadata::read(&answer[..answer.len() - 1]), Err(Malformed));
    }

    #[test]
    fn a_stream_may_not_be_there() {
        let none = Writer::default().u32(0);
        let answer = none.u32(1).text("orders").u16(2).u16(0xffff).u32(0).0;
        assert_eq!(
            Metadata::read(&answer),
            Ok(Metadata::Not(code::NO_SUCH_STREAM))
        );
        assert_eq!(
            Metadata::read(&[0; 8]),
            Ok(Metadata::Not(code::NO_SUCH_STREAM))
        );
    }

    #[test]
    fn metadata_of_any_bytes_is_read() {
        let corpus = r"\x00\x00\x00\x01\x00\x00\x00\x01h\x00\x00\x15\xb0\x00\x00\x00\x01\x00\x01s\x00\x01\x00\x00\x00\x00\x00\x01\x00\x00
";
        hostile::hold(&hostile::Target::new(
            "rabbitmq-metadata",
            corpus,
            |input| {
                let _ = Metadata::read(input);
                Ok(())
            },
        ));
    }
}
