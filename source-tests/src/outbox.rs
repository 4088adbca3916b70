//! From a transaction through an outbox, a broker and an inbox into another transaction, with kills everywhere.
//!
//! A *sender* writes orders, each with its message in one transaction, and publishes the messages; some
//! transactions it rolls back. A *recipient* receives them, and writes a charge for each in the transaction that settles
//! it. Both are processes with a SQLite file of their own, and are killed in turn, and so is the broker. In the end
//! there has to be one charge for each order, and none for what was rolled back.
//!
//! Orders and charges are messages of handlers that nobody serves, with ids that no other attempt has, so that
//! writing twice shows.
//!
//! `INBOX_CHAOS_ORDERS` (300) and `INBOX_CHAOS_OUTBOX_KILLS` (5) in the environment make the run larger.

use std::{collections::BTreeMap, io::Write as _, path::Path, sync::Arc, time::Duration};

use inbox::{
    Batches, CancellationToken, Context as HandlerContext, Filter, HandlerName, LentTransaction,
    Message, MessageId, Operate as _, OrderingKey, Page, Processor, Router, Schema as _,
    Transactional as _, in_transaction_fn, one_by_one_in_transaction_fn,
    outbox::Outbox,
    receiver::{Envelope, Publisher, Receiver, SourceError},
    sqlite::{SqliteOptions, SqliteStore, sqlx::SqliteTransaction},
};
use tokio::time::{Instant, sleep};

use crate::{
    Broker, Failure, Harm, NotOffered,
    case::CaseResult,
    chaos::number,
    context::{Context, HANDLER, ID, KEY, ensure, key, mapping, some},
    process::{self, Part},
};

const OUTBOX: &str = "outbox";
const ORDERS: &str = "orders";
const CHARGES: &str = "charges";
/// What the payload of an order that was never placed begins with.
const GHOST: &str = "ghost";
/// What a killed process has leased waits for so long.
const LEASE: Duration = Duration::from_secs(3);
/// The small form.
pub(crate) const PLACED: usize = 300;
pub(crate) const KILLS: usize = 5;
/// Without any progress for so long, a run is given up.
const STUCK: Duration = Duration::from_secs(120);

pub(crate) async fn run<B: Broker>(c: &Context<B>, channel: &str) -> CaseResult {
    let Some(address) = c.broker.address() else {
        return Err(NotOffered("the broker has no address for other processes".into()).into());
    };
    let Some(path) = c.test_path() else {
        return Err(NotOffered("it is not run as a test".into()).into());
    };
    let orders = number("INBOX_CHAOS_ORDERS", PLACED)?;
    let kills = number("INBOX_CHAOS_OUTBOX_KILLS", KILLS)?;
    let directory = tempfile::tempdir()?;
    let file = |name: &str| directory.path().join(name);
    let (shop, bank) = (open(&file("shop.db")).await?, open(&file("bank.db")).await?);
    let text = |path: &Path| path.display().to_string();
    let (of_shop, of_bank) = (text(&file("shop.db")), text(&file("bank.db")));
    let count = orders.to_string();
    let began = Instant::now();

    let sender = || process::start(path, Part::Sender, &[&address, channel, &of_shop, &count]);
    let recipient = || process::start(path, Part::Recipient, &[&address, channel, &of_bank]);
    let (mut sending, mut receiving) = (sender()?, recipient()?);
    let mut killed = 0;
    let mut progress = (0, Instant::now());
    loop {
        let charged = count_of(&bank, CHARGES).await?;
        if charged > progress.0 {
            progress = (charged, Instant::now());
        }
        let stuck = progress.1.elapsed() > STUCK;
        ensure!(
            !stuck,
            "for {STUCK:?} nothing was charged: {charged} of {orders}"
        );
        if charged >= orders && killed == kills {
            break;
        }
        if killed < kills && charged >= (killed + 1) * orders / (kills + 1) {
            // Not always at the same place of a batch.
            sleep(Duration::from_millis(fastrand::u64(..50))).await;
            match killed % 5 {
                0 | 3 => {
                    process::kill(&mut receiving).await?;
                    receiving = recipient()?;
                }
                1 | 4 => {
                    process::kill(&mut sending).await?;
                    sending = sender()?;
                }
                _ => {
                    c.harm(Harm::Kill).await?;
                    sleep(Duration::from_millis(fastrand::u64(..1000))).await;
                    c.harm(Harm::Start).await?;
                }
            }
            killed += 1;
            progress.1 = Instant::now();
        }
        sleep(Duration::from_millis(20)).await;
    }
    // What is on its way for a second time.
    c.until_done(channel).await?;
    process::finish(sending).await?;
    process::finish(receiving).await?;
    judge(&shop, &bank, orders).await?;
    let line = format!(
        "source-tests: {path}: {orders} orders, {kills} kills of senders, recipients and the broker, {:.0} s: \
         each charged once\n",
        began.elapsed().as_secs_f64()
    );
    let _ = std::io::stderr().write_all(line.as_bytes());
    Ok(())
}

