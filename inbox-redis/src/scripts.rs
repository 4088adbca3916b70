//! The scripts, and how a call of one is put together.

use std::{borrow::Cow, collections::BTreeSet, sync::LazyLock};

use inbox_api::ClockOffset;
use inbox_api::HandlerName;
use redis::{Cmd, ToRedisArgs};

use crate::{
    clocks::{Clocks, Moment},
    keys::{self, HANDLER_KEYS, Layout, VERSION, WORKS_FROM},
    schema::Counted,
};

/// A script with the digest under which servers know it.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) name: &'static str,
    pub(crate) text: Cow<'static, str>,
    pub(crate) digest: String,
    /// Whether it can change anything.
    pub(crate) writes: bool,
}

impl Script {
    fn new(name: &'static str, text: impl Into<Cow<'static, str>>) -> Self {
        let text = text.into();
        Self {
            name,
            digest: redis::Script::new(&text).get_hash().to_owned(),
            writes: !text.starts_with("#!lua flags=no-writes"),
            text,
        }
    }

    /// A step of a migration that does this.
    pub(crate) fn step(text: &str) -> Self {
        let handlers = include_str!("lua/schema_handlers.lua");
        let begin = include_str!("lua/schema_step_begin.lua");
        let end = include_str!("lua/schema_step_end.lua");
        let text = format!("#!lua flags=allow-oom\n{handlers}{begin}{text}\n{end}");
        Self::new("a step of a migration", text)
    }
}

/// A script behind what all scripts have in common, which is all in one: Redis knows no modules.
macro_rules! script {
    ($flags:literal, $($file:literal),+) => {
        concat!(
            $flags,
            "\n",
            include_str!("lua/shared/shard.lua"),
            include_str!("lua/shared/runs.lua"),
            include_str!("lua/shared/states.lua"),
            include_str!("lua/shared/cross_shard.lua"),
            include_str!("lua/shared/log.lua"),
            include_str!("lua/shared/taking_apart.lua"),
            include_str!("lua/shared/history.lua"),
            include_str!("lua/shared/messages.lua"),
            $(include_str!(concat!("lua/", $file))),+
        )
    };
}

/// A script that a full server refuses before it runs.
macro_rules! growing {
    ($file:literal) => {
        script!("#!lua", $file)
    };
}

/// A script that also runs on a full server, which is emptied by it in the end.
macro_rules! draining {
    ($file:literal) => {
        script!("#!lua flags=allow-oom", $file)
    };
}

macro_rules! reading {
    ($file:literal) => {
        script!("#!lua flags=no-writes", $file)
    };
}

/// A script that an intervention makes, which also runs on a full server.
macro_rules! intervening {
    ($file:literal) => {
        script!("#!lua flags=allow-oom", "shared/interventions.lua", $file)
    };
}

macro_rules! scripts {
    ($($name:ident = $kind:ident $file:literal;)*) => {
        $(pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new($file, $kind!($file)));)*
        /// All of them, for people to read.
        pub(crate) fn all() -> Vec<&'static Script> {
            vec![$(&$name),*]
        }
    };
}

scripts! {
    RECEIVE = growing "receive.lua";
    RECEIVE_DRAW = growing "receive_draw.lua";
    RECEIVE_NOTE_SHARDS = growing "receive_note_shards.lua";
    CLAIM = draining "claim.lua";
    CLAIM_PEEK = reading "claim_peek.lua";
    CLAIM_TAKE_APART = draining "claim_take_apart.lua";
    EXTEND = draining "extend.lua";
    SETTLE = draining "settle.lua";
    BEGIN = growing "begin.lua";
    GET = reading "get.lua";
    LIST = reading "list.lua";
    LIST_KEYS = reading "list_keys.lua";
    LIST_UNFINISHED = reading "list_unfinished.lua";
    LIST_BODIES = reading "list_bodies.lua";
    STATISTICS = reading "statistics.lua";
    STATISTICS_HANDLERS = reading "statistics_handlers.lua";
    REPLAY = intervening "replay.lua";
    DISCARD = intervening "discard.lua";
    RESCHEDULE = intervening "reschedule.lua";
    CLEAR = intervening "clear.lua";
    PAUSE = draining "pause.lua";
    PAUSED = reading "paused.lua";
    PURGE = draining "purge.lua";
    PURGE_FIND = reading "purge_find.lua";
    PURGE_LOCATE = reading "purge_locate.lua";
    DROP_PAYLOADS = draining "drop_payloads.lua";
    PURGE_FORGET_SHARDS = draining "purge_forget_shards.lua";
    SERVER_LIFE = reading "server_life.lua";
}

/// Sets one shard up, and so does not run on a full server or a replica.
static CREATE: LazyLock<Script> = LazyLock::new(|| {
    let text = concat!("#!lua\n", include_str!("lua/schema.lua"));
    Script::new("schema.lua", text)
});

/// The same for looking only, which such a server must allow: what fills it could not be looked at
/// or taken out otherwise.
static LOOK: LazyLock<Script> = LazyLock::new(|| {
    let text = concat!("#!lua flags=no-writes\n", include_str!("lua/schema.lua"));
    Script::new("schema.lua", text)
});

/// Takes one shard away, be its marker complete or not.
static REMOVE: LazyLock<Script> = LazyLock::new(|| {
    let text = concat!(
        "#!lua flags=allow-oom\n",
        include_str!("lua/schema_handlers.lua"),
        include_str!("lua/schema_remove.lua")
    );
    Script::new("schema_remove.lua", text)
});

