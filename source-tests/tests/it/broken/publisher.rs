//! What a publisher may do wrong.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use inbox::receiver::{Envelope, Publisher, SourceError};
use source_tests::MemoryPublisher;

use super::{Dead, Defect};

pub(super) struct BrokenPublisher {
    publisher: Arc<MemoryPublisher>,
    defect: Defect,
    dead: Arc<Dead>,
    is_called: AtomicBool,
    /// Answers of calls that were dropped.
    left: Mutex<Vec<Answer>>,
}

type Answer = Result<(), SourceError>;

impl BrokenPublisher {
    pub(super) fn new(publisher: MemoryPublisher, defect: Defect, dead: Arc<Dead>) -> Self {
        Self {
            publisher: Arc::new(publisher),
            defect,
            dead,
            is_called: AtomicBool::default(),
            left: Mutex::default(),
        }
    }
}

impl Publisher for BrokenPublisher {
    async fn publish(&self, messages: &[Envelope]) -> Vec<Answer> {
        let transient = || Err(SourceError::transient("not now"));
        match self.defect {
            Defect::ConfirmsAtOnce => {
                let (publisher, all) = (Arc::clone(&self.publisher), messages.to_vec());
                tokio::spawn(async move { publisher.publish(&all).await });
                return messages.iter().map(|_| Ok(())).collect();
            }
            Defect::SendsTheLastFirst => {
                let last_first: Vec<_> = messages.iter().rev().cloned().collect();
                return self.publisher.publish(&last_first).await;
            }
            Defect::TakesOneCallAtATime => {
                if self.is_called.swap(true, Ordering::SeqCst) {
                    return messages.iter().map(|_| Ok(())).collect();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Defect::AnswersForADroppedCall => {
                // What an earlier call has left is taken for an answer to this one.
                if let Ok(mut left) = self.left.lock()
                    && left.len() >= messages.len()
                    && !messages.is_empty()
                {
                    return left.drain(..messages.len()).collect();
                }
                if let Ok(mut left) = self.left.lock() {
                    left.extend(messages.iter().map(|_| Ok(())));
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
                if let Ok(mut left) = self.left.lock() {
                    left.clear();
                }
            }
            Defect::StaysCutOff if self.dead.cuts() > 0 => {
                return messages.iter().map(|_| transient()).collect();
            }
            _ => {}
        }
        let mut answers = self.publisher.publish(messages).await;
        self.is_called.store(false, Ordering::SeqCst);
        let has_failed = answers.iter().any(Result::is_err);
        match self.defect {
            Defect::AnswersForTheWholeCall if has_failed => {
                answers.iter_mut().for_each(|answer| *answer = transient());
            }
            Defect::AnswersOnceTooOften => answers.push(Ok(())),
            _ => {}
        }
        for (message, answer) in messages.iter().zip(&mut answers) {
            let Err(error) = answer else { continue };
            let is_large = message.payload.len() > 1_000_000;
            let is_missing = message.address.starts_with("missing");
            let payload = String::from_utf8_lossy(&message.payload);
            *error = match self.defect {
                Defect::TriesForeverWhatIsTooLarge if is_large => SourceError::transient("no"),
                Defect::GivesUpWithoutADestination if is_missing => SourceError::permanent("no"),
                Defect::GivesUpInAnOutage => SourceError::permanent("no"),
                Defect::TellsPayloads => SourceError::transient(format!("not sent: {payload}")),
                _ => continue,
            };
        }
        answers
    }
}
