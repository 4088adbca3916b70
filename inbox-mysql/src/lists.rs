//! Lists that travel to the server in session variables. Neither the statement that sets one nor its
//! value may be larger than one of the server's packets, so long lists are split.

use crate::{
    script::{Script, Statement, hex},
    work::Work,
};

/// What one of a list's entries takes at most: two names in hexadecimal, or two numbers, and what is
/// between them.
const NAMES: usize = 2 * (128 + 255) + 8;
const NUMBERS: usize = 48;
/// The most entries of one list.
const MOST: usize = 10_000;

impl Work {
    /// How many pairs of names fit into one list, and so how many messages may have an ordering key
    /// each.
    pub(crate) fn most_names(&self) -> usize {
        (self.most_in_packet() / NAMES).clamp(1, MOST)
    }

    /// How many pairs of numbers fit into one list.
    pub(crate) fn most_numbers(&self) -> usize {
        (self.most_in_packet() / NUMBERS).clamp(1, MOST)
    }

    /// Statements that set `variable` to pairs of a handler and something of its, one after the other.
    pub(crate) fn name_lists<'a>(
        &self,
        variable: &str,
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Vec<Statement> {
        let pairs: Vec<_> = pairs.into_iter().collect();
        let lists = pairs.chunks(self.most_names()).map(|some| {
            let mut list = format!("SET {variable} = '[");
            for (n, (handler, name)) in some.iter().enumerate() {
                list.push_str(if n == 0 { "[\"" } else { ",[\"" });
                hex(handler.as_bytes(), &mut list);
                list.push_str("\",\"");
                hex(name.as_bytes(), &mut list);
                list.push_str("\"]");
            }
            list.push_str("]'");
            Statement::new(list)
        });
        lists.collect()
    }

    /// `SET @inbox_seqs` to some of these after the other, each with these statements behind it.
    /// Answers where their first ones are.
    pub(crate) fn for_seqs(
        &self,
        script: &mut Script,
        seqs: &[i64],
        statements: &[String],
    ) -> Vec<usize> {
        let lists = seqs.chunks(self.most_numbers()).map(|some| {
            let mut set = Statement::new("SET @inbox_seqs = '[");
            for (n, seq) in some.iter().enumerate() {
                set.push(if n == 0 { "" } else { "," }).number(*seq);
            }
            set.push("]'");
            script.add(set);
            script.all(statements)
        });
        lists.collect()
    }
}
