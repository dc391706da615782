//! `mw config`, and the exit code of a bad configuration.

use std::fs;

use tempfile::TempDir;

use crate::process::{ended, mw, run};

#[test]
fn the_configuration_in_effect_is_printed_with_its_origins() {
    let mut command = mw(&["config", "--listen", "127.0.0.1:9999", "--set", "carts.user_ttl=7d"]);
    command.env("MW_ORDERS__PAYMENT_WINDOW", "5s");
    let printed = ended(command.output().unwrap());
    assert_eq!(printed.code, Some(0), "{printed:?}");
    for (line, origin) in [
        ("listen = \"127.0.0.1:9999\"", "--listen"),
        ("user_ttl = \"7d\"", "--set"),
        ("payment_window = \"5s\"", "environment variable MW_ORDERS__PAYMENT_WINDOW"),
        ("currency = \"RUB\"", "default"),
    ] {
        let found = printed.stdout.lines().find(|it| it.starts_with(line));
        let found = found.unwrap_or_else(|| panic!("{line} is not in {}", printed.stdout));
        assert!(found.ends_with(&format!("# {origin}")), "{found}");
    }
}

#[test]
fn secrets_are_not_printed() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("mw.toml");
    fs::write(&file, "[[tokens]]\nrole = \"operator\"\ntoken = \"0123456789abcdef\"\n").unwrap();
    let printed = run(&["config", "--config", file.to_str().unwrap()]);
    assert_eq!(printed.code, Some(0), "{printed:?}");
    assert!(printed.stdout.contains("token = \"****\"") && !printed.stdout.contains("0123456789abcdef"));
}

#[test]
fn a_bad_configuration_ends_with_2_and_opens_nothing() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    let data = data.to_str().unwrap();
    let file = folder.path().join("mw.toml");
    fs::write(&file, "[server]\n\nlistn = \"127.0.0.1:1\"\n").unwrap();
    let missing = folder.path().join("tls.pem");
    let tls = format!("server.tls={{certificate=\"{0}\",key=\"{0}\"}}", missing.display());
    let cases: [(&[&str], &str); 6] = [
        (
            &["--config", file.to_str().unwrap()],
            "mw.toml:3: server.listn: unknown key; did you mean server.listen?",
        ),
        (&["--set", "no.such=1"], "--set: no.such: unknown key"),
        (&["--listen", "0.0.0.0:0"], "add [[tokens]], or listen on 127.0.0.1"),
        (&["--set", "store.engine=rocks"], "store.engine: expected \"embedded\" or \"cassandra\""),
        (&["--set", "reservations.ttl=25h"], "reservations.ttl: 25h is out of range"),
        (&["--set", &tls], "server.tls.certificate: read "),
    ];
    for (arguments, expected) in cases {
        for command in ["serve", "config"] {
            let refused = run(&[&[command, "--data", data], arguments].concat());
            assert_eq!(refused.code, Some(2), "{refused:?}");
            assert!(refused.stderr.contains(expected), "{expected} is not in {}", refused.stderr);
            assert_eq!(refused.stdout, "");
        }
    }
    for command in ["export", "stock audit"] {
        let mut arguments: Vec<&str> = command.split(' ').collect();
        arguments.extend(["--set", "no.such=1"]);
        assert_eq!(run(&arguments).code, Some(2));
    }
    assert!(!fs::exists(data).unwrap());
}

#[test]
fn an_unknown_variable_is_an_error_and_those_of_the_tests_are_not() {
    let with = |name: &str| ended(mw(&["config"]).env(name, "1").output().unwrap());
    let refused = with("MW_SERVER__LISTN");
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.stderr.contains("environment variable MW_SERVER__LISTN: server.listn: unknown key"),
        "{refused:?}"
    );
    for name in ["MW_SEED", "MW_TEST_LONG", "MW_BLESS"] {
        assert_eq!(with(name).code, Some(0), "{name}");
    }
}

#[test]
fn help_is_everywhere_and_has_examples() {
    let commands: [&[&str]; 8] = [
        &[],
        &["serve"],
        &["config"],
        &["stock"],
        &["stock", "audit"],
        &["export"],
        &["import"],
        &["completions"],
    ];
    for command in commands {
        let help = run(&[command, &["--help"]].concat());
        assert_eq!(help.code, Some(0), "{command:?}");
        assert!(help.stdout.contains("Usage: mw"), "{help:?}");
        assert!(command == ["stock"] || help.stdout.contains("Examples:"), "{help:?}");
    }
    assert_eq!(run(&["no-such-command"]).code, Some(2));
    let version = format!("mw {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(run(&["version"]).stdout, version);
    assert_eq!(run(&["--version"]).stdout, version);
}

#[test]
fn every_shell_gets_its_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]);
        assert_eq!(script.code, Some(0), "{shell}");
        assert!(script.stdout.contains("payment") || script.stdout.contains("demo"), "{shell}");
    }
    assert_eq!(run(&["completions", "dos"]).code, Some(2));
}
