//! The commands that the store sends, written down, with the concerns that it asks for: no checks
//! of what is sent, and no more read of what comes back than the next command needs.

use anyhow::{Context as _, Result, ensure};
use inbox::{
    Message,
    mongo::mongodb::{
        Client, Collection, Database,
        bson::{
            Bson, Document, RawDocumentBuf, cstr, doc, oid::ObjectId, raw::RawBinaryRef,
            spec::BinarySubtype,
        },
        options::{Acknowledgment, Hint, ReadConcern, ReturnDocument, WriteConcern},
    },
};

use super::HANDLER;

const MESSAGES: &str = "inbox_message";
const LEASE_MICROS: i64 = 3_600_000_000;

/// On an inbox that the store has set up.
pub(crate) struct Caller {
    database: Database,
    messages: Collection<RawDocumentBuf>,
    meta: Collection<Document>,
    batch: u32,
}

/// A message under a lease.
struct Held {
    id: String,
    token: i64,
}

fn durable() -> WriteConcern {
    let mut concern = WriteConcern::builder().w(Acknowledgment::Majority).build();
    concern.journal = Some(true);
    concern
}

/// The server's time in microseconds.
fn now() -> Document {
    doc! { "$multiply": [{ "$toLong": "$$NOW" }, 1000_i64] }
}

impl Caller {
    pub(super) fn new(client: &Client, database: &str, batch: u32) -> Self {
        let database = client.database(database);
        Self {
            messages: database.collection(MESSAGES),
            meta: database.collection("inbox_meta"),
            database,
            batch,
        }
    }

    async fn find_all(&self, pipeline: Vec<Document>, index: &str) -> Result<Vec<RawDocumentBuf>> {
        let mut cursor = self
            .messages
            .aggregate(pipeline)
            .hint(Hint::Name(index.into()))
            .batch_size(self.batch + 1)
            .read_concern(ReadConcern::majority())
            .await?;
        let mut found = Vec::new();
        while cursor.advance().await? {
            found.push(cursor.current().to_owned());
        }
        Ok(found)
    }

    async fn update(&self, filter: Document, pipeline: Vec<Document>) -> Result<()> {
        let command = doc! {
            "update": MESSAGES,
            "updates": [{ "q": filter, "u": pipeline, "multi": true }],
            "ordered": true,
            "writeConcern": { "w": "majority", "j": true },
        };
        let reply = self.database.run_command(command).await?;
        ensure!(!reply.contains_key("writeErrors"));
        Ok(())
    }

    async fn claim(&self) -> Result<Vec<Held>> {
        let candidates = self
            .find_all(
                vec![
                    doc! { "$match": { "handler": HANDLER, "lane": { "$gt": 0 } } },
                    doc! { "$sort": { "visibleAt": 1, "seq": 1 } },
                    doc! { "$limit": i64::from(self.batch) },
                    doc! { "$project": {
                        "seq": 1, "visibleAt": 1, "lane": 1, "mark": 1, "now": now(),
                    } },
                ],
                "claim",
            )
            .await?;
        let Some(first) = candidates.first() else {
            return Ok(Vec::new());
        };
        let now_read = first.get_i64(cstr!("now"))?;
        let ids: Result<Vec<&str>> = candidates
            .iter()
            .map(|found| Ok(found.get_str(cstr!("_id"))?))
            .collect();
        let ids = ids?;
        let claim = ObjectId::new();
        let chosen = doc! { "_id": { "$in": &ids }, "handler": HANDLER };
        let mut filter = chosen.clone();
        filter.extend(doc! {
            "lane": 1,
            "state": { "$in": [0, 1] },
            "visibleAt": { "$lte": now_read },
        });
        let pipeline = vec![doc! { "$set": {
            "state": 1,
            "renewed": { "$eq": ["$state", 1] },
            "token": { "$max": [{ "$add": ["$token", 1_i64] }, now()] },
            "started": { "$add": ["$started", 1_i64] },
            "worker": { "$literal": "worker-1" },
            "claim": claim,
            "visibleAt": { "$add": [now(), LEASE_MICROS] },
        } }];
        self.update(filter, pipeline).await?;
        let mut won = chosen;
        won.insert("claim", claim);
        self.find_all(vec![doc! { "$match": won }], "_id_")
            .await?
            .iter()
            .map(|won| {
                Ok(Held {
                    id: won.get_str(cstr!("_id"))?.to_owned(),
                    token: won.get_i64(cstr!("token"))?,
                })
            })
            .collect()
    }

