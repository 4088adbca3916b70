//! Random sequences of operations, compared with the memory store.

use crate::{check::CaseResult, test_inbox::Context};

pub(crate) async fn random_sequences_agree_with_the_memory_store(cx: Context) -> CaseResult {
    crate::model::check(&cx).await
}
