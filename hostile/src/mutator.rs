//! Inputs out of a corpus: each a function of the corpus, a seed and its number.

use fastrand::Rng;

/// No input is longer: long enough for what nests or grows with the square of its length.
const LONGEST: usize = 16 * 1024;

/// What does harm in many formats.
const ODD: [&str; 48] = [
    "",
    "0",
    "-1",
    "1",
    "00",
    "255",
    "256",
    "65535",
    "65536",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "1e999",
    "-0.0",
    "NaN",
    "null",
    "true",
    "[]",
    "{}",
    "[",
    "{\"a\":",
    "\"",
    "\\",
    "\\u0000",
    "\\ud800",
    "\0",
    "\r\n",
    "\t",
    "%",
    "%00",
    "%ff",
    "%2F",
    "%25",
    "&",
    "=",
    ";",
    "://",
    "@",
    "\u{202e}",
    "\u{feff}",
    "ä",
    "🦀",
];

pub(crate) struct Mutator {
    corpus: Vec<Vec<u8>>,
    /// The words of the corpus.
    words: Vec<Vec<u8>>,
}

impl Mutator {
    pub(crate) fn new(corpus: Vec<Vec<u8>>) -> Self {
        let is_word =
            |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let mut words: Vec<Vec<u8>> = corpus
            .iter()
            .flat_map(|input| input.chunk_by(|one, next| is_word(one) && is_word(next)))
            .map(<[u8]>::to_vec)
            .collect();
        words.sort_unstable();
        words.dedup();
        Self { corpus, words }
    }

    pub(crate) fn corpus_len(&self) -> u64 {
        self.corpus.len() as u64
    }

    /// The corpus comes first, as it is.
    pub(crate) fn input(&self, seed: u64, number: u64) -> Vec<u8> {
        let place = usize::try_from(number).unwrap_or(usize::MAX);
        if let Some(input) = self.corpus.get(place) {
            return input.clone();
        }
        // Neighbours have nothing in common.
        let mut rng = Rng::with_seed(Rng::with_seed(seed).u64(..) ^ number);
        let mut rng = rng.fork();
        let mut input = self.of_corpus(&mut rng).to_vec();
        for _ in 0..rng.u32(1..=6) {
            self.change(&mut input, &mut rng);
        }
        input.truncate(LONGEST);
        input
    }

    fn of_corpus(&self, rng: &mut Rng) -> &[u8] {
        rng.choice(&self.corpus).map_or(&[], Vec::as_slice)
    }

    fn word(&self, rng: &mut Rng) -> Vec<u8> {
        match rng.u8(0..8) {
            0..3 => rng.choice(ODD).unwrap_or_default().as_bytes().to_vec(),
            3 => odd_character(rng),
            _ => rng.choice(&self.words).cloned().unwrap_or_default(),
        }
    }

    fn change(&self, input: &mut Vec<u8>, rng: &mut Rng) {
        let (from, to) = range(input.len(), rng);
        match rng.u8(0..10) {
            0 => {
                if let Some(byte) = input.get_mut(from) {
                    *byte ^= 1 << rng.u8(0..8);
                }
            }
            1 => {
                if let Some(byte) = input.get_mut(from) {
                    *byte = rng.u8(..);
                }
            }
            2 => drop(input.drain(from..to)),
            3 => input.truncate(from),
            4 => {
                let part = input.get(from..to).unwrap_or_default();
                let most = if rng.u8(0..32) == 0 { 4_096 } else { 8 };
                let times = rng.usize(1..=most).min(LONGEST / part.len().max(1));
                let part = part.repeat(times);
                input.splice(from..from, part);
            }
            5 | 6 => {
                input.splice(from..to, self.word(rng));
            }
            7 => {
                input.splice(from..from, self.word(rng));
            }
            8 => {
                let other = self.of_corpus(rng);
                let (begin, end) = range(other.len(), rng);
                let end = if rng.bool() { other.len() } else { end };
                let part = other.get(begin..end).unwrap_or_default().to_vec();
                input.splice(from..to, part);
            }
            _ => {
                let bytes = (0..rng.u8(1..8)).map(|_| rng.u8(..)).collect::<Vec<u8>>();
                input.splice(from..from, bytes);
            }
        }
    }
}

/// A part, more often a short one.
fn range(length: usize, rng: &mut Rng) -> (usize, usize) {
    let from = rng.usize(0..=length);
    let most = 1_usize << rng.u32(0..9);
    (from, (from + rng.usize(0..=most)).min(length))
}

fn odd_character(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = [0; 4];
    rng.char(..).encode_utf8(&mut bytes).as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_the_same_for_its_seed_and_number() {
        let mutator = Mutator::new(vec![b"{\"a\":1}".to_vec(), b"[2]".to_vec()]);
        assert_eq!(mutator.input(7, 1), b"[2]");
        let of = |seed| {
            (2..2_000)
                .map(|number| mutator.input(seed, number))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
        let mut distinct = of(7);
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() > 1_500, "{}", distinct.len());
        assert!(distinct.iter().any(|input| input.len() > 1_000));
        assert!(distinct.iter().all(|input| input.len() <= LONGEST));
    }
}
