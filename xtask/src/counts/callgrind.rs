//! Instruction counts of callgrind: of all threads, between two calls of the program's `boundary`.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;

/// What callgrind writes, with the number of the part behind it.
const PART: &str = "part";

/// Callgrind ends a part, and starts the next at zero, before it enters this function.
const BOUNDARY: &str = "counts::boundary";

pub(super) fn arguments(folder: &Path) -> Vec<String> {
    vec![
        "--tool=callgrind".to_owned(),
        format!("--callgrind-out-file={}", folder.join(PART).display()),
        format!("--dump-before=*{BOUNDARY}*"),
        // Fair scheduling: the writer's thread runs while another spins.
        "--fair-sched=try".to_owned(),
    ]
}

/// The instructions of the route that was counted as number `index`; its profile gets the route's name.
pub(super) fn of_route(folder: &Path, index: usize, route: &str) -> Result<u64> {
    // A boundary before each route and one after it: every second part is a route, the others lead up to one.
    let lead_up = folder.join(format!("{PART}.{}", 2 * index + 1));
    let counted = folder.join(format!("{PART}.{}", 2 * index + 2));
    let text = fs::read_to_string(&counted).with_context(|| format!("read the profile of {route}"))?;
    let instructions = total(&text).with_context(|| format!("read the profile of {route}"))?;
    fs::rename(&counted, folder.join(format!("{route}.callgrind"))).context("name the profile")?;
    fs::remove_file(&lead_up).context("remove the profile before the route")?;
    Ok(instructions)
}

fn total(profile: &str) -> Result<u64> {
    let after = |start: &str| profile.lines().find_map(|line| line.strip_prefix(start)).map(str::trim);
    let trigger = after("desc: Trigger:").unwrap_or_default();
    ensure!(trigger.contains("boundary"), "it was ended by {trigger:?}, not by the program's boundary");
    let events = after("events:").unwrap_or_default();
    ensure!(events == "Ir", "it counts {events:?} where instructions (Ir) are wanted");
    after("summary:").context("it has no summary")?.parse().context("its summary is no number")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "# callgrind format\nversion: 1\npart: 2\n\n\
                           desc: Trigger: --dump-before=counts::boundary\n\n\
                           positions: line\nevents: Ir\nsummary: 1234567\n\n\nfn=(1) main\n3 7\n";

    #[test]
    fn the_total_is_in_the_summary() {
        assert_eq!(total(PROFILE).expect("read"), 1_234_567);
    }

    #[test]
    fn a_profile_of_something_else_is_refused() {
        let changes = [
            ("--dump-before=counts::boundary", "Program termination", "ended by"),
            ("events: Ir", "events: Ir Dr", "it counts"),
            ("summary: 1234567", "", "no summary"),
            ("1234567", "?", "no number"),
        ];
        for (from, to, messages) in changes {
            let error = total(&PROFILE.replace(from, to)).expect_err(to).to_string();
            assert!(error.contains(messages), "{error}");
        }
    }

    #[test]
    fn every_second_part_is_a_route() {
        let folder = std::env::temp_dir().join(format!("mw-xtask-callgrind-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        for part in 1..=4 {
            let profile = PROFILE.replace("1234567", &part.to_string());
            fs::write(folder.join(format!("{PART}.{part}")), profile).expect("write");
        }
        let counted = [of_route(&folder, 0, "cart"), of_route(&folder, 1, "order")].map(Result::unwrap);
        let missing = of_route(&folder, 2, "session");
        let mut left: Vec<_> =
            fs::read_dir(&folder).expect("list").map(|entry| entry.expect("entry").file_name()).collect();
        left.sort();
        fs::remove_dir_all(&folder).expect("remove");
        assert_eq!(counted, [2, 4]);
        assert!(missing.is_err());
        assert_eq!(left, ["cart.callgrind", "order.callgrind"]);
    }
}
