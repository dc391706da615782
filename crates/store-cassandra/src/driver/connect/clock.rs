//! Clock skew between this machine and the cluster: a process decides by its own clock what has expired, and the nodes
//! remove it by theirs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use scylla::client::session::Session;
use scylla::value::CqlTimestamp;

use super::error::StartError;

/// A slow response makes the measurement inexact; the smallest skew of several counts.
const TRIES: usize = 3;

pub(super) async fn check(
    session: &Session,
    clock: fn() -> SystemTime,
    max: Duration,
) -> Result<(), StartError> {
    let mut least = None;
    for _ in 0..TRIES {
        let before = millis(clock());
        let theirs = read_clock(session).await?;
        let skew = skew(before, theirs, millis(clock()));
        least = Some(least.map_or(skew, |least: i64| if skew.abs() < least.abs() { skew } else { least }));
        if skew == 0 {
            break;
        }
    }
    let skew = least.unwrap_or(0);
    if Duration::from_millis(skew.unsigned_abs()) > max {
        return Err(StartError::ClockSkew { skew_millis: skew, max });
    }
    Ok(())
}

async fn read_clock(session: &Session) -> Result<i64, StartError> {
    let failed = |cause: String| StartError::Clock { cause };
    let text = "SELECT toTimestamp(now()) FROM system.local";
    let result = session.query_unpaged(text, ()).await.map_err(|error| failed(error.to_string()))?;
    let rows = result.into_rows_result().map_err(|error| failed(error.to_string()))?;
    let (CqlTimestamp(theirs),) =
        rows.first_row::<(CqlTimestamp,)>().map_err(|error| failed(error.to_string()))?;
    Ok(theirs)
}

/// The least skew that explains the measurement, negative where this machine is behind: the node read its clock somewhere
/// between `before` and `after`.
const fn skew(before: i64, theirs: i64, after: i64) -> i64 {
    if before > theirs {
        before - theirs
    } else if after < theirs {
        after - theirs
    } else {
        0
    }
}

fn millis(time: SystemTime) -> i64 {
    let signed = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => signed(since),
        Err(before) => -signed(before.duration()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_there_and_back_is_not_skew() {
        assert_eq!(skew(1_000, 1_000, 1_000), 0);
        assert_eq!(skew(1_000, 1_400, 1_500), 0);
        assert_eq!(skew(5_000, 1_000, 5_100), 4_000);
        assert_eq!(skew(1_000, 9_000, 1_100), -7_900);
    }

    #[test]
    fn a_time_before_1970_is_a_time() {
        assert_eq!(millis(UNIX_EPOCH - Duration::from_secs(2)), -2_000);
        assert_eq!(millis(UNIX_EPOCH + Duration::from_secs(2)), 2_000);
    }
}
