//! What a commit promises when the handler, or the server, has spoiled its transaction.
//!
//! Each case does every step (record, receive, settle) before the mishap and after it, writes the
//! handler's own notes around it, and then compares what commit answered with what is there.

use std::{fmt, sync::Arc};

use inbox_api::{
    Effect, ErrorKind, Message, Receipt, Recorded, Settled, Settlement, State, StoreExt as _,
};

pub(crate) use super::interrupted::{
    a_step_that_is_dropped_commits_all_or_nothing,
    a_step_that_waited_in_vain_commits_all_or_nothing,
};
use crate::{
    check::{CaseResult, Unmet, ensure, same},
    needs::{Mishap, Need, Unable},
    test_inbox::{Context, TestInbox, message, processed},
    transactions::{AnyTransaction, AnyTransactions},
};

/// What is done in the transaction through the store.
#[derive(Clone, Copy, Debug)]
enum Step {
    Record,
    Receive,
    Settle,
    /// It is the last one.
    SettleAndCommit,
}

/// When it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Before,
    After,
}

/// What the transaction may still come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Allowed {
    /// Either all of it commits or none.
    AllOrNothing,
    /// It cannot commit.
    Failure,
}

pub(crate) async fn a_swallowed_failure_commits_all_or_nothing(cx: Context) -> CaseResult {
    each(&cx, Mishap::FailedStatement, Allowed::AllOrNothing).await
}

pub(crate) async fn a_roll_back_by_the_server_fails_it(cx: Context) -> CaseResult {
    each(&cx, Mishap::RolledBackByServer, Allowed::Failure).await
}

pub(crate) async fn a_commit_by_the_handler_fails_it(cx: Context) -> CaseResult {
    each(&cx, Mishap::Commit, Allowed::Failure).await
}

pub(crate) async fn a_roll_back_by_the_handler_fails_it(cx: Context) -> CaseResult {
    each(&cx, Mishap::RollBack, Allowed::Failure).await
}

pub(crate) async fn a_schema_change_commits_all_or_fails_it(cx: Context) -> CaseResult {
    each(&cx, Mishap::SchemaChange, Allowed::AllOrNothing).await
}

async fn each(cx: &Context, mishap: Mishap, allowed: Allowed) -> CaseResult {
    let inbox = cx.fresh().await?;
    if !inbox.capabilities().transactions {
        return Err(Unmet::NotChecked(Need::Transactions));
    }
    let transactions = inbox.fixture.transactions()?;
    for step in [Step::Record, Step::Receive, Step::Settle] {
        for when in [When::Before, When::After] {
            let scene = Scene {
                inbox: &inbox,
                transactions: Arc::clone(&transactions),
                mishap,
                step,
                when,
                message: message(&format!("{step:?}-{when:?}"))?,
            };
            scene.play(allowed).await?;
        }
    }
    let scene = Scene {
        inbox: &inbox,
        transactions,
        mishap,
        step: Step::SettleAndCommit,
        when: When::After,
        message: message("settled-and-committed")?,
    };
    scene.play(allowed).await
}

struct Scene<'a> {
    inbox: &'a TestInbox,
    transactions: Arc<dyn AnyTransactions>,
    mishap: Mishap,
    step: Step,
    when: When,
    message: Message,
}

impl fmt::Display for Scene<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = match self.step {
            Step::Record => "record",
            Step::Receive => "receive",
            Step::Settle => "settle",
            Step::SettleAndCommit => "settle and commit",
        };
        let when = match self.when {
            When::Before => "before",
            When::After => "after",
        };
        write!(f, "a handler that {}, {step} {when} that", self.mishap)
    }
}

