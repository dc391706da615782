//! Why a process cannot start on these servers; each error names the setting to change.

use mongodb::error::{Error, ErrorKind};
use mw_domain::Currency;
use mw_store::StoreError;

use crate::shard_keys::InvalidShardKey;

/// `Unauthorized` and `AuthenticationFailed`.
const NOT_ALLOWED: [i32; 2] = [13, 18];

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("store.mongodb.uri: {cause}")]
    Uri { cause: String },

    #[error("store.mongodb.uri: no server of {hosts} can be reached: {cause}")]
    Unreachable { hosts: String, cause: String },

    #[error("store.mongodb.uri: {hosts} did not accept the user name and the password: {cause}")]
    Credentials { hosts: String, cause: String },

    #[error("store.mongodb.uri: the TLS options do not fit {hosts}: {cause}")]
    Tls { hosts: String, cause: String },

    #[error(
        "store.mongodb.uri: {hosts} is a standalone server, which has neither transactions nor change streams: \
         start it with --replSet, or name a replica set or mongos"
    )]
    Standalone { hosts: String },

    #[error("store.mongodb.uri: {hosts} is older than server 7.0 (wire version {wire_version}): upgrade it")]
    OldServer { hosts: String, wire_version: i32 },

    #[error("store.mongodb.shard_keys.{0}")]
    ShardKey(InvalidShardKey),

    #[error("shop.currency: amounts are stored in {stored}, and {configured} is configured")]
    OtherCurrency { stored: String, configured: Currency },

    #[error("store.mongodb: {0}")]
    Store(#[from] StoreError),
}

impl StartError {
    /// The error of the first commands on a client.
    pub(crate) fn of_client(error: &Error, hosts: &str, is_tls: bool) -> Self {
        let (hosts, cause) = (hosts.to_owned(), error.to_string());
        match &*error.kind {
            ErrorKind::Authentication { .. } => Self::Credentials { hosts, cause },
            ErrorKind::Command(command) if NOT_ALLOWED.contains(&command.code) => {
                Self::Credentials { hosts, cause }
            }
            ErrorKind::InvalidTlsConfig { .. } => Self::Tls { hosts, cause },
            _ if is_tls && names_tls(&cause) => Self::Tls { hosts, cause },
            // The driver reports what its monitors met as a part of the text of the selection error.
            _ if cause.contains("AuthenticationFailed") || cause.contains("SCRAM failure") => {
                Self::Credentials { hosts, cause }
            }
            // A server that requires TLS closes a connection in clear text without a word.
            _ if !is_tls && cause.contains("unexpected end of file") => {
                let cause =
                    format!("connections are closed at once; add tls=true where TLS is required ({cause})");
                Self::Tls { hosts, cause }
            }
            _ => Self::Unreachable { hosts, cause },
        }
    }
}

fn names_tls(cause: &str) -> bool {
    ["certificate", "tls", "TLS", "ssl", "SSL", "HandshakeFailure", "InvalidContentType", "corrupt message"]
        .iter()
        .any(|word| cause.contains(word))
}
