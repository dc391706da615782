//! Connecting to a cluster, and everything that has to be true before the first request: who we are, where we are, how many
//! copies there can be, whose clock is right. What is wrong is told with the setting to change.

mod clock;
mod error;
mod tls;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::statement::SerialConsistency;

pub use error::StartError;

use crate::policy::{self, Policy};
use crate::schema::{Replication, Schema};
use crate::tables::{Class, Table};

/// How long nodes keep hints for one that is away, where they do not say.
pub const HINT_WINDOW: Duration = Duration::from_hours(3);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(2);
/// How long a process shows a card that it has read.
const KEEP_CARDS: Duration = Duration::from_secs(5);
const CARD_MEMORY: u64 = 64 << 20;
const KEEPALIVE: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
/// How often nodes are asked whether they know a change of the schema yet.
const AGREEMENT_POLL: Duration = Duration::from_millis(50);
/// Copies of everything in the local data centre, where nothing else is said.
const COPIES: u32 = 3;
const KEYSPACE: &str = "mobile_world";

/// Where the cluster is and how the shop lives in it.
#[derive(Debug, Clone)]
pub struct Options {
    /// `host:port`.
    pub contact_points: Vec<String>,
    pub local_dc: String,
    pub credentials: Option<Credentials>,
    pub tls: Option<Tls>,
    /// Keyspaces begin with this.
    pub keyspace: String,
    pub replication: Replication,
    pub policy: Policy,
    /// Whether the nodes repair tables by themselves (the table option `auto_repair`).
    pub auto_repair: bool,
    pub request_timeout: Duration,
    pub max_clock_skew: Duration,
    /// How long a card may be shown after it was read, where the policy lets the showcase lag at all.
    pub keep_cards: Duration,
    /// For cards that are kept, in bytes.
    pub card_memory: u64,
    /// Of this machine.
    pub clock: fn() -> SystemTime,
}

#[derive(Clone)]
pub struct Credentials {
    pub username: String,
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

/// PEM files.
#[derive(Debug, Clone)]
pub struct Tls {
    /// Whom to trust. The nodes' certificates must name their IP addresses.
    pub ca: PathBuf,
    /// What we prove ourselves with, where the nodes ask for it.
    pub client: Option<ClientCertificate>,
}

#[derive(Debug, Clone)]
pub struct ClientCertificate {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Options {
    /// Without password and TLS, three copies of everything in the local data centre.
    pub fn new(contact_points: Vec<String>, local_dc: &str) -> Self {
        Self {
            contact_points,
            local_dc: local_dc.to_owned(),
            credentials: None,
            tls: None,
            keyspace: KEYSPACE.to_owned(),
            replication: Replication::even(local_dc, COPIES),
            policy: Policy::default(),
            auto_repair: true,
            request_timeout: REQUEST_TIMEOUT,
            max_clock_skew: MAX_CLOCK_SKEW,
            keep_cards: KEEP_CARDS,
            card_memory: CARD_MEMORY,
            clock: SystemTime::now,
        }
    }

    pub fn schema(&self) -> Schema {
        Schema {
            prefix: self.keyspace.clone(),
            replication: self.replication.clone(),
            policy: self.policy.clone(),
            auto_repair: self.auto_repair,
        }
    }

