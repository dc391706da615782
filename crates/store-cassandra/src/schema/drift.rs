//! Schema drift: the live schema compared with the files and the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::Schema;
use super::error::SchemaError;
use super::live::{Live, LiveTable};
use super::model::{Column, Model};
use super::versions;
use crate::policy::{OptionValue, TableOption, serial_name};
use crate::schema::tables::{Class, Table};

/// One difference between the cluster and the schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drift {
    NoKeyspace { keyspace: String },
    ReplicationFactor { keyspace: String, dc: String, found: u32, wanted: u32 },
    NoTable { table: String },
    UnknownTable { table: String },
    NoColumn { table: String, column: String, wanted: String },
    UnknownColumn { table: String, column: String },
    OtherColumn { table: String, column: String, found: String, wanted: String },
    NoType { name: String },
    OtherType { name: String, found: String, wanted: String },
    Option { table: String, option: String, found: String, wanted: String },
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKeyspace { keyspace } => write!(f, "keyspace {keyspace}: is missing"),
            Self::ReplicationFactor { keyspace, dc, found, wanted } => {
                write!(f, "keyspace {keyspace}: replication factor in {dc} is {found}, should be {wanted}")
            }
            Self::NoTable { table } => write!(f, "table {table}: is missing"),
            Self::UnknownTable { table } => write!(f, "table {table}: is not in this schema"),
            Self::NoColumn { table, column, wanted } => {
                write!(f, "table {table}: column {column} is missing, should be {wanted}")
            }
            Self::UnknownColumn { table, column } => {
                write!(f, "table {table}: column {column} is not in this schema")
            }
            Self::OtherColumn { table, column, found, wanted } => {
                write!(f, "table {table}: column {column} is {found}, should be {wanted}")
            }
            Self::NoType { name } => write!(f, "type {name}: is missing"),
            Self::OtherType { name, found, wanted } => {
                write!(f, "type {name}: has {found}, should have {wanted}")
            }
            Self::Option { table, option, found, wanted } => {
                write!(f, "table {table}: {option} is {found}, should be {wanted}")
            }
        }
    }
}

pub(super) fn compare(schema: &Schema, model: &Model, live: &Live) -> Vec<Drift> {
    let mut drifts = Vec::new();
    for class in Class::ALL {
        let keyspace = class.keyspace(&schema.prefix);
        match live.keyspaces.get(&class) {
            None => drifts.push(Drift::NoKeyspace { keyspace }),
            Some(found) => drifts.extend(replication_factors(schema, class, found)),
        }
    }
    let full = |(class, name): &(Class, String)| format!("{}.{name}", class.keyspace(&schema.prefix));
    for (name, wanted) in &model.types {
        let name_shown = full(name);
        match live.types.get(name) {
            None => drifts.push(Drift::NoType { name: name_shown }),
            Some(found) if found == wanted => {}
            Some(found) => {
                let [found, wanted] = [found, wanted].map(|fields| fields_shown(fields));
                drifts.push(Drift::OtherType { name: name_shown, found, wanted });
            }
        }
    }
    for (name, wanted) in &model.tables {
        match live.tables.get(name) {
            None => drifts.push(Drift::NoTable { table: full(name) }),
            Some(found) => columns(&full(name), wanted, &found.columns, &mut drifts),
        }
    }
    for name in live.tables.keys() {
        if !model.tables.contains_key(name) && !versions::is_own(name.0, &name.1) {
            drifts.push(Drift::UnknownTable { table: full(name) });
        }
    }
    for (table, changed) in options(schema, live) {
        let name = format!("{}.{table}", table.class().keyspace(&schema.prefix));
        drifts.extend(changed.into_iter().map(|(option, found)| Drift::Option {
            table: name.clone(),
            option: option.name.to_owned(),
            found,
            wanted: option.value.to_string(),
        }));
    }
    drifts
}

/// The data centres whose replication factors differ.
fn replication_factors(schema: &Schema, class: Class, found: &BTreeMap<String, u32>) -> Vec<Drift> {
    let wanted = schema.replication.of(class);
    let of = |factors: &BTreeMap<String, u32>, dc: &str| factors.get(dc).copied().unwrap_or(0);
    let dcs: BTreeSet<&String> = found.keys().chain(wanted.keys()).collect();
    dcs.into_iter()
        .map(|dc| (dc, of(found, dc), of(wanted, dc)))
        .filter(|(_, found, wanted)| found != wanted)
        .map(|(dc, found, wanted)| Drift::ReplicationFactor {
            keyspace: class.keyspace(&schema.prefix),
            dc: dc.clone(),
            found,
            wanted,
        })
        .collect()
}

