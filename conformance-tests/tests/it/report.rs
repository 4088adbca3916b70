//! What a user of the suite reads: a store that fails, one that panics, and what was not checked.

use std::sync::Arc;

use async_trait::async_trait;
use conformance_tests::{
    Fixture, Fresh, Harness, Need, Offered, Ready, Settings, Unable, Verdict, run, test,
};
use inbox_memory::MemoryStore;

/// A harness that overlooks the settings, so that its store keeps no limit.
fn unlimited() -> Ready {
    Ready::new("acme", |_| async { Ok(Fresh::new(MemoryStore::new())) })
}

/// Times differ from run to run.
fn without_seconds(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let cut = line
            .rfind(' ')
            .filter(|_| line.ends_with(|c: char| c.is_ascii_digit()));
        match cut {
            Some(cut) if line[cut..].contains('.') => line[..cut].trim_end(),
            _ => line,
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_failures_read_well() {
    let report = run(Arc::new(unlimited()), "hostile::an_").await;
    assert!(!report.is_clean());
    assert_eq!(
        (report.passed, report.failed, report.not_checked),
        (2, 3, 0)
    );
    assert_eq!(
        without_seconds(&report.to_string()),
        "\
Conformance of acme

  group          passed  failed  not checked  seconds
  hostile             2       3            0
  total               2       3            0

Failed
  hostile::an_oversized_message_is_refused_alone
    rule: A message that breaks a rule is refused alone; the rest of its batch goes through.
    seen: receipts: expected [Accepted, Refused(TooLarge { what: \"payload\", bytes: 2000, limit: \
         1000 }), Accepted], saw [Accepted, Accepted, Accepted]
  hostile::an_oversized_result_is_refused_and_the_lease_stands
    rule: A result over the limit is refused and the lease stands.
    seen: settling with a result over the limit: expected Refused(TooLarge { what: \"result\", \
         bytes: 1001, limit: 1000 }), saw Done
  hostile::an_oversized_message_cannot_begin
    rule: begin fails as invalid for a message over the limit, and stores nothing.
    seen: begin with an oversized payload: expected an error, saw an answer

acme: does not conform."
    );
}

/// What was asked for is not the whole suite.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filtered_run_does_not_conform() {
    let report = run(Arc::new(unlimited()), "identity::case_distinguishes").await;
    assert!(report.is_clean() && !report.is_conformant());
    let verdict = "acme: passes what was asked for, which is not the whole suite.";
    assert!(report.to_string().ends_with(verdict), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_junit_has_every_case() {
    let report = run(Arc::new(unlimited()), "hostile::an_").await;
    let junit = report.to_junit();
    for part in [
        r#"<testsuites name="acme" tests="5" skipped="0" failures="3" errors="0""#,
        r#"<testsuite name="hostile" tests="5" skipped="0" errors="0" failures="3""#,
        r#"<testcase name="an_empty_payload_is_a_payload" classname="hostile" time="#,
        "A result over the limit is refused and the lease stands.",
        "expected an error, saw an answer",
    ] {
        assert!(junit.contains(part), "{part}: {junit}");
    }
}

/// What was not checked is skipped if that was declared, and fails otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_junit_tells_what_was_declared() {
    let odd = Odd(|| Unable::NotOffered(Need::Clock));
    let declared = run(Arc::new(odd), ID).await.to_junit();
    assert!(
        declared.contains("<skipped message=\"not checked: the "),
        "{declared}"
    );
    let odd = Odd(|| Unable::NotOffered(Need::Outage));
    let undeclared = run(Arc::new(odd), ID).await.to_junit();
    assert!(
        undeclared.contains("<failure message=\"not checked: the "),
        "{undeclared}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_json_has_every_case() {
    let report = run(Arc::new(unlimited()), "hostile::an_").await;
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["store"], "acme");
    assert_eq!(json["failed"], 3);
    let cases = json["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 5);
    assert_eq!(cases[0]["name"], "an_empty_payload_is_a_payload");
    assert_eq!(cases[0]["verdict"], "passed");
    assert_eq!(cases[2]["verdict"], "failed");
    assert!(cases[2]["seen"].as_str().unwrap().contains("expected"));
}

/// Fails in the way it is told to.
struct Odd(fn() -> Unable);

#[async_trait]
impl Harness for Odd {
    fn name(&self) -> String {
        "odd".into()
    }

    async fn fresh(&self, _: &Settings) -> Offered<Box<dyn Fixture>> {
        Err((self.0)())
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        vec![Need::Clock]
    }
}

const ID: &str = "identity::case_distinguishes";

fn seen(verdict: &Verdict) -> &str {
    match verdict {
        Verdict::Failed { seen } => seen,
        other => panic!("expected a failure, saw {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_fails_its_case_and_no_other() {
    let report = run(Arc::new(Odd(|| panic!("the store exploded"))), "identity::").await;
    assert_eq!(report.failed, report.cases.len());
    assert_eq!(
        seen(&report.cases[0].verdict),
        "it panicked: the store exploded"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_harness_that_fails_is_no_excuse() {
    let report = run(Arc::new(Odd(|| Unable::failed("no server"))), ID).await;
    assert_eq!(
        seen(&report.cases[0].verdict),
        "the harness failed: no server"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_checked_is_not_conformant() {
    let declared = run(Arc::new(Odd(|| Unable::NotOffered(Need::Clock))), ID).await;
    assert_eq!((declared.passed, declared.not_checked), (0, 1));
    assert!(!declared.is_clean());
    assert_eq!(declared.undeclared().count(), 0);
    let undeclared = run(Arc::new(Odd(|| Unable::NotOffered(Need::Outage))), ID).await;
    assert_eq!(undeclared.undeclared().count(), 1);
    assert!(undeclared.to_string().contains("(not declared)"));
}

#[test]
fn a_generated_test_fails_unless_the_lack_is_declared() {
    assert!(test(Odd(|| Unable::NotOffered(Need::Clock)), ID).is_ok());
    let failure = test(Odd(|| Unable::NotOffered(Need::Outage)), ID).unwrap_err();
    assert!(format!("{failure:?}").contains("Need::Outage"));
    assert!(test(Odd(|| Unable::failed("no server")), ID).is_err());
    assert!(test(Odd(|| Unable::failed("")), "no::such_case").is_err());
}
