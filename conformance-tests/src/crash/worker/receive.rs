//! The receiver: sends ranges of messages that overlap with those of all other receivers and with
//! its own, so that most of what it sends is a duplicate. Some it handles at once, as an inline consumer does.

use std::{io, time::Duration};

use inbox_api::{Begun, LeaseTerms, Message, Receipt, Result as StoreResult};

use super::{LEASES, Worker, handlers, pause_after, process, worker_name};
use crate::{
    crash::{
        history::{Answered, Asked, sent},
        options::Mode,
        point::Point,
        traffic::messages,
    },
    needs::BoxError,
};

/// So many messages at a time may be handled at once, one after the other.
const INLINE: u64 = 3;

pub(super) async fn run(
    worker: &Worker,
    mut random: fastrand::Rng,
    first: u64,
) -> Result<(), BoxError> {
    let handlers = handlers()?;
    let largest = u64::from(worker.batch);
    let mut next = first;
    while !worker.finishing() {
        let size = if random.u8(..4) == 0 {
            1
        } else {
            random.u64(2..=largest)
        };
        let hold = worker.holding();
        let lowest = worker.lowest();
        next = next.max(lowest);
        let start = if hold || random.u8(..3) == 0 {
            next.saturating_sub(random.u64(1..=4 * largest)).max(lowest)
        } else {
            next
        };
        let end = if hold {
            (start + size).min(next)
        } else {
            start + size
        };
        let mut batch = Vec::new();
        for number in start..end {
            batch.extend(messages(number, &handlers)?);
        }
        if batch.is_empty() {
            // There is nothing new to be sent, and what is old may be purged soon.
            tokio::time::sleep(Duration::from_millis(40)).await;
            continue;
        }
        if size <= INLINE && random.bool() {
            for message in &batch {
                inline(worker, &mut random, message).await?;
            }
            next = next.max(end);
            continue;
        }
        // A copy within the batch.
        if random.u8(..4) == 0 {
            batch.extend(batch.first().cloned());
        }
        worker.pass(Point::BeforeReceive)?;
        match receive(worker, &batch, random.u8(..4) == 0).await? {
            Ok(_) => next = next.max(end),
            // Unknown: sending it again is what a broker does.
            Err(error) => pause_after(&error).await,
        }
        let pause = if hold { 40 } else { random.u64(..12) };
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    Ok(())
}

/// Begins the message, and handles it if it may run. Otherwise another delivery will come, or a processor claims it.
async fn inline(
    worker: &Worker,
    random: &mut fastrand::Rng,
    message: &Message,
) -> Result<(), BoxError> {
    let length = Duration::from_millis(random.u64(LEASES));
    let name = worker_name()?;
    let terms = LeaseTerms::new(length, name)?;
    let asked = Asked::Begin {
        message: sent(message),
        length: process::micros(length),
    };
    let points = [Point::DuringBegin, Point::AfterBegin];
    let begin = worker.opened.inbox.begin(message, &terms);
    match worker.call(asked, points, begin, Answered::begun).await? {
        Ok(Begun::Run(leased)) => process::work(worker, random, vec![*leased], length).await,
        Ok(_) => Ok(()),
        Err(error) => {
            pause_after(&error).await;
            Ok(())
        }
    }
}

async fn receive(
    worker: &Worker,
    batch: &[Message],
    in_transaction: bool,
) -> io::Result<StoreResult<Vec<Receipt>>> {
    let transactions = worker
        .opened
        .transactions
        .as_ref()
        .filter(|_| in_transaction && worker.mode == Mode::Transactional);
    let asked = Asked::Receive {
        messages: batch.iter().map(sent).collect(),
        transaction: transactions.is_some(),
    };
    let call = async {
        let Some(transactions) = transactions else {
            return worker.opened.inbox.receive(batch).await;
        };
        let mut transaction = transactions.open().await?;
        let receipts = transaction.receive(batch).await?;
        transaction.commit().await?;
        Ok(receipts)
    };
    let points = [Point::DuringReceive, Point::AfterReceive];
    worker
        .call(asked, points, call, |receipts| Answered::receipts(receipts))
        .await
}
