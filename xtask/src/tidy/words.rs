//! Retired words: a mechanism has the name that the field gives it, and an old name does not come back. This file holds
//! the words, so it is not searched for them; neither is the changelog, which tells what happened under the old names.

use super::Violation;
use super::tree::{File, Tree};

/// Words that are retired everywhere: in prose, in names of any spelling (`take_off`, `TakeOff`, "take off") and in paths.
const WORDS: &[Word] = &[
    word("shelf", "cache"),
    word("shelves", "cache"),
    word("take off", "invalidate"),
    word("keep cards", "product_cache_ttl"),
    word("card memory", "product_cache_size"),
    word("second copy", "speculative execution"),
    word("due slots", "timers"),
    word("beat", "heartbeat"),
    word("silence", "failure timeout"),
    word("standing", "list buckets"),
    word("month piece", "MonthBucket"),
    word("showcase", "stale_read"),
    word("born", "started_at"),
    word("upkeep", "maintenance"),
    word("housekeeping", "maintenance, flush scheduler"),
    word("hurry", "compaction throttle"),
    word("onion", "middleware stack"),
    word("crowd", "concurrency"),
    word("crowds", "concurrency"),
    word("twin", "duplicate request"),
    word("twins", "duplicate requests"),
    word("fought for", "contention"),
    word("fleet", "worker pool"),
    word("contender", "baseline"),
    word("contenders", "baselines"),
    word("shopper", "user"),
    word("shoppers", "users"),
    word("whoever", "name the process, the reader or the request"),
    word("somebody", "name the process, the reader or the request"),
    word("nobody", "name the process, the reader or the request").except(&["nobody:"]),
    word("anybody", "name the process, the reader or the request"),
    word("everybody", "name the processes, the readers or the requests"),
    word("those who", "name the processes, the readers or the requests"),
];

/// Whole identifiers that are retired in code; in prose they are ordinary English.
const IDENTIFIERS: &[Word] = &[
    word("Answer", "Response, or the value's own name"),
    word("Asked", "RequestIdentity"),
    word("Card", "Product"),
    word("Desk", "Mailbox or Fixture"),
    word("Draft", "BatchPlan").in_stores(),
    word("Fate", "CasFate"),
    word("Figures", "StockHeader, or what the numbers are"),
    word("Flight", "InFlightPermit"),
    word("Forbid", "VoidIfAbsent"),
    word("GROUPS", "the commit sequence number"),
    word("Guarded", "the middleware's own name"),
    word("Led", "Prefixed"),
    word("Look", "Reader").in_stores(),
    word("Nature", "TableTraits"),
    word("Once", "RequestIdentity").except(&["sync::Once"]),
    word("Pace", "the throttle's own name"),
    word("Past", "ReadBasis").in_stores(),
    word("Pressed", "Saturated"),
    word("Prevent", "ReleaseOrVoid"),
    word("Remembered", "StoredOutcome"),
    word("Rounds", "CasLoop"),
    word("Said", "the value's own name"),
    word("Surroundings", "ClusterContext"),
    word("Trace", "WriteCertainty").in_stores().except(&["ring::Trace"]),
    word("Unsafe", "PolicyViolation"),
    word("Verdict", "CasResult, or the judgement's own name")
        .except(&["ItemAccessor, Verdict", "Verdict::Keep"]),
    word("Visit", "RowVisitor").in_stores(),
    word("ask", "submit").in_stores(),
    word("marks", "recent_op_tokens").in_stores(),
    word("mark", "op_token, or placeholder").in_stores(),
    word("pass_over", "suspect"),
    word("settle", "process_batch").in_stores(),
    word("shown", "encoded_json, or what is shown").in_stores(),
    word("told", "the value's own name"),
    word("said", "the value's own name"),
];

/// Names of source files and folders.
const FILES: &[Word] = &[
    word("alarm", "timer"),
    word("answer", "response"),
    word("beat", "heartbeat"),
    word("contest", "rounds"),
    word("crowds", "concurrency"),
    word("draw", "sampling"),
    word("due", "timers"),
    word("gather", "coalesce"),
    word("given", "fixtures"),
    word("guard", "revision, or what is guarded"),
    word("keep", "export, import"),
    word("left", "recovery"),
    word("once", "idempotency"),
    word("outcome", "certainty"),
    word("peers", "baselines"),
    word("plans", "bucketing"),
    word("quorums", "quorum_availability"),
    word("reading", "read_back"),
    word("refusal", "store_error"),
    word("registers", "coalesce"),
    word("shopping", "scenarios"),
    word("take", "deserialisation"),
    word("tally", "stats"),
    word("transfer", "export"),
    word("unsafe_rules", "policy violations"),
    word("window", "cache"),
];

