//! `cargo xtask counts`: instructions and allocations of a request on the hot routes. Counted, not timed, so that
//! other load on the machine does not change the result.

mod callgrind;
mod costs;

use crate::tools::Tool;
use crate::{cargo, say};
use anyhow::{Context, Result, bail, ensure};
use costs::{RouteCosts, Usage};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The stored costs, from the workspace root.
const FILE: &str = "crates/http/counts.toml";

const BUILD: &str = "test -p mw-http --test counts --no-run --profile counts --locked --message-format json-render-diagnostics";

/// Read by the counted program: the file for its report, and whether it counts accesses of partitions too.
const REPORT_VARIABLE: &str = "MW_COUNTS_REPORT";
const PARTITIONS_VARIABLE: &str = "MW_COUNTS_PARTITIONS";
/// What the statistics of partitions may add to the instructions of the requests, as a part of them.
const PARTITIONS_MAX: f64 = 0.01;

pub(crate) fn run(write: bool) -> Result<()> {
    if let Some(install) = Tool::Valgrind.missing_after_install()? {
        bail!("{install}");
    }
    let file = cargo::root().join(FILE);
    let kept = if write { None } else { Some(read(&file)?) };
    let program = cargo::program(BUILD)?;
    let folder = program.with_file_name("callgrind");
    say(format_args!("counting, which takes a minute"));
    let counted = count(&program, &folder, None)?;
    say(format_args!("profiles for callgrind_annotate are in {}", folder.display()));
    let Some(kept) = kept else {
        fs::write(&file, counted.file()).with_context(|| format!("write {}", file.display()))?;
        say(format_args!("{}\nwrote {FILE}", counted.file()));
        return Ok(());
    };
    let comparison = kept.compare(&counted);
    say(format_args!("{}", comparison.table()));
    if comparison.is_better() {
        say(format_args!("cheaper than in {FILE}: store the new costs with `cargo xtask counts --write`"));
    }
    ensure!(
        !comparison.is_worse(),
        "a request costs more than {FILE} allows: look at the profile of its route, or accept the new \
         costs with `cargo xtask counts --write` and say why in the commit"
    );
    check_partitions(&program, &folder, &counted)
}

/// What the statistics of partitions cost: all accesses counted, and sampled, as under load.
fn check_partitions(program: &Path, folder: &Path, without: &RouteCosts) -> Result<()> {
    let more = |mode: &str| {
        let with = count(program, &folder.with_file_name(format!("callgrind-{mode}")), Some(mode))?;
        anyhow::Ok(without.more_instructions(&with))
    };
    let (all, sampled) = (more("all")?, more("sampled")?);
    say(format_args!(
        "statistics of partitions add {:.2} % of the instructions while every access is counted",
        all * 100.0
    ));
    say(format_args!(
        "statistics of partitions add {:.2} % under load, while accesses are sampled",
        sampled * 100.0
    ));
    ensure!(
        sampled <= PARTITIONS_MAX,
        "the statistics of partitions may add 1 % of the instructions of the requests"
    );
    Ok(())
}

fn read(file: &Path) -> Result<RouteCosts> {
    let text = fs::read_to_string(file)
        .with_context(|| format!("read {FILE} (`cargo xtask counts --write` creates it)"))?;
    RouteCosts::parse(&text).with_context(|| format!("read {FILE}"))
}

/// Runs the program under callgrind, and leaves a profile a route in `folder`.
fn count(program: &Path, folder: &Path, partitions: Option<&str>) -> Result<RouteCosts> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let report = folder.join("report.tsv");
    let output = Command::new("valgrind")
        .args(callgrind::arguments(folder))
        .arg(program)
        .current_dir(cargo::root())
        .env(REPORT_VARIABLE, &report)
        .envs(partitions.map(|mode| (PARTITIONS_VARIABLE, mode)))
        .stdin(Stdio::null())
        .output()
        .context("run valgrind")?;
    ensure!(
        output.status.success(),
        "count: valgrind ended with {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let report = fs::read_to_string(&report).context("read the report of the program")?;
    let usages = Usage::parse_all(&report)?;
    let mut costs = RouteCosts::default();
    for (index, usage) in usages.iter().enumerate() {
        let instructions = callgrind::of_route(folder, index, &usage.route)?;
        costs.push(usage, instructions);
    }
    Ok(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_file_can_be_read() {
        read(&cargo::root().join(FILE)).expect("read");
    }
}
