//! How MongoDB keeps the order of one key: in several requests, each a step of its own.
//!
//! Whatever may let another message of a key through marks a document in the same write. A worker that sees a mark looks at the key,
//! moves the lane `Claimable` to the message that should have it, and only then takes away the marks that were there before
//! the look. A claim leases first and looks afterwards: it keeps a message only if it is the earliest open one and no
//! other is leased. A worker may die between any two steps.

use stateright::{Model, Property};

use crate::Tell;

/// What can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Marks are taken away before the lane is moved.
    MarksGoTooEarly,
    /// The server deletes processed messages that still carry a mark.
    MarksAreDeleted,
    /// A claim keeps what it has leased without a look.
    ClaimsDoNotLook,
    /// A look takes marks away that came after it.
    LaterMarksGoToo,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::MarksGoTooEarly,
        Self::MarksAreDeleted,
        Self::ClaimsDoNotLook,
        Self::LaterMarksGoToo,
    ];
}

/// The protocol of one key.
#[derive(Clone, Debug)]
pub struct Marks {
    /// How many messages the key has, in the order of their numbers.
    pub messages: usize,
    /// How many workers there are; each receives, claims, settles and clears up.
    pub workers: usize,
    /// How often one dies.
    pub crashes: u8,
    /// How often an operator puts a message back, in front of those that came after it.
    pub replays: u8,
    /// What is wrong.
    pub flaw: Option<Flaw>,
}

impl Default for Marks {
    /// What is checked in seconds.
    fn default() -> Self {
        Self {
            messages: 2,
            workers: 2,
            crashes: 1,
            replays: 1,
            flaw: None,
        }
    }
}

/// A mark, or a claim: each is another number.
type Number = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Absent,
    Pending,
    Leased {
        by: Number,
        valid: bool,
    },
    Processed,
    /// By the server's clock.
    Deleted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Lane {
    None,
    Claimable,
    Marked(Number),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Document {
    state: State,
    lane: Lane,
}

impl Document {
    fn is_open(&self) -> bool {
        matches!(self.state, State::Pending | State::Leased { .. })
    }

    fn is_leased(&self) -> bool {
        matches!(self.state, State::Leased { .. })
    }
}

/// Where a worker is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum At {
    Idle,
    /// It has chosen a message.
    Choosing(usize),
    /// It has leased it, and has to look.
    Leased(usize, Number),
    /// Its handler runs.
    Kept(usize, Number),
    /// It has seen these marks, and has to look at the key.
    Looking(Vec<Number>),
    /// It has looked, and writes: takes lanes away, gives one, and takes marks away.
    Writing {
        unclaim: Vec<usize>,
        promote: Option<usize>,
        marks: Vec<Number>,
        unmarks: bool,
    },
}

/// All that there is at a moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    documents: Vec<Document>,
    workers: Vec<At>,
    last: Number,
    crashes: u8,
    replays: u8,
    broken: Option<&'static str>,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A worker stores the next message, marked.
    Receive(usize),
    /// A worker reads what may be claimed, and chooses this.
    Choose(usize, usize),
    /// A worker meets marks.
    MeetMarks(usize),
    /// A worker goes on with what it is about.
    GoOn(usize),
    /// A worker dies.
    Crash(usize),
    /// The lease of a worker that is gone runs out.
    Lapse(usize),
    /// A worker puts a message back for an operator.
    Replay(usize, usize),
    /// The server deletes a processed message.
    Delete(usize),
}

impl Tell for Marks {
    fn tell(&self, before: &World, step: &Step) -> String {
        match step {
            Step::Receive(w) => format!("worker {} stores a message, marked", w + 1),
            Step::Choose(w, m) => format!("worker {} chooses message {}", w + 1, m + 1),
            Step::MeetMarks(w) => format!("worker {} meets marks", w + 1),
            Step::GoOn(w) => format!("worker {} {}", w + 1, before.workers[*w].tell()),
            Step::Crash(w) => format!("worker {} dies", w + 1),
            Step::Lapse(m) => format!("the lease of message {} runs out", m + 1),
            Step::Replay(w, m) => format!("worker {} puts message {} back, marked", w + 1, m + 1),
            Step::Delete(m) => format!("the server deletes message {}", m + 1),
        }
    }
}

impl At {
    /// What comes next.
    fn tell(&self) -> String {
        match self {
            Self::Idle => "waits".into(),
            Self::Choosing(m) => format!("leases message {} if it can be had", m + 1),
            Self::Leased(m, _) => format!("looks whether message {} has the turn", m + 1),
            Self::Kept(m, _) => format!("settles message {}, marked", m + 1),
            Self::Looking(_) => "looks who has the turn".into(),
            Self::Writing {
                unclaim, promote, ..
            } => match (unclaim.last(), promote) {
                (Some(m), _) => format!("takes the lane from message {}", m + 1),
                (None, Some(m)) => format!("moves the lane to message {}", m + 1),
                (None, None) => "takes the marks away that it has seen".into(),
            },
        }
    }
}

