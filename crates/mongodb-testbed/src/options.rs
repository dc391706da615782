//! The options of a cluster, and the plan of its processes.

use crate::{CONFIG_SET, MONGOS, REPLICA_SET, SHARD_A, SHARD_B};
use mw_testbed::{ClusterError, Result, check_name};
use std::time::Duration;

/// More voting members than this MongoDB does not allow.
const MAX_MEMBERS: usize = 7;
const SHARD_A_MEMBERS: usize = 3;
const MIN_OPLOG_MIB: u32 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One server without replication.
    Standalone,
    ReplicaSet {
        members: usize,
    },
    /// A config server, shard `a` of three members, shard `b` of one, and a mongos.
    Sharded,
}

#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The name of the cluster, and a part of its directory's name.
    pub name: String,
    pub layout: Layout,
    /// Clients log in as [`crate::SUPERUSER`].
    pub auth: bool,
    /// Clients must speak TLS; the authority to trust is [`crate::Cluster::ca_pem`]. Needs the feature `tls`.
    pub tls: bool,
    /// Size of the oplog; `None` leaves it to the server.
    pub oplog_mib: Option<u32>,
    /// Whether TTL indexes delete what has expired. Off by default: tests have clocks of their own, and what has expired by the
    /// servers' clock is still in use by theirs.
    pub ttl_monitor: bool,
    /// Further arguments of every mongod.
    pub extra_arguments: Vec<String>,
    /// How long a silent primary stays primary. Short: tests of elections are quick. Long: none begins on a busy machine.
    pub election_timeout: Duration,
    /// How long a member may take to start, or a set to have a primary.
    pub start_timeout: Duration,
    /// Called with lines of progress.
    pub report: fn(&str),
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            name: "test".to_owned(),
            layout: Layout::ReplicaSet { members: 1 },
            auth: false,
            tls: false,
            oplog_mib: None,
            ttl_monitor: false,
            extra_arguments: Vec::new(),
            election_timeout: Duration::from_secs(2),
            start_timeout: Duration::from_mins(2),
            report: |line| eprintln!("mongodb: {line}"),
        }
    }
}

impl ClusterOptions {
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(ClusterError::Options(what));
        check_name(&self.name)?;
        if let Layout::ReplicaSet { members } = self.layout
            && !(1..=MAX_MEMBERS).contains(&members)
        {
            return wrong(format!("{members} members: there may be 1 to {MAX_MEMBERS}"));
        }
        if self.tls && !cfg!(feature = "tls") {
            return wrong("TLS: this program is built without the feature `tls`".to_owned());
        }
        if self.oplog_mib.is_some_and(|size| size < MIN_OPLOG_MIB) {
            return wrong(format!("an oplog of 0 MiB: it takes at least {MIN_OPLOG_MIB}"));
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Standalone,
    Data,
    /// A member of a shard's replica set.
    Shard,
    Config,
    Mongos,
}

/// The plan of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Unique in the cluster, such as `a2` or `mongos`.
    pub(crate) name: String,
    pub(crate) role: Role,
    /// The replica set it belongs to.
    pub(crate) set: Option<&'static str>,
}

pub(crate) fn plans(layout: Layout) -> Vec<Plan> {
    let alone = |name: &str, role| vec![Plan { name: name.to_owned(), role, set: None }];
    let set = |name: &'static str, role, members| {
        (1..=members).map(move |number| Plan { name: format!("{name}-{number}"), role, set: Some(name) })
    };
    match layout {
        Layout::Standalone => alone("standalone", Role::Standalone),
        Layout::ReplicaSet { members } => set(REPLICA_SET, Role::Data, members).collect(),
        Layout::Sharded => set(CONFIG_SET, Role::Config, 1)
            .chain(set(SHARD_A, Role::Shard, SHARD_A_MEMBERS))
            .chain(set(SHARD_B, Role::Shard, 1))
            .chain(alone(MONGOS, Role::Mongos))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(layout: Layout) -> Vec<String> {
        plans(layout).into_iter().map(|plan| plan.name).collect()
    }

    #[test]
    fn members_are_named_by_their_set() {
        assert_eq!(named(Layout::Standalone), ["standalone"]);
        assert_eq!(named(Layout::ReplicaSet { members: 2 }), ["rs0-1", "rs0-2"]);
        assert_eq!(named(Layout::Sharded), ["config-1", "a-1", "a-2", "a-3", "b-1", "mongos"]);
    }

    #[test]
    fn what_cannot_run_is_refused() {
        let refused = |options: ClusterOptions| options.check().unwrap_err().to_string();
        let of = |members| ClusterOptions { layout: Layout::ReplicaSet { members }, ..Default::default() };
        assert!(refused(of(0)).contains("0 members: there may be 1 to 7"));
        assert!(refused(of(8)).contains("8 members"));
        assert!(refused(ClusterOptions { name: "../x".to_owned(), ..of(1) }).contains("the name `../x`"));
        assert!(refused(ClusterOptions { oplog_mib: Some(0), ..of(1) }).contains("an oplog of 0 MiB"));
        of(7).check().unwrap();
    }
}