/// The same for looking only.
static REMOVE_LOOK: LazyLock<Script> = LazyLock::new(|| {
    let text = concat!(
        "#!lua flags=no-writes\n",
        include_str!("lua/schema_handlers.lua"),
        include_str!("lua/schema_remove.lua")
    );
    Script::new("schema_remove.lua", text)
});

/// The steps of migrations.
pub(crate) static STEPS: LazyLock<Vec<Script>> =
    LazyLock::new(|| keys::STEPS.iter().copied().map(Script::step).collect());

/// Makes a write for others to wait for, which a full server must allow.
pub(crate) static CONFIRM: LazyLock<Script> = LazyLock::new(|| {
    let text = concat!("#!lua flags=allow-oom\n", include_str!("lua/confirm.lua"));
    Script::new("confirm.lua", text)
});

/// What all calls of one store have in common.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) layout: Layout,
    pub(crate) offset: ClockOffset,
    pub(crate) clocks: Clocks,
}

/// One call, on its way to one shard.
pub(crate) struct Call {
    pub(crate) script: &'static Script,
    pub(crate) shard: u16,
    pub(crate) command: Cmd,
}

impl Call {
    /// Whether it can change what an inbox tells: numbers that are drawn and notes of where messages
    /// will be do not.
    pub(crate) fn changes(&self) -> bool {
        let without_messages = [&*CONFIRM, &*RECEIVE_DRAW, &*RECEIVE_NOTE_SHARDS];
        self.script.writes
            && !without_messages
                .iter()
                .any(|one| std::ptr::eq(*one, self.script))
    }

    pub(crate) fn arg(&mut self, value: impl ToRedisArgs) -> &mut Self {
        self.command.arg(value);
        self
    }
}

impl Caller {
    pub(crate) fn new(layout: Layout, offset: ClockOffset) -> Self {
        Self {
            clocks: Clocks::new(layout.shards()),
            layout,
            offset,
        }
    }

    /// Begins a call of `script` in `shard` that may touch these handlers' keys and the `further` ones, at
    /// a moment that other shards share.
    pub(crate) fn call_with<'a>(
        &self,
        script: &'static Script,
        shard: u16,
        handlers: impl IntoIterator<Item = &'a HandlerName>,
        further: &[Vec<u8>],
        moment: Moment,
    ) -> Call {
        let handlers: BTreeSet<&HandlerName> = handlers.into_iter().collect();
        let keys = self.layout.shard_keys(shard);
        let mut command = Cmd::new();
        command
            .arg("EVALSHA")
            .arg(&script.digest)
            .arg(keys.len() + HANDLER_KEYS * handlers.len() + further.len())
            .arg(&keys);
        for handler in &handlers {
            command.arg(&self.layout.handler_keys(shard, handler));
        }
        for key in further {
            command.arg(key.as_slice());
        }
        command
            .arg(VERSION)
            .arg(self.layout.shards())
            .arg(shard)
            .arg(self.offset.micros())
            .arg(self.clocks.at(shard, moment))
            .arg(self.layout.channel())
            .arg(handlers.len());
        for handler in &handlers {
            command.arg(handler.as_str());
        }
        Call {
            script,
            shard,
            command,
        }
    }

    /// A write of no consequence.
    pub(crate) fn confirm_call(&self, shard: u16) -> Call {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(&CONFIRM.digest)
            .arg(1)
            .arg(self.layout.meta(shard));
        Call {
            script: &CONFIRM,
            shard,
            command,
        }
    }

    /// The script of a step that brings a shard with these handlers to `version`.
    pub(crate) fn step_call(
        &self,
        script: &'static Script,
        version: u32,
        shard: u16,
        counted: &Counted,
    ) -> Call {
        let mut call = self.begin_schema_call(script, shard, &counted.handlers);
        call.arg(version).arg(WORKS_FROM).arg(&counted.fields);
        call
    }

    /// A script with all keys of a shard.
    fn begin_schema_call(
        &self,
        script: &'static Script,
        shard: u16,
        handlers: &[HandlerName],
    ) -> Call {
        let keys = self.layout.shard_keys(shard);
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(&script.digest)
            .arg(keys.len() + HANDLER_KEYS * handlers.len())
            .arg(&keys);
        for handler in handlers {
            command.arg(&self.layout.handler_keys(shard, handler));
        }
        Call {
            script,
            shard,
            command,
        }
    }

    /// The script that removes a shard with these handlers' keys, or only looks which handlers it has.
    pub(crate) fn remove_call(&self, remove: bool, shard: u16, counted: &Counted) -> Call {
        let script = if remove { &REMOVE } else { &REMOVE_LOOK };
        let mut call = self.begin_schema_call(script, shard, &counted.handlers);
        call.arg(u8::from(remove)).arg(VERSION).arg(&counted.fields);
        call
    }

    /// The set-up script, which asks nothing of what it finds.
    pub(crate) fn schema_call(&self, create: bool, shard: u16) -> Call {
        let (script, what): (&'static Script, _) = if create {
            (&CREATE, "create")
        } else {
            (&LOOK, "look")
        };
        let mut call = self.begin_schema_call(script, shard, &[]);
        call.arg(what)
            .arg(VERSION)
            .arg(WORKS_FROM)
            .arg(self.layout.shards())
            .arg(shard);
        call
    }
}
