//! `inbox purge`: retention by hand, with an archive if wanted.

use anyhow::Result;
use inbox::{Janitor, State, Sweep};
use serde_json::json;

use crate::{
    archive::ArchiveFile,
    args::{Global, PurgeArgs},
    exit::Exit,
    interrupt, output, progress, store,
};

pub(crate) async fn run(global: &Global, args: PurgeArgs) -> Result<Exit> {
    let store = store::open(&global.store).await?;
    let token = interrupt::token()?;
    let mut janitor = Janitor::builder(store).slice(args.slice);
    for state in &args.states {
        janitor = match State::from(*state) {
            State::Processed => janitor.keep_processed(args.older_than),
            State::Dead => janitor.keep_dead(args.older_than),
            _ => janitor.keep_discarded(args.older_than),
        };
    }
    if let Some(file) = &args.archive {
        janitor = janitor.archiver(ArchiveFile::open(file)?);
    }
    let janitor = janitor.build()?;
    let spinner = progress::spinner(global, "purging");
    let mut sweep = Sweep::default();
    let ended = janitor.sweep_into(&mut sweep, &token).await;
    spinner.finish_and_clear();
    // What is deleted is deleted, also if the rest has failed.
    if ended.is_ok() || sweep.purged() > 0 {
        report(global, &sweep)?;
    }
    ended?;
    Ok(interrupt::exit(&token, Exit::Ok))
}

fn report(global: &Global, sweep: &Sweep) -> Result<()> {
    if global.json {
        output::json(&json!({ "purged": sweep.purged(), "corrupt_left": sweep.corrupt }))?;
    } else if !global.quiet {
        output::line(format!("{} purged", output::messages(sweep.purged())))?;
        if sweep.corrupt > 0 {
            output::line(format!(
                "{} corrupt rows were left: they cannot be archived",
                output::count(sweep.corrupt)
            ))?;
        }
    }
    Ok(())
}
