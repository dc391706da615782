//! The tables, columns and types that the files define. Parses only the CQL that the files use.

use std::collections::BTreeMap;

use super::error::SchemaError;
use super::files::File;
use crate::schema::tables::Class;

/// A table or a type, by its class.
pub(super) type Name = (Class, String);

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) tables: BTreeMap<Name, BTreeMap<String, Column>>,
    /// Fields with their types, in order.
    pub(super) types: BTreeMap<Name, Vec<(String, String)>>,
}

/// A column, in the words of `system_schema.columns`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) kind: String,
    pub(super) position: i32,
    pub(super) order: String,
    /// Without spaces.
    pub(super) type_name: String,
}

/// The object that a statement creates or alters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Table(Name),
    Type(Name),
    Columns(Name),
}

impl Target {
    pub(super) const fn name(&self) -> &Name {
        match self {
            Self::Table(name) | Self::Type(name) | Self::Columns(name) => name,
        }
    }
}

impl Model {
    pub(super) fn of(files: &[File]) -> Result<Self, SchemaError> {
        let mut model = Self::default();
        for file in files {
            for statement in file.statements() {
                let unreadable =
                    || SchemaError::Unreadable { file: file.name, statement: statement.text.clone() };
                model.add(&statement.text).ok_or_else(unreadable)?;
            }
        }
        Ok(model)
    }

    fn add(&mut self, statement: &str) -> Option<()> {
        let mut tokens = Tokens::of(statement);
        match target(&mut tokens)? {
            Target::Type(name) => {
                let fields = tokens.list()?;
                let fields = fields.iter().map(|field| {
                    let (name, type_name) = field.split_first()?;
                    Some((name.clone(), type_name.concat()))
                });
                self.types.insert(name, fields.collect::<Option<_>>()?);
            }
            Target::Table(name) => {
                self.tables.insert(name, columns(&mut tokens)?);
            }
            Target::Columns(name) => {
                let table = self.tables.get_mut(&name)?;
                let added = if tokens.next_is("(") { tokens.list()? } else { vec![tokens.rest()] };
                for column in added {
                    let (column, definition) = regular(&column)?;
                    table.insert(column, definition);
                }
            }
        }
        Some(())
    }
}

/// The target of the statement; `tokens` then starts after its name.
fn target(tokens: &mut Tokens) -> Option<Target> {
    let target = match (tokens.take()?.as_str(), tokens.take()?.as_str()) {
        ("CREATE", "TABLE") => Target::Table,
        ("CREATE", "TYPE") => Target::Type,
        ("ALTER", "TABLE") => Target::Columns,
        _ => return None,
    };
    tokens.skip(&["IF", "NOT", "EXISTS"]);
    let name = tokens.take()?;
    tokens.skip(&["ADD", "IF", "NOT", "EXISTS"]);
    let (class, name) = name.split_once('.')?;
    Some(target((Class::named(class)?, name.to_owned())))
}

/// The target of a statement of a file.
pub(super) fn target_of(statement: &str) -> Option<Target> {
    target(&mut Tokens::of(statement))
}

fn columns(tokens: &mut Tokens) -> Option<BTreeMap<String, Column>> {
    let (mut columns, mut partition, mut clustering) = (BTreeMap::new(), Vec::new(), Vec::new());
    for parts in tokens.list()? {
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        if let ["PRIMARY", "KEY", key @ ..] = parts.as_slice() {
            (partition, clustering) = primary_key(key)?;
        } else if let [parts @ .., "PRIMARY", "KEY"] = parts.as_slice() {
            let (name, column) = regular(parts)?;
            partition.push(name.clone());
            columns.insert(name, column);
        } else {
            let (name, column) = regular(&parts)?;
            columns.insert(name, column);
        }
    }
    let descending = tokens.descending()?;
    for (kind, names) in [("partition_key", &partition), ("clustering", &clustering)] {
        for (position, name) in (0..).zip(names) {
            let order = match kind {
                "partition_key" => "none",
                _ if descending.contains(name) => "desc",
                _ => "asc",
            };
            let column = columns.get_mut(name)?;
            *column = Column { kind: kind.to_owned(), position, order: order.to_owned(), ..column.clone() };
        }
    }
    (!partition.is_empty()).then_some(columns)
}

/// `name type` or `name type static`.
fn regular<T: AsRef<str>>(parts: &[T]) -> Option<(String, Column)> {
    let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
    let (name, rest) = parts.split_first()?;
    let (kind, type_name) = match rest {
        [type_name @ .., "static"] => ("static", type_name),
        type_name => ("regular", type_name),
    };
    let column = Column {
        kind: kind.to_owned(),
        position: -1,
        order: "none".to_owned(),
        type_name: type_name.concat(),
    };
    (!type_name.is_empty()).then(|| ((*name).to_owned(), column))
}

/// `((a, b), c)` or `(a, b)`: partition key columns, then clustering columns.
fn primary_key(key: &[&str]) -> Option<(Vec<String>, Vec<String>)> {
    let names = |words: &[&str]| -> Vec<String> {
        words.iter().filter(|word| !["(", ")", ","].contains(word)).map(ToString::to_string).collect()
    };
    match key {
        ["(", "(", rest @ ..] => {
            let end = rest.iter().position(|word| *word == ")")?;
            Some((names(rest.get(..end)?), names(rest.get(end..)?)))
        }
        ["(", first, rest @ ..] => Some((vec![(*first).to_owned()], names(rest))),
        _ => None,
    }
}

/// The tokens of a statement: words, brackets and commas.
struct Tokens(std::collections::VecDeque<String>);

