//! The guide's code, compiled: `cargo test -p guide --doc`. A chapter with code is the documentation of
//! something here.

/// Names chapters, so that rustdoc compiles what is in them.
#[cfg(doctest)]
macro_rules! chapters {
    ($($name:ident: $file:literal,)*) => {
        $(#[doc = include_str!(concat!("../", $file))] struct $name;)*
    };
}

#[cfg(doctest)]
chapters! {
    Brokers: "brokers.md",
    ComingFrom: "coming-from.md",
    GettingStarted: "getting-started.md",
    Handlers: "handlers.md",
    Http: "http.md",
    Operations: "operations.md",
    Ordering: "ordering.md",
    Semantics: "semantics.md",
    Stores: "stores.md",
    Testing: "testing.md",
    Transactions: "transactions.md",
    Ways: "ways.md",
    WritingAStore: "writing-a-store.md",
}
