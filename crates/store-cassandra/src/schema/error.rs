//! What can be wrong with a schema, or go wrong while it is applied.

use scylla::errors::ExecutionError;

#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error(
        "the cluster has no schema of this shop (keyspace {keyspace}): run `mw schema apply`, or serve with \
         --apply-schema; another shop is named with store.cassandra.keyspace"
    )]
    Missing { keyspace: String },

    #[error(
        "the cluster's schema is older than this program: it is at number {found}, {wanted} is needed; run \
         `mw schema apply`, or serve with --apply-schema"
    )]
    Older { found: u32, wanted: u32 },

    #[error(
        "the cluster's schema is newer than this program: it is at number {found}, this program knows {known}; run the \
         program that made it, or a later one"
    )]
    Newer { found: u32, known: u32 },

    #[error(
        "schema file {name} is not the one that was applied to the cluster: a file that was applied must not change; put \
         what changed into a new file"
    )]
    Edited { name: String },

    #[error(
        "{key}: keyspace {keyspace} has {found} copies in {dc}, and the configuration says {wanted}: set what is true, or \
         change the keyspace (ALTER KEYSPACE), repair it in full, and start again"
    )]
    Copies { key: String, keyspace: String, dc: String, found: u32, wanted: u32 },

    #[error(
        "{key}: the other processes of this shop do {found}, and this one would at {wanted}: they would not exclude each \
         other; set what they have, or stop them all and run `mw schema apply`"
    )]
    SerialMixed { key: String, found: String, wanted: &'static str },

    #[error(
        "another process has been applying the schema for too long: wait for it, or stop it and try again"
    )]
    Claimed,

    #[error("another process took over applying the schema: try again")]
    ClaimLost,

    #[error(
        "store.cassandra.auto_repair: the nodes do not know the table option auto_repair (it needs Cassandra 5.0.8 and \
         -Dcassandra.autorepair.enable=true on every node): set it to false, and see to repairs in another way"
    )]
    NoAutoRepair,

    #[error("no node of the cluster can be reached to change the schema")]
    NoNode,

    #[error("run {statement}: {cause}")]
    Statement { statement: String, cause: Box<ExecutionError> },

    #[error("read {what}: {cause}")]
    Read { what: &'static str, cause: String },

    #[error("schema file {file}: cannot read `{statement}`")]
    Unreadable { file: &'static str, statement: String },
}
