//! The time of the cluster, as its nodes tell it: a process decides by its own clock what has expired, and the nodes and the other
//! processes decide by theirs.
//!
//! A node may itself be wrong, so several are asked and the median of what they say counts. An answer is anchored to the monotonic
//! clock: with it the time of the cluster is known at every later instant, however the wall clock moves.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use scylla::client::session::Session;
use scylla::cluster::NodeRef;
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::statement::Statement;
use scylla::value::CqlTimestamp;

use super::error::StartError;

/// Nodes that are asked in one comparison.
const NODES_MAX: usize = 5;
/// A node that takes longer has not answered.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const READ_CLOCK: &str = "SELECT toTimestamp(now()) FROM system.local";

/// A reading of this machine's clock, between two readings of the monotonic one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) before: Instant,
    pub(crate) wall_ms: i64,
    pub(crate) after: Instant,
}

impl Reading {
    pub(crate) fn of(clock: fn() -> SystemTime) -> Self {
        let before = Instant::now();
        let wall_ms = millis(clock());
        Self { before, wall_ms, after: Instant::now() }
    }
}

/// The answer of a node: it read its clock at some instant from `sent` to `received`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Anchor {
    pub(crate) node_ms: i64,
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
}

impl Anchor {
    /// How far the clock of this machine is ahead of the node's, negative where it is behind: the least skew that explains the
    /// readings.
    pub(crate) fn skew_ms(&self, reading: &Reading) -> i64 {
        let earliest = self.node_ms.saturating_add(elapsed_ms(self.received, reading.before));
        let latest = self.latest_ms(reading.after);
        if reading.wall_ms > latest {
            reading.wall_ms - latest
        } else if reading.wall_ms < earliest {
            reading.wall_ms - earliest
        } else {
            0
        }
    }

    /// The latest that the node's clock can show at an instant.
    pub(crate) fn latest_ms(&self, at: Instant) -> i64 {
        self.node_ms.saturating_add(elapsed_ms(self.sent, at))
    }
}

/// Refuses to start with a clock that is wrong.
pub(super) async fn check(
    session: &Session,
    local_dc: &str,
    clock: fn() -> SystemTime,
    max: Duration,
) -> Result<(), StartError> {
    let anchor = compare(session, local_dc, clock, 0).await.map_err(|cause| StartError::Clock { cause })?;
    let skew_millis = anchor.skew_ms(&Reading::of(clock));
    if Duration::from_millis(skew_millis.unsigned_abs()) > max {
        return Err(StartError::ClockSkew { skew_millis, max });
    }
    Ok(())
}

/// Asks nodes of the data centre for their time, others in each `round`; returns the answer with the median skew.
pub(crate) async fn compare(
    session: &Session,
    local_dc: &str,
    clock: fn() -> SystemTime,
    round: usize,
) -> Result<Anchor, String> {
    let cluster = session.get_cluster_state();
    let is_local = |node: &NodeRef<'_>| node.datacenter.as_deref() == Some(local_dc);
    let mut nodes: Vec<NodeRef<'_>> = cluster.get_nodes_info().iter().filter(is_local).collect();
    if nodes.iter().any(|node| node.is_connected()) {
        nodes.retain(|node| node.is_connected());
    }
    let first = (round.wrapping_mul(NODES_MAX)).checked_rem(nodes.len()).unwrap_or_default();
    nodes.rotate_left(first);
    let reads =
        nodes.iter().take(NODES_MAX).map(|node| read_clock(session, NodeIdentifier::HostId(node.host_id)));
    let (answers, failures): (Vec<_>, Vec<_>) = join_all(reads).await.into_iter().partition(Result::is_ok);
    let reading = Reading::of(clock);
    let answers = answers.into_iter().flatten().collect();
    let cause = || failures.into_iter().find_map(Result::err);
    median(answers, &reading)
        .ok_or_else(|| cause().unwrap_or_else(|| format!("no node of {local_dc} is known")))
}

