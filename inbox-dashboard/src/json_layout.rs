//! JSON laid out for people, with each number and text as it was written.

/// Lays a valid JSON text out, two spaces for each level. What is no valid JSON comes out as something.
pub(crate) fn lay_out(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let mut level = 0_usize;
    let mut chars = json.chars().peekable();
    let mut in_text = false;
    let mut is_escaped = false;
    while let Some(c) = chars.next() {
        if in_text {
            out.push(c);
            if is_escaped {
                is_escaped = false;
            } else if c == '\\' {
                is_escaped = true;
            } else if c == '"' {
                in_text = false;
            }
            continue;
        }
        match c {
            ' ' | '\n' | '\r' | '\t' => {}
            '{' | '[' => {
                out.push(c);
                while chars.next_if(char::is_ascii_whitespace).is_some() {}
                if let Some(end) = chars.next_if(|c| matches!(c, '}' | ']')) {
                    out.push(end);
                } else {
                    level += 1;
                    new_line(&mut out, level);
                }
            }
            '}' | ']' => {
                level = level.saturating_sub(1);
                new_line(&mut out, level);
                out.push(c);
            }
            ',' => {
                out.push(c);
                new_line(&mut out, level);
            }
            ':' => out.push_str(": "),
            c => {
                in_text = c == '"';
                out.push(c);
            }
        }
    }
    out
}

fn new_line(out: &mut String, level: usize) {
    out.push('\n');
    // A text of brackets alone must not grow with the square of its length.
    out.extend(std::iter::repeat_n("  ", level.min(64)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_laid_out_and_means_the_same() {
        let json = r#"{"a":[1,{"b":"x\": {[,"},[ ]],"n":1.0000000000000000001,"e":{}}"#;
        let laid_out = lay_out(json);
        let expected = "{\n  \"a\": [\n    1,\n    {\n      \"b\": \"x\\\": {[,\"\n    },\n    []\n  ],\n  \
            \"n\": 1.0000000000000000001,\n  \"e\": {}\n}";
        assert_eq!(laid_out, expected);
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&laid_out), read(json));
    }
}
