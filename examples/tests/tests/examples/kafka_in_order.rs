use std::{process::Command, time::Duration};

use inbox::kafka::{Connection, KafkaPublisher};
use inbox::receiver::{Envelope, Publisher as _};
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
};
use test_servers::{Kind, find_own, or_skip, require_or_skip};

use crate::{
    databases::{mysql, numbers},
    program::Program,
    wait,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tested-kafka-in-order");
const ACCOUNTS: i64 = 3;
const CHANGES: i64 = 60;

fn change(account: i64, cents: i64) -> Envelope {
    let body = format!(r#"{{"account": {account}, "cents": {cents}}}"#);
    let mut change = Envelope::new("accounts", body);
    change.id = Some(format!("{account}-{cents}"));
    change.kind = Some("account.changed".into());
    change.key = Some(account.to_string());
    change
}

/// Makes the topics, as an operator does.
async fn create_topics(brokers: &str) {
    let mut config = ClientConfig::new();
    let config = config.set("bootstrap.servers", brokers);
    let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
    let topics = ["accounts", "accounts.dead"];
    let topics = topics.map(|name| NewTopic::new(name, 2, TopicReplication::Fixed(1)));
    let limit = AdminOptions::new().operation_timeout(Some(Duration::from_secs(60)));
    for made in admin.create_topics(&topics, &limit).await.unwrap() {
        made.unwrap();
    }
}

#[test]
fn changes_are_applied_once_and_in_order() {
    let found = find_own(Kind::Kafka, &[]); // its topic is called as that of any other bank
    let Some(kafka) = or_skip(Kind::Kafka, found).unwrap() else {
        return;
    };
    let Some(server) = require_or_skip(Kind::Mysql).unwrap() else {
        return;
    };
    let (url, database) = mysql(&server, "ledger");
    let brokers = kafka.url().trim_start_matches("kafka://");
    let brokers = brokers.trim_end_matches('/');
    wait(create_topics(brokers));
    let start = || Program::start(Command::new(PROGRAM).args([brokers, &url]));
    let entries = || numbers!(&database, "SELECT number FROM entry");

    let mut program = start();
    let publisher = KafkaPublisher::new(Connection::new(brokers));
    let mut changes = Vec::new();
    for cents in 1..=CHANGES {
        for account in 1..=ACCOUNTS {
            changes.push(change(account, cents));
            if cents % 3 == 0 {
                changes.push(change(account, cents - 2)); // an older one once more
            }
        }
    }
    for answer in wait(publisher.publish(&changes)) {
        answer.unwrap();
    }
    program.until(|| entries().len() >= 20);
    program.kill();
    let mut program = start();
    let all = usize::try_from(ACCOUNTS * CHANGES).unwrap();
    program.until(|| entries().len() >= all);
    let report = program.stop();
    assert!(report.contains("processed"), "{report}");

    assert_eq!(entries().len(), all);
    let ledger = "SELECT cents FROM entry ORDER BY account, number";
    let in_order: Vec<i64> = (1..=ACCOUNTS).flat_map(|_| 1..=CHANGES).collect();
    assert_eq!(numbers!(&database, ledger), in_order);
    let balances = "SELECT MAX(balance) FROM entry GROUP BY account";
    let sum = (1..=CHANGES).sum::<i64>();
    assert_eq!(numbers!(&database, balances), [sum; 3]);
}
