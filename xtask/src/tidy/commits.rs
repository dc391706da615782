//! Subjects of commits that have not landed yet: imperative, at most 72 characters. Reading the history is apart from
//! judging it, so that a test is a list of subjects.

use super::Violation;
use anyhow::{Context, Result};
use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

const SUBJECT_MAX_CHARS: usize = 72;

/// A commit before those to check, for a checkout that has no `origin/main` to compare with.
const BASE_VARIABLE: &str = "MW_TIDY_BASE";

/// The branch that changes land on.
const LANDED: &str = "origin/main";

/// The last commit that is older than this rule. Checked from here on where nothing nearer is known.
const LAST_EXEMPT: &str = "dd0f5be2dbd51f67b641b93ef7e5ac221c79b365";

/// Verbs whose imperative ends like another form of a verb.
const IMPERATIVES: &[&str] = &[
    "Access", "Address", "Alias", "Bias", "Bring", "Bypass", "Canvass", "Compress", "Cross", "Discuss",
    "Embed", "Exceed", "Express", "Feed", "Focus", "Miss", "Pass", "Ping", "Press", "Proceed", "Process",
    "Ring", "Seed", "Shed", "Speed", "Spring", "String", "Suppress", "Witness",
];

/// First words of subjects that describe a state instead of a change.
const NO_VERBS: &[&str] = &[
    "A", "All", "An", "Any", "Both", "Each", "Every", "How", "In", "It", "New", "No", "On", "One", "Only",
    "Some", "That", "The", "There", "These", "This", "Those", "Three", "Two", "What", "When", "Where",
    "Which", "Who", "Why",
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Commit {
    id: String,
    subject: String,
}

/// The commits of the checkout at `root` that have not landed; none where it is not under version control.
pub(super) fn load(root: &Path) -> Result<Vec<Commit>> {
    if git(root, &["rev-parse", "--verify", "--quiet", "HEAD"])?.is_none() {
        return Ok(Vec::new());
    }
    let range = range(root)?;
    let mut arguments = vec!["log", "--no-merges", "--format=%h %s"];
    arguments.extend(range.iter().map(String::as_str));
    let log = git(root, &arguments)?
        .with_context(|| format!("list commits: git {} failed", arguments.join(" ")))?;
    Ok(log.lines().filter_map(Commit::parse).collect())
}

/// What `git log` is to list.
fn range(root: &Path) -> Result<Vec<String>> {
    if let Some(base) = env::var(BASE_VARIABLE).ok().filter(|base| !base.is_empty()) {
        return Ok(vec![format!("{base}..HEAD")]);
    }
    // HEAD is the merge base itself where the commits have landed: then the whole range since the rule counts.
    let head = git(root, &["rev-parse", "HEAD"])?;
    let merge_base = git(root, &["merge-base", "HEAD", LANDED])?;
    if let Some(base) = merge_base.filter(|base| Some(base) != head.as_ref()) {
        return Ok(vec![format!("{}..HEAD", base.trim())]);
    }
    if git(root, &["merge-base", "--is-ancestor", LAST_EXEMPT, "HEAD"])?.is_some() {
        return Ok(vec![format!("{LAST_EXEMPT}..HEAD")]);
    }
    // A shallow clone ends before the last exempt commit, so all it has is newer. A history without that commit was
    // rewritten: its age is unknown, and only the newest commit is certainly under the rule.
    let shallow = git(root, &["rev-parse", "--is-shallow-repository"])?.is_some_and(|it| it.trim() == "true");
    Ok(if shallow { vec!["HEAD".to_owned()] } else { vec!["--max-count=1".to_owned(), "HEAD".to_owned()] })
}

/// The output of a git command, `None` where it fails or git is not installed.
fn git(root: &Path, arguments: &[&str]) -> Result<Option<String>> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(root)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    match output {
        Ok(output) if output.status.success() => {
            Ok(Some(String::from_utf8(output.stdout).context("read the output of git: not UTF-8")?))
        }
        Ok(_) | Err(_) => Ok(None),
    }
}

impl Commit {
    /// From a line of `git log --format="%h %s"`.
    fn parse(line: &str) -> Option<Self> {
        let (id, subject) = line.split_once(' ')?;
        Some(Self { id: id.to_owned(), subject: subject.to_owned() })
    }
}

