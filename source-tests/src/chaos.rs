//! Consumers as processes, killed again and again, with the broker and the database killed meanwhile.
//!
//! The case `consumers::killed_as_processes` is the small form: 3,000 messages, 6 kills of consumers
//! and one of the broker, on SQLite. The environment makes it larger:
//!
//! | environment variable | meaning | default |
//! |---|---|---|
//! | `INBOX_CHAOS_MESSAGES` | messages | 3000 |
//! | `INBOX_CHAOS_KILLS` | kills of consumers | 6 |
//! | `INBOX_CHAOS_BROKER_KILLS` | kills of the broker | a tenth of those, at least 1 |
//! | `INBOX_CHAOS_DATABASE_KILLS` | kills of the database, where it is a server | as of the broker |
//! | `INBOX_CHAOS_CONSUMERS` | consumers at a time | 3 |
//! | `INBOX_CHAOS_STORE` | `sqlite`, or with the feature `servers` `postgres`, a server of the run's own | `sqlite` |
//!
//! The run of a million messages and 200 kills, for Kafka into PostgreSQL:
//!
//! ```text
//! INBOX_CHAOS_MESSAGES=1000000 INBOX_CHAOS_KILLS=160 INBOX_CHAOS_BROKER_KILLS=20 \
//! INBOX_CHAOS_DATABASE_KILLS=20 INBOX_CHAOS_STORE=postgres \
//!     cargo test --release -p inbox-kafka --features source-tests/servers --test it -- \
//!     killed_as_processes --nocapture
//! ```
//!
//! On SQLite the database is a part of the consumers, and dies with them. A broker that forgets its order in a
//! kill ([`Abilities::order_after_a_kill`](crate::Abilities)) is not killed where order is judged.

use std::{collections::BTreeMap, io::Write as _, sync::Arc, time::Duration};

use inbox::{CancellationToken, Filter, Inbox, Page, State, receiver::Receiver};
use tokio::time::{Instant, sleep};

use crate::{
    Broker, Failure, Harm, NotOffered,
    case::CaseResult,
    context::{Context, ensure, envelope, id, key, mapping, some},
    database::Database,
    outbox,
    process::{self, Part},
};

/// Without any progress for so long, a run is given up.
const STUCK: Duration = Duration::from_secs(180);
/// The small form.
const MESSAGES: usize = 3_000;
const KILLS: usize = 6;
/// How often a run says how far it is.
const TOLD: Duration = Duration::from_secs(30);
/// Messages that are sent at a time.
const AT_ONCE: usize = 100;
/// How far the publisher is ahead of the store, at most.
const AHEAD: usize = 20_000;

/// How large a run is.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    messages: usize,
    kills: usize,
    broker_kills: usize,
    database_kills: usize,
    consumers: usize,
    store: String,
}

impl Options {
    pub(crate) fn from_env() -> Result<Self, Failure> {
        let kills = number("INBOX_CHAOS_KILLS", KILLS)?;
        let broker_kills = number("INBOX_CHAOS_BROKER_KILLS", (kills / 10).max(1))?;
        Ok(Self {
            messages: number("INBOX_CHAOS_MESSAGES", MESSAGES)?,
            kills,
            broker_kills,
            database_kills: number("INBOX_CHAOS_DATABASE_KILLS", broker_kills)?,
            consumers: number("INBOX_CHAOS_CONSUMERS", 3)?.max(1),
            store: std::env::var("INBOX_CHAOS_STORE").unwrap_or_else(|_| "sqlite".into()),
        })
    }
}

/// How many times larger than the small form the environment makes a run, at least 1.
pub(crate) fn times_larger() -> u32 {
    let small = [
        ("INBOX_CHAOS_MESSAGES", MESSAGES),
        ("INBOX_CHAOS_KILLS", KILLS),
        ("INBOX_CHAOS_ORDERS", outbox::PLACED),
        ("INBOX_CHAOS_OUTBOX_KILLS", outbox::KILLS),
    ];
    let times = small.map(|(variable, small)| number(variable, small).unwrap_or(small) / small);
    let most = times.into_iter().max().unwrap_or(1).max(1);
    u32::try_from(most).unwrap_or(u32::MAX)
}

