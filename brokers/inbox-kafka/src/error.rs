//! What errors of the client mean.

use inbox_source::SourceError;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// The error as the receiver hears it. Values of settings, which may be passwords, are left out.
pub(crate) fn source_error(doing: &str, error: &KafkaError) -> SourceError {
    let text = match error {
        KafkaError::ClientConfig(_, _, name, _) => {
            let advice = match name.as_str() {
                "security.protocol" => {
                    "; TLS needs a build with it (the feature `tls`, of the command `kafka-tls`)"
                }
                _ => "",
            };
            format!("{doing}: the property {name} does not take this value{advice}")
        }
        _ => match error.rdkafka_error_code() {
            Some(code) => of_code(doing, code),
            None => format!("{doing}: {error}"),
        },
    };
    if is_permanent(error) {
        SourceError::permanent(text)
    } else {
        SourceError::transient(text)
    }
}

/// As [`source_error`], of a record that was not written. Only what is wrong with the record or its topic's
/// name stays: other rights, another password or other settings let the same record in. A topic that is not there is
/// waited for, as the client says the same of one that is being made, or made again, and of any at a broker that has
/// just started.
pub(crate) fn unwritten(doing: &str, error: &KafkaError) -> SourceError {
    let code = error.rdkafka_error_code();
    let is_of_record = matches!(error, KafkaError::Nul(_))
        || matches!(
            code,
            Some(
                Code::InvalidRecord
                    | Code::InvalidTopic
                    | Code::MessageBatchTooLarge
                    | Code::MessageSizeTooLarge
                    | Code::UnsupportedForMessageFormat
            )
        );
    let failure = source_error(doing, error);
    match code {
        _ if is_of_record => failure,
        Some(code @ Code::TopicAuthorizationFailed) => {
            SourceError::transient(format!("{doing}: {code}; it needs WRITE on the topic"))
        }
        _ => SourceError::transient(failure.to_string()),
    }
}

/// Whether it is what a broker says of a batch, whichever of its records is the reason: one that is too large, or has no
/// key where the topic is compacted, or another time than the topic allows.
pub(crate) fn is_of_batch(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    matches!(
        code,
        Some(
            Code::InvalidRecord
                | Code::InvalidTimestamp
                | Code::MessageBatchTooLarge
                | Code::MessageSizeTooLarge
                | Code::UnsupportedForMessageFormat
        )
    )
}

/// The same of an outage, with what the client said of the last connection that failed: why no broker can be
/// reached is in that alone.
pub(crate) fn outage(error: &KafkaError, failed_connection: Option<&str>) -> SourceError {
    match (error.rdkafka_error_code(), failed_connection) {
        (Some(Code::AllBrokersDown), Some(reason)) => {
            // The client says the same of both.
            let advice = match reason.contains("certificate verify failed") {
                true => "; or the certificate is for another name",
                false => "",
            };
            SourceError::transient(format!("no broker can be reached: {reason}{advice}"))
        }
        _ => source_error("receiving", error),
    }
}

/// Whether it is of one connection.
pub(crate) fn is_of_connection(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(Code::BrokerTransportFailure | Code::Resolve | Code::SSL)
    )
}

/// Whether it is a refused certificate, or TLS that failed otherwise.
pub(crate) fn is_of_tls(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(Code::SSL)
}

fn of_code(doing: &str, code: Code) -> String {
    let advice = match code {
        Code::UnknownTopicOrPartition | Code::UnknownTopic => "; create the topic",
        Code::TopicAuthorizationFailed => "; it needs READ on the topic",
        Code::GroupAuthorizationFailed => "; it needs READ on the group",
        Code::MessageSizeTooLarge => "; see the topic's max.message.bytes",
        Code::InconsistentGroupProtocol => {
            "; the group has members that are not cooperative-sticky"
        }
        Code::AutoOffsetReset => "; no offset is committed and `start` is `error`",
        Code::FencedInstanceId => "; another consumer has the same instance name",
        _ => "",
    };
    format!("{doing}: {code}{advice}")
}

