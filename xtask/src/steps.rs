//! `cargo xtask test`: one table of steps, run in order up to the first that fails.

use crate::test_cluster::{CassandraCluster, MongodbCluster};
use crate::tools::Tool;
use crate::{cargo, say, tidy};
use anyhow::{Context, Result, bail, ensure};
use mw_cassandra_testbed::TEST_VARIABLE as CASSANDRA_VARIABLE;
use mw_mongodb_testbed::TEST_VARIABLE as MONGODB_VARIABLE;
use std::time::Instant;

struct Step {
    name: &'static str,
    about: &'static str,
    needs: &'static [Tool],
    /// The shared servers that its tests use.
    servers: &'static [Server],
    action: Action,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    Cassandra,
    Mongodb,
}

/// The servers that the chosen steps share.
struct Servers {
    cassandra: Option<CassandraCluster>,
    mongodb: Option<MongodbCluster>,
}

enum Action {
    /// `cargo` with these arguments.
    Cargo(&'static str),
    /// The same, with one variable more in its environment.
    CargoWith { variable: &'static str, value: &'static str, arguments: &'static str },
    /// A check that is part of this program.
    Here(fn() -> Result<()>),
}

/// The fastest checks run first. Steps name no package: with the features of one alone cargo would build its dependencies again.
const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        about: "formatting",
        needs: &[Tool::Rustfmt],
        servers: &[],
        action: Action::Cargo("fmt --all --check"),
    },
    Step { name: "tidy", about: "house rules", needs: &[], servers: &[], action: Action::Here(tidy::run) },
    Step {
        name: "clippy",
        about: "lints, warnings denied",
        needs: &[Tool::Clippy, Tool::CCompiler, Tool::Make],
        servers: &[],
        action: Action::Cargo("clippy --workspace --all-targets --locked -- -D warnings"),
    },
    Step {
        name: "test",
        about: "all tests of all crates",
        needs: &[Tool::CCompiler, Tool::Make],
        servers: &[Server::Cassandra, Server::Mongodb],
        action: Action::Cargo("test --workspace --locked --no-fail-fast"),
    },
    Step {
        name: "api",
        about: "the API on the engine",
        needs: &[Tool::CCompiler, Tool::Make],
        servers: &[],
        action: Action::CargoWith {
            variable: "MW_TEST_ENGINE",
            value: "embedded",
            arguments: "test --workspace --test api --locked",
        },
    },
    Step {
        name: "cluster",
        about: "the API on a real cluster",
        needs: &[Tool::CCompiler, Tool::Make],
        servers: &[Server::Cassandra],
        action: Action::CargoWith {
            variable: "MW_TEST_ENGINE",
            value: "cassandra",
            arguments: "test --workspace --test api --locked",
        },
    },
    Step {
        name: "mongodb",
        about: "the API on a replica set",
        needs: &[Tool::CCompiler, Tool::Make],
        servers: &[Server::Mongodb],
        action: Action::CargoWith {
            variable: "MW_TEST_ENGINE",
            value: "mongodb",
            arguments: "test --workspace --test api --locked",
        },
    },
];

/// Read by the property and crash tests.
const LONG_VARIABLE: &str = "MW_TEST_LONG";

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    STEPS.iter().map(|step| step.name)
}

pub(crate) fn list() {
    for step in STEPS {
        say(format_args!("{:<8} {:<24} {}", step.name, step.about, step.action.describe()));
    }
}

/// Runs the steps named in `only`, or all of them where it is empty, in the table's order.
pub(crate) fn run_chosen(only: &[String], long: bool) -> Result<()> {
    let chosen: Vec<&Step> =
        STEPS.iter().filter(|step| only.is_empty() || only.iter().any(|name| name == step.name)).collect();
    check_tools(&chosen)?;
    run(&chosen, long)
}

fn check_tools(steps: &[&Step]) -> Result<()> {
    let mut needed: Vec<Tool> = Vec::new();
    for tool in steps.iter().flat_map(|step| step.needs) {
        if !needed.contains(tool) {
            needed.push(*tool);
        }
    }
    let missing: Vec<&str> = needed.into_iter().filter_map(Tool::missing).collect();
    ensure!(missing.is_empty(), "{}", missing.join("\n"));
    Ok(())
}

