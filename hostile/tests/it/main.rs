//! Every target takes its corpus and a few inputs, and what the instrument is for is found.

#![allow(clippy::unwrap_used, clippy::panic)]

use hostile::{Broken, Finding, Plan, Target, check, hold_for, targets};

const PLAN: Plan = Plan {
    seed: 3,
    from: 0,
    inputs: 20_000,
    trace: false,
};

fn found(target: &Target) -> Finding {
    *check(target, PLAN).unwrap_err()
}

/// As short as it gets, and the same once more.
fn is_short(target: &Target, found: &Finding, input: &[u8]) {
    assert_eq!(found.input, input, "{found}");
    let again = Plan {
        from: found.number,
        inputs: 1,
        ..PLAN
    };
    assert_eq!(check(target, again).unwrap_err().input, input);
}

#[test]
fn a_panic_is_found() {
    let target = Target::new("panics", "hello world\n12345", |input| {
        assert!(!input.windows(2).any(|pair| pair == b"o5"), "as asked");
        Ok(())
    });
    let found = found(&target);
    assert!(
        matches!(&found.broken, Broken::Panic(said) if said.ends_with("as asked")),
        "{found}"
    );
    assert!(
        found
            .to_string()
            .starts_with("panics: panicked at hostile/tests/it/main.rs")
    );
    is_short(&target, &found, b"o5");
}

#[test]
fn a_panic_that_is_caught_on_the_way_is_found() {
    let target = Target::new("catches", "hello", |input| {
        let _ = std::panic::catch_unwind(|| assert!(!input.contains(&b'!'), "as asked"));
        Ok(())
    });
    is_short(&target, &found(&target), b"!");
}

#[test]
fn memory_beyond_the_limit_is_found() {
    let target = Target::new("allocates", "length 5\nlength 0", |input| {
        let digits = input.iter().filter(|byte| byte.is_ascii_digit());
        let wanted = digits.fold(0_usize, |all, digit| {
            all.saturating_mul(10)
                .saturating_add(usize::from(digit - b'0'))
        });
        drop(std::hint::black_box(Vec::<u8>::with_capacity(
            wanted.min(1 << 30),
        )));
        Ok(())
    });
    let found = found(&target);
    let Broken::Memory { held, allowed } = found.broken else {
        panic!("{found}");
    };
    assert!(held > allowed && allowed < 32 * 1024, "{found}");
    // Five digits are enough.
    assert_eq!(found.input.len(), 5, "{found}");
}

#[test]
fn memory_within_the_limit_is_not_found() {
    let target = Target::new("copies", "hello world", |input| {
        let copies: Vec<Vec<u8>> = (0..8).map(|_| input.to_vec()).collect();
        drop(std::hint::black_box(copies));
        Ok(())
    });
    let summary = check(&target, PLAN).unwrap();
    assert_eq!(summary.inputs, PLAN.inputs);
    assert!(summary.most_held > 10_000, "{summary:?}");
    assert!(summary.most_of_allowed < 1.0, "{summary:?}");
}

#[test]
fn a_rule_that_is_broken_is_found() {
    let target = Target::new("breaks", "a=1&b=2", |input| {
        let equals = input.iter().filter(|byte| **byte == b'=').count();
        if equals > 3 {
            return Err(format!("more than three\n{equals}"));
        }
        Ok(())
    });
    is_short(&target, &found(&target), b"====");
}

/// How many inputs a target gets: fewer where each opens a file.
fn inputs(name: &str) -> u64 {
    match name {
        "sqlite-rows" => 50,
        "sqlite-file" => 200,
        "dashboard" => 500,
        _ => 2_000,
    }
}

/// A test for each target, so that they run side by side.
macro_rules! targets_hold {
    ($($test:ident: $name:literal),* $(,)?) => {
        $(#[test]
        fn $test() {
            hold_for(&targets::of($name).unwrap(), inputs($name));
        })*

        #[test]
        fn every_target_has_its_test() {
            assert_eq!(targets::NAMES, [$($name),*]);
        }
    };
}

targets_hold! {
    cloudevents_structured: "cloudevents-structured",
    cloudevents_batched: "cloudevents-batched",
    cloudevents_headers: "cloudevents-headers",
    fields: "fields",
    mapping: "mapping",
    payloads: "payloads",
    names: "names",
    headers: "headers",
    histories: "histories",
    urls: "urls",
    broker_urls: "broker-urls",
    webhooks: "webhooks",
    idempotency: "idempotency",
    api: "api",
    dashboard: "dashboard",
    sqlite_rows: "sqlite-rows",
    sqlite_file: "sqlite-file",
}
