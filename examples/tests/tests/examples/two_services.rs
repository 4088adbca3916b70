use std::{process::Command, thread};

use crate::{
    databases::{numbers, postgres, redis},
    program::{Address, Program},
    until,
};

const SHOP: &str = env!("CARGO_BIN_EXE_tested-shop");
const FULFILMENT: &str = env!("CARGO_BIN_EXE_tested-fulfilment");
const ORDERS: i64 = 80;
const SOLD: &str = "SELECT item::bigint FROM shop_order ORDER BY 1";
const NUMBERS: &str = "SELECT number FROM shop_order ORDER BY 1";
const SHIPPED: &str = "SELECT order_number FROM shipment ORDER BY 1";
const INVOICED: &str = "SELECT order_number FROM invoice ORDER BY 1";

/// Orders until it is answered, as a client does.
fn order(address: &Address, item: i64) {
    let body = format!(r#"{{"item": "{item}"}}"#);
    let key = format!("\"order-{item}\"");
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", &key),
    ];
    until(|| match address.post("/orders", &headers, &body) {
        Ok((201, _)) => true,
        Ok((409 | 500.., _)) | Err(_) => false,
        Ok((_, answer)) => panic!("{answer}"),
    });
}

#[test]
fn each_order_is_sold_shipped_and_invoiced_once() {
    let (Some(redis), Some((shop_url, shop))) = (redis(1), postgres("shop")) else {
        return;
    };
    let Some((fulfilment_url, fulfilment)) = postgres("fulfilment") else {
        return;
    };
    let address = Address::default();
    let start_shop = || {
        let mut command = Command::new(SHOP);
        let command = command.args(["127.0.0.1:0", &shop_url, &redis]);
        Program::serving(command, &address)
    };
    let start_fulfilment =
        || Program::start(Command::new(FULFILMENT).args([&fulfilment_url, &redis]));

    let (mut shop_runs, mut fulfilment_runs) = (start_shop(), start_fulfilment());
    let (shop_runs, mut fulfilment_runs) = thread::scope(|scope| {
        for client in 0..4 {
            let address = &address;
            scope.spawn(move || {
                for item in (1..=ORDERS).filter(|item| item % 4 == client) {
                    order(address, item);
                    order(address, item); // the answer may have got lost
                }
            });
        }
        shop_runs.until(|| numbers!(&shop, SOLD).len() >= 20);
        shop_runs.kill();
        let shop_runs = start_shop();
        fulfilment_runs.until(|| numbers!(&fulfilment, SHIPPED).len() >= 20);
        fulfilment_runs.kill();
        (shop_runs, start_fulfilment())
    });
    let all: Vec<i64> = (1..=ORDERS).collect();
    assert_eq!(numbers!(&shop, SOLD), all);
    let numbers_sold = numbers!(&shop, NUMBERS);
    fulfilment_runs.until(|| {
        let follow = [SHIPPED, INVOICED].map(|query| numbers!(&fulfilment, query).len());
        follow.iter().all(|rows| *rows >= all.len())
    });
    shop_runs.stop();
    fulfilment_runs.stop();
    assert_eq!(numbers!(&fulfilment, SHIPPED), numbers_sold);
    assert_eq!(numbers!(&fulfilment, INVOICED), numbers_sold);
}
