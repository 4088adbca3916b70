//! A server, and what tests ask and tell it, past the source.

use std::{
    error::Error as StdError,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use aws_sdk_sqs::{
    Client,
    types::{Message, MessageSystemAttributeName as System, QueueAttributeName as Attribute},
};
use inbox_source::{Envelope, Publisher as _};
use inbox_sqs::{Connection, SqsOptions, SqsPublisher};
use source_tests::Proxy;
use test_servers::{Kind, START_LIMIT, Server, or_skip};

pub(crate) type Failure = Box<dyn StdError + Send + Sync>;
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// How long a server that was just started may need.
const PATIENCE: Duration = START_LIMIT;
/// So long that the emulator, which may be slow, extends it in time.
pub(crate) const VISIBILITY: Duration = Duration::from_secs(8);

pub(crate) struct Sqs {
    server: Option<Mutex<Server>>,
    proxy: Option<Proxy>,
    /// Where sources connect: host, port and account.
    address: String,
    /// Where nothing is cut.
    direct: Connection,
    publisher: SqsPublisher,
    /// What was made.
    queues: Mutex<Vec<String>>,
}

impl Sqs {
    /// One that may be harmed, and whose consumers go through a proxy, to be cut off.
    pub(crate) fn own() -> Outcome<Option<Self>> {
        let found = test_servers::find_own(Kind::Elasticmq, &[]);
        let Some(server) = or_skip(Kind::Elasticmq, found)? else {
            return Ok(None);
        };
        let url = server.url();
        let direct = url.trim_start_matches("http://");
        let (host, account) = direct.split_once('/').ok_or("no account")?;
        let proxy = Proxy::listen()?;
        proxy.forward_to(host);
        let mut made = Self::at(&format!("127.0.0.1:{}/{account}", proxy.port()))?;
        made.direct = connection(direct)?;
        made.publisher = SqsPublisher::new(made.direct.clone());
        made.proxy = Some(proxy);
        made.server = Some(Mutex::new(server));
        Ok(Some(made))
    }

    /// One of another process, by its address.
    pub(crate) fn at(address: &str) -> Outcome<Self> {
        let direct = connection(address)?;
        Ok(Self {
            server: None,
            proxy: None,
            address: address.to_owned(),
            publisher: SqsPublisher::new(direct.clone()).timeout(PATIENCE),
            direct,
            queues: Mutex::default(),
        })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Past the proxy.
    pub(crate) fn direct(&self) -> &Connection {
        &self.direct
    }

    pub(crate) fn client(&self) -> &Client {
        self.direct.client()
    }

    pub(crate) fn url(&self, queue: &str) -> String {
        self.direct.queue_url(queue)
    }

    pub(crate) fn options(&self, queue: &str) -> Outcome<SqsOptions> {
        let options = SqsOptions::new(connection(&self.address)?, queue)?;
        Ok(options.visibility(VISIBILITY)?.wait(1)?)
    }

    /// A publisher whose connections are cut.
    pub(crate) fn publisher(&self) -> Outcome<SqsPublisher> {
        Ok(SqsPublisher::new(connection(&self.address)?))
    }

    pub(crate) fn cut(&self) -> Outcome {
        self.proxy.as_ref().ok_or("there is no proxy")?.cut();
        Ok(())
    }

    pub(crate) fn harm(
        &self,
        harm: impl Fn(&mut Server) -> Result<(), test_servers::Error>,
    ) -> Outcome {
        let server = self.server.as_ref().ok_or("it is another's")?;
        let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(harm(&mut server)?)
    }

    /// Makes a queue, which is a FIFO queue if its name says so, and one for its dead letters.
    pub(crate) async fn create(&self, queue: &str) -> Outcome {
        self.create_one(&dead(queue), None).await?;
        self.create_one(queue, None).await
    }

    /// `redrive`: after so many deliveries to its dead letters.
    pub(crate) async fn create_one(&self, queue: &str, redrive: Option<u32>) -> Outcome {
        let mut create = self.client().create_queue().queue_name(queue);
        if queue.ends_with(".fifo") {
            create = create.attributes(Attribute::FifoQueue, "true");
        }
        if let Some(times) = redrive {
            let target = format!("arn:aws:sqs:elasticmq:000000000000:{}", dead(queue));
            let policy =
                format!(r#"{{"deadLetterTargetArn":"{target}","maxReceiveCount":{times}}}"#);
            create = create.attributes(Attribute::RedrivePolicy, policy);
        }
        create.send().await?;
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.push(queue.to_owned());
        Ok(())
    }

    /// Kills the server. Sources do not reach the next one before it knows its queues again, which it does some time after
    /// it listens: AWS has no such time, in which queues seem to be gone for good.
    pub(crate) fn kill(&self) -> Outcome {
        self.proxy.as_ref().ok_or("there is no proxy")?.shut(true);
        self.harm(Server::kill)
    }

    pub(crate) async fn start(&self) -> Outcome {
        tokio::task::block_in_place(|| self.harm(Server::start))?;
        let queues = self
            .queues
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for queue in &queues {
            self.outstanding(queue).await?;
        }
        self.proxy.as_ref().ok_or("there is no proxy")?.shut(false);
        Ok(())
    }

    /// Tries again for a minute while the server is away.
    pub(crate) async fn publish(&self, queue: &str, messages: &[Envelope]) -> Outcome {
        let mut messages = messages.to_vec();
        for message in &mut messages {
            queue.clone_into(&mut message.address);
        }
        let deadline = Instant::now() + PATIENCE;
        while !messages.is_empty() {
            let answers = self.publisher.publish(&messages).await;
            // Order is kept: what comes after a failed one is sent again, too.
            let mut failed = answers.into_iter().enumerate();
            let failed = failed.find_map(|(place, answer)| Some((place, answer.err()?)));
            let Some((first, error)) = failed else { break };
            let is_gone = error.to_string().contains("QueueDoesNotExist");
            if !(error.is_transient() || is_gone) || Instant::now() > deadline {
                return Err(error.into());
            }
            messages.drain(..first);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// How many messages the queue has, visible, and delivered but not deleted.
    pub(crate) async fn outstanding(&self, queue: &str) -> Outcome<(u64, u64)> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.counts(queue).await {
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                counts => return counts,
            }
        }
    }

    async fn counts(&self, queue: &str) -> Outcome<(u64, u64)> {
        let (waiting, delivered) = (
            Attribute::ApproximateNumberOfMessages,
            Attribute::ApproximateNumberOfMessagesNotVisible,
        );
        let ask = self.client().get_queue_attributes();
        let ask = ask.queue_url(self.url(queue));
        let ask = ask.attribute_names(waiting.clone());
        let answer = ask.attribute_names(delivered.clone()).send().await?;
        let all = answer.attributes.ok_or("no attributes")?;
        let count = |name: &Attribute| Ok::<_, Failure>(all.get(name).ok_or("no count")?.parse()?);
        Ok((count(&waiting)?, count(&delivered)?))
    }

    pub(crate) async fn until(&self, queue: &str, wanted: (u64, u64)) -> Outcome {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let counts = self.outstanding(queue).await?;
            if counts == wanted {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("in the end there are {counts:?}, not {wanted:?}").into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// All messages of a queue that nobody else reads. They stay there and visible.
    pub(crate) async fn messages(&self, queue: &str) -> Outcome<Vec<Message>> {
        let mut all: Vec<Message> = Vec::new();
        let (waiting, _) = self.outstanding(queue).await?;
        while all.len() < usize::try_from(waiting)? {
            let receive = self.client().receive_message().queue_url(self.url(queue));
            let receive = receive.max_number_of_messages(10).visibility_timeout(60);
            let receive = receive.message_system_attribute_names(System::All);
            let answer = receive.message_attribute_names("All").send().await?;
            let came = answer.messages.unwrap_or_default();
            if came.is_empty() {
                break;
            }
            all.extend(came);
        }
        for message in &all {
            let give_back = self.client().change_message_visibility();
            let give_back = give_back.queue_url(self.url(queue)).visibility_timeout(0);
            let receipt = message.receipt_handle.clone();
            give_back.set_receipt_handle(receipt).send().await?;
        }
        Ok(all)
    }
}

/// A standard queue, all of which can be read at once.
pub(crate) fn dead(queue: &str) -> String {
    format!("{}-dead", queue.trim_end_matches(".fifo"))
}

fn connection(address: &str) -> Outcome<Connection> {
    let url = format!("sqs+http://key:secret@{address}?region=elasticmq");
    Ok(Connection::from_url(&url)?)
}