    /// Nothing is kept where every read of a card has to see every write.
    pub fn cards_kept_for(&self) -> Duration {
        let may_lag = self.policy.may_lag(&policy::CARD, &self.replication, &self.local_dc);
        may_lag.map_or(Duration::ZERO, |_| self.keep_cards)
    }
}

/// Connects, and makes sure that the configuration fits the cluster. The schema is not looked at.
pub async fn connect(options: &Options) -> Result<Session, StartError> {
    let mut builder = SessionBuilder::new()
        .known_nodes(&options.contact_points)
        .prefer_datacenter(options.local_dc.clone())
        .keepalive_interval(KEEPALIVE)
        .keepalive_timeout(KEEPALIVE_TIMEOUT)
        .schema_agreement_interval(AGREEMENT_POLL)
        .refresh_metadata_on_auto_schema_agreement(false);
    if let Some(credentials) = &options.credentials {
        builder = builder.user(&credentials.username, &credentials.password);
    }
    if let Some(tls) = &options.tls {
        builder = builder.tls_context(Some(tls::config(tls)?));
    }
    let session = builder.build().await.map_err(|error| StartError::of_connecting(options, error))?;
    check_places(options, &nodes_by_dc(&session))?;
    check_policy(options, hint_window(&session).await)?;
    clock::check(&session, options.clock, options.max_clock_skew).await?;
    Ok(session)
}

/// How many nodes each data centre has, those that are down too.
fn nodes_by_dc(session: &Session) -> BTreeMap<String, u32> {
    let mut nodes = BTreeMap::new();
    for node in session.get_cluster_state().get_nodes_info() {
        *nodes.entry(node.datacenter.clone().unwrap_or_default()).or_default() += 1;
    }
    nodes
}

fn check_places(options: &Options, nodes: &BTreeMap<String, u32>) -> Result<(), StartError> {
    let exist = || nodes.keys().cloned().collect::<Vec<_>>().join(", ");
    if !nodes.contains_key(&options.local_dc) {
        return Err(StartError::NoSuchDc {
            key: "store.cassandra.local_dc".to_owned(),
            dc: options.local_dc.clone(),
            exist: exist(),
        });
    }
    for class in Class::ALL {
        for (dc, factor) in options.replication.of(class) {
            let key = format!("store.cassandra.replication.{}.{dc}", class.name());
            match nodes.get(dc) {
                None => return Err(StartError::NoSuchDc { key, dc: dc.clone(), exist: exist() }),
                Some(nodes) if nodes < factor => {
                    let (dc, copies, nodes) = (dc.clone(), *factor, *nodes);
                    return Err(StartError::TooFewNodes { key, dc, copies, nodes });
                }
                Some(_) => {}
            }
        }
    }
    Ok(())
}

fn check_policy(options: &Options, hint_window: Duration) -> Result<(), StartError> {
    let found = options.policy.check(&options.replication, &options.local_dc, hint_window);
    if !found.is_empty() {
        return Err(StartError::Unsafe(found));
    }
    let sells_elsewhere = options.replication.of(Class::Core).len() > 1;
    if sells_elsewhere && options.policy.of(Table::Stock).serial == SerialConsistency::LocalSerial {
        tracing::warn!(
            local_dc = options.local_dc,
            "conditional writes are decided inside one data centre: all processes that sell must name the same local_dc"
        );
    }
    Ok(())
}

/// How long the nodes keep hints for one that is away. A role that may not look is answered with the usual time.
async fn hint_window(session: &Session) -> Duration {
    let text = "SELECT value FROM system_views.settings WHERE name = 'max_hint_window'";
    let asked = session.query_unpaged(text, ()).await.ok().and_then(|result| {
        let (value,) = result.into_rows_result().ok()?.maybe_first_row::<(Option<String>,)>().ok()??;
        cassandra_time(&value?)
    });
    asked.unwrap_or_else(|| {
        tracing::debug!("the cluster does not say how long it keeps hints, assuming the usual three hours");
        HINT_WINDOW
    })
}

/// `3h`, `180m`, `10800s` or `10800000ms`, as Cassandra shows its settings.
fn cassandra_time(text: &str) -> Option<Duration> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(end);
    let number: u64 = number.parse().ok()?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(millis).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options::new(vec!["127.0.0.1:9042".to_owned()], "dc1")
    }

    fn nodes(nodes: &[(&str, u32)]) -> BTreeMap<String, u32> {
        nodes.iter().map(|(dc, nodes)| ((*dc).to_owned(), *nodes)).collect()
    }

    #[test]
    fn data_centres_must_exist_and_have_nodes_enough() {
        check_places(&options(), &nodes(&[("dc1", 3)])).unwrap();
        let said = |options: &Options, found: &[(&str, u32)]| {
            check_places(options, &nodes(found)).unwrap_err().to_string()
        };
        assert_eq!(
            said(&options(), &[("msk", 3), ("spb", 3)]),
            "store.cassandra.local_dc: the cluster has no data centre \"dc1\"; it has msk, spb"
        );
        assert_eq!(
            said(&options(), &[("dc1", 1)]),
            "store.cassandra.replication.core.dc1: 3 copies need 3 nodes, and dc1 has 1"
        );
        let mut away = options();
        away.replication.set(Class::History, "dc2", 1);
        assert_eq!(
            said(&away, &[("dc1", 3)]),
            "store.cassandra.replication.history.dc2: the cluster has no data centre \"dc2\"; it has dc1"
        );
    }

    #[test]
    fn an_unsafe_policy_is_refused_with_every_line_to_change() {
        let mut options = options();
        options.policy.set("stock", "gc_grace", "1h").unwrap();
        check_policy(&Options { policy: Policy::default(), ..options.clone() }, HINT_WINDOW).unwrap();
        let said = check_policy(&options, HINT_WINDOW).unwrap_err().to_string();
        assert_eq!(said.lines().count(), 3, "{said}");
        assert!(
            said.starts_with("the policy could lose data:\n  store.cassandra.policy.stock.gc_grace: "),
            "{said}"
        );
    }

    #[test]
    fn a_longer_hint_window_of_the_cluster_counts() {
        assert!(check_policy(&options(), Duration::from_hours(6)).is_err());
    }

    #[test]
    fn times_of_cassandra() {
        for (text, seconds) in
            [("3h", 10_800), ("180m", 10_800), ("10800s", 10_800), ("10800000ms", 10_800), ("1d", 86_400)]
        {
            assert_eq!(cassandra_time(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "3", "h", "3x", "99999999999999999999h"] {
            assert_eq!(cassandra_time(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let credentials = Credentials { username: "mw".to_owned(), password: "secret".to_owned() };
        let shown = format!("{:?}", Options { credentials: Some(credentials), ..options() });
        assert!(shown.contains("mw") && !shown.contains("secret"), "{shown}");
    }
}
