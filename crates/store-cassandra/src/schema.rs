//! The schema as CQL: numbered files, with the keyspaces, factors and table options of a configuration.

use std::collections::BTreeMap;

use mw_store::{Result, StoreError};
use scylla::client::session::Session;

use crate::tables::Class;

/// The numbered files, oldest first.
const FILES: &[(&str, &str)] = &[("0001_shop", include_str!("../schema/0001_shop.cql"))];

/// Copies in each data centre, by class.
pub type Replication = BTreeMap<Class, BTreeMap<String, u32>>;

/// The statements that make an empty cluster ready.
pub fn statements(prefix: &str, replication: &Replication) -> Vec<String> {
    let mut statements = Vec::new();
    for class in Class::ALL {
        let factors: Vec<String> = replication
            .get(&class)
            .into_iter()
            .flatten()
            .map(|(dc, factor)| format!(", '{dc}': {factor}"))
            .collect();
        statements.push(format!(
            "CREATE KEYSPACE IF NOT EXISTS {} WITH replication = {{'class': 'NetworkTopologyStrategy'{}}}",
            class.keyspace(prefix),
            factors.concat()
        ));
    }
    for (_, file) in FILES {
        for statement in split(file) {
            let mut statement = statement;
            for class in Class::ALL {
                let from = format!("IF NOT EXISTS {}.", class.name());
                let to = format!("IF NOT EXISTS {}.", class.keyspace(prefix));
                statement = statement.replace(&from, &to);
            }
            statements.push(statement);
        }
    }
    statements
}

/// The statements of a file, without comments.
fn split(file: &str) -> Vec<String> {
    let lines: Vec<&str> = file.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    lines
        .join("\n")
        .split(";\n")
        .map(|statement| statement.trim().trim_end_matches(';').to_owned())
        .filter(|statement| !statement.is_empty())
        .collect()
}

pub async fn apply(session: &Session, prefix: &str, replication: &Replication) -> Result<()> {
    for statement in statements(prefix, replication) {
        session
            .query_unpaged(statement.as_str(), ())
            .await
            .map_err(|error| StoreError::Unavailable(format!("apply the schema: {error}: {statement}")))?;
    }
    Ok(())
}
