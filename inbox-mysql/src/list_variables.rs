//! Lists that travel to the server in session variables. Neither the statement that sets one nor its
//! value may be larger than one of the server's packets, so long lists are split.

use crate::{
    context::Context,
    multi_statement::Script,
    statement::{Statement, Template, hex},
};

/// What one of a list's entries takes at most: two names in hexadecimal, or two numbers, and what is
/// between them.
const NAMES: usize = 2 * (128 + 255) + 8;
const NUMBERS: usize = 48;
/// The most entries of one list.
const MOST: usize = 10_000;

/// How many pairs of names fit into one list, and so how many messages may have an ordering key
/// each.
pub(crate) fn most_names(context: &Context) -> usize {
    (context.most_in_packet() / NAMES).clamp(1, MOST)
}

/// How many pairs of numbers fit into one list.
pub(crate) fn most_numbers(context: &Context) -> usize {
    (context.most_in_packet() / NUMBERS).clamp(1, MOST)
}

/// How many ordering keys fit into one list, with numbers of their messages.
pub(crate) fn most_heads(context: &Context) -> usize {
    (context.most_in_packet() / (NAMES + 2 * NUMBERS)).clamp(1, MOST)
}

/// Statements that set `variable` to pairs of a handler and one of its names, one after the other.
pub(crate) fn set_names<'a>(
    context: &Context,
    variable: &str,
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Vec<Statement> {
    let pairs: Vec<_> = pairs.into_iter().collect();
    let lists = pairs.chunks(most_names(context)).map(|some| {
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

/// `SET` of a session variable to a list of pairs.
pub(crate) fn set_pairs(variable: &str, pairs: impl IntoIterator<Item = (i64, i64)>) -> Statement {
    let mut set = Statement::new(format!("SET {variable} = '["));
    for (n, (one, other)) in pairs.into_iter().enumerate() {
        set.push(if n == 0 { "[" } else { ",[" }).number(one);
        set.push(",").number(other).push("]");
    }
    set.push("]'");
    set
}

/// `SET @inbox_seqs` to some of these after the other, each with the statements of a file behind it.
/// Answers where their first ones are.
pub(crate) fn add_for_seqs(
    context: &Context,
    script: &mut Script,
    seqs: &[i64],
    file: &[Template],
) -> Vec<usize> {
    let lists = seqs.chunks(most_numbers(context)).map(|some| {
        script.add(set_numbers("@inbox_seqs", some));
        script.all(file)
    });
    lists.collect()
}

/// `SET` of a session variable to a list of numbers.
pub(crate) fn set_numbers(variable: &str, numbers: &[i64]) -> Statement {
    let mut set = Statement::new(format!("SET {variable} = '["));
    for (n, number) in numbers.iter().enumerate() {
        set.push(if n == 0 { "" } else { "," }).number(*number);
    }
    set.push("]'");
    set
}