    /// Of one claim, so that all have one token.
    async fn settle(&self, held: &[Held]) -> Result<()> {
        let first = held.first().context("nothing was won")?;
        let ids: Vec<&str> = held.iter().map(|held| held.id.as_str()).collect();
        let ordered = |then: Bson, otherwise: Bson| {
            doc! { "$cond": [{ "$gt": ["$orderingKey", null] }, then, otherwise] }
        };
        let filter = doc! {
            "_id": { "$in": ids }, "handler": HANDLER, "token": first.token, "state": 1,
        };
        let pipeline = vec![doc! { "$set": {
            "state": 2,
            "finishedAt": now(),
            "visibleAt": ordered(now().into(), now().into()),
            "lane": ordered(2.into(), "$$REMOVE".into()),
            "finished": { "$add": ["$finished", 1_i64] },
            "open": "$$REMOVE",
            "mark": ordered(ObjectId::new().into(), "$$REMOVE".into()),
        } }];
        self.update(filter, pipeline).await
    }
}

impl super::Caller for Caller {
    async fn receive(&mut self, messages: &[Message]) -> Result<()> {
        let number = i64::try_from(messages.len())?;
        let drawn = self
            .meta
            .find_one_and_update(
                doc! { "_id": "sequence" },
                vec![doc! { "$set": { "last": { "$add": ["$last", number] }, "now": now() } }],
            )
            .return_document(ReturnDocument::After)
            .write_concern(durable())
            .await?
            .context("no sequence")?;
        let (last, now) = (drawn.get_i64("last")?, drawn.get_i64("now")?);
        let documents: Vec<RawDocumentBuf> = (last - number + 1..)
            .zip(messages)
            .map(|(seq, message)| document(message, seq, now))
            .collect();
        let inserted = self
            .messages
            .insert_many(&documents)
            .ordered(false)
            .write_concern(durable())
            .await?;
        ensure!(inserted.inserted_ids.len() == messages.len());
        Ok(())
    }

    async fn drain(&mut self) -> Result<u64> {
        let mut drained = 0;
        loop {
            let held = self.claim().await?;
            if held.is_empty() {
                return Ok(drained);
            }
            self.settle(&held).await?;
            drained += held.len() as u64;
        }
    }
}

/// The document that the store makes of a message without ordering key.
fn document(message: &Message, seq: i64, now: i64) -> RawDocumentBuf {
    let mut document = RawDocumentBuf::new();
    let id = format!("{HANDLER}\u{1f}{}", message.id());
    document.append(cstr!("_id"), id.as_str());
    document.append(cstr!("seq"), seq);
    document.append(cstr!("handler"), HANDLER);
    document.append(cstr!("id"), message.id().as_str());
    document.append(cstr!("kind"), message.kind().as_str());
    document.append(cstr!("headers"), "{}");
    document.append(cstr!("acceptedAt"), now);
    document.append(cstr!("dueAt"), now);
    document.append(cstr!("replays"), 0);
    document.append(cstr!("state"), 0);
    document.append(cstr!("visibleAt"), now);
    document.append(cstr!("token"), 0_i64);
    document.append(cstr!("started"), 0);
    document.append(cstr!("finished"), 0);
    document.append(cstr!("lane"), 1);
    document.append(cstr!("payloadBytes"), message.payload().len() as i64);
    document.append(
        cstr!("payload"),
        RawBinaryRef {
            subtype: BinarySubtype::Generic,
            bytes: message.payload(),
        },
    );
    document
}
