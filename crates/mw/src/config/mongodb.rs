//! `[store.mongodb]`: the servers, the documents' shape, the shard keys, status words and the policy of reads, checked as far
//! as possible without the servers.

use mw_domain::OrderStatus;
use mw_domain::carts::CartLifetime;
use mw_store_mongodb::policy::Policy;
use mw_store_mongodb::shard_keys::{ShardKey, ShardKeys};
use mw_store_mongodb::statuses::Statuses;
use mw_store_mongodb::{Options, Shape};
use toml::Value;

use super::error::{ConfigError, Origin, Problem};
use super::layers::{Setting, Settings};
use super::{kind, millis};

/// The longest name of a database is 63 bytes.
const DATABASE_CHARS_MAX: usize = 63;

pub(super) fn read(settings: &Settings) -> Result<Options, ConfigError> {
    let shape = settings.read("store.mongodb.shape", shape)?;
    let options = Options {
        database: settings.read("store.mongodb.database", database)?.to_owned(),
        shape,
        shard_keys: shard_keys(settings, shape)?,
        statuses: statuses(settings, "store.mongodb.statuses")?,
        request_timeout: settings.read("store.mongodb.request_timeout", kind::time)?,
        cart_lifetime: CartLifetime {
            user_ms: settings.read("carts.user_ttl", millis)?,
            guest_ms: settings.read("carts.guest_ttl", millis)?,
        },
        policy: policy(settings)?,
        ..Options::new(settings.read("store.mongodb.uri", kind::uri)?)
    };
    Ok(options)
}

fn shape(value: &Value) -> Result<Shape, String> {
    let text = kind::text(value)?;
    Shape::parse(text).ok_or_else(|| format!("\"{text}\" is no shape: it is customer or user"))
}

fn database(value: &Value) -> Result<&str, String> {
    let text = kind::text(value)?;
    let is_reserved = ["admin", "local", "config"].contains(&text);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if text.bytes().all(plain) && text.len() <= DATABASE_CHARS_MAX && !is_reserved {
        return Ok(text);
    }
    Err(format!(
        "\"{text}\" is not a database for the shop: up to {DATABASE_CHARS_MAX} letters, digits, underscores and dashes, and \
         none of the servers' own"
    ))
}

/// Without a key of its own a collection has the default of the shape.
fn shard_keys(settings: &Settings, shape: Shape) -> Result<ShardKeys, Problem> {
    let mut keys = ShardKeys::of_shape(shape);
    for (name, key) in
        [("orders", &mut keys.orders), ("products", &mut keys.products), ("carts", &mut keys.carts)]
    {
        let path = format!("store.mongodb.shard_keys.{name}");
        if let Some(configured) = settings.read_if_set(&path, shard_key)? {
            *key = configured;
        }
    }
    keys.check(shape).map_err(|error| {
        let path = format!("store.mongodb.shard_keys.{}", error.collection);
        let origin = settings.get(&path).map_or(&Origin::Default, |setting| &setting.origin);
        let shape = shape.as_str();
        let what = format!("\"{}\" is none of the keys of shape {shape}: {}", error.key, error.accepted);
        Problem::new(origin, path, what)
    })?;
    Ok(keys)
}

fn shard_key(value: &Value) -> Result<ShardKey, String> {
    let text = kind::text(value)?;
    ShardKey::parse(text).ok_or_else(|| {
        format!("\"{text}\" is no shard key: it is like \"customer_id: hashed\" or \"category: 1, _id: 1\"")
    })
}

/// The defaults, with the configured words.
pub(super) fn statuses(settings: &Settings, table: &str) -> Result<Statuses, ConfigError> {
    let mut statuses = Statuses::default();
    let mut problems = Vec::new();
    for (path, word, setting) in settings.below(table) {
        let status = kind::text(&setting.value).ok().and_then(OrderStatus::parse);
        match status {
            Some(status) if OrderStatus::parse(word).is_none_or(|own| own == status) => {
                statuses.insert(word, status);
            }
            Some(_) => problems.push(Problem::new(
                &setting.origin,
                path,
                format!("the service writes \"{word}\" itself: it cannot mean another status"),
            )),
            None => problems.push(Problem::new(&setting.origin, path, "is no order status")),
        }
    }
    ConfigError::check(problems)?;
    Ok(statuses)
}

fn policy(settings: &Settings) -> Result<Policy, ConfigError> {
    let mut policy = Policy::default();
    let mut problems = Vec::new();
    // The preference first: it decides whether there is a staleness to set.
    for wanted in ["preference", "max_staleness"] {
        for (path, rest, setting) in settings.below("store.mongodb.policy") {
            let Some((call, key)) = rest.split_once('.') else { continue };
            if key == wanted
                && let Err(what) = set(&mut policy, call, key, setting)
            {
                problems.push(Problem::new(&setting.origin, path, what));
            }
        }
    }
    for (path, rest, setting) in settings.below("store.mongodb.policy") {
        let key = rest.split_once('.').map_or("", |(_, key)| key);
        if !["preference", "max_staleness"].contains(&key) {
            let what = format!("there is no setting \"{key}\"; a call has preference and max_staleness");
            problems.push(Problem::new(&setting.origin, path, what));
        }
    }
    ConfigError::check(problems)?;
    Ok(policy)
}