fn run(steps: &[&Step], long: bool) -> Result<()> {
    let started = Instant::now();
    let mut seconds = Vec::new();
    let mut failure = None;
    let mut servers = Servers::begin(steps);
    for step in steps {
        say(format_args!("\n── {}: {}", step.name, step.action.describe()));
        let step_started = Instant::now();
        let outcome = step.run(long, &mut servers);
        seconds.push(step_started.elapsed().as_secs_f64());
        if let Err(error) = outcome {
            failure = Some((step.name, error));
            break;
        }
        say(format_args!("── {}: ok, {:.1} s", step.name, step_started.elapsed().as_secs_f64()));
    }
    say(format_args!("\n{}", table(steps, &seconds, failure.is_some())));
    if let Some((name, error)) = failure {
        bail!("failed at {name}: {error:#}\nrepeat this step alone: cargo xtask test --only {name}");
    }
    let count = steps.len();
    let plural = if count == 1 { "" } else { "s" };
    say(format_args!("passed: {count} step{plural} in {:.1} s", started.elapsed().as_secs_f64()));
    Ok(())
}

/// `seconds` has an entry for each step that ran; `failed` says how the last of them ended.
fn table(steps: &[&Step], seconds: &[f64], failed: bool) -> String {
    let mut rows = vec![format!("{:<8} {:>8}  result", "step", "seconds")];
    for (index, step) in steps.iter().enumerate() {
        rows.push(match seconds.get(index) {
            Some(time) => {
                let result = if failed && index + 1 == seconds.len() { "failed" } else { "ok" };
                format!("{:<8} {time:>8.1}  {result}", step.name)
            }
            None => format!("{:<8} {:>8}  not run", step.name, "-"),
        });
    }
    rows.join("\n")
}

impl Step {
    fn run(&self, long: bool, servers: &mut Servers) -> Result<()> {
        self.action.run(&self.environment(long, servers)?)
    }

    fn uses(&self, server: Server) -> bool {
        self.servers.contains(&server)
    }

    /// Environment variables of its tests, in addition to the developer's.
    fn environment(&self, long: bool, servers: &mut Servers) -> Result<Vec<(&'static str, String)>> {
        let mut variables = Vec::new();
        if long {
            variables.push((LONG_VARIABLE, "1".to_owned()));
        }
        if let Some(cluster) = servers.cassandra.as_mut().filter(|_| self.uses(Server::Cassandra)) {
            variables.push((CASSANDRA_VARIABLE, cluster.value()?));
        }
        if let Some(cluster) = servers.mongodb.as_mut().filter(|_| self.uses(Server::Mongodb)) {
            variables.push((MONGODB_VARIABLE, cluster.value()?));
        }
        Ok(variables)
    }
}

impl Servers {
    /// Begins to start those that a step uses.
    fn begin(steps: &[&Step]) -> Self {
        let used = |server| steps.iter().any(|step| step.uses(server));
        Self {
            cassandra: used(Server::Cassandra).then(CassandraCluster::begin),
            mongodb: used(Server::Mongodb).then(MongodbCluster::begin),
        }
    }
}

impl Action {
    fn describe(&self) -> String {
        match self {
            Self::Cargo(arguments) => format!("cargo {arguments}"),
            Self::CargoWith { variable, value, arguments } => format!("{variable}={value} cargo {arguments}"),
            Self::Here(_) => "built in".to_owned(),
        }
    }