struct Word {
    retired: &'static str,
    instead: &'static str,
    /// Text around the word in which it is another's name, such as `sync::Once`.
    except: &'static [&'static str],
    /// The start of the paths in which it is retired; elsewhere it may mean something else.
    within: &'static str,
}

const fn word(retired: &'static str, instead: &'static str) -> Word {
    Word { retired, instead, except: &[], within: "" }
}

impl Word {
    const fn except(self, except: &'static [&'static str]) -> Self {
        Self { except, ..self }
    }

    /// Retired in the storage contract and its engines only.
    const fn in_stores(self) -> Self {
        Self { within: "crates/store", ..self }
    }

    fn is_excepted_in(&self, line: &str) -> bool {
        self.except.iter().any(|text| line.contains(text))
    }

    fn violation(&self, path: &str, line: usize) -> Violation {
        Violation::new(path, line, format!("`{}` is retired: use {}", self.retired, self.instead))
    }
}

const SEARCHED: &[&str] = &["cql", "md", "rs", "toml"];
const NOT_SEARCHED: &[&str] = &["xtask/src/tidy/words.rs", "CHANGELOG.md"];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    tree.files().filter(|file| !NOT_SEARCHED.contains(&file.path.as_str())).flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<Violation> {
    let mut violations = path_words(file);
    if !SEARCHED.contains(&file.extension()) {
        return violations;
    }
    let code = code_of(file);
    for ((number, line), code) in file.lines().zip(code.split('\n')) {
        let parts = parts(line);
        let prose = WORDS.iter().filter(|word| has_parts(&parts, word.retired));
        let names = IDENTIFIERS
            .iter()
            .filter(|word| file.path.starts_with(word.within))
            .filter(|word| identifiers(code).any(|name| name == word.retired));
        let found = prose.chain(names).filter(|word| !word.is_excepted_in(line));
        violations.extend(found.map(|word| word.violation(&file.path, number)));
    }
    violations
}

fn path_words(file: &File) -> Vec<Violation> {
    let path = parts(&file.path);
    let stem = file.path.rsplit_once('.').map_or(file.path.as_str(), |(stem, _)| stem);
    let whole = |word: &&Word| stem.split('/').any(|segment| segment == word.retired);
    let anywhere = WORDS.iter().filter(|word| has_parts(&path, word.retired));
    let named = FILES.iter().filter(|_| file.extension() == "rs").filter(whole);
    anywhere.chain(named).map(|word| word.violation(&file.path, 1)).collect()
}

/// The words of a text in lower case, those inside of a name too: `take_off`, `TakeOff` and "take off" are two words.
fn parts(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut after_lower = false;
    for c in text.chars() {
        let begins = c.is_uppercase() && after_lower;
        if (begins || !c.is_alphanumeric()) && parts.last().is_some_and(|part| !part.is_empty()) {
            parts.push(String::new());
        }
        if let (true, Some(part)) = (c.is_alphanumeric(), parts.last_mut()) {
            part.extend(c.to_lowercase());
        }
        after_lower = c.is_lowercase();
    }
    parts
}

fn has_parts(parts: &[String], retired: &str) -> bool {
    let wanted: Vec<&str> = retired.split(' ').collect();
    parts.windows(wanted.len()).any(|window| window.iter().zip(&wanted).all(|(part, word)| part == word))
}

fn identifiers(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// The text of a file, line by line, without what is prose: comments and literals in Rust, all but code spans in Markdown.
fn code_of(file: &File) -> String {
    match file.extension() {
        "rs" => rust_code(&file.text),
        "md" => {
            let spans = |line: &str| line.split('`').skip(1).step_by(2).collect::<Vec<_>>().join(" ");
            file.text.split('\n').map(spans).collect::<Vec<_>>().join("\n")
        }
        _ => file.text.split('\n').map(|_| "").collect::<Vec<_>>().join("\n"),
    }
}

/// Where a reader of Rust is.
enum At {
    Code,
    LineComment,
    BlockComment,
    /// With the number of `#` that end it, where it is raw.
    Literal(Option<usize>),
}

/// Rust without comments and string literals; line breaks stay.
fn rust_code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut at = At::Code;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let (next, length) = step(&at, rest, c, &code);
        if c == '\n' || (matches!(at, At::Code) && matches!(next, At::Code)) {
            code.push(c);
        }
        at = next;
        rest = rest.get(length..).unwrap_or_default();
    }
    code
}

