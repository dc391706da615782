//! Brings the servers to the schema. Every command may be repeated, so an interrupted run is finished by the next one, and
//! several processes may run it at the same time.

use mongodb::Client;
use mongodb::bson::{Bson, Document, doc};
use mongodb::error::{Error, ErrorKind};

use super::servers::{Found, FoundCollection};
use super::spec::index_document;
use super::{CollectionSpec, Progress, Schema, SchemaError};
use crate::collections::IndexSpec;

/// Another process created the collection in between.
const NAMESPACE_EXISTS: i32 = 48;

impl Schema {
    /// Creates what is missing and returns how many commands were run. Validators are replaced; indexes with other options and
    /// shard keys of collections with data stay as they are ([`Schema::drift`] lists them).
    pub async fn apply(&self, client: &Client, progress: Progress<'_>) -> Result<usize, SchemaError> {
        let names: Vec<&'static str> = self.collections.iter().map(|it| it.name).collect();
        let found = Found::read(client, &self.database, &names).await?;
        let mut run = 0;
        for spec in &self.collections {
            let existing = found.collections.get(spec.name);
            let commands = self.commands(spec, existing, found.is_sharded_cluster);
            for (what, on_admin, command) in commands {
                if on_admin && existing.is_some() && !self.is_empty(client, spec.name).await? {
                    continue;
                }
                progress(&what);
                let database = client.database(if on_admin { "admin" } else { &self.database });
                // A crash here leaves a part of the schema; the next run creates the rest.
                match database.run_command(command).await {
                    Err(error) if code(&error) == Some(NAMESPACE_EXISTS) => {}
                    Err(error) => return Err(SchemaError::doing(what)(error)),
                    Ok(_) => run += 1,
                }
            }
        }
        Ok(run)
    }

    /// What must hold before the first request: every collection and index exists, and shard keys are those configured.
    pub async fn check(&self, client: &Client) -> Result<(), SchemaError> {
        for drift in self.drift(client).await? {
            match drift {
                super::Drift::NoCollection { .. } | super::Drift::NoIndex { .. } => {
                    return Err(SchemaError::Missing {
                        database: self.database.clone(),
                        missing: drift.to_string(),
                    });
                }
                super::Drift::ShardKey { collection, configured, found } => {
                    return Err(SchemaError::ShardKey { collection, configured, found });
                }
                other => {
                    tracing::warn!(drift = %other, "the database differs from the schema: see `mw schema drift`");
                }
            }
        }
        Ok(())
    }

    /// The commands for one collection: what is done, whether the database `admin` runs it, and the command.
    fn commands(
        &self,
        spec: &CollectionSpec,
        existing: Option<&FoundCollection>,
        is_sharded_cluster: bool,
    ) -> Vec<(String, bool, Document)> {
        let name = spec.name;
        let mut commands = Vec::new();
        match existing {
            None => commands.push((format!("create collection {name}"), false, create(spec))),
            Some(found) if spec.validator.is_some() && found.validator != spec.validator => {
                commands.push((format!("replace the validator of {name}"), false, modify(spec)));
            }
            Some(_) => {}
        }
        let is_unsharded = existing.is_none_or(|found| found.shard_key.is_none());
        if let (Some(key), true, true) = (&spec.shard_key, is_sharded_cluster, is_unsharded) {
            let what = format!("shard {name} by {key}");
            let shard = doc! { "shardCollection": self.namespace(name), "key": key.to_document() };
            commands.push((what, true, shard));
        }
        let is_missing =
            |index: &&IndexSpec| existing.is_none_or(|found| !found.indexes.contains_key(index.name));
        let missing: Vec<Bson> =
            spec.indexes.iter().filter(is_missing).map(|index| index_document(index).into()).collect();
        if !missing.is_empty() {
            let what = format!("create {} indexes of {name}", missing.len());
            commands.push((what, false, doc! { "createIndexes": name, "indexes": missing }));
        }
        commands
    }

    async fn is_empty(&self, client: &Client, name: &str) -> Result<bool, SchemaError> {
        let collection = client.database(&self.database).collection::<Document>(name);
        let any = collection.find_one(doc! {}).projection(doc! { "_id": 1 }).await;
        any.map(|any| any.is_none()).map_err(SchemaError::doing(format!("read {name}")))
    }
}

fn create(spec: &CollectionSpec) -> Document {
    let mut command = doc! { "create": spec.name };
    command.extend(validation(spec));
    command
}

fn modify(spec: &CollectionSpec) -> Document {
    let mut command = doc! { "collMod": spec.name };
    command.extend(validation(spec));
    command
}

fn validation(spec: &CollectionSpec) -> Document {
    spec.validator.clone().map_or_else(Document::new, |validator| {
        doc! { "validator": validator, "validationLevel": "moderate", "validationAction": "warn" }
    })
}

/// The code of a server's error.
pub(crate) fn code(error: &Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(command) => Some(command.code),
        _ => None,
    }
}
