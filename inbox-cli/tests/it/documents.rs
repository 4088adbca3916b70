//! The commands in `docs/operations.md` are there, and do something.

use std::{env, fs, path::Path};

use crate::support::{Place, event, finish};

#[test]
fn every_command_of_the_operators_page_runs() {
    let place = Place::new();
    let events: String = ["evt-7", "evt-8"]
        .map(|id| event(id, "order.placed", "{}"))
        .concat();
    place.file("in.ndjson", events);
    let run = [
        "run",
        "in.ndjson",
        "--handler",
        "billing",
        "--",
        "sh",
        "-c",
        "exit 65",
    ];
    place.inbox(&run).exits(4);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let page = fs::read_to_string(page).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_inbox")).parent().unwrap();
    let path = format!("{}:{}", program.display(), env::var("PATH").unwrap());
    let blocks = page.split("```sh\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("```").next().unwrap().lines());
    let mut number = 0;
    for line in lines {
        assert!(line.starts_with("inbox "), "{line}");
        let mut command = place.command(&[]);
        let environment: Vec<_> = command
            .get_envs()
            .map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned)))
            .collect();
        let folder = command.get_current_dir().unwrap().to_owned();
        command = std::process::Command::new("sh");
        command
            .args(["-c", line])
            .current_dir(folder)
            .env("PATH", &path);
        for (name, value) in environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let output = finish(command.output().unwrap());
        // 4 is an answer: there was nothing to change.
        assert!(matches!(output.code, Some(0 | 4)), "{line}: {output:?}");
        number += 1;
    }
    assert!(number >= 25, "{number}");
}
