//! `[store.cassandra]`: the address of the cluster, the replication factors, and the policy of its tables, checked as far
//! as possible without the cluster.

use std::collections::BTreeMap;
use std::path::PathBuf;

use mw_store_cassandra::connect::{ClientCertificate, Credentials, HINT_WINDOW, Tls};
use mw_store_cassandra::policy::Policy;
use mw_store_cassandra::{Class, InternalOptions, InternalToken, Options, Replication};
use toml::Value;

use super::error::{ConfigError, Origin, Problem};
use super::kind;
use super::layers::{Setting, Settings};
use super::tokens;

/// The name for all classes without factors of their own.
const DEFAULT_CLASS: &str = "default";
/// The longest keyspace name of Cassandra is 48, and a class adds up to eight.
const KEYSPACE_CHARS_MAX: usize = 40;

pub(super) fn read(settings: &Settings) -> Result<Options, ConfigError> {
    let local_dc = settings.read("store.cassandra.local_dc", place)?;
    let points = settings.read("store.cassandra.contact_points", kind::texts)?;
    let mut options = Options {
        credentials: credentials(settings)?,
        tls: tls(settings)?,
        keyspace: settings.read("store.cassandra.keyspace", keyspace)?.to_owned(),
        policy: policy(settings)?,
        internal: internal(settings)?,
        auto_repair: settings.read("store.cassandra.auto_repair", kind::flag)?,
        request_timeout: settings.read("store.cassandra.request_timeout", kind::time)?,
        max_clock_skew: settings.read("store.cassandra.max_clock_skew", kind::time)?,
        ready_share: settings.read("store.cassandra.ready_share", kind::share)?,
        product_cache_ttl: settings.read("store.cassandra.product_cache_ttl", kind::time)?,
        product_cache_size: settings.read("store.cassandra.product_cache_size", kind::size)?,
        ..Options::new(points.into_iter().map(str::to_owned).collect(), local_dc)
    };
    replication(settings, &mut options.replication)?;
    let found = options.policy.check(&options.replication, local_dc, HINT_WINDOW);
    ConfigError::check(found.iter().map(|it| blame(settings, &it.keys(), it.to_string())).collect())?;
    Ok(options)
}

/// The internal listener. An address that other machines cannot use must be replaced by one that they can.
fn internal(settings: &Settings) -> Result<InternalOptions, Problem> {
    let [listen_key, advertise_key] =
        ["store.cassandra.internal_listen", "store.cassandra.internal_advertise"];
    let listen = settings.read(listen_key, kind::address_or_off)?;
    let advertise = settings.read_if_set(advertise_key, kind::address)?;
    if advertise.is_some_and(|address| address.ip().is_unspecified()) {
        let what = "is no address to connect to: name the one by which other processes reach this machine";
        return Err(blame(settings, &[advertise_key.to_owned()], what.to_owned()));
    }
    if advertise.is_none() && listen.is_some_and(|address| address.ip().is_unspecified()) {
        return Err(lonely(settings, listen_key, advertise_key));
    }
    let token = settings.read_if_set("store.cassandra.internal_token", |value| {
        tokens::secret(value).map(|token| InternalToken::new(token.to_owned()))
    })?;
    Ok(InternalOptions { listen, advertise, token })
}

/// The line to change: of conflicting settings one that was set, or else the first.
fn blame(settings: &Settings, keys: &[String], what: String) -> Problem {
    let set = keys.iter().find_map(|key| settings.get(key).map(|setting| (key, &setting.origin)));
    match set {
        Some((key, origin)) => Problem::new(origin, key, what),
        None => Problem::new(&Origin::Default, keys.first().cloned().unwrap_or_default(), what),
    }
}

fn credentials(settings: &Settings) -> Result<Option<Credentials>, Problem> {
    let [username, password] = ["store.cassandra.username", "store.cassandra.password"];
    let text = |key: &str| settings.read_if_set(key, |value| kind::text(value).map(str::to_owned));
    match (text(username)?, text(password)?) {
        (None, None) => Ok(None),
        (Some(username), Some(password)) => Ok(Some(Credentials { username, password })),
        (Some(_), None) => Err(lonely(settings, username, password)),
        (None, Some(_)) => Err(lonely(settings, password, username)),
    }
}

fn tls(settings: &Settings) -> Result<Option<Tls>, Problem> {
    let [ca, certificate, key] =
        ["store.cassandra.tls.ca", "store.cassandra.tls.certificate", "store.cassandra.tls.key"];
    let path = |key: &str| settings.read_if_set(key, |value| kind::text(value).map(PathBuf::from));
    let client = match (path(certificate)?, path(key)?) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some(ClientCertificate { certificate, key }),
        (Some(_), None) => return Err(lonely(settings, certificate, key)),
        (None, Some(_)) => return Err(lonely(settings, key, certificate)),
    };
    match (path(ca)?, client) {
        (None, None) => Ok(None),
        (Some(ca), client) => Ok(Some(Tls { ca, client })),
        (None, Some(_)) => Err(lonely(settings, certificate, ca)),
    }
}

