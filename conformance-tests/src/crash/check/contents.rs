//! What stores promise of what messages say.

use super::{Checker, Rule};
use crate::crash::{
    history::{Answered, Beginning},
    traffic::altered_record,
};

impl Checker<'_> {
    pub(super) fn contents(&mut self) {
        for call in &self.evidence.history.calls {
            let granted = match &call.answered {
                Some(Answered::Claims { granted, .. }) => granted.as_slice(),
                Some(Answered::Begun(Beginning::Run(granted))) => std::slice::from_ref(granted),
                _ => continue,
            };
            for one in granted {
                let broken = one.altered.as_ref().map(|part| {
                    format!(
                        "token {} came with another {part} than was sent",
                        one.held.token
                    )
                });
                self.judge(Rule::HandedOutWhole, &[&one.held.key], broken);
            }
        }
        for record in self.evidence.listing {
            let broken = altered_record(record)
                .map(|part| format!("at the end its {part} is not what was sent"));
            self.judge(Rule::HandedOutWhole, &[&record.key], broken);
        }
    }
}
