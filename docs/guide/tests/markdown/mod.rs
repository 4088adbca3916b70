//! As much of Markdown as our pages use.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::Path,
};

/// A page, without the lines of its code blocks.
pub(crate) struct Page {
    lines: Vec<String>,
    languages: Vec<String>,
}

impl Page {
    pub(crate) fn read(file: &Path) -> Self {
        let text = fs::read_to_string(file).unwrap();
        let mut page = Self {
            lines: Vec::new(),
            languages: Vec::new(),
        };
        let mut is_code = false;
        for line in text.lines() {
            if let Some(language) = line.trim_start().strip_prefix("```") {
                if !is_code {
                    page.languages.push(language.trim().to_owned());
                }
                is_code = !is_code;
            } else if !is_code {
                page.lines.push(line.to_owned());
            }
        }
        assert!(!is_code, "{}: a code block has no end", file.display());
        page
    }

    /// What stands behind the fences of code blocks.
    pub(crate) fn languages(&self) -> impl Iterator<Item = &str> {
        self.languages.iter().map(String::as_str)
    }

    /// The texts of headings.
    pub(crate) fn headings(&self) -> impl Iterator<Item = &str> {
        self.lines
            .iter()
            .filter(|line| line.starts_with('#'))
            .filter_map(|line| line.trim_start_matches('#').strip_prefix(' '))
            .map(str::trim)
    }

    /// The names by which headings can be linked to.
    pub(crate) fn anchors(&self) -> HashSet<String> {
        let mut times: HashMap<String, usize> = HashMap::new();
        let mut anchors = HashSet::new();
        for heading in self.headings() {
            let name: String = shown(heading)
                .to_lowercase()
                .chars()
                .filter(|one| one.is_alphanumeric() || " -_".contains(*one))
                .map(|one| if one == ' ' { '-' } else { one })
                .collect();
            let before = times.entry(name.clone()).or_default();
            anchors.insert(match *before {
                0 => name,
                before => format!("{name}-{before}"),
            });
            *before += 1;
        }
        anchors
    }

    /// The targets of links and pictures.
    pub(crate) fn links(&self) -> Vec<String> {
        let mut links = Vec::new();
        // Links go over the ends of lines, code in backticks does not.
        let text: Vec<String> = self.lines.iter().map(|line| without_code(line)).collect();
        let text = text.join("\n");
        for (place, _) in text.match_indices("](") {
            if let Some((target, _)) = text[place + 2..].split_once(')') {
                links.push(
                    target
                        .split_whitespace()
                        .next()
                        .unwrap_or_default()
                        .to_owned(),
                );
            }
        }
        for line in text.lines().filter(|line| line.starts_with('[')) {
            if let Some((_, target)) = line.split_once("]: ") {
                links.push(target.trim().to_owned());
            }
        }
        links
    }
}

/// A heading as it is shown: the texts of links, without what marks them.
fn shown(heading: &str) -> String {
    let mut shown = String::new();
    let mut rest = heading;
    while let Some((before, after)) = rest.split_once("](") {
        shown.push_str(before);
        rest = after.split_once(')').map_or("", |(_, behind)| behind);
    }
    shown.push_str(rest);
    shown
}

/// A line without what is in backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// Source text in which a string that goes over several lines is in one piece.
pub(crate) fn unquoted(source: &str) -> String {
    let mut joined = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, after)) = rest.split_once("\\\n") {
        joined.push_str(before);
        rest = after.trim_start();
    }
    joined.push_str(rest);
    joined
}
