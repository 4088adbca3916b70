//! The one list of cases.

use crate::{
    Broker,
    case::{Case, CaseResult, Need},
    context::Context,
};

/// Makes the list, the function that runs a case by its name, and the macro, from one text, so that no case
/// is in one and not in another. `$d` is a dollar sign, which a macro cannot otherwise write into one
/// that it makes.
macro_rules! register {
    ($d:tt $($group:ident { $($name:ident ($harms:literal $(, $need:ident)*): $rule:literal,)* })*) => {
        /// Every case.
        pub static CASES: &[Case] = &[$($(
            Case {
                name: concat!(stringify!($group), "::", stringify!($name)),
                rule: $rule,
                harms: $harms,
                needs: &[$(Need::$need),*],
            },
        )*)*];

        pub(crate) async fn start<B: Broker>(name: &str, context: Context<B>) -> CaseResult {
            match name {
                $($(
                    concat!(stringify!($group), "::", stringify!($name)) => {
                        Box::pin(crate::cases::$group::$name(context)).await
                    }
                )*)*
                _ => Err(format!("there is no case {name}").into()),
            }
        }

        /// Expands to one test per case, `group::name`, on the broker that the expression makes: an
        /// async closure without arguments that returns `Result<Option<impl Broker>, Failure>`, `None`
        /// where there is no such server, which skips the test and says so.
        ///
        /// It is called once for all cases that do not harm the broker, and again for those that do, which
        /// run one after the other. A case that does not apply to the broker's abilities, or asks for a
        /// harm that is not offered, says so on standard error.
        ///
        /// Use it once per module.
        #[macro_export]
        macro_rules! cases {
            ($d make:expr) => {
                $d crate::some_cases! { $d make; $($group { $($name,)* })* }
            };
        }
    };
}

/// Some cases of the suite, as tests of the same names, where a broker is another of a kind that runs the whole: what
/// [`cases!`](crate::cases) expands to, with `group { name, }` of those that are wanted.
///
/// ```
/// use source_tests::{MemoryBroker, MemoryKind};
///
/// source_tests::some_cases! { async || Ok(Some(MemoryBroker::new(MemoryKind::Queue)));
///     acknowledging {
///         a_redelivery_is_the_same,
///     }
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! some_cases {
    ($make:expr; $($group:ident { $($name:ident,)* })*) => {
        static SOURCE_TESTS_BROKERS: $crate::Brokers = $crate::Brokers::new();

        async fn source_tests_broker()
        -> ::std::result::Result<Option<impl $crate::Broker>, $crate::Failure> {
            ($make)().await
        }

        $(
            mod $group {
                $(
                    #[test]
                    fn $name() -> ::std::result::Result<(), $crate::TestFailure> {
                        $crate::test(
                            &super::SOURCE_TESTS_BROKERS,
                            super::source_tests_broker,
                            concat!(module_path!(), "::", stringify!($name)),
                            concat!(stringify!($group), "::", stringify!($name)),
                        )
                    }
                )*
            }
        )*
    };
}