/// Where the reader is after the next characters, and how many bytes they have.
fn step(at: &At, rest: &str, c: char, code: &str) -> (At, usize) {
    match at {
        At::Code if rest.starts_with("//") => (At::LineComment, 2),
        At::Code if rest.starts_with("/*") => (At::BlockComment, 2),
        At::Code if c == '"' => (At::Literal(raw_hashes(code)), 1),
        At::Code if rest.starts_with("'\"'") => (At::Code, 3),
        At::Code if rest.starts_with("'\\\"'") => (At::Code, 4),
        At::LineComment if c == '\n' => (At::Code, 1),
        At::BlockComment if rest.starts_with("*/") => (At::Code, 2),
        At::Literal(None) if c == '"' => (At::Code, 1),
        // A line break behind the backslash is kept for the count of lines.
        At::Literal(None) if c == '\\' && !rest.starts_with("\\\n") => {
            (At::Literal(None), 1 + rest.chars().nth(1).map_or(0, char::len_utf8))
        }
        At::Literal(Some(hashes)) if rest.starts_with(&format!("\"{}", "#".repeat(*hashes))) => {
            (At::Code, 1 + hashes)
        }
        At::Code => (At::Code, c.len_utf8()),
        At::LineComment => (At::LineComment, c.len_utf8()),
        At::BlockComment => (At::BlockComment, c.len_utf8()),
        At::Literal(hashes) => (At::Literal(*hashes), c.len_utf8()),
    }
}

/// The number of `#` of a raw literal that begins behind `code`, `None` where it is not raw.
fn raw_hashes(code: &str) -> Option<usize> {
    let start = code.trim_end_matches('#');
    let prefix = start.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    matches!(prefix, "r" | "br").then(|| code.len() - start.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)])).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_retired_word_is_refused_in_every_spelling() {
        for text in
            ["take_off();", "struct TakeOff;", "// Take off the row.", "\"take off\"", "const TAKE_OFF"]
        {
            let expected = "tests/a.rs:2: `take off` is retired: use invalidate";
            assert_eq!(found("tests/a.rs", &format!("\n{text}\n")), [expected], "{text}");
        }
    }

    #[test]
    fn every_word_is_refused_where_it_is_searched() {
        for Word { retired, instead, .. } in WORDS {
            for path in ["a.md", "a.toml", "a.cql", "tests/a.rs"] {
                let expected = format!("{path}:1: `{retired}` is retired: use {instead}");
                assert!(found(path, &format!("# a {retired}, b")).contains(&expected), "{expected}");
            }
        }
        for Word { retired, instead, .. } in IDENTIFIERS {
            let path = "crates/store/tests/a.rs";
            let expected = format!("{path}:1: `{retired}` is retired: use {instead}");
            assert!(found(path, &format!("a({retired});")).contains(&expected), "{expected}");
        }
        for Word { retired, instead, .. } in FILES {
            let path = format!("src/{retired}/a.rs");
            let expected = format!("{path}:1: `{retired}` is retired: use {instead}");
            assert!(found(&path, "").contains(&expected), "{expected}");
        }
    }

    #[test]
    fn longer_words_are_fine() {
        assert_eq!(
            found("tests/a.rs", "// heartbeat, outstanding, a bookshelf\nlet unborn = HeartBeats;\n"),
            [""; 0]
        );
        assert_eq!(found("src/outcomes.rs", "fn asked() {}\n"), [""; 0]);
    }

    #[test]
    fn an_identifier_is_ordinary_english_in_prose_and_literals() {
        let text = "// Once settle; ask.\n/* Once\nask */ let a = \"ask \\\" Once\"; let b = r#\"Once \" ask\"#;\n\
                    let c = '\"'; // ask\nlet d = \"one \\\n ask\";\n";
        assert_eq!(found("tests/a.rs", text), [""; 0]);
        assert_eq!(found("a.md", "Once a reader asks. Never ask again.\n"), [""; 0]);
        assert_eq!(found("a.md", "call `Once`\n"), ["a.md:1: `Once` is retired: use RequestIdentity"]);
        let after = "let a = \"one \\\n two\"; Once::new();\n";
        assert_eq!(found("tests/a.rs", after), ["tests/a.rs:2: `Once` is retired: use RequestIdentity"]);
    }

    #[test]
    fn the_name_of_another_is_excepted() {
        assert_eq!(found("tests/a.rs", "use std::sync::Once;\n"), [""; 0]);
        assert_eq!(found("tests/a.rs", "struct Once;\n").len(), 1);
    }

    #[test]
    fn a_word_of_the_stores_may_mean_something_else_elsewhere() {
        assert_eq!(found("crates/store/tests/a.rs", "mark();\n").len(), 1);
        assert_eq!(found("crates/shop/tests/a.rs", "mark();\n"), [""; 0]);
    }

    #[test]
    fn this_file_and_the_changelog_are_not_searched() {
        for path in NOT_SEARCHED {
            assert_eq!(found(path, "a shelf\n"), [""; 0]);
        }
    }
}
