//! Links lead somewhere, the book has every page, and the errors that the guide explains are the code's.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod markdown;

use std::{
    collections::{BTreeSet, HashSet},
    fs,
    path::{Component, Path, PathBuf},
};

use markdown::{Page, unquoted};

/// Everything that is not ours to write.
const LEFT_OUT: [&str; 4] = ["target", "node_modules", ".git", "fixtures"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// The files below `folder` with this extension.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            if !LEFT_OUT.contains(&name) {
                found.extend(files(&path, extension));
            }
        } else if path.extension().is_some_and(|is| is == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            normal.pop();
        } else {
            normal.push(part);
        }
    }
    normal
}

#[test]
fn every_link_leads_somewhere() {
    let repository = repository();
    let mut broken = Vec::new();
    for file in files(&repository, "md") {
        let page = Page::read(&file);
        for link in page.links() {
            // Addresses elsewhere are not followed, and names of items are rustdoc's to check.
            if link.contains("://") || link.starts_with("mailto:") || link.contains("::") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            if path.is_empty() && anchor.is_empty() {
                continue;
            }
            let target = match path {
                "" => file.clone(),
                path => normal(&file.parent().unwrap().join(path)),
            };
            let is_there = target.exists()
                && (anchor.is_empty()
                    || target.extension().is_none_or(|is| is != "md")
                    || Page::read(&target).anchors().contains(anchor));
            if !is_there {
                broken.push(format!(
                    "{}: {link}",
                    file.strip_prefix(&repository).unwrap().display()
                ));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn the_book_has_every_page_once() {
    let docs = repository().join("docs");
    let summary = docs.join("SUMMARY.md");
    let listed = Page::read(&summary).links();
    let unique: HashSet<_> = listed.iter().collect();
    assert_eq!(unique.len(), listed.len(), "a page is in the summary twice");
    let listed: BTreeSet<PathBuf> = listed.iter().map(|link| docs.join(link)).collect();
    let there: BTreeSet<PathBuf> = files(&docs, "md")
        .into_iter()
        .filter(|page| *page != summary)
        .collect();
    assert_eq!(listed, there);
}

#[test]
fn a_chapter_with_code_is_compiled() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiled = fs::read_to_string(guide.join("src/lib.rs")).unwrap();
    for file in files(guide, "md") {
        let name = file.strip_prefix(guide).unwrap().to_str().unwrap();
        let is_listed = compiled.contains(&format!("\"{name}\""));
        let has_code = Page::read(&file)
            .languages()
            .any(|one| one.starts_with("rust"));
        assert_eq!(is_listed, has_code, "{name}");
    }
}

/// The headings of the chapter that are error texts, in backticks. What differs from case to case is `…` there.
#[test]
fn the_errors_that_are_explained_exist() {
    let repository = repository();
    let sources: Vec<String> = files(&repository, "rs")
        .iter()
        .filter(|file| !file.starts_with(repository.join("docs")))
        .map(|file| unquoted(&fs::read_to_string(file).unwrap()))
        .collect();
    let chapter = Page::read(&repository.join("docs/guide/troubleshooting.md"));
    let errors: Vec<String> = chapter
        .headings()
        .filter_map(|heading| Some(heading.strip_prefix('`')?.strip_suffix('`')?.to_owned()))
        .collect();
    assert!(errors.len() > 20, "only {} errors", errors.len());
    for error in errors {
        let is_there = |source: &String| has_in_order(source, &error);
        assert!(sources.iter().any(is_there), "no source has: {error}");
    }
}

/// Whether the source has the parts of `error` between its `…`, one close behind the other.
fn has_in_order(source: &str, error: &str) -> bool {
    let mut parts = error
        .split('…')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let first = parts.next().unwrap();
    let rest: Vec<&str> = parts.collect();
    source.match_indices(first).any(|(place, _)| {
        let mut behind = place + first.len();
        rest.iter().all(|part| {
            let end = source.len().min(behind + 200);
            let near = (behind..=end).rev().find_map(|end| source.get(behind..end));
            let found = near.and_then(|near| near.find(part));
            behind += found.map_or(0, |found| found + part.len());
            found.is_some()
        })
    })
}
