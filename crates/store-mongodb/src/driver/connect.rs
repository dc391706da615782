//! Connects, and checks what must hold before the first request: the servers answer, accept the credentials, are new
//! enough and form a replica set or a sharded cluster. Each error names the setting to change.

use std::fmt;
use std::time::Duration;

use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::options::{ClientOptions, ReadConcern, WriteConcern};
use mw_domain::carts::CartLifetime;
use mw_store::changes::FeedSettings;

pub use super::start_error::StartError;

use super::certainty;
use crate::Shape;
use crate::policy::Policy;
use crate::shard_keys::ShardKeys;
use crate::statuses::Statuses;

const DATABASE: &str = "mobile_world";
const APP_NAME: &str = "mw";
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a member is asked for its state where it does not stream it; also how fast a new primary is seen at worst.
const HEARTBEAT: Duration = Duration::from_millis(500);
const DAY_MS: i64 = 86_400_000;
/// The wire version of server 7.0: the first that changes one document without its shard key.
const WIRE_VERSION_MIN: i32 = 21;

/// The servers, and how the engine uses them.
#[derive(Clone)]
pub struct Options {
    /// `mongodb://…` of a replica set or of mongos, with credentials and TLS where they are needed.
    pub uri: String,
    pub database: String,
    /// The shape in which documents are written; both are read.
    pub shape: Shape,
    /// The configured shard keys; without effect on a replica set.
    pub shard_keys: ShardKeys,
    /// The status words of orders.
    pub statuses: Statuses,
    /// A request ends within this time, elections included.
    pub request_timeout: Duration,
    /// The life of a cart of another program that has no `expires_at`.
    pub cart_lifetime: CartLifetime,
    /// Where each call reads.
    pub policy: Policy,
    /// Which changes the feed has, and for how long.
    pub feed: FeedSettings,
}

/// Without the URI, which may hold a password.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("database", &self.database)
            .field("shape", &self.shape)
            .field("shard_keys", &self.shard_keys)
            .field("request_timeout", &self.request_timeout)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// The defaults: shape `customer` and its shard keys.
    pub fn new(uri: &str) -> Self {
        Self {
            uri: uri.to_owned(),
            database: DATABASE.to_owned(),
            shape: Shape::default(),
            shard_keys: ShardKeys::of_shape(Shape::default()),
            statuses: Statuses::default(),
            request_timeout: REQUEST_TIMEOUT,
            cart_lifetime: CartLifetime { user_ms: 30 * DAY_MS, guest_ms: DAY_MS },
            policy: Policy::default(),
            feed: FeedSettings::default(),
        }
    }
}

/// The driver's options for the configured servers.
pub(crate) async fn client_options(options: &Options) -> Result<ClientOptions, StartError> {
    options.shard_keys.check(options.shape).map_err(StartError::ShardKey)?;
    let mut parsed = ClientOptions::parse(&options.uri)
        .await
        .map_err(|error| StartError::Uri { cause: error.to_string() })?;
    parsed.app_name.get_or_insert_with(|| APP_NAME.to_owned());
    parsed.connect_timeout.get_or_insert(CONNECT_TIMEOUT);
    parsed.server_selection_timeout = Some(options.request_timeout);
    parsed.heartbeat_freq.get_or_insert(HEARTBEAT);
    parsed.read_concern = Some(ReadConcern::majority());
    parsed.write_concern = Some(WriteConcern::majority());
    // A second attempt of a write is recognised by the servers; without it every election would end requests.
    parsed.retry_writes = Some(true);
    Ok(parsed)
}

/// Connects, and checks that the configuration fits the servers. Does not check the schema.
pub async fn connect(options: &Options) -> Result<Client, StartError> {
    let parsed = client_options(options).await?;
    let hosts = parsed.hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let is_tls = parsed.tls.is_some();
    let client =
        Client::with_options(parsed).map_err(|error| StartError::of_client(&error, &hosts, is_tls))?;
    let hello = client
        .database(&options.database)
        .run_command(doc! { "hello": 1 })
        .await
        .map_err(|error| StartError::of_client(&error, &hosts, is_tls))?;
    check_hello(&hello, &hosts)?;
    // Without a right to read nothing else works; `hello` needs none.
    let listed = client.database(&options.database).list_collection_names().await;
    listed.map_err(|error| StartError::of_client(&error, &hosts, is_tls))?;
    Ok(client)
}

fn check_hello(hello: &Document, hosts: &str) -> Result<(), StartError> {
    if !is_sharded(hello) && !hello.contains_key("setName") {
        return Err(StartError::Standalone { hosts: hosts.to_owned() });
    }
    let wire_version = hello.get_i32("maxWireVersion").unwrap_or(0);
    if wire_version < WIRE_VERSION_MIN {
        return Err(StartError::OldServer { hosts: hosts.to_owned(), wire_version });
    }
    Ok(())
}

/// Whether these servers are behind mongos.
pub async fn is_sharded_cluster(client: &Client) -> Result<bool, StartError> {
    let hello = client.database("admin").run_command(doc! { "hello": 1 }).await;
    Ok(is_sharded(&hello.map_err(|error| StartError::Store(certainty::of_read(&error)))?))
}

/// Whether a `hello` is that of mongos.
pub fn is_sharded(hello: &Document) -> bool {
    hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standalone_server_and_an_old_one_are_refused() {
        let standalone = check_hello(&doc! { "maxWireVersion": 27 }, "h:1").unwrap_err();
        assert!(standalone.to_string().starts_with("store.mongodb.uri: "), "{standalone}");
        assert!(matches!(standalone, StartError::Standalone { .. }));
        let old = check_hello(&doc! { "setName": "rs0", "maxWireVersion": 17 }, "h:1").unwrap_err();
        assert!(matches!(old, StartError::OldServer { wire_version: 17, .. }));
        assert!(check_hello(&doc! { "setName": "rs0", "maxWireVersion": 21 }, "h:1").is_ok());
        assert!(check_hello(&doc! { "msg": "isdbgrid", "maxWireVersion": 27 }, "h:1").is_ok());
    }

    #[test]
    fn options_do_not_show_the_password() {
        let options = Options::new("mongodb://user:secret@localhost");
        assert!(!format!("{options:?}").contains("secret"));
    }
}