pub(super) fn check(commits: &[Commit]) -> Vec<Violation> {
    commits
        .iter()
        .filter_map(|commit| {
            let change = objection(&commit.subject)?;
            Some(Violation::new(&format!("commit {}", commit.id), 1, change))
        })
        .collect()
}

fn objection(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    if length > SUBJECT_MAX_CHARS {
        return Some(format!("shorten the subject: {length} characters, the limit is {SUBJECT_MAX_CHARS}"));
    }
    if subject.ends_with('.') {
        return Some("remove the period at the end of the subject".to_owned());
    }
    let first = subject.split(' ').next().unwrap_or_default();
    (!is_imperative(first))
        .then(|| format!("begin the subject with a capitalised imperative, not with {first:?}"))
}

fn is_imperative(word: &str) -> bool {
    let capitalised = word.starts_with(char::is_uppercase) && word.chars().skip(1).all(char::is_lowercase);
    let other_form = ["ed", "ing", "s"].iter().any(|ending| word.ends_with(ending));
    capitalised && !NO_VERBS.contains(&word) && (!other_form || IMPERATIVES.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commits(subjects: &[&str]) -> Vec<Commit> {
        subjects.iter().filter_map(|subject| Commit::parse(&format!("abc1234 {subject}"))).collect()
    }

    #[test]
    fn imperative_subjects_pass() {
        let subjects = [
            "Rename modules, types and tables to the field's vocabulary",
            "Mark benchmark figures that were not re-measured",
            "Pass the revision to the CAS loop",
            "Embed the default configuration",
            "Revert \"Add a cache\"",
        ];
        assert_eq!(check(&commits(&subjects)), []);
    }

    #[test]
    fn other_subjects_are_refused() {
        let subjects = [
            "Cassandra: an adjustment is not told as a failure",
            "What was not measured again is said",
            "Tests of recovery keep the database",
            "Added a cache",
            "Adding a cache",
            "Adds a cache",
            "add a cache",
            "README and CHANGELOG say what was measured",
            "",
        ];
        for subject in subjects {
            let found = check(&commits(&[subject]));
            assert_eq!(found.len(), 1, "{subject}");
            assert!(
                found[0].change.starts_with("begin the subject with a capitalised imperative"),
                "{found:?}"
            );
        }
    }

    #[test]
    fn length_and_period_are_refused_with_the_commit() {
        let (longest, longer) = (format!("Add {}", "x".repeat(68)), format!("Add {}", "x".repeat(69)));
        assert_eq!(check(&commits(&[&longest])), []);
        let found: Vec<String> =
            check(&commits(&[&longer, "Add a cache."])).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "commit abc1234:1: shorten the subject: 73 characters, the limit is 72",
                "commit abc1234:1: remove the period at the end of the subject",
            ]
        );
    }

    #[test]
    fn a_folder_without_a_history_has_no_commits() {
        assert_eq!(load(Path::new("/")).expect("load"), []);
    }

    #[test]
    fn the_history_is_read_from_a_base() {
        let folder = env::temp_dir().join(format!("mw-xtask-commits-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("create a folder");
        let run = |arguments: &[&str]| {
            let identity =
                ["-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false"];
            git(&folder, &[&identity, arguments].concat()).expect("run git").expect("git succeeds")
        };
        run(&["init", "--quiet"]);
        run(&["commit", "--quiet", "--allow-empty", "-m", "first"]);
        run(&["commit", "--quiet", "--allow-empty", "-m", "Add a second"]);
        run(&["update-ref", "refs/remotes/origin/main", "HEAD~1"]);
        let subjects = |commits: Vec<Commit>| -> Vec<String> {
            commits.into_iter().map(|commit| commit.subject).collect()
        };
        let ahead = load(&folder).map(subjects);
        run(&["update-ref", "-d", "refs/remotes/origin/main"]);
        run(&["commit", "--quiet", "--allow-empty", "-m", "Add a third"]);
        let rewritten = load(&folder).map(subjects);
        std::fs::remove_dir_all(&folder).expect("remove the folder");
        assert_eq!(ahead.expect("load"), ["Add a second"]);
        assert_eq!(rewritten.expect("load"), ["Add a third"]);
    }
}
