//! Why a schema cannot be applied, or a process cannot serve on it, with what to do about it.

use scylla::errors::ExecutionError;

#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error(
        "the cluster has no schema of this shop (keyspace {keyspace}): run `mw schema apply`, or serve with \
         --apply-schema; store.cassandra.keyspace names another shop"
    )]
    Missing { keyspace: String },

    #[error(
        "the cluster's schema is older than this program: it is at version {found}, version {wanted} is needed; run \
         `mw schema apply`, or serve with --apply-schema"
    )]
    Older { found: u32, wanted: u32 },

    #[error(
        "the cluster's schema is newer than this program: it is at version {found}, this program knows version {known}; \
         run the release that applied it, or a later one"
    )]
    Newer { found: u32, known: u32 },

    #[error(
        "schema file {name} differs from the one that was applied to the cluster: an applied file must not change; put \
         the change into a new file"
    )]
    Edited { name: String },

    #[error(
        "{key}: keyspace {keyspace} has replication factor {found} in {dc}, the configuration says {wanted}: configure \
         {found}, or change the keyspace (ALTER KEYSPACE), run a full repair, and start again"
    )]
    ReplicationFactor { key: String, keyspace: String, dc: String, found: u32, wanted: u32 },

    #[error(
        "{key}: the table says \"{found}\", this process is configured with {wanted}: LWTs at different serial levels do \
         not exclude each other; configure the level of the table, or stop all processes and run `mw schema apply`"
    )]
    SerialMismatch { key: String, found: String, wanted: &'static str },

    #[error(
        "gave up waiting for the schema lock: another process is applying the schema; wait for it, or stop it, and try \
         again"
    )]
    LockTimeout,

    #[error("lost the schema lock to another process that applies the schema: try again")]
    LockLost,

    #[error(
        "store.cassandra.auto_repair: the nodes do not have the table option auto_repair (it needs Cassandra 5.0.8 and \
         -Dcassandra.autorepair.enable=true on every node): set it to false, and schedule repairs in another way"
    )]
    NoAutoRepair,

    #[error("change the schema: no node of the cluster is connected")]
    NoNode,

    #[error("run {statement}: {cause}")]
    Statement { statement: String, cause: Box<ExecutionError> },

    #[error("read {what}: {cause}")]
    Read { what: &'static str, cause: String },

    #[error("parse schema file {file}: unknown statement `{statement}`")]
    Unreadable { file: &'static str, statement: String },
}
