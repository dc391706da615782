//! The schema: numbered CQL files, completed by the configuration (keyspaces, replication factors, table options).
//!
//! `plan` prints the CQL, `apply` runs what the cluster lacks, `drift` compares the cluster with files and configuration. A
//! file that was applied never changes; a change of the schema is a new file.

mod apply;
mod drift;
mod error;
mod files;
mod live;
mod model;
mod plan;
pub mod tables;
mod versions;

use std::collections::BTreeMap;

use scylla::client::session::Session;

pub use apply::Progress;
pub use drift::Drift;
pub use error::SchemaError;

use crate::policy::Policy;
use crate::schema::tables::Class;
use files::FILES;
use live::Live;
use model::Model;

/// Replication factors: of each class, by data centre.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replication {
    factors: BTreeMap<Class, BTreeMap<String, u32>>,
    /// Of a class that is not in `factors`.
    unset: BTreeMap<String, u32>,
}

impl Replication {
    /// The same replication factor for all classes, in one data centre.
    pub fn even(dc: &str, factor: u32) -> Self {
        Class::ALL.map(|class| (class, BTreeMap::from([(dc.to_owned(), factor)]))).into_iter().collect()
    }

    pub fn of(&self, class: Class) -> &BTreeMap<String, u32> {
        self.factors.get(&class).unwrap_or(&self.unset)
    }

    pub fn set(&mut self, class: Class, dc: &str, factor: u32) {
        self.factors.entry(class).or_default().insert(dc.to_owned(), factor);
    }

    /// Replaces every factor of the class.
    pub fn replace(&mut self, class: Class, factors: BTreeMap<String, u32>) {
        self.factors.insert(class, factors);
    }
}

impl FromIterator<(Class, BTreeMap<String, u32>)> for Replication {
    fn from_iter<I: IntoIterator<Item = (Class, BTreeMap<String, u32>)>>(factors: I) -> Self {
        Self { factors: factors.into_iter().collect(), unset: BTreeMap::new() }
    }
}

/// The schema as the configuration wants it.
#[derive(Debug, Clone)]
pub struct Schema {
    /// The prefix of the keyspace names.
    pub prefix: String,
    pub replication: Replication,
    pub policy: Policy,
    /// Whether the nodes have the table option `auto_repair`.
    pub auto_repair: bool,
}

impl Schema {
    /// Its CQL in the order of execution, with the comments of the files.
    pub fn plan(&self) -> Result<String, SchemaError> {
        plan::text(self)
    }

    /// Brings the cluster up to date: runs the files that were not applied yet, and alters table options that differ from
    /// the policy. Processes that apply at the same time take turns under a lock. Returns the number of statements run.
    pub async fn apply(
        &self,
        session: &Session,
        progress: &(dyn Fn(Progress<'_>) + Send + Sync),
    ) -> Result<usize, SchemaError> {
        apply::apply(self, session, progress).await
    }

    /// The differences between the cluster and this schema.
    pub async fn drift(&self, session: &Session) -> Result<Vec<Drift>, SchemaError> {
        let live = Live::read(session, &self.prefix, self.auto_repair).await?;
        Ok(drift::compare(self, &Model::of(FILES)?, &live))
    }

    /// Whether a process may serve on the cluster's schema.
    pub async fn check(&self, session: &Session) -> Result<(), SchemaError> {
        let live = Live::read(session, &self.prefix, self.auto_repair).await?;
        let applied = versions::read(session, &self.prefix, &live).await?;
        if !versions::pending(&applied, FILES)?.is_empty() {
            let (found, wanted) = (versions::newest(&applied), files::newest(FILES));
            return Err(SchemaError::Older { found, wanted });
        }
        drift::check_servable(self, &live)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A schema of one data centre, for the tests of this module's parts.
    pub(super) fn schema() -> Schema {
        Schema {
            prefix: "shop".to_owned(),
            replication: Replication::even("dc1", 3),
            policy: Policy::default(),
            auto_repair: true,
        }
    }

    #[test]
    fn the_schema_document_names_every_table() {
        let page = include_str!("../../../docs/schema.md");
        for (_, name) in Model::of(FILES).unwrap().tables.keys() {
            assert!(page.contains(&format!("`{name}`")), "docs/schema.md does not mention {name}");
        }
    }

    #[test]
    fn a_class_without_factors_has_no_data_centre() {
        let mut replication = Replication::even("dc1", 3);
        replication.set(Class::Core, "dc2", 2);
        assert_eq!(replication.of(Class::Core).len(), 2);
        replication.replace(Class::Core, BTreeMap::new());
        assert!(replication.of(Class::Core).is_empty());
        assert!(Replication::default().of(Class::Carts).is_empty());
    }
}
