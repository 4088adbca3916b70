//! The messages that are sent.

/// Characters that JSON stores as they are.
const CHARACTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A message.
#[derive(Clone, Debug)]
pub struct Message {
    /// Unique.
    pub id: String,
    /// Random characters.
    pub payload: String,
}

/// Makes messages at little cost.
#[derive(Debug)]
pub(crate) struct Messages {
    random: fastrand::Rng,
    /// Payloads are cut out of this.
    characters: String,
    payload: usize,
}

impl Messages {
    pub(crate) fn new(payload: usize) -> Self {
        let mut random = fastrand::Rng::new();
        let characters = (0..payload + (1 << 20))
            .map(|_| char::from(CHARACTERS[random.usize(..CHARACTERS.len())]))
            .collect();
        Self {
            random,
            characters,
            payload,
        }
    }

    pub(crate) fn take(&mut self, number: u64) -> Vec<Message> {
        (0..number)
            .map(|_| {
                let from = self.random.usize(..self.characters.len() - self.payload);
                Message {
                    id: format!("{:032x}", self.random.u128(..)),
                    payload: self.characters[from..from + self.payload].to_owned(),
                }
            })
            .collect()
    }
}
