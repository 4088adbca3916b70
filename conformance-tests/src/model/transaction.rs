//! What a sequence does in transactions.

use inbox_api::{
    Begun, Bytes, Extended, Lease, LeaseTerms, Message, Operate as _, Outcome, Receipt, Recorded,
    Settled, Settlement, Store as _,
};

use super::{
    operation::{Ending, Part, Sent},
    requests::terms,
    sequence::Pair,
};
use crate::{
    check::{CaseResult, same},
    transactions::AnyTransaction,
};

impl Pair {
    /// The model does the same without a transaction, and forgets it unless that is committed.
    pub(super) async fn transaction(
        &mut self,
        actor: usize,
        parts: &[Part],
        ending: &Ending,
    ) -> CaseResult {
        let Some(transactions) = self.transactions.clone() else {
            return Ok(());
        };
        let before = (self.model.fork(), self.recorded.clone());
        let mut transaction = transactions.open().await?;
        let mut fits = true;
        for part in parts {
            match part {
                Part::Receive(batch) => {
                    let batch: Vec<Message> = batch
                        .iter()
                        .map(|sent| self.message(*sent))
                        .collect::<CaseResult<_>>()?;
                    let seen: Vec<Receipt> = transaction.receive(&batch).await?;
                    same("receive_in", &seen, &self.model.receive(&batch).await?)?;
                }
                Part::Record {
                    sent,
                    with_result,
                    kept,
                } => {
                    self.record_in(&mut *transaction, *sent, *with_result, *kept)
                        .await?;
                }
                Part::Settle(leases) => {
                    let (store, model) = self.settlements(actor, leases);
                    let seen = transaction.settle(&store).await?;
                    let expected = self.settle_model(&model).await?;
                    same("settle_in", &seen, &expected)?;
                    fits &= seen.iter().all(|settled| *settled == Settled::Done);
                    if !fits {
                        break;
                    }
                }
            }
        }
        let committed = match ending {
            _ if !fits => {
                transaction.roll_back().await?;
                false
            }
            Ending::Commit => {
                transaction.commit().await?;
                true
            }
            Ending::RollBack => {
                transaction.roll_back().await?;
                false
            }
            Ending::Drop => false,
            Ending::SettleAndCommit(leases) => {
                let (store, model) = self.settlements(actor, leases);
                let seen = transaction.settle_and_commit(&store).await?;
                let expected = self.settle_model(&model).await?;
                same("settle_and_commit", &seen, &expected)?;
                seen.iter().all(|settled| *settled == Settled::Done)
            }
        };
        if !committed {
            (self.model, self.recorded) = before;
        }
        Ok(())
    }

    /// What [`AnyTransaction::settle`] answers, and what it does.
    async fn settle_model(&self, settlements: &[Settlement]) -> CaseResult<Vec<Settled>> {
        let leases: Vec<Lease> = settlements.iter().map(|s| s.lease.clone()).collect();
        let extended = self.model.fork().extend(&leases, LeaseTerms::MAX).await?;
        let settled = self.model.settle(settlements).await?;
        let answer = |(extended, settled)| match extended {
            Extended::LeaseLost => Settled::LeaseLost,
            Extended::Until(_) => settled,
        };
        Ok(extended.into_iter().zip(settled).map(answer).collect())
    }

    async fn record_in(
        &mut self,
        transaction: &mut dyn AnyTransaction,
        sent: Sent,
        with_result: bool,
        kept: bool,
    ) -> CaseResult {
        let message = self.message(sent)?;
        let known = self.model.get(message.key()).await?;
        let ordered = match &known {
            Some(known) => known.ordering_key.is_some(),
            None => message.ordering_key().is_some(),
        };
        if ordered && self.in_runs {
            return Ok(());
        }
        let mut result = with_result.then(|| Bytes::from_static(b"recorded"));
        let seen = transaction.record(&message, result.clone()).await?;
        if kept && seen == Recorded::First {
            result = Some(Bytes::from_static(b"kept"));
            transaction
                .keep_result(message.key(), Bytes::from_static(b"kept"))
                .await?;
        }
        let begun = self.model.begin(&message, &terms(0, 50)?).await?;
        let expected = match begun {
            Begun::Run(leased) => {
                let lease = leased.lease;
                let outcome = Outcome::Processed { result };
                let settled = self.model.settle(&[Settlement { lease, outcome }]).await?;
                same("settlement of the model", &settled, &vec![Settled::Done])?;
                self.recorded.insert(message.key().clone());
                Recorded::First
            }
            Begun::Processed { result } => Recorded::Processed { result },
            Begun::Busy { until } => Recorded::Busy { until },
            Begun::Blocked => Recorded::Blocked,
            Begun::Dead { reason } => Recorded::Dead { reason },
            Begun::Discarded => Recorded::Discarded,
        };
        match (seen, expected) {
            (Recorded::Busy { until: seen }, Recorded::Busy { until: expected }) => {
                let what = "record, busy until";
                self.offset.time(what, Some(seen), Some(expected))
            }
            (seen, expected) => same("record", &seen, &expected),
        }
    }
}
