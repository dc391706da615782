//! How far each member lags behind its primary, from `lastWrite` in the members' `hello`.
//!
//! Every member is asked over a connection of its own, also behind mongos, which hides them from the driver. A member that
//! does not answer grows stale with the age of its last answer and so leaves the choice by itself.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::options::{ClientOptions, ServerAddress};

use crate::connect::is_sharded;

/// A member that takes longer has not answered.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    Primary,
    Secondary,
    /// Starting, recovering, an arbiter, or without an answer.
    Other,
}

impl MemberState {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Primary => "PRIMARY",
            Self::Secondary => "SECONDARY",
            Self::Other => "UNAVAILABLE",
        }
    }
}

/// A member as its last `hello` described it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberLag {
    /// The replica set; on a sharded cluster the shard.
    pub set: String,
    pub address: ServerAddress,
    pub state: MemberState,
    /// `None`: not known.
    pub lag: Option<Duration>,
}

/// One round of questions to all members.
#[derive(Debug, Clone, Default)]
struct Round {
    members: Vec<MemberLag>,
    asked_at: Option<Instant>,
}

/// The members, their connections and the last round.
#[derive(Debug)]
pub struct Lags {
    options: ClientOptions,
    client: Client,
    connections: Mutex<BTreeMap<String, Client>>,
    round: Mutex<Round>,
}

/// Which secondaries may serve a stale read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fresh {
    /// None is fresh enough.
    None,
    /// These members of the replica set.
    Members(Vec<ServerAddress>),
    /// Every secondary of every shard: mongos chooses among them.
    BehindMongos,
}

impl Lags {
    /// `options` are those of `client`.
    pub fn new(client: Client, options: ClientOptions) -> Self {
        Self { options, client, connections: Mutex::default(), round: Mutex::default() }
    }

    /// Asks all members once.
    pub async fn poll(&self) -> mongodb::error::Result<Vec<MemberLag>> {
        let hello = self.client.database("admin").run_command(doc! { "hello": 1 }).await?;
        let hosts = if is_sharded(&hello) { self.hosts_of_shards().await? } else { hosts_of_set(&hello) };
        // Measured before the members are asked: the age of their answers is never taken for less than it is.
        let asked_at = Instant::now();
        let hellos = join_all(hosts.iter().map(|(_, address)| self.hello(address))).await;
        let members = lags(hosts.into_iter().zip(hellos));
        *lock(&self.round) = Round { members: members.clone(), asked_at: Some(asked_at) };
        Ok(members)
    }

    async fn hosts_of_shards(&self) -> mongodb::error::Result<Vec<(String, String)>> {
        let reply = self.client.database("admin").run_command(doc! { "listShards": 1 }).await?;
        let shards = reply.get_array("shards").cloned().unwrap_or_default();
        let hosts = |shard: &Document| {
            let name = shard.get_str("_id").unwrap_or_default().to_owned();
            let hosts = shard.get_str("host").unwrap_or_default();
            let hosts = hosts.split_once('/').map_or(hosts, |(_, hosts)| hosts);
            hosts.split(',').map(|host| (name.clone(), host.to_owned())).collect::<Vec<_>>()
        };
        Ok(shards.iter().filter_map(|shard| shard.as_document()).flat_map(hosts).collect())
    }

    async fn hello(&self, address: &str) -> Option<Document> {
        let client = self.connection(address)?;
        let asking = async { client.database("admin").run_command(doc! { "hello": 1 }).await };
        tokio::time::timeout(HELLO_TIMEOUT, asking).await.ok()?.ok()
    }

    fn connection(&self, address: &str) -> Option<Client> {
        let mut connections = lock(&self.connections);
        if let Some(client) = connections.get(address) {
            return Some(client.clone());
        }
        let mut options = self.options.clone();
        options.hosts = vec![ServerAddress::parse(address).ok()?];
        options.direct_connection = Some(true);
        options.repl_set_name = None;
        options.max_pool_size = Some(1);
        options.server_selection_timeout = Some(HELLO_TIMEOUT);
        let client = Client::with_options(options).ok()?;
        connections.insert(address.to_owned(), client.clone());
        Some(client)
    }

    /// The secondaries whose data is at most `max_staleness` old.
    pub fn fresh(&self, max_staleness: Duration, is_behind_mongos: bool) -> Fresh {
        let round = lock(&self.round);
        let Some(age) = round.asked_at.map(|asked_at| asked_at.elapsed()) else { return Fresh::None };
        fresh(&round.members, age, max_staleness, is_behind_mongos)
    }