fn lonely(settings: &Settings, given: &str, missing: &str) -> Problem {
    blame(settings, &[given.to_owned()], format!("is set without {missing}"))
}

/// The settings like `<table>.*.*`, with the two names that the operator chose.
fn chosen<'a>(
    settings: &'a Settings,
    table: &'a str,
) -> impl Iterator<Item = (&'a str, &'a str, &'a str, &'a Setting)> {
    settings.below(table).filter_map(|(path, rest, setting)| {
        let (first, second) = rest.split_once('.')?;
        Some((path, first, second, setting))
    })
}

fn replication(settings: &Settings, replication: &mut Replication) -> Result<(), ConfigError> {
    let mut given: BTreeMap<&str, BTreeMap<String, u32>> = BTreeMap::new();
    let mut problems = Vec::new();
    for (path, class, dc, setting) in chosen(settings, "store.cassandra.replication") {
        let known = class == DEFAULT_CLASS || Class::named(class).is_some();
        let what = if !known {
            let classes = Class::ALL.map(Class::name).join(", ");
            format!(
                "there is no class \"{class}\"; there are {classes}, and {DEFAULT_CLASS} for those not named"
            )
        } else if let Err(what) = place_name(dc) {
            what
        } else {
            let factor = kind::count(&setting.value).unwrap_or(0);
            given.entry(class).or_default().insert(dc.to_owned(), u32::try_from(factor).unwrap_or(u32::MAX));
            continue;
        };
        problems.push(Problem::new(&setting.origin, path, what));
    }
    ConfigError::check(problems)?;
    for class in Class::ALL {
        if let Some(factors) = given.get(class.name()).or_else(|| given.get(DEFAULT_CLASS)) {
            replication.replace(class, factors.clone());
        }
    }
    Ok(())
}

fn policy(settings: &Settings) -> Result<Policy, ConfigError> {
    let mut policy = Policy::default();
    let mut problems = Vec::new();
    for (path, table, key, setting) in chosen(settings, "store.cassandra.policy") {
        let text = match &setting.value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        if let Err(error) = policy.set(table, key, &text) {
            problems.push(Problem::new(&setting.origin, path, error.to_string()));
        }
    }
    ConfigError::check(problems)?;
    Ok(policy)
}

fn keyspace(value: &Value) -> Result<&str, String> {
    let text = kind::text(value)?;
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let starts_well = text.starts_with(|first: char| first.is_ascii_lowercase());
    if starts_well && text.bytes().all(plain) && text.len() <= KEYSPACE_CHARS_MAX {
        return Ok(text);
    }
    Err(format!(
        "\"{text}\" is not a keyspace: up to {KEYSPACE_CHARS_MAX} small letters, digits and underscores, a letter first"
    ))
}

fn place(value: &Value) -> Result<&str, String> {
    let text = kind::text(value)?;
    place_name(text).map(|()| text)
}