pub(crate) fn number(variable: &str, default: usize) -> Result<usize, Failure> {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .map_err(|_| format!("{variable} is no number: {text}").into()),
        Err(_) => Ok(default),
    }
}

/// What is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Consumer,
    Broker,
    Database,
}

/// The kills in a random order.
fn victims(options: &Options, has_server: bool) -> Vec<Victim> {
    let databases = if has_server {
        options.database_kills
    } else {
        0
    };
    let mut victims = vec![Victim::Consumer; options.kills];
    victims.extend(vec![Victim::Broker; options.broker_kills]);
    victims.extend(vec![Victim::Database; databases]);
    fastrand::shuffle(&mut victims);
    victims
}

/// One run on the case's broker.
pub(crate) async fn run<B: Broker>(
    c: &Context<B>,
    channel: &str,
    mut options: Options,
) -> CaseResult {
    let Some(address) = c.broker.address() else {
        return Err(NotOffered("the broker has no address for other processes".into()).into());
    };
    let Some(path) = c.test_path() else {
        return Err(NotOffered("it is not run as a test".into()).into());
    };
    let database = Database::start(&options.store).await?;
    let inbox = inbox::connect(&database.url()).await?;
    inbox.create().await?;
    let ordered =
        c.abilities.order_across_consumers || (c.abilities.order_by_key && options.consumers == 1);
    if ordered && !c.abilities.order_after_a_kill {
        options.broker_kills = 0;
    }
    let url = database.url();
    let start = || process::start(path, Part::Consumer, &[&address, channel, &url]);
    let began = Instant::now();

    let (broker, name, all) = (Arc::clone(&c.broker), channel.to_owned(), options.messages);
    let stored = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let seen = Arc::clone(&stored);
    let mut publishing = Some(AbortOnDrop(tokio::spawn(async move {
        let mut next = 0;
        while next < all {
            if next > seen.load(std::sync::atomic::Ordering::Relaxed) + AHEAD {
                sleep(Duration::from_millis(50)).await;
                continue;
            }
            let end = (next + AT_ONCE).min(all);
            let some: Vec<_> = (next..end).map(|number| envelope(&name, number)).collect();
            broker.publish(&name, &some).await?;
            next = end;
        }
        Ok::<_, Failure>(())
    })));

    let mut children = Vec::new();
    for _ in 0..options.consumers {
        children.push(start()?);
    }
    let victims = victims(&options, database.is_server());
    let mut killed = 0;
    let mut progress = (0, Instant::now());
    let (mut told, mut last) = (Instant::now(), None);
    loop {
        if let Some(ended) = publishing.take_if(|publishing| publishing.0.is_finished()) {
            ended.finish().await?;
        }
        let counted = count(&*inbox).await;
        let count = *counted.as_ref().unwrap_or(&progress.0);
        if told.elapsed() > TOLD {
            told = Instant::now();
            let all = options.messages;
            tell(&format!(
                "{path}: {count} of {all} are stored, after {killed} kills"
            ));
        }
        stored.store(count, std::sync::atomic::Ordering::Relaxed);
        if count > progress.0 {
            progress = (count, Instant::now());
        } else if progress.1.elapsed() > STUCK {
            let all = options.messages;
            let outstanding = c.broker.outstanding(channel).await;
            return Err(format!(
                "for {STUCK:?} nothing was stored: {count} of {all}, since kill {killed}, of {last:?}; now are stored: \
                 {counted:?}, and are in the broker: {outstanding:?}"
            )
            .into());
        }
        if count >= options.messages && killed == victims.len() {
            break;
        }
        let due = (killed + 1) * options.messages / (victims.len() + 1);
        if let Some(victim) = victims.get(killed)
            && count >= due
        {
            // Not always at the same place of a batch.
            sleep(Duration::from_millis(fastrand::u64(..50))).await;
            match victim {
                Victim::Consumer => {
                    let mut child = children.swap_remove(fastrand::usize(..children.len()));
                    process::kill(&mut child).await?;
                    children.push(start()?);
                }
                Victim::Broker => {
                    c.harm(Harm::Kill).await?;
                    sleep(Duration::from_millis(fastrand::u64(..1000))).await;
                    c.harm(Harm::Start).await?;
                }
                Victim::Database => database.restart().await?,
            }
            last = Some(*victim);
            killed += 1;
            progress.1 = Instant::now();
        }
        sleep(Duration::from_millis(20)).await;
    }
    if let Some(publishing) = publishing {
        publishing.finish().await?;
    }
    c.until_done(channel).await?;
    for child in children {
        process::finish(child).await?;
    }
    judge(&*inbox, options.messages, ordered).await?;
    tell(&format!(
        "{path}: {} messages, {} kills of consumers, {} of the broker, {} of the database, {:.0} s: none lost, \
         none twice{}",
        options.messages,
        options.kills,
        options.broker_kills,
        victims.len() - options.kills - options.broker_kills,
        began.elapsed().as_secs_f64(),
        if ordered { ", in order by key" } else { "" },
    ));
    Ok(())
}

