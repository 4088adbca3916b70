//! Arguments and values of any bytes.

use hostile::{SECRET, Target, has_secret, hold, hold_for};

use crate::{
    args::{self, Cli},
    commands::process,
    retention, store,
};

#[test]
fn arguments_of_any_bytes_are_taken_or_refused() {
    use clap::Parser as _;
    let corpus = include_str!("../../hostile/corpus/arguments.txt");
    // The description of all commands is made again for each.
    let target = Target::new("arguments", corpus, |input| {
        let words = String::from_utf8_lossy(input);
        let words = words.split([' ', '\n']);
        match Cli::try_parse_from(std::iter::once("inbox").chain(words)) {
            Ok(cli) => drop(format!("{cli:?}")),
            Err(error) => drop(error.to_string()),
        }
        Ok(())
    });
    hold_for(&target.limit(1024, 4 * 1024 * 1024), 400);
}

#[test]
fn values_of_any_bytes_are_taken_or_refused() {
    let corpus = include_str!("../../hostile/corpus/values.txt");
    hold(&Target::new("values", corpus, |input| {
        let text = &*String::from_utf8_lossy(input);
        let _ = (
            args::duration(text),
            args::lease(text),
            retention::keep(text),
        );
        let _ = process::time_limit(text);
        Ok(())
    }));
}

#[test]
fn what_is_told_of_a_url_has_no_password() {
    let corpus = include_str!("../../hostile/corpus/urls.txt");
    hold(&Target::new("told-urls", corpus, |input| {
        let url = &*String::from_utf8_lossy(input);
        let told = store::without_password(url);
        // A path has no password.
        let is_file = url.starts_with("sqlite:");
        if !is_file && has_secret(url, false) && told.contains(SECRET) {
            return Err(format!("what is told of a URL has the password\n{told}"));
        }
        Ok(())
    }));
}