    fn run(&self, environment: &[(&str, String)]) -> Result<()> {
        let mut command = match self {
            Self::Here(check) => return check(),
            Self::Cargo(arguments) => cargo::command(arguments),
            Self::CargoWith { variable, value, arguments } => {
                let mut command = cargo::command(arguments);
                command.env(variable, value);
                command
            }
        };
        let status = command
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .status()
            .with_context(|| format!("run {}", self.describe()))?;
        ensure!(status.success(), "{} ended with {status}", self.describe());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_cluster::tests::given;

    const PASS: Step =
        Step { name: "pass", about: "", needs: &[], servers: &[], action: Action::Here(|| Ok(())) };
    const FAIL: Step = Step {
        name: "fail",
        about: "",
        needs: &[],
        servers: &[],
        action: Action::Here(|| bail!("broken on purpose")),
    };
    const UNREACHED: Step = Step {
        name: "late",
        about: "",
        needs: &[],
        servers: &[],
        action: Action::Here(|| panic!("ran after a failure")),
    };

    #[test]
    fn the_first_failure_stops_the_run_and_is_named() {
        let error = run(&[&PASS, &FAIL, &UNREACHED], false).expect_err("must fail").to_string();
        assert!(error.starts_with("failed at fail: broken on purpose\n"), "{error}");
        assert!(error.ends_with("cargo xtask test --only fail"), "{error}");
    }

    #[test]
    fn a_command_that_fails_is_a_failed_step() {
        let step = Step {
            name: "odd",
            about: "",
            needs: &[],
            servers: &[],
            action: Action::Cargo("--no-such-option"),
        };
        let error = run(&[&step], false).expect_err("must fail").to_string();
        assert!(error.contains("cargo --no-such-option ended with exit status"), "{error}");
    }

    #[test]
    fn a_variable_is_shown_and_given_to_the_command() {
        // Cargo refuses the value, which proves that it was passed.
        let (variable, value) = ("CARGO_TERM_COLOR", "loud");
        let action = Action::CargoWith { variable, value, arguments: "locate-project" };
        let error = action.run(&[]).expect_err("must fail").to_string();
        assert!(error.starts_with("CARGO_TERM_COLOR=loud cargo locate-project ended with"), "{error}");
        assert!(Action::Cargo("locate-project").run(&[]).is_ok());
    }

    #[test]
    fn only_steps_that_use_servers_get_their_addresses() {
        let mut servers =
            Servers { cassandra: Some(given("127.0.0.1,127.0.0.2")), mongodb: Some(given("mongodb://h/")) };
        let both = Step { servers: &[Server::Cassandra, Server::Mongodb], ..PASS };
        let cassandra = (CASSANDRA_VARIABLE, "127.0.0.1,127.0.0.2".to_owned());
        let mongodb = (MONGODB_VARIABLE, "mongodb://h/".to_owned());
        assert_eq!(
            both.environment(true, &mut servers).expect("there"),
            [(LONG_VARIABLE, "1".to_owned()), cassandra, mongodb.clone()]
        );
        let one = Step { servers: &[Server::Mongodb], ..PASS };
        assert_eq!(one.environment(false, &mut servers).expect("there"), [mongodb]);
        assert_eq!(PASS.environment(false, &mut servers).expect("there"), []);
    }

    #[test]
    fn all_steps_passing_is_success() {
        run(&[&PASS, &PASS], true).expect("both pass");
    }

    #[test]
    fn the_table_has_a_row_for_every_step() {
        let output = table(&[&PASS, &FAIL, &UNREACHED], &[0.04, 12.34], true);
        assert_eq!(
            output,
            "step      seconds  result\n\
             pass          0.0  ok\n\
             fail         12.3  failed\n\
             late            -  not run"
        );
    }

    #[test]
    fn the_api_runs_on_the_engines_after_the_model() {
        let order: Vec<_> = names().collect();
        assert_eq!(order, ["fmt", "tidy", "clippy", "test", "api", "cluster", "mongodb"]);
        for (name, engine) in [("api", "embedded"), ("cluster", "cassandra"), ("mongodb", "mongodb")] {
            let step = STEPS.iter().find(|step| step.name == name).expect("there");
            let expected = format!("MW_TEST_ENGINE={engine} cargo test --workspace --test api --locked");
            assert_eq!(step.action.describe(), expected);
            assert_eq!(step.uses(Server::Cassandra), engine == "cassandra", "{name}");
            assert_eq!(step.uses(Server::Mongodb), engine == "mongodb", "{name}");
        }
    }

    #[test]
    fn steps_have_different_names() {
        let mut sorted: Vec<_> = names().collect();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), STEPS.len());
    }
}