fn columns(
    table: &str,
    wanted: &BTreeMap<String, Column>,
    found: &BTreeMap<String, Column>,
    drifts: &mut Vec<Drift>,
) {
    for (name, column) in wanted {
        let (table, column_name) = (table.to_owned(), name.clone());
        match found.get(name) {
            None => drifts.push(Drift::NoColumn { table, column: column_name, wanted: describe(column) }),
            Some(other) if other == column => {}
            Some(other) => drifts.push(Drift::OtherColumn {
                table,
                column: column_name,
                found: describe(other),
                wanted: describe(column),
            }),
        }
    }
    for name in found.keys().filter(|name| !wanted.contains_key(*name)) {
        drifts.push(Drift::UnknownColumn { table: table.to_owned(), column: name.clone() });
    }
}

/// `timestamp, clustering 0 desc`.
fn describe(column: &Column) -> String {
    let type_name = &column.type_name;
    match column.kind.as_str() {
        "regular" => type_name.clone(),
        "clustering" => format!("{type_name}, clustering {} {}", column.position, column.order),
        "partition_key" => format!("{type_name}, partition_key {}", column.position),
        kind => format!("{type_name}, {kind}"),
    }
}

fn fields_shown(fields: &[(String, String)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(name, type_name)| format!("{name} {type_name}")).collect();
    format!("({})", fields.join(", "))
}

/// The options of each table that differ from the policy, with their live values.
pub(super) fn options(schema: &Schema, live: &Live) -> Vec<(Table, Vec<(TableOption, String)>)> {
    let changed = |table: &Table| {
        let found = live.tables.get(&(table.class(), table.name().to_owned()))?;
        let wanted = schema.policy.of(*table).options(*table, schema.auto_repair);
        let differs = |option: TableOption| difference(&option, found).map(|found| (option, found));
        let changed: Vec<_> = wanted.into_iter().filter_map(differs).collect();
        (!changed.is_empty()).then_some((*table, changed))
    };
    Table::ALL.iter().filter_map(changed).collect()
}

/// The live value of the option, where it differs from the policy. Of a map only the entries that the policy sets are
/// compared: Cassandra adds its own defaults.
fn difference(option: &TableOption, table: &LiveTable) -> Option<String> {
    match &option.value {
        OptionValue::Map(wanted) => {
            let found = table.maps.get(option.name)?;
            let same = wanted.iter().all(|(name, value)| {
                found.get(*name).is_some_and(|found| found.rsplit('.').next() == Some(value.as_str()))
            });
            let describe = || {
                let entries = wanted.iter().filter_map(|(name, _)| {
                    let value = found.get(*name)?;
                    Some((*name, value.rsplit('.').next().unwrap_or(value).to_owned()))
                });
                OptionValue::Map(entries.collect()).to_string()
            };
            (!same).then(describe)
        }
        OptionValue::Seconds(seconds) => {
            let found = table.options.get(option.name)?;
            (*found != seconds.to_string()).then(|| found.clone())
        }
        OptionValue::Text(text) => {
            let found = table.options.get(option.name)?;
            (found != text).then(|| format!("'{found}'"))
        }
    }
}