/// Straight to the stream, past the capture of what tests print.
fn tell(line: &str) {
    let _ = std::io::stderr().write_all(format!("source-tests: {line}\n").as_bytes());
}

struct AbortOnDrop(tokio::task::JoinHandle<Result<(), Failure>>);

impl AbortOnDrop {
    async fn finish(mut self) -> Result<(), Failure> {
        (&mut self.0).await?
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How many are stored: nobody works on them.
async fn count(inbox: &dyn Inbox) -> Result<usize, Failure> {
    let statistics = inbox.statistics().await?;
    Ok(usize::try_from(statistics.count(State::Pending))?)
}

/// In a consumer's process.
pub(crate) async fn consume<B: Broker>(
    address: &str,
    channel: &str,
    store: &str,
    shutdown: CancellationToken,
) -> Result<(), Failure> {
    let broker = B::attach(address).await?;
    let mut source = broker.source(channel, mapping()?)?;
    let inbox = inbox::connect(store).await?;
    let receiver = Receiver::builder(inbox).batch_size(50).build();
    receiver.run(&mut source, shutdown).await?;
    Ok(())
}

/// That each message is in the store, once, and in its key's order.
async fn judge(inbox: &dyn Inbox, messages: usize, ordered: bool) -> CaseResult {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    let mut last: BTreeMap<String, usize> = BTreeMap::new();
    let mut page = Page {
        with_payload: true,
        ..Page::first(Page::MAX)
    };
    loop {
        let listing = inbox.list(&Filter::default(), &page).await?;
        ensure!(
            listing.corrupt.is_empty(),
            "rows are corrupt: {:?}",
            listing.corrupt
        );
        for record in listing.records {
            let payload = record.payload.unwrap_or_default();
            let sent: serde_json::Value = serde_json::from_slice(&payload)?;
            let number = sent.get("number").and_then(serde_json::Value::as_u64);
            let number = usize::try_from(number.ok_or("a payload has no number")?)?;
            *found.entry(id(number)).or_default() += 1;
            let before = last.insert(key(number), number);
            ensure!(
                !ordered || before.is_none_or(|before| before < number),
                "of the key {}, {number} was accepted after {before:?}",
                key(number)
            );
        }
        let Some(next) = listing.next else {
            break;
        };
        page.after = Some(next);
    }
    let lost: Vec<String> = (0..messages)
        .map(id)
        .filter(|id| !found.contains_key(id))
        .collect();
    let twice = found
        .iter()
        .filter(|(_, count)| **count > 1)
        .map(|(id, _)| id);
    let twice = some(twice);
    ensure!(
        lost.is_empty() && found.values().all(|count| *count == 1) && found.len() == messages,
        "of {messages} messages lost: {}; stored twice: {twice}",
        some(&lost)
    );
    Ok(())
}