pub(crate) async fn read_clock(session: &Session, node: NodeIdentifier) -> Result<Anchor, String> {
    let mut read = Statement::new(READ_CLOCK);
    read.set_load_balancing_policy(Some(SingleTargetLoadBalancingPolicy::new(node, None)));
    read.set_retry_policy(Some(std::sync::Arc::new(FallthroughRetryPolicy::new())));
    read.set_request_timeout(Some(ANSWER_TIMEOUT));
    let sent = Instant::now();
    let result = session.query_unpaged(read, ()).await.map_err(|error| error.to_string())?;
    let received = Instant::now();
    let rows = result.into_rows_result().map_err(|error| error.to_string())?;
    let (CqlTimestamp(node_ms),) = rows.first_row::<(CqlTimestamp,)>().map_err(|error| error.to_string())?;
    Ok(Anchor { node_ms, sent, received })
}

/// The answer with the median skew; of the two in the middle the one with less, so that only a majority shows a clock as wrong.
fn median(mut answers: Vec<Anchor>, reading: &Reading) -> Option<Anchor> {
    answers.sort_unstable_by_key(|answer| answer.skew_ms(reading));
    let upper = answers.len() / 2;
    let lower = answers.len().saturating_sub(1) / 2;
    let middle = [answers.get(lower), answers.get(upper)];
    middle.into_iter().flatten().min_by_key(|answer| answer.skew_ms(reading).unsigned_abs()).copied()
}

fn elapsed_ms(from: Instant, to: Instant) -> i64 {
    i64::try_from(to.saturating_duration_since(from).as_millis()).unwrap_or(i64::MAX)
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

    /// An answer of a node whose clock showed `node_ms`, 500 ms after it was asked for.
    fn anchor(node_ms: i64, sent: Instant) -> Anchor {
        Anchor { node_ms, sent, received: sent + Duration::from_millis(500) }
    }

    fn reading(wall_ms: i64, at: Instant) -> Reading {
        Reading { before: at, wall_ms, after: at }
    }

    #[test]
    fn the_way_there_and_back_is_not_skew() {
        let sent = Instant::now();
        let anchor = anchor(10_000, sent);
        let skew = |wall_ms| anchor.skew_ms(&reading(wall_ms, anchor.received));
        assert_eq!([skew(10_000), skew(10_400), skew(10_500)], [0; 3]);
        assert_eq!(skew(14_500), 4_000);
        assert_eq!(skew(3_000), -7_000);
    }

    #[test]
    fn a_jump_between_two_comparisons_shows_against_the_monotonic_clock() {
        let sent = Instant::now();
        let anchor = anchor(10_000, sent);
        let later = sent + Duration::from_secs(5);
        assert_eq!(anchor.skew_ms(&reading(14_700, later)), 0);
        assert_eq!(anchor.skew_ms(&reading(14_700 + 2_400_000, later)), 2_399_700);
        assert_eq!(anchor.skew_ms(&reading(14_700 - 60_000, later)), -59_800);
    }

    #[test]
    fn a_pause_between_the_two_clocks_is_no_jump() {
        let sent = Instant::now();
        let anchor = anchor(10_000, sent);
        let before = sent + Duration::from_secs(1);
        let paused = Reading { before, wall_ms: 41_000, after: before + Duration::from_secs(30) };
        assert_eq!(anchor.skew_ms(&paused), 0);
    }

    #[test]
    fn a_majority_of_the_answering_nodes_decides() {
        let sent = Instant::now();
        let wall = reading(10_000, sent + Duration::from_millis(500));
        let skew = |times: &[i64]| {
            let answers = times.iter().map(|node_ms| anchor(*node_ms, sent)).collect();
            median(answers, &wall).map(|answer| answer.skew_ms(&wall))
        };
        assert_eq!(skew(&[]), None);
        assert_eq!(skew(&[10_000, 3_610_000, 10_000]), Some(0), "one node is ahead");
        assert_eq!(skew(&[10_000, 3_610_000]), Some(0), "one of two is no majority");
        assert_eq!(skew(&[-2_390_000, 10_000, -2_390_000]), Some(2_399_500), "this machine is ahead");
        assert_eq!(skew(&[3_610_000]), Some(-3_600_000));
    }

    #[test]
    fn a_time_before_1970_is_a_time() {
        assert_eq!(millis(UNIX_EPOCH - Duration::from_secs(2)), -2_000);
        assert_eq!(millis(UNIX_EPOCH + Duration::from_secs(2)), 2_000);
    }
}