fn place_name(text: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if text.bytes().all(plain) {
        return Ok(());
    }
    Err(format!("\"{text}\" is not the name of a data centre: letters, digits, underscores and dashes"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Config;
    use super::super::layers::Sources;
    use super::*;
    use mw_store_cassandra::Table;

    fn load(sets: &[&str]) -> Result<Options, String> {
        let sources = Sources { sets: sets.iter().map(ToString::to_string).collect(), ..Sources::default() };
        Config::load(&sources).map(|config| config.cassandra).map_err(|error| error.to_string())
    }

    fn refused(sets: &[&str]) -> String {
        let message = load(sets).expect_err("the configuration must be refused");
        message.replace("read the configuration: ", "")
    }

    #[test]
    fn the_defaults_are_those_of_the_engine() {
        let [read, own] = [load(&[]).unwrap(), Options::new(vec!["127.0.0.1:9042".to_owned()], "dc1")];
        assert_eq!(format!("{read:?}"), format!("{own:?}"));
    }

    #[test]
    fn replication_factors_are_set_by_class_and_by_default() {
        let options = load(&[
            "store.cassandra.local_dc=msk",
            "store.cassandra.replication.default.msk=2",
            "store.cassandra.replication.core={msk = 3, spb = 3}",
        ])
        .unwrap();
        let of = |class| -> Vec<(String, u32)> {
            options.replication.of(class).iter().map(|(dc, factor)| (dc.clone(), *factor)).collect()
        };
        assert_eq!(of(Class::Core), [("msk".to_owned(), 3), ("spb".to_owned(), 3)]);
        assert_eq!(of(Class::History), [("msk".to_owned(), 2)]);
        let message = refused(&["store.cassandra.replication.orders.dc1=3"]);
        assert_eq!(
            message,
            "--set: store.cassandra.replication.orders.dc1: there is no class \"orders\"; there are core, carts, catalog, \
             history, and default for those not named"
        );
        assert!(
            refused(&["store.cassandra.replication.core={\"d'c\" = 3}"])
                .contains("is not the name of a data")
        );
        assert!(refused(&["store.cassandra.replication.core.dc1=0"]).contains("0 is out of range"));
    }

    #[test]
    fn the_policy_is_set_by_table_and_refused_by_line() {
        let options = load(&["store.cassandra.policy.stock.gc_grace=5d"]).unwrap();
        assert_eq!(options.policy.of(Table::Stock).gc_grace, Duration::from_hours(5 * 24));
        assert_eq!(
            refused(&["store.cassandra.policy.stok.read=ONE"]),
            "--set: store.cassandra.policy.stok.read: there is no table \"stok\"; `mw policy` lists the tables"
        );
        assert!(
            refused(&["store.cassandra.policy.stock.reed=ONE"])
                .contains("there is no policy setting \"reed\"; a table has write, ")
        );
        assert!(
            refused(&["store.cassandra.policy.stock.ttl=7"]).contains("expected a whole number with a unit")
        );
    }

    #[test]
    fn the_product_cache_ttl_is_below_the_stale_read_bound() {
        let kept = |text: &str| {
            load(&[&format!("store.cassandra.product_cache_ttl={text}")]).map(|it| it.product_cache_ttl)
        };
        assert_eq!(kept("0s"), Ok(Duration::ZERO));
        assert_eq!(kept("20s"), Ok(Duration::from_secs(20)));
        let message = kept("21s").unwrap_err();
        assert!(
            message.contains("store.cassandra.product_cache_ttl: 21s is out of range: it is 0ms to 20s"),
            "{message}"
        );
    }

    #[test]
    fn an_unsafe_policy_names_the_line_to_change() {
        assert_eq!(
            refused(&["store.cassandra.policy.orders_by_day.write=ONE"]),
            "--set: store.cassandra.policy.orders_by_day.write: a read at LOCAL_QUORUM may miss a write acknowledged at ONE \
             (replication factor 3), and this table must be read back: use LOCAL_QUORUM for both"
        );
        let message = refused(&["store.cassandra.policy.stock.repair=7d"]);
        assert!(
            message.starts_with(
                "--set: store.cassandra.policy.stock.repair: gc_grace 2d is below the repair interval 7d"
            ),
            "{message}"
        );
        let message = refused(&["store.cassandra.replication.default.dc2=3"]);
        assert!(
            message.contains(
                "default: store.cassandra.replication.core.dc1: order_by_id is used at consistency level LOCAL_QUORUM"
            ),
            "{message}"
        );
    }

    #[test]
    fn the_internal_listener_is_reachable_or_off() {
        let internal = |sets: &[&str]| load(sets).map(|options| options.internal);
        assert_eq!(internal(&["store.cassandra.internal_listen=off"]).unwrap().listen, None);
        let anywhere = "store.cassandra.internal_listen=0.0.0.0:9400";
        assert_eq!(
            refused(&[anywhere]),
            "--set: store.cassandra.internal_listen: is set without store.cassandra.internal_advertise"
        );
        let advertise = "store.cassandra.internal_advertise=10.0.0.1:0";
        let reachable = internal(&[anywhere, advertise]).unwrap();
        assert_eq!(reachable.advertise, Some("10.0.0.1:0".parse().unwrap()));
        assert!(
            refused(&["store.cassandra.internal_advertise=0.0.0.0:1"]).contains("is no address to connect")
        );
        let short = refused(&["store.cassandra.internal_token=hunter2"]);
        assert!(short.contains("a token is 16 to") && !short.contains("hunter2"), "{short}");
        let token = "store.cassandra.internal_token=0123456789abcdef";
        assert!(internal(&[token]).unwrap().token.is_some());
    }

    #[test]
    fn incomplete_groups_of_settings_are_refused() {
        assert_eq!(
            refused(&["store.cassandra.username=mw"]),
            "--set: store.cassandra.username: is set without store.cassandra.password"
        );
        assert!(refused(&["store.cassandra.password=x"]).contains("without store.cassandra.username"));
        let certificate = "store.cassandra.tls.certificate=c.pem";
        assert!(refused(&[certificate]).contains("without store.cassandra.tls.key"));
        assert!(
            refused(&[certificate, "store.cassandra.tls.key=k.pem"])
                .contains("without store.cassandra.tls.ca")
        );
        let tls = load(&["store.cassandra.tls.ca=ca.pem"]).unwrap().tls.unwrap();
        assert!(tls.client.is_none());
    }

    #[test]
    fn names_are_valid_in_cassandra() {
        for bad in ["Shop", "1shop", "shop-1", "a'b", &"a".repeat(41)] {
            assert!(
                refused(&[&format!("store.cassandra.keyspace={bad}")]).contains("is not a keyspace"),
                "{bad}"
            );
        }
        assert!(refused(&["store.cassandra.local_dc=d'c"]).contains("is not the name of a data centre"));
    }
}