/// Refuses to serve with replication factors other than the policy was validated for, or with a serial level other than
/// that of the running processes.
pub(super) fn check_servable(schema: &Schema, live: &Live) -> Result<(), SchemaError> {
    for class in Class::ALL {
        let Some(found) = live.keyspaces.get(&class) else {
            return Err(SchemaError::Missing { keyspace: class.keyspace(&schema.prefix) });
        };
        if let Some(Drift::ReplicationFactor { keyspace, dc, found, wanted }) =
            replication_factors(schema, class, found).into_iter().next()
        {
            let key = format!("store.cassandra.replication.{}.{dc}", class.name());
            return Err(SchemaError::ReplicationFactor { key, keyspace, dc, found, wanted });
        }
    }
    for (table, changed) in options(schema, live) {
        if let Some((_, found)) = changed.into_iter().find(|(option, _)| option.name == "comment") {
            return Err(SchemaError::SerialMismatch {
                key: format!("store.cassandra.policy.{table}.serial"),
                found: found.trim_matches('\'').to_owned(),
                wanted: serial_name(schema.policy.of(table).serial),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::files::FILES;
    use super::super::tests::schema;
    use super::*;

    /// A cluster without drift.
    fn live(schema: &Schema, model: &Model) -> Live {
        let mut live = Live { types: model.types.clone(), ..Live::default() };
        for class in Class::ALL {
            live.keyspaces.insert(class, schema.replication.of(class).clone());
        }
        for (name, columns) in &model.tables {
            let mut table = LiveTable { columns: columns.clone(), ..LiveTable::default() };
            let known = Table::named(&name.1).unwrap();
            for option in schema.policy.of(known).options(known, true) {
                let name = option.name.to_owned();
                match option.value {
                    OptionValue::Map(entries) => {
                        let entries = entries.into_iter().map(|(name, value)| match name {
                            "class" => (name.to_owned(), format!("org.apache.cassandra.{value}")),
                            _ => (name.to_owned(), value),
                        });
                        table.maps.insert(name, entries.collect());
                    }
                    OptionValue::Seconds(seconds) => {
                        table.options.insert(name, seconds.to_string());
                    }
                    OptionValue::Text(text) => {
                        table.options.insert(name, text);
                    }
                }
            }
            live.tables.insert(name.clone(), table);
        }
        live.tables.insert((Class::Core, "schema_versions".to_owned()), LiveTable::default());
        live
    }

    fn drifts_after(change: impl FnOnce(&mut Live)) -> Vec<String> {
        let (schema, model) = (schema(), Model::of(FILES).unwrap());
        let mut live = live(&schema, &model);
        change(&mut live);
        compare(&schema, &model, &live).iter().map(ToString::to_string).collect()
    }

    fn name(class: Class, name: &str) -> (Class, String) {
        (class, name.to_owned())
    }

    #[test]
    fn a_cluster_with_this_schema_has_no_drift() {
        assert_eq!(drifts_after(|_| {}), [""; 0]);
    }

    #[test]
    fn missing_objects_are_listed() {
        let drifts = drifts_after(|live| {
            live.keyspaces.remove(&Class::History);
            live.tables.remove(&name(Class::History, "orders_by_day"));
            live.tables.get_mut(&name(Class::Core, "stock")).unwrap().columns.remove("compacted");
            live.types.remove(&name(Class::Core, "demand"));
        });
        assert_eq!(
            drifts,
            [
                "keyspace shop_history: is missing",
                "type shop.demand: is missing",
                "table shop.stock: column compacted is missing, should be bigint",
                "table shop_history.orders_by_day: is missing",
            ]
        );
    }

    #[test]
    fn differences_are_listed_with_the_wanted_value() {
        let drifts = drifts_after(|live| {
            live.keyspaces
                .get_mut(&Class::Core)
                .unwrap()
                .extend([("dc1".to_owned(), 1), ("dc2".to_owned(), 3)]);
            let table = live.tables.get_mut(&name(Class::Carts, "cart_changes")).unwrap();
            table.columns.get_mut("changed_at").unwrap().order = "asc".to_owned();
            table.options.insert("gc_grace_seconds".to_owned(), "864000".to_owned());
            table
                .maps
                .get_mut("compaction")
                .unwrap()
                .insert("compaction_window_size".to_owned(), "7".to_owned());
            live.types.get_mut(&name(Class::Core, "demand")).unwrap().pop();
        });
        assert_eq!(
            drifts,
            [
                "keyspace shop: replication factor in dc1 is 1, should be 3",
                "keyspace shop: replication factor in dc2 is 3, should be 0",
                "type shop.demand: has (product_id text), should have (product_id text, quantity int)",
                "table shop_carts.cart_changes: column changed_at is timestamp, clustering 0 asc, should be timestamp, \
                 clustering 0 desc",
                "table shop_carts.cart_changes: compaction is {'class': 'TimeWindowCompactionStrategy', \
                 'compaction_window_unit': 'DAYS', 'compaction_window_size': '7'}, should be {'class': \
                 'TimeWindowCompactionStrategy', 'compaction_window_unit': 'DAYS', 'compaction_window_size': '1'}",
                "table shop_carts.cart_changes: gc_grace_seconds is 864000, should be 86400",
            ]
        );
    }

    #[test]
    fn unknown_objects_are_listed() {
        let drifts = drifts_after(|live| {
            live.tables.insert(name(Class::Core, "old_orders"), LiveTable::default());
            let table = live.tables.get_mut(&name(Class::Core, "imports")).unwrap();
            let column = table.columns["done"].clone();
            table.columns.insert("extra".to_owned(), column);
        });
        assert_eq!(
            drifts,
            [
                "table shop.imports: column extra is not in this schema",
                "table shop.old_orders: is not in this schema"
            ]
        );
    }

    #[test]
    fn a_process_does_not_serve_with_another_replication_factor_or_serial_level() {
        let (schema, model) = (schema(), Model::of(FILES).unwrap());
        let refused = |change: &dyn Fn(&mut Live)| {
            let mut live = live(&schema, &model);
            change(&mut live);
            check_servable(&schema, &live).map_err(|error| error.to_string())
        };
        assert_eq!(refused(&|_| {}), Ok(()));
        let refusal = refused(&|live| {
            live.keyspaces.get_mut(&Class::Carts).unwrap().insert("dc1".to_owned(), 1);
        });
        let wanted = "store.cassandra.replication.carts.dc1: keyspace shop_carts has replication factor 1 in \
                      dc1, the configuration says 3";
        assert!(refusal.as_ref().is_err_and(|it| it.starts_with(wanted)), "{refusal:?}");
        let refusal = refused(&|live| {
            let table = live.tables.get_mut(&name(Class::Core, "stock")).unwrap();
            table.options.insert("comment".to_owned(), "LWT serial consistency SERIAL".to_owned());
        });
        let wanted = "store.cassandra.policy.stock.serial: the table says \"LWT serial consistency SERIAL\", this process \
                      is configured with LOCAL_SERIAL";
        assert!(refusal.as_ref().is_err_and(|it| it.starts_with(wanted)), "{refusal:?}");
    }
}