async fn open(file: &Path) -> Result<SqliteStore, Failure> {
    let store = SqliteStore::connect(SqliteOptions::new(file)).await?;
    store.create().await?;
    Ok(store)
}

async fn count_of(store: &SqliteStore, handler: &str) -> Result<usize, Failure> {
    let filter = Filter {
        handler: Some(HandlerName::new(handler)?),
        ..Filter::default()
    };
    Ok(usize::try_from(store.count(&filter).await?)?)
}

/// How often each payload is there.
async fn payloads(store: &SqliteStore, handler: &str) -> Result<BTreeMap<String, usize>, Failure> {
    let filter = Filter {
        handler: Some(HandlerName::new(handler)?),
        ..Filter::default()
    };
    let mut page = Page {
        with_payload: true,
        ..Page::first(Page::MAX)
    };
    let mut payloads: BTreeMap<String, usize> = BTreeMap::new();
    loop {
        let listing = store.list(&filter, &page).await?;
        for record in listing.records {
            let payload = record.payload.unwrap_or_default();
            let text = String::from_utf8_lossy(&payload).into_owned();
            *payloads.entry(text).or_default() += 1;
        }
        let Some(next) = listing.next else {
            return Ok(payloads);
        };
        page.after = Some(next);
    }
}

/// One order for each number, one charge for each order, and nothing else.
async fn judge(shop: &SqliteStore, bank: &SqliteStore, orders: usize) -> CaseResult {
    let placed = payloads(shop, ORDERS).await?;
    let expected: BTreeMap<String, usize> = (0..orders).map(|n| (payload(n), 1)).collect();
    ensure!(
        placed == expected,
        "of {orders} orders {} are there, which is a mistake of the run",
        placed.len()
    );
    let charged = payloads(bank, CHARGES).await?;
    let lost = expected
        .keys()
        .filter(|order| !charged.contains_key(*order));
    let twice = charged.iter().filter(|(_, times)| **times > 1);
    let other = charged
        .keys()
        .filter(|order| !expected.contains_key(*order));
    ensure!(
        charged == expected,
        "never charged: {}; charged twice: {}; charged though nobody ordered it: {}",
        some(lost),
        some(twice.map(|(order, _)| order)),
        some(other)
    );
    Ok(())
}

fn payload(order: usize) -> String {
    format!("order-{order}")
}

/// A message that only this attempt writes.
fn note(handler: &str, payload: &str) -> Result<Message, Failure> {
    let id = format!("{:032x}", fastrand::u128(..));
    let payload = payload.to_owned();
    Ok(Message::new(
        HandlerName::new(handler)?,
        MessageId::new(id)?,
        inbox::Kind::new("note")?,
        payload,
    ))
}

