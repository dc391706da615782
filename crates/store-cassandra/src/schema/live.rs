//! The live schema: the shop's keyspaces, tables, columns and types, read from `system_schema`.

use std::collections::{BTreeMap, HashMap};

use scylla::client::session::Session;
use scylla::deserialize::row::DeserializeRow;
use scylla::statement::unprepared::Statement;

use super::error::SchemaError;
use super::model::{Column, Name};
use crate::schema::tables::Class;

#[derive(Debug, Default)]
pub(super) struct Live {
    /// Replication factors by data centre; a class without a keyspace is absent.
    pub(super) keyspaces: BTreeMap<Class, BTreeMap<String, u32>>,
    pub(super) tables: BTreeMap<Name, LiveTable>,
    pub(super) types: BTreeMap<Name, Vec<(String, String)>>,
}

#[derive(Debug, Default)]
pub(super) struct LiveTable {
    pub(super) columns: BTreeMap<String, Column>,
    /// Scalar options as text; options that are maps are in `maps`.
    pub(super) options: BTreeMap<String, String>,
    pub(super) maps: BTreeMap<String, HashMap<String, String>>,
}

type Map = HashMap<String, String>;
/// Name, `gc_grace_seconds`, default TTL, read repair, comment, compaction.
type Options = (String, i32, i32, String, String, Map);
/// Table, name, kind, position, order, type.
type Columns = (String, String, String, i32, String, String);

impl Live {
    pub(super) async fn read(
        session: &Session,
        prefix: &str,
        with_auto_repair: bool,
    ) -> Result<Self, SchemaError> {
        let mut live = Self::default();
        for class in Class::ALL {
            let keyspace = class.keyspace(prefix);
            live.read_keyspace(session, class, &keyspace).await?;
            if !live.keyspaces.contains_key(&class) {
                continue;
            }
            live.read_tables(session, class, &keyspace).await?;
            if with_auto_repair {
                live.read_auto_repair(session, class, &keyspace).await?;
            }
            live.read_columns(session, class, &keyspace).await?;
            live.read_types(session, class, &keyspace).await?;
        }
        Ok(live)
    }

    pub(super) fn has_table(&self, class: Class, table: &str) -> bool {
        self.tables.contains_key(&(class, table.to_owned()))
    }

    async fn read_keyspace(
        &mut self,
        session: &Session,
        class: Class,
        keyspace: &str,
    ) -> Result<(), SchemaError> {
        let text = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?";
        for (replication,) in rows::<(Map,)>(session, "keyspaces", text, keyspace).await? {
            let factor = |(dc, factor): (String, String)| Some((dc, factor.parse().ok()?));
            self.keyspaces.insert(class, replication.into_iter().filter_map(factor).collect());
        }
        Ok(())
    }

    async fn read_tables(
        &mut self,
        session: &Session,
        class: Class,
        keyspace: &str,
    ) -> Result<(), SchemaError> {
        let text = "SELECT table_name, gc_grace_seconds, default_time_to_live, read_repair, comment, compaction \
                    FROM system_schema.tables WHERE keyspace_name = ?";
        for (name, gc_grace, ttl, read_repair, comment, compaction) in
            rows::<Options>(session, "tables", text, keyspace).await?
        {
            let table = self.tables.entry((class, name)).or_default();
            let options = [
                ("gc_grace_seconds", gc_grace.to_string()),
                ("default_time_to_live", ttl.to_string()),
                ("read_repair", read_repair),
                ("comment", comment),
            ];
            table.options.extend(options.map(|(name, value)| (name.to_owned(), value)));
            table.maps.insert("compaction".to_owned(), compaction);
        }
        Ok(())
    }

    async fn read_auto_repair(
        &mut self,
        session: &Session,
        class: Class,
        keyspace: &str,
    ) -> Result<(), SchemaError> {
        let column = "SELECT column_name FROM system_schema.columns WHERE keyspace_name = 'system_schema' AND \
                      table_name = 'tables' AND column_name = ?";
        if rows::<(String,)>(session, "table options", column, "auto_repair").await?.is_empty() {
            return Err(SchemaError::NoAutoRepair);
        }
        let text = "SELECT table_name, auto_repair FROM system_schema.tables WHERE keyspace_name = ?";
        for (name, auto_repair) in rows::<(String, Option<Map>)>(session, "tables", text, keyspace).await? {
            let table = self.tables.entry((class, name)).or_default();
            table.maps.insert("auto_repair".to_owned(), auto_repair.unwrap_or_default());
        }
        Ok(())
    }

    async fn read_columns(
        &mut self,
        session: &Session,
        class: Class,
        keyspace: &str,
    ) -> Result<(), SchemaError> {
        let text = "SELECT table_name, column_name, kind, position, clustering_order, type \
                    FROM system_schema.columns WHERE keyspace_name = ?";
        for (table, name, kind, position, order, type_name) in
            rows::<Columns>(session, "columns", text, keyspace).await?
        {
            let column = Column { kind, position, order, type_name: without_spaces(&type_name) };
            self.tables.entry((class, table)).or_default().columns.insert(name, column);
        }
        Ok(())
    }

    async fn read_types(
        &mut self,
        session: &Session,
        class: Class,
        keyspace: &str,
    ) -> Result<(), SchemaError> {
        let text =
            "SELECT type_name, field_names, field_types FROM system_schema.types WHERE keyspace_name = ?";
        for (name, names, types) in
            rows::<(String, Vec<String>, Vec<String>)>(session, "types", text, keyspace).await?
        {
            let types = types.iter().map(|type_name| without_spaces(type_name));
            self.types.insert((class, name), names.into_iter().zip(types).collect());
        }
        Ok(())
    }
}

fn without_spaces(type_name: &str) -> String {
    type_name.split_whitespace().collect()
}

/// Reads all rows without paging: a keyspace has few tables and types.
async fn rows<R>(
    session: &Session,
    what: &'static str,
    text: &str,
    value: &str,
) -> Result<Vec<R>, SchemaError>
where
    R: for<'f, 'm> DeserializeRow<'f, 'm>,
{
    let failed = |cause: String| SchemaError::Read { what, cause };
    let mut statement = Statement::new(text);
    statement.set_is_idempotent(true);
    let result =
        session.query_unpaged(statement, (value,)).await.map_err(|error| failed(error.to_string()))?;
    let rows = result.into_rows_result().map_err(|error| failed(error.to_string()))?;
    let rows = rows.rows::<R>().map_err(|error| failed(error.to_string()))?;
    rows.collect::<Result<_, _>>().map_err(|error| failed(error.to_string()))
}