    /// Closes the connections to the members.
    pub async fn close(&self) {
        let connections = std::mem::take(&mut *lock(&self.connections));
        join_all(connections.into_values().map(|client| client.shutdown().into_future())).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hosts_of_set(hello: &Document) -> Vec<(String, String)> {
    let set = hello.get_str("setName").unwrap_or_default();
    let hosts = hello.get_array("hosts").cloned().unwrap_or_default();
    let host = |host: &mongodb::bson::Bson| Some((set.to_owned(), host.as_str()?.to_owned()));
    hosts.iter().filter_map(host).collect()
}

/// A secondary's lag is how much older its last write is than that of its primary.
fn lags(hellos: impl Iterator<Item = ((String, String), Option<Document>)>) -> Vec<MemberLag> {
    let asked: Vec<_> = hellos
        .filter_map(|((set, address), hello)| {
            let address = ServerAddress::parse(&address).ok()?;
            let state = hello.as_ref().map_or(MemberState::Other, state);
            let last_write = hello.as_ref().and_then(last_write);
            Some((set, address, state, last_write))
        })
        .collect();
    let of_primary = |set: &str| {
        asked.iter().find(|(it, _, state, _)| it == set && *state == MemberState::Primary).and_then(|it| it.3)
    };
    asked
        .iter()
        .map(|(set, address, state, last_write)| {
            let lag = match (state, of_primary(set), last_write) {
                (MemberState::Primary, ..) => Some(Duration::ZERO),
                (MemberState::Secondary, Some(primary), Some(own)) => {
                    Some(Duration::from_millis(u64::try_from(primary - own).unwrap_or(0)))
                }
                _ => None,
            };
            MemberLag { set: set.clone(), address: address.clone(), state: *state, lag }
        })
        .collect()
}

fn state(hello: &Document) -> MemberState {
    let is = |field| hello.get_bool(field).unwrap_or(false);
    if is("isWritablePrimary") {
        MemberState::Primary
    } else if is("secondary") {
        MemberState::Secondary
    } else {
        MemberState::Other
    }
}

fn last_write(hello: &Document) -> Option<i64> {
    let last_write = hello.get_document("lastWrite").ok()?;
    Some(last_write.get_datetime("lastWriteDate").ok()?.timestamp_millis())
}

fn fresh(members: &[MemberLag], age: Duration, max_staleness: Duration, is_behind_mongos: bool) -> Fresh {
    let is_fresh = |member: &&MemberLag| member.lag.is_some_and(|lag| lag + age <= max_staleness);
    let secondaries = || members.iter().filter(|member| member.state != MemberState::Primary);
    if is_behind_mongos {
        // Mongos asks any secondary of a shard, so all of them count; a shard may have none.
        let all = members.iter().any(|member| member.state == MemberState::Secondary)
            && secondaries().all(|member| is_fresh(&member));
        return if all { Fresh::BehindMongos } else { Fresh::None };
    }
    let fresh: Vec<ServerAddress> = secondaries()
        .filter(|member| member.state == MemberState::Secondary)
        .filter(is_fresh)
        .map(|member| member.address.clone())
        .collect();
    if fresh.is_empty() { Fresh::None } else { Fresh::Members(fresh) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::DateTime;

    #[expect(clippy::unnecessary_wraps, reason = "a member that is silent has none")]
    fn hello(is_primary: bool, last_write_ms: i64) -> Option<Document> {
        Some(doc! {
            "isWritablePrimary": is_primary, "secondary": !is_primary,
            "lastWrite": { "lastWriteDate": DateTime::from_millis(last_write_ms) },
        })
    }

    fn round(hellos: Vec<(&str, &str, Option<Document>)>) -> Vec<MemberLag> {
        let host = |(set, address, hello): (&str, &str, _)| ((set.to_owned(), address.to_owned()), hello);
        lags(hellos.into_iter().map(host))
    }

    #[test]
    fn a_secondary_lags_by_the_age_of_its_last_write() {
        let members = round(vec![
            ("rs0", "h:1", hello(true, 100_000)),
            ("rs0", "h:2", hello(false, 99_000)),
            ("rs0", "h:3", hello(false, 60_000)),
            ("rs0", "h:4", None),
        ]);
        let lags: Vec<_> = members.iter().map(|it| it.lag.map(|lag| lag.as_millis())).collect();
        assert_eq!(lags, [Some(0), Some(1_000), Some(40_000), None]);
        let [one, two] = [Duration::from_secs(1), Duration::from_secs(30)];
        let second = ServerAddress::parse("h:2").unwrap();
        assert_eq!(fresh(&members, one, two, false), Fresh::Members(vec![second]));
        assert_eq!(fresh(&members, Duration::from_millis(29_001), two, false), Fresh::None, "an old answer");
        assert_eq!(fresh(&members, one, two, true), Fresh::None, "one member is silent");
    }

    #[test]
    fn behind_mongos_every_secondary_must_be_fresh() {
        let shard_b = ("b", "h:9", hello(true, 5));
        let of = |lag: i64| {
            round(vec![
                ("a", "h:1", hello(true, 100_000)),
                ("a", "h:2", hello(false, 100_000 - lag)),
                shard_b.clone(),
            ])
        };
        let allowed = Duration::from_secs(30);
        assert_eq!(fresh(&of(1_000), Duration::ZERO, allowed, true), Fresh::BehindMongos);
        assert_eq!(fresh(&of(31_000), Duration::ZERO, allowed, true), Fresh::None);
        assert_eq!(
            fresh(&round(vec![shard_b]), Duration::ZERO, allowed, true),
            Fresh::None,
            "no secondary at all"
        );
    }

    #[test]
    fn without_a_primary_no_lag_is_known() {
        let members =
            round(vec![("rs0", "h:1", hello(false, 100_000)), ("rs0", "h:2", hello(false, 99_000))]);
        assert!(members.iter().all(|member| member.lag.is_none()));
    }
}
