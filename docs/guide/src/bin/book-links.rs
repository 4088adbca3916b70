//! For mdBook: links that leave the book lead to the repository's address (`git-repository-url` in book.toml), or
//! become text where that is not set. In the repository the pages' links are relative, so that they work there.

use std::{
    env, error, io,
    path::{Component, Path, PathBuf},
};

use serde_json::Value;

fn main() -> Result<(), Box<dyn error::Error>> {
    if env::args().nth(1).as_deref() == Some("supports") {
        return Ok(()); // every renderer
    }
    let (context, mut book): (Value, Value) = serde_json::from_reader(io::stdin().lock())?;
    let address = context.pointer("/config/output/html/git-repository-url");
    let address = address
        .and_then(Value::as_str)
        .map(|url| url.trim_end_matches('/'));
    rewrite(&mut book, address);
    serde_json::to_writer(io::stdout().lock(), &book)?;
    Ok(())
}

/// Rewrites each chapter below: an object with a path and a content.
fn rewrite(value: &mut Value, address: Option<&str>) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| rewrite(item, address)),
        Value::Object(fields) => {
            let page = fields
                .get("path")
                .and_then(Value::as_str)
                .map(PathBuf::from);
            if let (Some(page), Some(Value::String(text))) = (page, fields.get_mut("content")) {
                *text = with_links(text, &page, address);
            }
            fields
                .values_mut()
                .for_each(|field| rewrite(field, address));
        }
        _ => {}
    }
}

/// The text of `page`, whose path is from docs/, with other links where they leave that.
fn with_links(text: &str, page: &Path, address: Option<&str>) -> String {
    let mut written = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let Some((target, behind)) = after.split_once(')') else {
            break;
        };
        match outside(page, target) {
            // mdBook renders a README as index.html.
            None => written.extend([before, "](", &target.replace("README.md", "index.md"), ")"]),
            Some(path) => match (address, before.rsplit_once('[')) {
                (None, Some((before, label))) => written.extend([before, label]),
                (address, _) => {
                    let address = address.unwrap_or_default();
                    written.extend([before, "](", address, "/blob/HEAD/", &path, ")"]);
                }
            },
        }
        rest = behind;
    }
    written + rest
}

/// The path from the repository's root, of a link that leaves docs/.
fn outside(page: &Path, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with('#') {
        return None;
    }
    let mut path = PathBuf::from("docs");
    for part in page.parent()?.join(target).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            part => path.push(part),
        }
    }
    (!path.starts_with("docs")).then(|| path.display().to_string())
}
