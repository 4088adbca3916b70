//! Waiting until a server takes requests.

use std::thread;
use std::time::{Duration, Instant};

use crate::kinds::Recipe;

/// How long a server may take to start. Crash recovery and a container's first start take their time, above all on a busy
/// machine. What a test sends to a server that was killed may have to wait as long.
pub const START_LIMIT: Duration = Duration::from_secs(240);
const POLL: Duration = Duration::from_millis(30);

/// What is being started.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) ports: &'a [u16],
    /// The nodes that run. The others, if there are any, are not waited for.
    pub(crate) nodes: &'a [usize],
    /// Whether it has never run before.
    pub(crate) new: bool,
}

/// Waits until every node answers, makes one server of them if they are new, and waits until that
/// is ready. `alive` says why waiting is pointless, if it is.
pub(crate) fn wait(
    recipe: &dyn Recipe,
    start: &Start<'_>,
    mut alive: impl FnMut() -> Result<(), String>,
) -> Result<(), String> {
    let deadline = Instant::now() + START_LIMIT;
    let is_late = |node: &usize| start.new && recipe.answers_once_formed(*node);
    let (late, early): (Vec<usize>, Vec<usize>) =
        start.nodes.iter().partition(|node| is_late(node));
    for node in early {
        until(deadline, &mut alive, || recipe.answers(start.ports[node]))?;
    }
    if start.nodes.len() < recipe.nodes() {
        return Ok(());
    }
    if start.new {
        recipe.form(start.ports)?;
    }
    for node in late {
        until(deadline, &mut alive, || recipe.answers(start.ports[node]))?;
    }
    until(deadline, &mut alive, || recipe.ready(start.ports))
}

fn until(
    deadline: Instant,
    alive: &mut impl FnMut() -> Result<(), String>,
    condition: impl Fn() -> Result<(), String>,
) -> Result<(), String> {
    loop {
        let holds = condition();
        // Asked even if it answers: on the same port, that may be another server.
        alive()?;
        match holds {
            Ok(()) => return Ok(()),
            Err(reason) if Instant::now() >= deadline => {
                let limit = START_LIMIT.as_secs();
                return Err(format!("not ready after {limit} s: {reason}"));
            }
            Err(_) => thread::sleep(POLL),
        }
    }
}