const TWO: &str = "one worker at a time handles the key";
const ORDER: &str = "messages are handled in order";
const STUCK: &str = "the key goes on";

impl World {
    fn next_number(&mut self) -> Number {
        self.last += 1;
        self.last
    }

    fn first_open(&self) -> Option<usize> {
        self.documents.iter().position(Document::is_open)
    }

    fn fronts(&self) -> impl Iterator<Item = usize> {
        let all = self.documents.iter().enumerate();
        all.filter(|(_, document)| document.lane == Lane::Claimable)
            .map(|(number, _)| number)
    }

    /// Whether a message that was leased may be kept, as the look sees the key.
    fn may_keep(&self, number: usize) -> bool {
        let mut others = self.fronts().filter(|front| *front != number);
        let other_leased = others.any(|front| self.documents[front].is_leased());
        !other_leased && self.first_open() == Some(number)
    }

    /// What a look at the key leads to.
    fn moves(&self) -> (Vec<usize>, Option<usize>) {
        let fronts: Vec<usize> = self.fronts().collect();
        if fronts
            .iter()
            .any(|front| self.documents[*front].is_leased())
        {
            return (Vec::new(), None);
        }
        let head = self.first_open();
        let head = head.filter(|head| self.documents[*head].state == State::Pending);
        let others = fronts.iter().copied();
        let others = others.filter(|front| Some(*front) != head).collect();
        (others, head.filter(|head| !fronts.contains(head)))
    }

    fn kept_now(&self) -> usize {
        let kept = self.workers.iter().filter(|at| match at {
            At::Kept(number, by) => {
                self.documents[*number].state
                    == (State::Leased {
                        by: *by,
                        valid: true,
                    })
            }
            _ => false,
        });
        kept.count()
    }

    fn holder_is_gone(&self, number: usize) -> bool {
        let State::Leased { by, .. } = self.documents[number].state else {
            return false;
        };
        !self.workers.iter().any(|at| match at {
            At::Leased(held, token) | At::Kept(held, token) => *held == number && *token == by,
            _ => false,
        })
    }
}

impl Marks {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// The next request of a worker.
    fn go_on(&self, world: &mut World, worker: usize) {
        let at = std::mem::replace(&mut world.workers[worker], At::Idle);
        world.workers[worker] = match at {
            At::Idle => At::Idle,
            At::Choosing(number) => self.lease(world, number),
            At::Leased(number, by) => self.look_after_leasing(world, number, by),
            At::Kept(number, by) => Self::settle(world, number, by),
            At::Looking(marks) => {
                let (unclaim, promote) = world.moves();
                let unmarks = unclaim.is_empty();
                At::Writing {
                    unclaim,
                    promote,
                    marks,
                    unmarks,
                }
            }
            At::Writing {
                unclaim,
                promote,
                marks,
                unmarks,
            } => self.write(world, unclaim, promote, marks, unmarks),
        };
        if world.kept_now() > 1 {
            world.broken = Some(TWO);
        }
    }

    /// Where it is still free.
    fn lease(&self, world: &mut World, number: usize) -> At {
        let document = world.documents[number];
        let is_free = matches!(
            document.state,
            State::Pending | State::Leased { valid: false, .. }
        );
        if document.lane != Lane::Claimable || !is_free {
            return At::Idle;
        }
        let by = world.next_number();
        world.documents[number].state = State::Leased { by, valid: true };
        if self.has(Flaw::ClaimsDoNotLook) {
            return Self::keep(world, number, by);
        }
        At::Leased(number, by)
    }

    fn keep(world: &mut World, number: usize, by: Number) -> At {
        if world.first_open() != Some(number) {
            world.broken = Some(ORDER);
        }
        At::Kept(number, by)
    }

    /// Keeps it, or hands it back with a mark.
    fn look_after_leasing(&self, world: &mut World, number: usize, by: Number) -> At {
        let is_own =
            matches!(world.documents[number].state, State::Leased { by: now, .. } if now == by);
        if !is_own {
            return At::Idle;
        }
        if world.may_keep(number) {
            return Self::keep(world, number, by);
        }
        let mark = world.next_number();
        world.documents[number] = Document {
            state: State::Pending,
            lane: Lane::Marked(mark),
        };
        At::Looking(vec![mark])
    }

    fn settle(world: &mut World, number: usize, by: Number) -> At {
        let is_own =
            matches!(world.documents[number].state, State::Leased { by: now, .. } if now == by);
        if !is_own {
            return At::Idle;
        }
        let mark = world.next_number();
        world.documents[number] = Document {
            state: State::Processed,
            lane: Lane::Marked(mark),
        };
        At::Looking(vec![mark])
    }

