use anyhow::{Context as _, Result, ensure};
use aws_sdk_sqs::{Client, types::DeleteMessageBatchRequestEntry};
use inbox::{
    receiver::Mapping,
    sqs::{Connection, ID, SqsOptions, SqsPublisher, SqsSource},
};
use test_servers::{Kind, Server};

use super::{Broker, Hand, Taken};

/// What the service takes in one request.
const MOST: i32 = 10;

/// ElasticMQ, in memory.
pub(super) struct Sqs(Server);

impl Broker for Sqs {
    const NAME: &'static str = "SQS (ElasticMQ)";
    const FEWER: u64 = 20;
    type Publisher = SqsPublisher;
    type Source = SqsSource;
    type Hand = Queue;

    async fn start() -> Result<Self> {
        Ok(Self(super::server(Kind::Elasticmq).await?))
    }

    async fn create(&self, channel: &str) -> Result<()> {
        let connection = self.connection()?;
        let create = connection.client().create_queue().queue_name(channel);
        create.send().await?;
        Ok(())
    }

    fn publisher(&self) -> Result<SqsPublisher> {
        Ok(SqsPublisher::new(self.connection()?))
    }

    fn source(&self, channel: &str, mapping: Mapping) -> Result<SqsSource> {
        let options = SqsOptions::new(self.connection()?, channel)?;
        Ok(SqsSource::new(options, mapping)?)
    }

    async fn hand(&self, channel: &str) -> Result<Queue> {
        let connection = self.connection()?;
        Ok(Queue {
            client: connection.client().clone(),
            url: connection.queue_url(channel),
            receipts: Vec::new(),
        })
    }
}

impl Sqs {
    fn connection(&self) -> Result<Connection> {
        let address = self.0.url().trim_start_matches("http://");
        let url = format!("sqs+http://key:secret@{address}?region=elasticmq");
        Ok(Connection::from_url(&url)?)
    }
}

pub(super) struct Queue {
    client: Client,
    url: String,
    receipts: Vec<String>,
}

impl Hand for Queue {
    async fn take(&mut self, most: usize) -> Result<Vec<Taken>> {
        let most = i32::try_from(most).map_or(MOST, |most| most.min(MOST));
        let receive = self.client.receive_message().queue_url(&self.url);
        let receive = receive.max_number_of_messages(most).wait_time_seconds(1);
        let answer = receive.message_attribute_names(ID).send().await?;
        let mut taken = Vec::new();
        for message in answer.messages.unwrap_or_default() {
            let attributes = message.message_attributes.unwrap_or_default();
            let id = attributes.get(ID).and_then(|id| id.string_value.clone());
            let receipt = message.receipt_handle.context("no receipt")?;
            self.receipts.push(receipt);
            let payload = message.body.unwrap_or_default().into_bytes();
            taken.push((id.context("no id")?, payload));
        }
        Ok(taken)
    }

    async fn acknowledge(&mut self) -> Result<()> {
        if self.receipts.is_empty() {
            return Ok(());
        }
        let mut delete = self.client.delete_message_batch().queue_url(&self.url);
        for (number, receipt) in self.receipts.drain(..).enumerate() {
            let entry = DeleteMessageBatchRequestEntry::builder();
            let entry = entry.id(number.to_string()).receipt_handle(receipt);
            delete = delete.entries(entry.build()?);
        }
        let answer = delete.send().await?;
        ensure!(answer.failed.is_empty(), "{:?}", answer.failed);
        Ok(())
    }
}