impl Tokens {
    fn of(statement: &str) -> Self {
        let is_symbol = |c: char| "(),<>".contains(c);
        let mut words = std::collections::VecDeque::new();
        for chunk in statement.split_whitespace() {
            let mut word = String::new();
            for c in chunk.chars() {
                if is_symbol(c) {
                    words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
                    words.push_back(c.to_string());
                } else {
                    word.push(c);
                }
            }
            words.extend((!word.is_empty()).then_some(word));
        }
        Self(words)
    }

    fn take(&mut self) -> Option<String> {
        self.0.pop_front()
    }

    fn next_is(&self, wanted: &str) -> bool {
        self.0.front().is_some_and(|word| word == wanted)
    }

    fn skip(&mut self, wanted: &[&str]) {
        for word in wanted {
            if self.next_is(word) {
                self.take();
            }
        }
    }

    fn rest(&mut self) -> Vec<String> {
        std::mem::take(&mut self.0).into()
    }

    /// `( a b, c d )`: the tokens between the commas of the outermost bracket.
    fn list(&mut self) -> Option<Vec<Vec<String>>> {
        if self.take()? != "(" {
            return None;
        }
        let (mut items, mut item, mut depth) = (Vec::new(), Vec::new(), 0_i32);
        loop {
            let word = self.take()?;
            match word.as_str() {
                ")" if depth == 0 => break,
                "," if depth == 0 => {
                    items.push(std::mem::take(&mut item));
                    continue;
                }
                "(" | "<" => depth += 1,
                ")" | ">" => depth -= 1,
                _ => {}
            }
            item.push(word);
        }
        items.extend((!item.is_empty()).then_some(item));
        Some(items)
    }

    /// The columns that `WITH CLUSTERING ORDER BY (…)` orders descending.
    fn descending(&mut self) -> Option<Vec<String>> {
        self.skip(&["WITH", "CLUSTERING", "ORDER", "BY"]);
        if self.0.is_empty() {
            return Some(Vec::new());
        }
        let descending =
            self.list()?.into_iter().filter(|item| item.last().is_some_and(|word| word == "DESC"));
        let names = descending.filter_map(|item| item.into_iter().next()).collect();
        self.0.is_empty().then_some(names)
    }
}

#[cfg(test)]
mod tests {
    use super::super::files::FILES;
    use super::*;
    use crate::schema::tables::Table;

    fn column(kind: &str, position: i32, order: &str, type_name: &str) -> Column {
        let [kind, order, type_name] = [kind, order, type_name].map(str::to_owned);
        Column { kind, position, order, type_name }
    }

    fn model(text: &'static str) -> Result<Model, SchemaError> {
        Model::of(&[File { number: 1, name: "0001_test", text }])
    }

    #[test]
    fn a_table_is_parsed_with_its_keys_and_their_order() {
        let model = model(
            "CREATE TABLE IF NOT EXISTS core.t (\n a text,\n b date,\n c timestamp,\n d uuid,\n e bigint static,\n \
             f frozen<list<frozen<map<text, int>>>>,\n PRIMARY KEY ((a, b), c, d)\n) WITH CLUSTERING ORDER BY (c DESC, d ASC);\n\
             CREATE TABLE IF NOT EXISTS carts.u (k text PRIMARY KEY, v int);\n\
             ALTER TABLE carts.u ADD IF NOT EXISTS w text;\n\
             ALTER TABLE carts.u ADD IF NOT EXISTS (x map<text, int>, y int);\n",
        )
        .unwrap();
        let t = &model.tables[&(Class::Core, "t".to_owned())];
        assert_eq!(t["a"], column("partition_key", 0, "none", "text"));
        assert_eq!(t["b"], column("partition_key", 1, "none", "date"));
        assert_eq!(t["c"], column("clustering", 0, "desc", "timestamp"));
        assert_eq!(t["d"], column("clustering", 1, "asc", "uuid"));
        assert_eq!(t["e"], column("static", -1, "none", "bigint"));
        assert_eq!(t["f"], column("regular", -1, "none", "frozen<list<frozen<map<text,int>>>>"));
        let u = &model.tables[&(Class::Carts, "u".to_owned())];
        assert_eq!(u["k"], column("partition_key", 0, "none", "text"));
        assert_eq!(u["x"], column("regular", -1, "none", "map<text,int>"));
        assert_eq!(u.keys().collect::<Vec<_>>(), ["k", "v", "w", "x", "y"]);
    }

    #[test]
    fn a_statement_that_does_not_parse_is_refused() {
        for text in [
            "DROP TABLE core.t;",
            "CREATE TABLE IF NOT EXISTS elsewhere.t (a int PRIMARY KEY);",
            "CREATE TABLE IF NOT EXISTS core.t (a int);",
            "CREATE TABLE IF NOT EXISTS core.t (a int PRIMARY KEY) WITH comment = 'x';",
            "ALTER TABLE core.t ADD b int;",
        ] {
            let error = model(text).unwrap_err().to_string();
            assert!(error.starts_with("parse schema file 0001_test: unknown statement `"), "{error}");
        }
    }

    #[test]
    fn the_files_create_every_table_and_no_other() {
        let model = Model::of(FILES).unwrap();
        let created: Vec<(Class, &str)> =
            model.tables.keys().map(|(class, name)| (*class, name.as_str())).collect();
        let mut known: Vec<(Class, &str)> =
            Table::ALL.iter().map(|table| (table.class(), table.name())).collect();
        known.sort_unstable();
        assert_eq!(created, known);
        let items = &model.types[&(Class::Core, "order_item".to_owned())];
        assert_eq!(items[2], ("price".to_owned(), "bigint".to_owned()));
    }
}