impl Scene<'_> {
    async fn play(&self, allowed: Allowed) -> CaseResult {
        let settlements = self.prepare().await?;
        let mut transaction = self.transactions.open().await?;
        self.note("first", &mut *transaction).await?;
        if self.when == When::Before {
            ensure!(
                self.step(&mut *transaction, &settlements).await?,
                "{self}: the step was refused in a transaction that was as opened"
            );
        }
        transaction.mishap(self.mishap).await?;
        if self.when == When::After {
            // A handler that has not noticed. The database may refuse it.
            let _ = transaction.write(&self.text_of("second")).await;
            if let Step::SettleAndCommit = self.step {
                let settled = transaction.settle_and_commit(&settlements).await;
                return match settled {
                    Ok(settled) if settled != [Settled::Done] => {
                        self.is_refused(Ok(false)).await?;
                        self.goes_on(&settlements).await
                    }
                    committed => self.ended(allowed, committed.map(drop), &settlements).await,
                };
            }
            let stepped = self.step(&mut *transaction, &settlements).await;
            if !matches!(stepped, Ok(true)) {
                // The store may refuse the step after the mishap.
                let _ = transaction.roll_back().await;
                self.is_refused(stepped).await?;
                return self.goes_on(&settlements).await;
            }
        }
        let committed = transaction.commit().await;
        self.ended(allowed, committed, &settlements).await
    }

    /// Compares what the commit answered with what is there.
    async fn ended(
        &self,
        allowed: Allowed,
        committed: inbox_api::Result<()>,
        settlements: &[Settlement],
    ) -> CaseResult {
        if allowed == Allowed::Failure && committed.is_ok() {
            return Err(Unmet::Failed(format!(
                "{self}: expected that commit fails, saw Ok although {}",
                self.outcome().await?
            )));
        }
        let (done, noted) = (self.is_done().await?, self.is_noted("first").await?);
        let (truthful, answer) = match &committed {
            Ok(()) => (done && noted, "answered Ok".to_owned()),
            Err(error) if error.effect() == Effect::None => (
                !done && !noted && !self.is_noted("second").await?,
                format!("failed without effect ({error})"),
            ),
            // What was done before the mishap belongs together. What was done after it must not
            // stand alone: the message would count as handled, and the handler's work be undone.
            Err(error) => (
                if self.when == When::After {
                    !done
                } else {
                    done == noted
                },
                format!("failed ({error})"),
            ),
        };
        ensure!(
            truthful,
            "{self}: commit {answer}, but {}",
            self.outcome().await?
        );
        self.goes_on(settlements).await
    }

    /// The step was refused behind the mishap, and the transaction rolled back.
    async fn is_refused(&self, stepped: inbox_api::Result<bool>) -> CaseResult {
        ensure!(
            !self.is_done().await?,
            "{self}: the step was refused and rolled back, but its effect is there"
        );
        let Err(error) = stepped else {
            return Ok(());
        };
        ensure!(
            matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Other),
            "{self}: expected that the step is refused as a conflict or other error, saw {error}"
        );
        // Without effect is what one may do again. The handler's writes would then be there twice.
        for which in ["first", "second"] {
            ensure!(
                error.effect() == Effect::Unknown || !self.is_noted(which).await?,
                "{self}: the step failed without effect ({error}), but what the handler wrote \
                 {which} is there"
            );
        }
        Ok(())
    }

    /// Stores and leases the message where the step is a settlement.
    async fn prepare(&self) -> CaseResult<Vec<Settlement>> {
        if !matches!(self.step, Step::Settle | Step::SettleAndCommit) {
            return Ok(Vec::new());
        }
        self.inbox.accept(&self.message).await?;
        let leased = self.inbox.claim_one().await?;
        Ok(vec![Settlement {
            lease: leased.lease,
            outcome: processed(),
        }])
    }

    /// Whether the store did the step.
    async fn step(
        &self,
        transaction: &mut dyn AnyTransaction,
        settlements: &[Settlement],
    ) -> inbox_api::Result<bool> {
        Ok(match self.step {
            Step::Record => transaction.record(&self.message, None).await? == Recorded::First,
            Step::Receive => {
                let messages = std::slice::from_ref(&self.message);
                transaction.receive(messages).await? == [Receipt::Accepted]
            }
            Step::Settle | Step::SettleAndCommit => {
                transaction.settle(settlements).await? == [Settled::Done]
            }
        })
    }

    async fn note(&self, which: &str, transaction: &mut dyn AnyTransaction) -> CaseResult {
        match transaction.write(&self.text_of(which)).await {
            Ok(()) => Ok(()),
            // Without writes there is no mishap either.
            Err(Unable::NotOffered(_)) => Err(Unmet::NotChecked(Need::Mishap(self.mishap))),
            Err(failed) => Err(failed.into()),
        }
    }

    /// Whether the step's effect is there.
    async fn is_done(&self) -> CaseResult<bool> {
        let record = self.inbox.get(self.message.key()).await?;
        Ok(match self.step {
            Step::Record | Step::Receive => record.is_some(),
            Step::Settle | Step::SettleAndCommit => {
                record.is_some_and(|record| record.state == State::Processed)
            }
        })
    }

    fn text_of(&self, which: &str) -> String {
        format!("{which} of {}", self.message.id())
    }

    /// Whether what the handler wrote is there.
    async fn is_noted(&self, which: &str) -> CaseResult<bool> {
        let note = self.text_of(which);
        Ok(self.transactions.written().await?.contains(&note))
    }

    async fn outcome(&self) -> CaseResult<String> {
        let there = |there| if there { "there" } else { "not there" };
        Ok(format!(
            "the step's effect is {} and what the handler wrote first is {}",
            there(self.is_done().await?),
            there(self.is_noted("first").await?)
        ))
    }

    /// The connection and the store are sound afterwards, and a redelivery puts all in order.
    async fn goes_on(&self, settlements: &[Settlement]) -> CaseResult {
        let done = self.is_done().await?;
        let mut transaction = self.transactions.open().await?;
        let other = message(&format!("other-{}", self.message.id()))?;
        same(
            &format!("{self}: record of another message afterwards"),
            &transaction.record(&other, None).await?,
            &Recorded::First,
        )?;
        transaction.commit().await?;
        self.inbox.has_state(other.key(), State::Processed).await?;
        if let Some(settlement) = settlements.first() {
            let outcome = settlement.outcome.clone();
            return same(
                &format!("{self}: settling outside of a transaction afterwards"),
                &self.inbox.settle_one(&settlement.lease, outcome).await?,
                &Settled::Done,
            );
        }
        let expected = if done {
            Receipt::Duplicate { differs: false }
        } else {
            Receipt::Accepted
        };
        same(
            &format!("{self}: receipt of a redelivery"),
            &self.inbox.receive_one(&self.message).await?,
            &expected,
        )?;
        // Not due in the next scene.
        let _ = self.inbox.discard(self.message.key()).await?;
        Ok(())
    }
}