/// Whether waiting does not mend it. The client itself tries again what may pass.
pub(crate) fn is_permanent(error: &KafkaError) -> bool {
    if matches!(
        error,
        KafkaError::ClientConfig(..) | KafkaError::Nul(_) | KafkaError::MessageConsumptionFatal(_)
    ) {
        return true;
    }
    matches!(
        error.rdkafka_error_code(),
        Some(
            Code::Authentication
                | Code::AutoOffsetReset
                | Code::ClusterAuthorizationFailed
                | Code::Fatal
                | Code::FencedInstanceId
                | Code::GroupAuthorizationFailed
                | Code::InconsistentGroupProtocol
                | Code::InvalidGroupId
                | Code::InvalidRecord
                | Code::InvalidSessionTimeout
                | Code::InvalidTopic
                | Code::MessageBatchTooLarge
                | Code::MessageSizeTooLarge
                | Code::SaslAuthenticationFailed
                | Code::TopicAuthorizationFailed
                | Code::TransactionalIdAuthorizationFailed
                | Code::UnsupportedFeature
                | Code::UnsupportedForMessageFormat
                | Code::UnsupportedSASLMechanism
                | Code::UnsupportedVersion
        )
    )
}

/// Whether it ends the client, so that a new one is needed.
pub(crate) fn is_fatal(error: &KafkaError) -> bool {
    matches!(error, KafkaError::MessageConsumptionFatal(_))
        || error.rdkafka_error_code() == Some(Code::Fatal)
}

/// Whether the receiver has to hear of it. What concerns one connection of several passes unheard:
/// the client connects again, and says so when it has none left.
pub(crate) fn is_outage(error: &KafkaError) -> bool {
    is_permanent(error)
        || is_fatal(error)
        || matches!(
            error.rdkafka_error_code(),
            Some(
                Code::AllBrokersDown
                    | Code::PollExceeded
                    | Code::UnknownTopic
                    | Code::UnknownTopicOrPartition
            )
        )
}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::consumer::BaseConsumer;

    use super::*;

    #[test]
    fn no_value_of_a_setting_is_told() {
        let made: Result<BaseConsumer, _> = ClientConfig::new()
            .set("sasl.mechanisms", "s3cret")
            .set("security.protocol", "s3cret")
            .create();
        let error = source_error("connecting", &made.err().unwrap());
        assert!(!error.is_transient());
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
    }

    #[test]
    fn why_no_broker_can_be_reached_is_told() {
        let down = KafkaError::MessageConsumption(Code::AllBrokersDown);
        let told = outage(&down, Some("certificate verify failed"));
        assert!(told.is_transient());
        assert!(told.to_string().contains("certificate"), "{told}");
        let missing = KafkaError::MessageConsumption(Code::UnknownTopic);
        let told = outage(&missing, Some("certificate verify failed"));
        assert!(!told.to_string().contains("certificate"), "{told}");
    }

    #[test]
    fn one_broker_that_is_away_is_no_outage() {
        for (code, outage) in [
            (Code::AllBrokersDown, true),
            (Code::BrokerTransportFailure, false),
            (Code::Resolve, false),
            (Code::SSL, false),
        ] {
            let error = KafkaError::MessageConsumption(code);
            assert_eq!(is_outage(&error), outage, "{error}");
        }
    }

    #[test]
    fn what_waiting_mends_is_transient() {
        for (code, transient) in [
            (Code::AllBrokersDown, true),
            (Code::UnknownTopicOrPartition, true),
            (Code::SaslAuthenticationFailed, false),
            (Code::SSL, true),
            (Code::FencedInstanceId, false),
        ] {
            let error = source_error("receiving", &KafkaError::MessageConsumption(code));
            assert_eq!(error.is_transient(), transient, "{error}");
        }
    }

    #[test]
    fn only_what_is_wrong_with_a_record_makes_it_a_dead_letter() {
        for (code, transient) in [
            (Code::MessageSizeTooLarge, false),
            (Code::MessageBatchTooLarge, false),
            (Code::InvalidTopic, false),
            (Code::InvalidRecord, false),
            (Code::TopicAuthorizationFailed, true),
            (Code::ClusterAuthorizationFailed, true),
            (Code::SaslAuthenticationFailed, true),
            (Code::Authentication, true),
            (Code::MessageTimedOut, true),
            (Code::UnknownTopic, true),
            (Code::UnknownTopicOrPartition, true),
        ] {
            let error = unwritten("publishing", &KafkaError::MessageProduction(code));
            assert_eq!(error.is_transient(), transient, "{error}");
        }
        let setting = ClientConfig::new().set("acks", "s3cret").create();
        let setting: Result<BaseConsumer, _> = setting;
        assert!(unwritten("publishing", &setting.err().unwrap()).is_transient());
    }
}
