//! Connects to a cluster and checks what must hold before the first request: credentials, data centres, replication
//! factors, the policy, clock skew. Each error names the setting to change.

pub(crate) mod clock;
pub(crate) mod error;
mod tls;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mw_store::Freshness;
use mw_store::changes::FeedSettings;
use mw_store::partitions::PartitionReports;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;

pub use error::StartError;

use crate::driver::fault_injection::FaultInjector;
use crate::driver::trace::StatementObserver;
use crate::policy::Policy;
use crate::schema::tables::{Class, Table};
use crate::schema::{Replication, Schema};

/// The hint window that is assumed where the nodes do not report theirs.
pub const HINT_WINDOW: Duration = Duration::from_hours(3);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(2);
const READY_SHARE: f64 = 0.5;
const PRODUCT_CACHE_TTL: Duration = Duration::from_secs(5);
const PRODUCT_CACHE_SIZE: u64 = 64 << 20;
const KEEPALIVE: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
/// How often schema agreement is polled after a change of the schema.
const AGREEMENT_POLL: Duration = Duration::from_millis(50);
/// The default replication factor in the local data centre.
const REPLICATION_FACTOR: u32 = 3;
const KEYSPACE: &str = "mobile_world";

/// The cluster, and how the engine uses it.
#[derive(Debug, Clone)]
pub struct Options {
    /// `host:port`.
    pub contact_points: Vec<String>,
    pub local_dc: String,
    pub credentials: Option<Credentials>,
    pub tls: Option<Tls>,
    /// The prefix of the keyspace names.
    pub keyspace: String,
    pub replication: Replication,
    pub policy: Policy,
    /// Whether the nodes run auto-repair (the table option `auto_repair`).
    pub auto_repair: bool,
    pub request_timeout: Duration,
    pub max_clock_skew: Duration,
    /// A process is ready while at least this share of the token ranges has its quorum, 0 to 1.
    pub ready_share: f64,
    /// How long a product is served from the cache; 0 where the policy allows no stale reads of products.
    pub product_cache_ttl: Duration,
    /// The size of the product cache in bytes.
    pub product_cache_size: u64,
    /// The clock of this machine.
    pub clock: fn() -> SystemTime,
    /// The listener for the other processes of the shop.
    pub internal: InternalOptions,
    /// The topics of the change feed, and how long it keeps a change.
    pub feed: FeedSettings,
    /// Whether commands carry the time of `clock`, so that one with a later time is refused. Not by default: tests bring times
    /// of their own.
    pub stamps_commands: bool,
    /// Is told of every statement.
    pub trace: Option<Arc<dyn StatementObserver>>,
    /// Where accesses of partitions are counted.
    pub partitions: PartitionReports,
    /// For tests: makes statements fail.
    #[doc(hidden)]
    pub faults: Option<Arc<dyn FaultInjector>>,
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

/// The internal listener, by which processes decide stock commands for each other.
#[derive(Debug, Clone)]
pub struct InternalOptions {
    /// Where to listen; `None`: every process decides its own commands, however many sell the same product.
    pub listen: Option<SocketAddr>,
    /// The address for the other processes, where it is not that of the listener. Port 0 is the port of the listener.
    pub advertise: Option<SocketAddr>,
    /// The secret of all processes; `None`: one that the first start stores in the cluster.
    pub token: Option<InternalToken>,
}

impl Default for InternalOptions {
    /// For processes on one machine.
    fn default() -> Self {
        let listen = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        Self { listen, advertise: None, token: None }
    }
}

/// Not shown by `Debug`.
#[derive(Clone)]
pub struct InternalToken(String);

impl InternalToken {
    pub const fn new(token: String) -> Self {
        Self(token)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for InternalToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InternalToken(…)")
    }
}

/// PEM files.
#[derive(Debug, Clone)]
pub struct Tls {
    /// The certificate authority. The nodes' certificates must name their IP addresses.
    pub ca: PathBuf,
    /// The client certificate, where the nodes require one.
    pub client: Option<ClientCertificate>,
}

#[derive(Debug, Clone)]
pub struct ClientCertificate {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Options {
    /// Without password and TLS; replication factor 3 in the local data centre.
    pub fn new(contact_points: Vec<String>, local_dc: &str) -> Self {
        Self {
            contact_points,
            local_dc: local_dc.to_owned(),
            credentials: None,
            tls: None,
            keyspace: KEYSPACE.to_owned(),
            replication: Replication::even(local_dc, REPLICATION_FACTOR),
            policy: Policy::default(),
            auto_repair: true,
            request_timeout: REQUEST_TIMEOUT,
            max_clock_skew: MAX_CLOCK_SKEW,
            ready_share: READY_SHARE,
            product_cache_ttl: PRODUCT_CACHE_TTL,
            product_cache_size: PRODUCT_CACHE_SIZE,
            clock: SystemTime::now,
            internal: InternalOptions::default(),
            feed: FeedSettings::default(),
            stamps_commands: false,
            trace: None,
            partitions: PartitionReports::default(),
            faults: None,
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

    /// Zero, which turns the cache off, where every read of a product must see every write.
    pub fn effective_product_cache_ttl(&self) -> Duration {
        let staleness = self.policy.max_staleness(
            Table::ProductById,
            Freshness::StaleOk,
            &self.replication,
            &self.local_dc,
        );
        staleness.map_or(Duration::ZERO, |_| self.product_cache_ttl)
    }
}

/// Connects, and checks that the configuration fits the cluster. Does not check the schema.
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
    check_data_centres(options, &nodes_by_dc(&session))?;
    check_policy(options, hint_window(&session).await)?;
    clock::check(&session, &options.local_dc, options.clock, options.max_clock_skew).await?;
    Ok(session)
}

/// The number of nodes of each data centre, those that are down included.
fn nodes_by_dc(session: &Session) -> BTreeMap<String, u32> {
    let mut nodes = BTreeMap::new();
    for node in session.get_cluster_state().get_nodes_info() {
        *nodes.entry(node.datacenter.clone().unwrap_or_default()).or_default() += 1;
    }
    nodes
}

fn check_data_centres(options: &Options, nodes: &BTreeMap<String, u32>) -> Result<(), StartError> {
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
                    let (dc, replication_factor, nodes) = (dc.clone(), *factor, *nodes);
                    return Err(StartError::TooFewNodes { key, dc, replication_factor, nodes });
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
        return Err(StartError::PolicyViolation(found));
    }
    Ok(())
}

/// The hint window of the nodes; the default where the role may not read it.
async fn hint_window(session: &Session) -> Duration {
    let text = "SELECT value FROM system_views.settings WHERE name = 'max_hint_window'";
    let configured = session.query_unpaged(text, ()).await.ok().and_then(|result| {
        let (value,) = result.into_rows_result().ok()?.maybe_first_row::<(Option<String>,)>().ok()??;
        parse_setting(&value?)
    });
    configured.unwrap_or_else(|| {
        tracing::debug!("read max_hint_window: not available, assuming the default of 3h");
        HINT_WINDOW
    })
}

/// `3h`, `180m`, `10800s` or `10800000ms`, as in `system_views.settings`.
fn parse_setting(text: &str) -> Option<Duration> {
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
    fn data_centres_must_exist_and_have_enough_nodes() {
        check_data_centres(&options(), &nodes(&[("dc1", 3)])).unwrap();
        let error = |options: &Options, found: &[(&str, u32)]| {
            check_data_centres(options, &nodes(found)).unwrap_err().to_string()
        };
        assert_eq!(
            error(&options(), &[("msk", 3), ("spb", 3)]),
            "store.cassandra.local_dc: the cluster has no data centre \"dc1\"; it has msk, spb"
        );
        assert_eq!(
            error(&options(), &[("dc1", 1)]),
            "store.cassandra.replication.core.dc1: replication factor 3 needs 3 nodes, and dc1 has 1"
        );
        let mut with_dc2 = options();
        with_dc2.replication.set(Class::History, "dc2", 1);
        assert_eq!(
            error(&with_dc2, &[("dc1", 3)]),
            "store.cassandra.replication.history.dc2: the cluster has no data centre \"dc2\"; it has dc1"
        );
    }

    #[test]
    fn an_unsafe_policy_is_refused_with_every_setting_to_change() {
        let mut options = options();
        options.policy.set("stock", "gc_grace", "1h").unwrap();
        check_policy(&Options { policy: Policy::default(), ..options.clone() }, HINT_WINDOW).unwrap();
        let error = check_policy(&options, HINT_WINDOW).unwrap_err().to_string();
        assert_eq!(error.lines().count(), 3, "{error}");
        assert!(
            error.starts_with("the policy may lose data:\n  store.cassandra.policy.stock.gc_grace: "),
            "{error}"
        );
    }

    #[test]
    fn the_hint_window_of_the_cluster_is_checked() {
        assert!(check_policy(&options(), Duration::from_hours(6)).is_err());
    }

    #[test]
    fn durations_of_settings_parse() {
        for (text, seconds) in
            [("3h", 10_800), ("180m", 10_800), ("10800s", 10_800), ("10800000ms", 10_800), ("1d", 86_400)]
        {
            assert_eq!(parse_setting(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "3", "h", "3x", "99999999999999999999h"] {
            assert_eq!(parse_setting(bad), None, "{bad}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let credentials = Credentials { username: "mw".to_owned(), password: "secret".to_owned() };
        let token = Some(InternalToken::new("secret".to_owned()));
        let internal = InternalOptions { token, ..InternalOptions::default() };
        let printed = format!("{:?}", Options { credentials: Some(credentials), internal, ..options() });
        assert!(printed.contains("mw") && !printed.contains("secret"), "{printed}");
    }
}
