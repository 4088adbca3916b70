//! The `inbox` command.

fn main() {}
