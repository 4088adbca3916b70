//! Ordering keys: their locks, and the one message of each that may be claimed.

use std::collections::BTreeSet;

use inbox_api::Message;

use crate::{context::Context, list_variables::set_names, multi_statement::Script};

/// A handler and an ordering key.
pub(crate) type HandlerAndKey<'a> = (&'a str, &'a str);

pub(crate) fn ordering_key(message: &Message) -> Option<HandlerAndKey<'_>> {
    let key = message.ordering_key()?;
    Some((message.handler().as_str(), key.as_str()))
}

/// Locks ordering keys, in their order.
pub(crate) fn add_lock_keys(
    context: &Context,
    script: &mut Script,
    keys: &BTreeSet<HandlerAndKey<'_>>,
) {
    for list in set_names(context, "@inbox_keys", keys.iter().copied()) {
        script.add(list);
        script.all(&context.sql.lock_keys);
    }
}

/// Gives the locked ordering keys their heads.
pub(crate) fn add_promote_heads(
    context: &Context,
    script: &mut Script,
    keys: &BTreeSet<HandlerAndKey<'_>>,
) {
    let lists = set_names(context, "@inbox_keys", keys.iter().copied());
    // A single one is still there.
    let several = lists.len() > 1;
    for list in lists {
        if several {
            script.add(list);
        }
        script.all(&context.sql.promote_key_heads);
    }
}
