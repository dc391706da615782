//! The schema: numbered files with the model, and what a configuration makes of them.
//!
//! `plan` is the CQL for people, `apply` runs what is missing once, `drift` compares the cluster with both. A file that was
//! applied never changes any more; what changes the schema is a further file.

mod apply;
mod drift;
mod error;
mod files;
mod live;
mod model;
mod plan;
mod versions;

use std::collections::BTreeMap;

use scylla::client::session::Session;

pub use apply::Progress;
pub use drift::Drift;
pub use error::SchemaError;

use crate::policy::Policy;
use crate::tables::Class;
use files::FILES;
use live::Live;
use model::Model;

/// Copies in each data centre, by class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replication {
    factors: BTreeMap<Class, BTreeMap<String, u32>>,
    nowhere: BTreeMap<String, u32>,
}

impl Replication {
    /// The same number of copies of everything, in one data centre.
    pub fn even(dc: &str, factor: u32) -> Self {
        Class::ALL.map(|class| (class, BTreeMap::from([(dc.to_owned(), factor)]))).into_iter().collect()
    }

    pub fn of(&self, class: Class) -> &BTreeMap<String, u32> {
        self.factors.get(&class).unwrap_or(&self.nowhere)
    }

    pub fn set(&mut self, class: Class, dc: &str, factor: u32) {
        self.factors.entry(class).or_default().insert(dc.to_owned(), factor);
    }

    /// Forgets what was set for the class.
    pub fn replace(&mut self, class: Class, factors: BTreeMap<String, u32>) {
        self.factors.insert(class, factors);
    }
}

impl FromIterator<(Class, BTreeMap<String, u32>)> for Replication {
    fn from_iter<I: IntoIterator<Item = (Class, BTreeMap<String, u32>)>>(factors: I) -> Self {
        Self { factors: factors.into_iter().collect(), nowhere: BTreeMap::new() }
    }
}

/// The schema as a configuration wants it.
#[derive(Debug, Clone)]
pub struct Schema {
    /// Keyspaces begin with this.
    pub prefix: String,
    pub replication: Replication,
    pub policy: Policy,
    /// Whether the nodes know the table option `auto_repair`.
    pub auto_repair: bool,
}

impl Schema {
    /// The CQL of it, in order, with the reasons.
    pub fn plan(&self) -> Result<String, SchemaError> {
        plan::text(self)
    }

    /// Brings the cluster up to date: files that were not applied yet, and table options that are not the policy's. Several
    /// processes may do it at once; one of them does it, the others wait. Answers how many statements were run.
    pub async fn apply(
        &self,
        session: &Session,
        progress: &(dyn Fn(Progress<'_>) + Send + Sync),
    ) -> Result<usize, SchemaError> {
        apply::apply(self, session, progress).await
    }

    /// What the cluster has and this does not say, and the other way round.
    pub async fn drift(&self, session: &Session) -> Result<Vec<Drift>, SchemaError> {
        let live = Live::read(session, &self.prefix, self.auto_repair).await?;
        Ok(drift::compare(self, &Model::of(FILES)?, &live))
    }

    /// Whether a process may work with the cluster's schema.
    pub async fn check(&self, session: &Session) -> Result<(), SchemaError> {
        let live = Live::read(session, &self.prefix, self.auto_repair).await?;
        let applied = versions::read(session, &self.prefix, &live).await?;
        if !versions::pending(&applied, FILES)?.is_empty() {
            let (found, wanted) = (versions::newest(&applied), files::newest(FILES));
            return Err(SchemaError::Older { found, wanted });
        }
        drift::fit_to_serve(self, &live)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A schema of one data centre, as tests of the parts of this module want it.
    pub(super) fn schema() -> Schema {
        Schema {
            prefix: "shop".to_owned(),
            replication: Replication::even("dc1", 3),
            policy: Policy::default(),
            auto_repair: true,
        }
    }

    #[test]
    fn the_page_about_the_schema_names_every_table() {
        let page = include_str!("../../../docs/schema.md");
        for (_, name) in Model::of(FILES).unwrap().tables.keys() {
            assert!(page.contains(&format!("`{name}`")), "docs/schema.md says nothing of {name}");
        }
    }

    #[test]
    fn a_class_without_copies_is_nowhere() {
        let mut replication = Replication::even("dc1", 3);
        replication.set(Class::Core, "dc2", 2);
        assert_eq!(replication.of(Class::Core).len(), 2);
        replication.replace(Class::Core, BTreeMap::new());
        assert!(replication.of(Class::Core).is_empty());
        assert!(Replication::default().of(Class::Carts).is_empty());
    }
}
