//! The numbered CQL files, compiled in, and the statements in them.

use sha2::{Digest, Sha256};

/// One numbered file.
#[derive(Debug, Clone, Copy)]
pub(super) struct File {
    pub(super) number: u32,
    pub(super) name: &'static str,
    pub(super) text: &'static str,
}

/// Oldest first.
pub(super) const FILES: &[File] = &[
    File { number: 1, name: "0001_shop", text: include_str!("../../schema/0001_shop.cql") },
    File { number: 2, name: "0002_migration", text: include_str!("../../schema/0002_migration.cql") },
];

/// A statement without its semicolon, and the comment above it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CqlStatement {
    pub(super) comment: Vec<&'static str>,
    pub(super) text: String,
}

impl File {
    /// The leading comment, if an empty line follows it.
    pub(super) fn header(&self) -> Vec<&'static str> {
        let lines: Vec<&str> = self.text.lines().take_while(|line| line.starts_with("--")).collect();
        match self.text.lines().nth(lines.len()) {
            Some(next) if next.trim().is_empty() => lines,
            _ => Vec::new(),
        }
    }

    /// Statements end with a semicolon at the end of a line.
    pub(super) fn statements(&self) -> Vec<CqlStatement> {
        let mut statements = Vec::new();
        let (mut comment, mut lines) = (Vec::new(), Vec::new());
        for line in self.text.lines().skip(self.header().len()) {
            let line = line.trim_end();
            if line.trim_start().starts_with("--") {
                comment.push(line);
            } else if let Some(last) = line.strip_suffix(';') {
                lines.push(last);
                let text = std::mem::take(&mut lines).join("\n");
                statements.push(CqlStatement { comment: std::mem::take(&mut comment), text });
            } else if !line.is_empty() {
                lines.push(line);
            }
        }
        if !lines.is_empty() {
            statements.push(CqlStatement { comment, text: lines.join("\n") });
        }
        statements
    }

    /// Of the words of the statements only: comments and layout may change after a file was applied.
    pub(super) fn checksum(&self) -> String {
        let mut hash = Sha256::new();
        for statement in self.statements() {
            for word in statement.text.split_whitespace() {
                hash.update(word);
                hash.update(" ");
            }
            hash.update(";");
        }
        format!("{:x}", hash.finalize())
    }
}

pub(super) fn newest(files: &[File]) -> u32 {
    files.last().map_or(0, |file| file.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "-- The file.\n\n-- One.\nCREATE TYPE a (\n    x int);\nCREATE TYPE b (y int);\n\n-- Two,\n-- long.\n\
                        CREATE TYPE c (z int);\n";

    fn file(text: &'static str) -> File {
        File { number: 1, name: "0001_test", text }
    }

    #[test]
    fn a_file_is_its_header_and_statements_with_comments() {
        let file = file(TEXT);
        assert_eq!(file.header(), ["-- The file."]);
        let statements = file.statements();
        let comments: Vec<_> = statements.iter().map(|statement| statement.comment.clone()).collect();
        assert_eq!(comments, [vec!["-- One."], vec![], vec!["-- Two,", "-- long."]]);
        assert_eq!(statements[0].text, "CREATE TYPE a (\n    x int)");
        assert_eq!(statements[2].text, "CREATE TYPE c (z int)");
    }

    #[test]
    fn a_checksum_is_of_statements_alone() {
        let checksum = file(TEXT).checksum();
        assert_eq!(
            file("CREATE TYPE a ( x int);\nCREATE TYPE b (y int);\nCREATE TYPE c (z int);").checksum(),
            checksum
        );
        assert_ne!(file("CREATE TYPE a ( x int);\nCREATE TYPE b (y int);").checksum(), checksum);
        assert_ne!(file("CREATE TYPE a (x text);").checksum(), file("CREATE TYPE a (x int);").checksum());
    }

    #[test]
    fn the_files_are_numbered_and_idempotent() {
        for (number, file) in (1..).zip(FILES) {
            assert_eq!(file.number, number);
            assert!(file.name.starts_with(&format!("{number:04}_")), "{}", file.name);
            for statement in file.statements() {
                assert!(statement.text.contains("IF NOT EXISTS"), "not idempotent: {}", statement.text);
                assert!(!statement.text.contains('\''), "options are the policy's: {}", statement.text);
            }
        }
    }
}
