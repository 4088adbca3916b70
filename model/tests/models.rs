//! The protocols hold within bounds, and each flaw breaks the rule that is there for it.

use model::{
    marks::{self, Marks},
    protocol::{self, Bounds, Protocol},
    story,
};

fn protocol(bounds: Bounds, flaw: Option<protocol::Flaw>) -> Protocol {
    Protocol { bounds, flaw }
}

#[test]
fn the_protocol_holds() {
    let unordered = Bounds {
        ordered: false,
        messages: 1,
        workers: 3,
        lapses: 2,
        purges: 1,
        ..Bounds::default()
    };
    for bounds in [Bounds::default(), unordered] {
        let told = story(protocol(bounds, None));
        println!("{told}");
        assert_eq!(told.broken, None, "{told}");
        assert!(told.states > 10_000, "{} states are too few", told.states);
    }
}

#[test]
fn each_flaw_of_a_store_is_found() {
    use protocol::Flaw;
    for flaw in Flaw::ALL {
        let mut bounds = Bounds::default();
        if flaw == Flaw::AcknowledgesFirst {
            // Another copy would make up for it.
            bounds.copies = 1;
        }
        let told = story(protocol(bounds, Some(flaw)));
        println!("{flaw:?}: {told}");
        let rule = told.broken.map(|(rule, _)| rule);
        let expected = match flaw {
            Flaw::NoFencing => "a stale token changes nothing",
            Flaw::LeasesByAnotherClock | Flaw::BeginTakesWhatIsLeased => {
                "one worker at a time holds a message"
            }
            Flaw::HeadMovedBeforeSettlement => "messages of a key are handled in order",
            Flaw::KeysEndWithTheirMessages => "a message is accepted once",
            Flaw::AcknowledgesFirst | Flaw::LeasesNeverLapse => "what was delivered ends",
            Flaw::RepetitionsCount => "an effect commits once",
        };
        assert_eq!(rule.as_deref(), Some(expected), "{flaw:?}");
    }
}

#[test]
fn marks_keep_the_order_of_a_key() {
    let told = story(Marks::default());
    println!("{told}");
    assert_eq!(told.broken, None, "{told}");
    assert!(told.states > 1_000, "{} states are too few", told.states);
}

#[test]
fn each_flaw_of_marks_is_found() {
    use marks::Flaw;
    for flaw in Flaw::ALL {
        let told = story(Marks {
            flaw: Some(flaw),
            ..Marks::default()
        });
        println!("{flaw:?}: {told}");
        let rule = told.broken.map(|(rule, _)| rule);
        let expected: &[&str] = match flaw {
            Flaw::MarksGoTooEarly | Flaw::MarksAreDeleted | Flaw::LaterMarksGoToo => {
                &["the key goes on"]
            }
            Flaw::ClaimsDoNotLook => &[
                "one worker at a time handles the key",
                "messages are handled in order",
            ],
        };
        assert!(
            rule.as_deref().is_some_and(|rule| expected.contains(&rule)),
            "{flaw:?}: {rule:?}"
        );
    }
}
