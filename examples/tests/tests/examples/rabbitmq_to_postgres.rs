use std::process::Command;

use inbox::rabbitmq::{Connection, RabbitMqPublisher};
use inbox::receiver::{Envelope, Publisher as _};
use test_servers::{Kind, find_own, or_skip};

use crate::{
    databases::{numbers, postgres},
    program::Program,
    wait,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tested-rabbitmq-to-postgres");
const BOOKINGS: &str = "SELECT order_number FROM booking ORDER BY 1";

fn order(number: i64) -> Envelope {
    let mut order = Envelope::new("orders", format!(r#"{{"order": {number}}}"#));
    order.id = Some(format!("order-{number}"));
    order.kind = Some("order.placed".into());
    order
}

#[test]
fn each_order_is_booked_once() {
    let found = find_own(Kind::RabbitMq, &[]); // its queue is called as that of any other shop
    let Some(broker) = or_skip(Kind::RabbitMq, found).unwrap() else {
        return;
    };
    let Some((url, database)) = postgres("booking") else {
        return;
    };
    let start = || Program::start(Command::new(PROGRAM).args([broker.url(), &url]));
    let publisher = RabbitMqPublisher::new(Connection::from_url(broker.url()).unwrap());
    let publish = |orders: &[Envelope]| {
        let answers = wait(publisher.publish(orders));
        answers.iter().all(Result::is_ok)
    };

    let mut program = start();
    let twice: Vec<_> = (1..=200)
        .flat_map(|number| [order(number), order(number)])
        .collect();
    program.until(|| publish(&twice)); // once the program has made the queue
    program.until(|| numbers!(&database, BOOKINGS).len() >= 20);
    program.kill();
    let mut program = start();
    program.until(|| numbers!(&database, BOOKINGS).len() >= 200);
    program.until(|| publish(&[order(7), Envelope::new("orders", "no message"), order(201)]));
    program.until(|| numbers!(&database, BOOKINGS).len() >= 201);
    let report = program.stop();
    assert!(report.contains("processed"), "{report}");
    assert_eq!(numbers!(&database, BOOKINGS), (1..=201).collect::<Vec<_>>());
}
