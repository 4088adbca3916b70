//! Messages from NDJSON.

mod format;
#[cfg(test)]
mod hostile;
mod lines;
mod source;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result};
use tokio::io::{AsyncBufRead, BufReader};

use self::{format::Format, lines::Lines};
pub(crate) use self::{
    format::cloud_event,
    source::{NdjsonSource, Refusals},
};
use clap::Args;

/// What stands on a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Contents {
    /// A message in JSON.
    #[default]
    Message,
    /// The id of a message that was handled without an inbox.
    Key,
}

#[derive(Debug, Args)]
pub(crate) struct InputArgs {
    /// NDJSON: CloudEvents 1.0, or anything with --id-field and --kind-field; - is standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[arg(skip)]
    pub(crate) contents: Contents,
    /// Take the message id from this field rather than from CloudEvents `id`. A field name, or a
    /// JSON pointer such as /order/id. Repeat it to join several with `#` (one within a field
    /// becomes `\#`): where several producers may use the same ids, `--id-field source --id-field
    /// id` tells their events apart, as webhooks and brokers do. Without it, the second of two such
    /// events is a duplicate (told as having other content only if kind or data differ)
    #[arg(long = "id-field", value_name = "FIELD")]
    pub(crate) id_fields: Vec<String>,
    /// Lines are any JSON rather than CloudEvents: take the kind from this field, and the whole line
    /// as payload (needs --id-field too)
    #[arg(long, value_name = "FIELD", requires = "id_fields")]
    pub(crate) kind_field: Option<String>,
    /// Keep messages with the same value of this field in order. A dead one lets the next pass
    #[arg(long, value_name = "FIELD")]
    pub(crate) ordering_field: Option<String>,
    /// Stop at the first bad line, rather than report it and go on. Where it is the store that refuses the line, what
    /// came in the same batch is stored all the same
    #[arg(long)]
    pub(crate) strict: bool,
    /// Store up to this many messages at a time
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) batch: u32,
}

/// What a line may have in addition to its payload, in bytes: the envelope, and the blow-up of base64
/// and escapes is covered by the factor below.
const ENVELOPE: usize = 128 * 1024;

pub(crate) type Reader = Box<dyn AsyncBufRead + Send + Unpin>;

/// Opens the input that the command line names. To be done before the store is opened: a mistyped
/// name must not leave an empty inbox behind.
pub(crate) async fn open(args: &InputArgs) -> Result<Reader> {
    Ok(if args.file == Path::new("-") {
        Box::new(BufReader::new(tokio::io::stdin()))
    } else {
        let file = tokio::fs::File::open(&args.file)
            .await
            .with_context(|| format!("cannot read {}", args.file.display()))?;
        let is_folder = file.metadata().await.is_ok_and(|m| m.is_dir());
        anyhow::ensure!(
            !is_folder,
            "cannot read {}: it is a folder",
            args.file.display()
        );
        Box::new(BufReader::with_capacity(256 * 1024, file))
    })
}

/// The messages of an input, for `handler`. `payload_limit` is the store's, in bytes.
pub(crate) fn messages(
    reader: Reader,
    args: &InputArgs,
    handler: &inbox::HandlerName,
    payload_limit: usize,
    refusals: Arc<Refusals>,
) -> NdjsonSource<Reader> {
    let line_limit = payload_limit.saturating_mul(2).saturating_add(ENVELOPE);
    NdjsonSource::new(
        Lines::new(reader, line_limit),
        Format::new(args),
        handler.clone(),
        payload_limit,
        args.strict,
        refusals,
    )
}
