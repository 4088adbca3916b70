//! Messages that may kill their worker: their last attempt is made by itself.

use inbox::{Key, Leased};

use super::{Grant, History, PartId};

impl History {
    /// Takes note of what a claim has brought together with a suspect.
    pub(super) fn told_suspects(&mut self, leased: &[Leased]) {
        let mut handlers = Vec::new();
        for leased in leased {
            // What is held already goes on.
            let grant = self.grant(&leased.lease);
            if grant.is_some_and(|grant| grant.is_suspect && !grant.is_again) {
                handlers.push(leased.lease.key.handler.clone());
            }
        }
        for leased in leased {
            if handlers.contains(&leased.lease.key.handler)
                && let Some(grant) = self.grant(&leased.lease)
            {
                grant.comes_with_suspect = true;
            }
        }
    }

    /// What a processor begins to run is no suspect, nor next to one of its handler, nor came with one; or it is a
    /// suspect, and runs by itself.
    pub(super) fn suspects_run_alone(&mut self, part: &PartId, key: &Key, token: i64) {
        if !part.name.starts_with("processor") {
            return;
        }
        let of_handler = self.messages.iter();
        let of_handler = of_handler.filter(|(other, _)| other.handler == key.handler);
        let grants = of_handler.flat_map(|(other, lives)| {
            let grants = lives.iter().flat_map(|life| &life.grants);
            grants.map(move |grant| (other, grant))
        });
        let own: Vec<(&Key, &Grant)> = grants.filter(|(_, grant)| grant.part == *part).collect();
        // A store may draw the same token for several messages.
        let is_this = |other: &Key, grant: &Grant| other == key && grant.token == token;
        let this = own.iter().find(|(other, grant)| is_this(other, grant));
        let Some((_, this)) = this else { return };
        let runs = |grant: &Grant| grant.run.as_ref().is_some_and(|run| run.end.is_none());
        let mut next_to = own.iter().filter(|(other, grant)| {
            let is_either = this.is_suspect || grant.is_suspect;
            is_either && runs(grant) && !is_this(other, grant)
        });
        let next_to = next_to.next().map(|(other, _)| other.to_string());
        let came_with = this.comes_with_suspect && !this.is_suspect;
        self.check("a suspect runs by itself", next_to.is_none(), || {
            format!("{part} ran {key} next to {}", next_to.unwrap_or_default())
        });
        self.check(
            "what comes with a suspect is handed back",
            !came_with,
            || format!("{part} ran {key}"),
        );
    }
}