/// In the sender's process.
pub(crate) async fn send<B: Broker>(
    address: &str,
    channel: &str,
    file: &str,
    orders: usize,
    shutdown: CancellationToken,
) -> Result<(), Failure> {
    let store = SqliteStore::connect(SqliteOptions::new(file)).await?;
    let outbox = Outbox::new(store.clone(), OUTBOX)?;
    let publisher = Through {
        broker: B::attach(address).await?,
        channel: channel.to_owned(),
    };
    let processor = Processor::builder(Arc::new(store.clone()))
        .lease(LEASE)
        .router(outbox.router(publisher))
        .build()?;
    let ordering = async {
        let mut next = count_of(&store, ORDERS).await?;
        while next < orders && !shutdown.is_cancelled() {
            if fastrand::u8(..4) == 0 {
                let ghost = format!("{GHOST}-{next}");
                place(&store, &outbox, channel, &ghost, &key(next), false).await?;
            }
            place(&store, &outbox, channel, &payload(next), &key(next), true).await?;
            next += 1;
            sleep(Duration::from_millis(5)).await;
        }
        Ok::<_, Failure>(())
    };
    let (placed, published) = tokio::join!(ordering, processor.run(shutdown.clone()));
    published?;
    placed
}

/// Writes an order and its message, or takes both back.
async fn place(
    store: &SqliteStore,
    outbox: &Outbox<SqliteStore>,
    channel: &str,
    order: &str,
    key: &str,
    commits: bool,
) -> Result<(), Failure> {
    let message = outbox
        .message(
            channel,
            MessageId::new(order)?,
            "order.placed",
            order.to_owned(),
        )?
        .with_header(ID, order)?
        .with_header(KEY, key)?
        .with_ordering_key(OrderingKey::new(key)?);
    let mut transaction = store.open().await?;
    store
        .receive_in(&mut transaction, &[note(ORDERS, order)?])
        .await?;
    outbox.send_in(&mut transaction, &[message]).await?;
    if commits {
        store.commit(transaction).await?;
    } else {
        store.roll_back(transaction).await?;
    }
    Ok(())
}

/// The broker's publisher, as its harness has it.
struct Through<B> {
    broker: B,
    channel: String,
}

impl<B: Broker> Publisher for Through<B> {
    async fn publish(&self, messages: &[Envelope]) -> Vec<Result<(), SourceError>> {
        let published = self.broker.publish(&self.channel, messages).await;
        let answer = |_| match &published {
            Ok(()) => Ok(()),
            Err(failure) => Err(SourceError::transient(failure.to_string())),
        };
        messages.iter().map(answer).collect()
    }
}

/// In the recipient's process.
pub(crate) async fn receive<B: Broker>(
    address: &str,
    channel: &str,
    file: &str,
    shutdown: CancellationToken,
) -> Result<(), Failure> {
    let store = SqliteStore::connect(SqliteOptions::new(file)).await?;
    let broker = B::attach(address).await?;
    let mut source = broker.source(channel, mapping()?)?;
    let receiver = Receiver::builder(Arc::new(store.clone()))
        .batch_size(20)
        .build();
    let bank = store.clone();
    let charge = move |mut transaction: LentTransaction<SqliteTransaction<'static>>,
                       context: HandlerContext| {
        let bank = bank.clone();
        async move {
            let order = String::from_utf8_lossy(context.message().payload()).into_owned();
            let charge = note(CHARGES, &order)?;
            bank.receive_in(&mut transaction, &[charge]).await?;
            Ok::<_, Failure>(())
        }
    };
    let router = Router::new(HANDLER);
    // Every other process shares its transactions.
    let router = if std::process::id().is_multiple_of(2) {
        let charge = one_by_one_in_transaction_fn(store.clone(), charge);
        let batches = Batches::of_one_key(20).at_once(4);
        router.fallback_batch_handler(charge).batches(batches)
    } else {
        router.fallback_handler(in_transaction_fn(store.clone(), charge))
    };
    let processor = Processor::builder(Arc::new(store))
        .lease(LEASE)
        .router(router)
        .build()?;
    let (received, processed) = tokio::join!(
        receiver.run(&mut source, shutdown.clone()),
        processor.run(shutdown.clone())
    );
    received?;
    processed?;
    Ok(())
}
