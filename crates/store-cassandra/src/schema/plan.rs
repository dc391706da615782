//! The statements to run: those of the files, with the keyspaces of the classes and the table options of the policy.

use super::Schema;
use super::error::SchemaError;
use super::files::{FILES, File};
use super::model::{self, Target};
use super::versions;
use crate::schema::tables::{Class, Table};

/// A statement as it is run, and the comment above it.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) comment: Vec<String>,
    pub(super) statement: String,
}

pub(super) fn text(schema: &Schema) -> Result<String, SchemaError> {
    let mut lines = Vec::new();
    for file in FILES {
        lines.push(format!("-- {}", file.name));
        lines.extend(file.header().into_iter().map(str::to_owned));
        lines.push(String::new());
        if file.number == 1 {
            push(&mut lines, bootstrap(schema));
        }
        push(&mut lines, steps(schema, file)?);
    }
    Ok(lines.join("\n"))
}

fn push(lines: &mut Vec<String>, steps: Vec<Step>) {
    for step in steps {
        lines.extend(step.comment);
        lines.push(format!("{};", step.statement));
        lines.push(String::new());
    }
}

/// What the files need: the keyspaces, and the table of applied versions.
pub(super) fn bootstrap(schema: &Schema) -> Vec<Step> {
    let mut steps: Vec<Step> = Class::ALL
        .iter()
        .map(|class| Step { comment: Vec::new(), statement: keyspace(schema, *class) })
        .collect();
    if let Some(first) = steps.first_mut() {
        first.comment = vec![
            "-- A keyspace for each replication class: the replication factor is a property of a keyspace."
                .to_owned(),
        ];
    }
    steps.push(Step {
        comment: vec!["-- The applied files; `lock_holder` is the process that is applying.".to_owned()],
        statement: versions::table(&schema.prefix),
    });
    steps
}

fn keyspace(schema: &Schema, class: Class) -> String {
    let factors = schema.replication.of(class).iter();
    let factors: Vec<String> = factors.map(|(dc, factor)| format!(", '{dc}': {factor}")).collect();
    format!(
        "CREATE KEYSPACE IF NOT EXISTS {} WITH replication = {{'class': 'NetworkTopologyStrategy'{}}}",
        class.keyspace(&schema.prefix),
        factors.concat()
    )
}

pub(super) fn steps(schema: &Schema, file: &File) -> Result<Vec<Step>, SchemaError> {
    let steps = file.statements().into_iter().map(|statement| {
        let unreadable = || SchemaError::Unreadable { file: file.name, statement: statement.text.clone() };
        let target = model::target_of(&statement.text).ok_or_else(unreadable)?;
        let comment = statement.comment.iter().map(ToString::to_string).collect();
        Ok(Step { comment, statement: with_keyspace_and_options(schema, &statement.text, &target) })
    });
    steps.collect()
}

fn with_keyspace_and_options(schema: &Schema, statement: &str, target: &Target) -> String {
    let (class, name) = target.name();
    let in_file = format!("{}.{name}", class.name());
    let in_cluster = format!("{}.{name}", class.keyspace(&schema.prefix));
    let statement = statement.replacen(&in_file, &in_cluster, 1);
    let (Target::Table(_), Some(table)) = (target, Table::named(name)) else { return statement };
    let options = schema.policy.of(table).options(table, schema.auto_repair);
    let options: Vec<String> = options.iter().map(ToString::to_string).collect();
    let joint = if statement.contains(" WITH ") { "\n    AND " } else { " WITH " };
    format!("{statement}{joint}{}", options.join("\n    AND "))
}

#[cfg(test)]
mod tests {
    use super::super::tests::schema;
    use super::*;
    use crate::schema::Replication;

    #[test]
    fn a_plan_is_cql_for_the_configured_data_centres_with_its_comments() {
        let mut schema = schema();
        schema.replication.set(Class::Core, "dc2", 2);
        let plan = schema.plan().unwrap();
        let parts = [
            "-- 0001_shop\n-- The schema of the shop.",
            "CREATE KEYSPACE IF NOT EXISTS shop WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3, 'dc2': 2};\n",
            "CREATE KEYSPACE IF NOT EXISTS shop_carts WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3};\n",
            "CREATE TABLE IF NOT EXISTS shop.schema_versions (",
            "at a version.\nCREATE TYPE IF NOT EXISTS shop.order_item (",
            ") WITH CLUSTERING ORDER BY (order_id ASC, event_no DESC)\n    AND compaction = {'class': 'LeveledCompactionStrategy', ",
            "\n) WITH compaction = {'class': 'LeveledCompactionStrategy', ",
            "CREATE TABLE IF NOT EXISTS shop_carts.cart_changes (",
            "\n    AND default_time_to_live = 2592000\n    AND auto_repair = {",
        ];
        let mut rest = plan.as_str();
        for part in parts {
            let at = rest.find(part).unwrap_or_else(|| panic!("no `{part}` in order in\n{plan}"));
            rest = &rest[at..];
        }
    }

    #[test]
    fn a_plan_names_keyspaces_and_no_classes() {
        let schema = Schema { auto_repair: false, replication: Replication::even("msk", 1), ..schema() };
        let plan = schema.plan().unwrap();
        for class in Class::ALL {
            let statements = plan.lines().filter(|line| !line.starts_with("--"));
            let remaining: Vec<&str> =
                statements.filter(|line| line.contains(&format!(" {}.", class.name()))).collect();
            assert_eq!(remaining, [""; 0]);
        }
        assert!(!plan.contains("auto_repair ="));
        assert!(plan.contains("'msk': 1"));
    }
}