fn set(policy: &mut Policy, call: &str, key: &str, setting: &Setting) -> Result<(), String> {
    let done = if key == "preference" {
        policy.set_preference(call, kind::text(&setting.value)?)
    } else {
        policy.set_max_staleness(call, kind::time(&setting.value)?)
    };
    done.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Config;
    use super::super::layers::Sources;
    use super::*;
    use mw_store_mongodb::policy::{Call, Preference};

    fn load(sets: &[&str]) -> Result<Options, String> {
        let sources = Sources { sets: sets.iter().map(ToString::to_string).collect(), ..Sources::default() };
        Config::load(&sources).map(|config| config.mongodb).map_err(|error| error.to_string())
    }

    fn refused(sets: &[&str]) -> String {
        let message = load(sets).expect_err("the configuration must be refused");
        message.replace("read the configuration: ", "")
    }

    #[test]
    fn the_defaults_are_those_of_the_engine() {
        let [read, own] = [load(&[]).unwrap(), Options::new("mongodb://127.0.0.1:27017")];
        assert_eq!(format!("{read:?}"), format!("{own:?}"));
        assert_eq!((read.uri, read.policy, read.statuses), (own.uri, own.policy, own.statuses));
    }

    #[test]
    fn every_key_of_the_papers_is_accepted_and_others_are_not() {
        for (shape, collection, key) in [
            ("customer", "orders", "customer_id: 1"),
            ("user", "orders", "user_id: hashed"),
            ("user", "orders", "user_id: 1"),
            ("customer", "products", "category: 1, _id: 1"),
            ("customer", "products", "category: hashed"),
            ("customer", "carts", "session_id: hashed"),
            ("customer", "carts", "_id: hashed"),
            ("customer", "carts", "user_id: hashed"),
        ] {
            let shape = format!("store.mongodb.shape={shape}");
            let set = format!("store.mongodb.shard_keys.{collection}='{key}'");
            load(&[&shape, &set]).unwrap();
        }
        assert_eq!(
            refused(&["store.mongodb.shard_keys.orders='user_id: hashed'"]),
            "--set: store.mongodb.shard_keys.orders: \"user_id: hashed\" is none of the keys of shape customer: \"customer_id: \
             hashed\", \"customer_id: 1\""
        );
        assert!(refused(&["store.mongodb.shard_keys.orders=customer"]).contains("is no shard key"));
        let user = load(&["store.mongodb.shape=user"]).unwrap();
        assert_eq!(user.shard_keys.orders.to_string(), "user_id: hashed");
    }

    #[test]
    fn words_of_other_programs_are_added_to_the_defaults() {
        let statuses = load(&["store.mongodb.statuses.packed=paid"]).unwrap().statuses;
        assert_eq!(statuses.read("packed"), Some(OrderStatus::Paid));
        assert_eq!(statuses.read("pending"), Some(OrderStatus::Created));
        assert!(refused(&["store.mongodb.statuses.packed=packed"]).contains("packed"));
        assert!(
            refused(&["store.mongodb.statuses.paid=created"]).contains("the service writes \"paid\" itself")
        );
    }

    #[test]
    fn reads_are_set_by_call_and_sales_stay_on_the_primary() {
        let policy = load(&[
            "store.mongodb.policy.catalogue.max_staleness=5s",
            "store.mongodb.policy.order_reports.preference=primary",
        ])
        .unwrap()
        .policy;
        assert_eq!(policy.of(Call::Catalogue).max_staleness, Duration::from_secs(5));
        assert_eq!(policy.of(Call::OrderReports).preference, Preference::Primary);
        assert_eq!(
            refused(&["store.mongodb.policy.cart.preference=secondary"]),
            "--set: store.mongodb.policy.cart.preference: cart is always read on the primary: a cart shows its last change, \
             and concurrent changes are decided on it"
        );
        assert!(
            refused(&["store.mongodb.policy.carts.preference=primary"])
                .contains("there is no call \"carts\"")
        );
        assert!(refused(&["store.mongodb.policy.cart.level=1"]).contains("there is no setting \"level\""));
    }

    #[test]
    fn a_wrong_uri_is_refused_without_its_password() {
        let message = refused(&["store.mongodb.uri=http://user:hunter2@host"]);
        assert!(message.contains("store.mongodb.uri: expected mongodb://"), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
        for bad in ["admin", "a.b", &"a".repeat(64)] {
            assert!(
                refused(&[&format!("store.mongodb.database={bad}")])
                    .contains("is not a database for the shop"),
                "{bad}"
            );
        }
    }
}
