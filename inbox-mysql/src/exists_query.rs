//! What people whose databases are changed by a review run to see whether a complete inbox is there.

use crate::{
    installed_schema::{MARKER, STEPS, VERSION, expected},
    options::MySqlOptions,
    statement::Statement,
    statements::{Names, in_database},
};

impl MySqlOptions {
    /// What [`Schema::exists_query`](inbox_api::Schema::exists_query) gives, without a connection: several
    /// statements, of which one answers.
    #[must_use]
    pub fn exists_query(&self) -> String {
        let lines = self.expected_lines();
        let literals = lines.iter().map(|line| {
            let mut literal = Statement::default();
            literal.bytes(line.as_bytes());
            format!("        {}", literal.into_text())
        });
        let mark = Names::new(self).expand(&format!(
            "SELECT EXISTS (SELECT 1 FROM {{meta}} WHERE marker = '{MARKER}' \
             AND (version = {VERSION} OR (version > {VERSION} AND works_from <= {VERSION})))"
        ));
        let values = [
            ("number", lines.len().to_string()),
            ("within", in_database(self)),
            ("lines", literals.collect::<Vec<_>>().join(",\n")),
            // Within quotes.
            ("mark", mark.replace('\'', "''")),
        ];
        let mut query = include_str!("sql/exists.sql").to_owned();
        for (name, value) in values {
            query = query.replace(&format!("{{{name}}}"), &value);
        }
        query
    }

    /// A line for each table, each column and each column of an index.
    fn expected_lines(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (table, lines) in expected(self, STEPS) {
            let table = format!("{}_{table}", self.inbox);
            for line in lines {
                match line
                    .strip_suffix(')')
                    .and_then(|line| line.split_once(" ("))
                {
                    Some((index, columns)) => {
                        let columns = columns.split(',').enumerate();
                        found.extend(
                            columns
                                .map(|(n, column)| format!("{table} {index} {} {column}", n + 1)),
                        );
                    }
                    None => found.push(format!("{table} {line}")),
                }
            }
        }
        found
    }
}