register! { $
    acknowledging {
        nothing_before_it_is_stored(false):
            "While the store has not answered nothing is acknowledged, and all of it comes again when the consumer is gone.",
        what_is_stored_and_no_more(false):
            "Of several batches those that are stored are acknowledged, and a later one that is not stored is not.",
        all_that_is_stored(false):
            "What is stored is acknowledged, and nothing of it comes again after an orderly shutdown.",
        all_at_a_shutdown_in_mid_flow(false):
            "A shutdown in the middle of a flow forgets no acknowledgement: nothing that was stored comes again.",
        what_was_stored_and_not_acknowledged_comes_again(false):
            "A consumer that is gone between the store's answer and the acknowledgement leaves duplicates only: each message is accepted once.",
        a_redelivery_is_the_same(false):
            "A message that comes again has the same id, contents and raw bytes.",
        a_redelivery_has_the_same_position(false, StablePositions):
            "A message that comes again has the same position, and no other message has it.",
        what_a_shutdown_leaves_comes_again(false):
            "What a shutdown could not store within its limit is given back and comes again.",
        what_is_held_is_not_given_to_others(false):
            "What waits for a slow store for longer than the broker waits for an acknowledgement is not given to another consumer meanwhile.",
    }
    store {
        an_outage_loses_nothing(false): "An outage of the store loses nothing, and ends by itself.",
        a_lost_answer_loses_nothing(false):
            "A store that stores and does not say so gets the messages again, which are duplicates then and acknowledged.",
        a_failure_for_good_acknowledges_nothing(false):
            "A store that fails for good ends the receiver, with nothing of the batch acknowledged.",
    }
    broker {
        a_kill_in_mid_flow(true): "A broker that is killed and started in the middle of a flow loses nothing, and the source goes on by itself.",
        a_kill_while_the_store_is_held(true):
            "A broker that is killed while deliveries wait for the store loses nothing: what was stored meanwhile comes again as duplicates, and all is acknowledged.",
        a_pause_in_mid_flow(true): "A broker that stands still and goes on loses nothing, and the source goes on by itself.",
        cuts_in_mid_batch(true): "Connections that are cut in the middle of batches lose nothing, and the source goes on by itself.",
        the_order_after_cuts(true, OrderByKey): "Connections that are cut do not change the order of a key's messages as they are accepted.",
        an_old_delivery_acknowledges_nothing_else(true):
            "Acknowledging a delivery of a former connection acknowledges nothing else.",
        a_start_before_the_broker(true): "A consumer that is started while the broker is away begins when it is back.",
        a_shutdown_while_it_stands_still(true): "A shutdown ends while the broker stands still, and loses nothing.",
    }
    poison {
        it_goes_to_dead_letters(false, DeadLetters): "What is no message goes to the broker's own dead letters, byte for byte.",
        it_goes_to_dead_letters_from_among_others(false, DeadLetters):
            "What is no message goes to the dead letters also from the middle of a batch, and the others are stored.",
        cuts_lose_none_of_it(true, DeadLetters):
            "What is no message is among the dead letters though connections are cut while it is rejected.",
        it_is_kept_with_its_bytes(false): "With `keep_rejected` what is no message is in the inbox with its bytes, once, and is acknowledged.",
        it_stops_the_receiver(false): "With `stop_at_rejected` the receiver ends at what is no message, and neither it nor what follows is lost.",
        it_does_not_hold_others_up(false): "What is rejected is finished for the broker, and what follows arrives.",
    }
    flow {
        no_more_than_may_be_unacknowledged(false): "No more deliveries are handed out than may be unacknowledged, and the rest comes when they are.",
        no_more_bytes_than_may_be_unacknowledged(false):
            "No more bytes are handed out than may be unacknowledged, but for the last delivery, and the rest comes when they are.",
        the_rest_is_for_others(false, AnyConsumer):
            "A consumer that is held up has no more of the broker's messages than it may have: another one gets the rest.",
    }
    order {
        by_key(false, OrderByKey): "With one consumer a key's messages are accepted in the order in which they were sent.",
        none_lost_while_consumers_come_and_go(false): "While consumers come and go, 1, then 4, then 2, none is lost and none is stored twice.",
        by_key_while_consumers_come_and_go(false, OrderAcrossConsumers):
            "While consumers come and go, 1, then 4, then 2, a key's messages are accepted in their order.",
    }
    mapping {
        an_id_from_a_header(false): "The id is found in a header, whatever the case of its name.",
        an_id_from_the_property(false, IdProperty): "The id is found in the broker's own property.",
        an_id_from_a_field(false): "The id is found in a field of the payload.",
        an_id_from_the_position(false, StablePositions): "The position is an id that each message has for itself.",
        an_unstable_position_is_refused(false): "A position that is not stable is refused as an id when the source is built, and a stable one is not.",
        the_kind_from_the_property(false, KindProperty): "The kind is found in the broker's own property.",
        the_key_from_the_property(false, KeyProperty): "The ordering key is found in the broker's own property.",
        headers_as_they_were_sent(false): "Headers arrive as they were sent, with the trace context, and the payload byte for byte.",
        the_content_type_and_the_time(false): "The content type arrives, and a time if there is one is about now.",
        events_in_binary_mode(false): "A CloudEvent in binary mode is the message of that event.",
        events_in_structured_mode(false): "A CloudEvent in structured mode is the message of that event.",
        a_second_sending_is_a_duplicate(false): "A message that its sender sends twice is stored once.",
    }
    hostile {
        payloads(false): "Payloads that are empty, random bytes or as large as may be arrive byte for byte.",
        headers(false): "Odd names and values of headers harm nothing, and what comes after them arrives.",
    }
    publishing {
        what_is_confirmed_arrives(false): "A publisher answers for each message of a call, and what it confirms arrives.",
        in_the_order_of_its_key(false, OrderByKey): "What a publisher sends arrives in the order of its key.",
        calls_at_once(false): "A publisher may be called many times at once.",
        a_call_dropped_at_any_moment(false): "A call of a publisher can be dropped at any await point: it answers for the next one as if there had been none.",
        one_that_is_too_large(false): "A message that the broker will never take is an error for good, and those next to it are confirmed.",
        a_destination_that_is_missing(false): "A destination that is not there is an error that may pass, and what goes elsewhere is confirmed.",
        an_outage_of_the_broker(true): "What is confirmed outlives a kill of the broker. While it is away calls fail in time, with errors that may pass, and the publisher goes on when it is back.",
        a_broker_that_stands_still(true): "While the broker stands still calls fail in time, with errors that may pass, and the publisher goes on when it does.",
        connections_that_are_cut(true): "A publisher whose connections are cut goes on, and what it confirms arrives.",
    }
    consumers {
        two_sources_in_one_process(false): "Two sources in one process have each their own messages, and one goes on when the other ends.",
        an_abandoned_wait_loses_nothing(false): "Waiting for a delivery can be abandoned at any await point: none is lost, and none comes twice.",
        a_consumer_dropped_at_any_moment(false): "A consumer can be dropped at any await point: none is lost, and none is stored twice.",
        a_name_and_a_lag(false): "A source has a name without credentials, and a lag that is plausible if it has one.",
        killed_as_processes(true): "Consumers that are killed as processes, with the broker killed meanwhile, lose nothing, store nothing twice and keep the order that the broker keeps.",
        each_effect_once(true): "From a transaction through an outbox, the broker and an inbox into another transaction, with kills of all of them, each effect happens once.",
    }
}