    /// One statement after the other.
    fn write(
        &self,
        world: &mut World,
        mut unclaim: Vec<usize>,
        promote: Option<usize>,
        mut marks: Vec<Number>,
        unmarks: bool,
    ) -> At {
        if let Some(number) = unclaim.pop() {
            let document = world.documents[number];
            if document.state == State::Pending && document.lane == Lane::Claimable {
                let mark = world.next_number();
                world.documents[number].lane = Lane::Marked(mark);
                marks.push(mark);
            }
            return At::Writing {
                unclaim,
                promote,
                marks,
                unmarks,
            };
        }
        let too_early = self.has(Flaw::MarksGoTooEarly) && unmarks;
        if let Some(number) = promote
            && !too_early
        {
            if world.documents[number].state == State::Pending {
                world.documents[number].lane = Lane::Claimable;
            }
            return At::Writing {
                unclaim,
                promote: None,
                marks,
                unmarks,
            };
        }
        if !unmarks {
            return At::Looking(marks);
        }
        let all = self.has(Flaw::LaterMarksGoToo);
        for document in &mut world.documents {
            if let Lane::Marked(mark) = document.lane
                && (all || marks.contains(&mark))
            {
                document.lane = Lane::None;
            }
        }
        if too_early && promote.is_some() {
            return At::Writing {
                unclaim,
                promote,
                marks,
                unmarks: false,
            };
        }
        At::Idle
    }
}

impl Model for Marks {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let document = Document {
            state: State::Absent,
            lane: Lane::None,
        };
        vec![World {
            documents: vec![document; self.messages],
            workers: vec![At::Idle; self.workers],
            last: 0,
            crashes: self.crashes,
            replays: self.replays,
            broken: None,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.broken.is_some() {
            return;
        }
        let documents = world.documents.iter();
        let is_absent = |document: &Document| document.state == State::Absent;
        let some_absent = documents.clone().any(is_absent);
        let some_marked = documents
            .clone()
            .any(|document| matches!(document.lane, Lane::Marked(_)));
        for (worker, at) in world.workers.iter().enumerate() {
            if *at != At::Idle {
                steps.push(Step::GoOn(worker));
                if world.crashes > 0 {
                    steps.push(Step::Crash(worker));
                }
                continue;
            }
            if some_absent {
                steps.push(Step::Receive(worker));
            }
            if some_marked {
                steps.push(Step::MeetMarks(worker));
            }
            if world.replays > 0 {
                let all = documents.clone().enumerate();
                let settled = all.filter(|(_, document)| document.state == State::Processed);
                steps.extend(settled.map(|(number, _)| Step::Replay(worker, number)));
            }
            for number in world.fronts() {
                if matches!(
                    world.documents[number].state,
                    State::Pending | State::Leased { valid: false, .. }
                ) {
                    steps.push(Step::Choose(worker, number));
                }
            }
        }
        for (number, document) in documents.enumerate() {
            if matches!(document.state, State::Leased { valid: true, .. })
                && world.holder_is_gone(number)
            {
                steps.push(Step::Lapse(number));
            }
            let is_bare = document.lane == Lane::None || self.has(Flaw::MarksAreDeleted);
            if document.state == State::Processed && is_bare {
                steps.push(Step::Delete(number));
            }
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        match step {
            Step::Receive(worker) => {
                let mut all = next.documents.iter();
                let number = all.position(|document| document.state == State::Absent)?;
                let mark = next.next_number();
                next.documents[number] = Document {
                    state: State::Pending,
                    lane: Lane::Marked(mark),
                };
                next.workers[worker] = At::Looking(vec![mark]);
            }
            Step::Choose(worker, number) => next.workers[worker] = At::Choosing(number),
            Step::MeetMarks(worker) => {
                let marks = next.documents.iter();
                let marks = marks.filter_map(|document| match document.lane {
                    Lane::Marked(mark) => Some(mark),
                    _ => None,
                });
                next.workers[worker] = At::Looking(marks.collect());
            }
            Step::GoOn(worker) => self.go_on(&mut next, worker),
            Step::Crash(worker) => {
                next.crashes -= 1;
                next.workers[worker] = At::Idle;
            }
            Step::Lapse(number) => {
                if let State::Leased { by, .. } = next.documents[number].state {
                    next.documents[number].state = State::Leased { by, valid: false };
                }
            }
            Step::Replay(worker, number) => {
                next.replays -= 1;
                let mark = next.next_number();
                next.documents[number] = Document {
                    state: State::Pending,
                    lane: Lane::Marked(mark),
                };
                next.workers[worker] = At::Looking(vec![mark]);
            }
            Step::Delete(number) => {
                next.documents[number] = Document {
                    state: State::Deleted,
                    lane: Lane::None,
                };
            }
        }
        (next != *world).then_some(next)
    }

    /// Marks and leases are numbered, and workers could go round for ever.
    fn within_boundary(&self, world: &World) -> bool {
        usize::from(world.last) <= 5 * self.messages + 2
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(TWO, |_, world: &World| world.broken != Some(TWO)),
            Property::always(ORDER, |_, world: &World| world.broken != Some(ORDER)),
            Property::always(STUCK, |model: &Self, world: &World| {
                let mut steps = Vec::new();
                model.actions(world, &mut steps);
                world.broken.is_some() || world.first_open().is_none() || !steps.is_empty()
            }),
        ]
    }
}
