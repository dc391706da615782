//! Layers, every kind of error, and what `mw config` shows.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use super::keys::{KEYS, Match, Presence};
use super::layers::Flag;
use super::{Config, ConfigError, Engine, Settings, Sources, keys, show};

const DEFAULT: &str = include_str!("../../../../config/default.toml");
const TOKEN: &str = "0123456789abcdef";

fn sets(sets: &[&str]) -> Sources {
    Sources { sets: sets.iter().map(ToString::to_string).collect(), ..Sources::default() }
}

fn environment(variables: &[(&str, &str)]) -> Sources {
    Sources {
        environment: variables.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        ..Sources::default()
    }
}

fn file(text: &str) -> (TempDir, Sources) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("mw.toml");
    fs::write(&path, text).unwrap();
    let sources = Sources { file: Some(path), ..Sources::default() };
    (folder, sources)
}

/// The problems, with the folder of the file left out.
fn problems(sources: &Sources) -> Vec<String> {
    let ConfigError(problems) = Config::load(sources).expect_err("the configuration must be refused");
    let folder = sources.file.as_ref().and_then(|path| path.parent());
    let prefix = folder.map_or_else(String::new, |folder| format!("{}/", folder.display()));
    problems.iter().map(|problem| problem.to_string().replace(&prefix, "")).collect()
}

fn problem(sources: &Sources) -> String {
    let problems = problems(sources);
    assert_eq!(problems.len(), 1, "{problems:#?}");
    problems.concat()
}

#[test]
fn the_default_file_has_every_key_and_is_what_the_server_would_choose() {
    let settings = Settings::merge(&Sources::default()).unwrap();
    for key in KEYS {
        let name = key.path.rsplit('.').find(|name| *name != "*").unwrap();
        assert_eq!(settings.get(key.path).is_some(), key.presence == Presence::Always, "{}", key.path);
        assert!(DEFAULT.contains(name), "{} is not described", key.path);
    }
    let config = Config::read(&settings).unwrap();
    let server = mw_http::ServerSettings::default();
    assert_eq!(format!("{:?}", config.server), format!("{server:?}"));
    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.shop.carts.user_ms, 30 * 86_400_000);
    assert_eq!(config.shop.reservation_ttl_seconds, 900);
    let engine = mw_store_embedded::Options::new("./data", config.currency());
    assert_eq!(config.embedded.block_cache_bytes, engine.block_cache_bytes);
    assert_eq!(config.embedded.cache_bytes, engine.cache_bytes);
    assert_eq!(config.embedded.memtable_bytes, engine.memtable_bytes);
    assert_eq!(config.embedded.min_free_bytes, engine.min_free_bytes);
    assert_eq!(config.embedded.write_queue, engine.write_queue);
    assert!(config.tokens.0.is_empty());
}

#[test]
fn a_higher_layer_wins() {
    let (_folder, mut sources) = file("[orders]\npayment_window = \"1m\"\n[carts]\nuser_ttl = \"1d\"\n");
    let window = |sources: &Sources| Config::load(sources).unwrap().shop.payment_window_ms;
    assert_eq!(window(&sources), 60_000);
    sources.environment = environment(&[("MW_ORDERS__PAYMENT_WINDOW", "5s")]).environment;
    assert_eq!(window(&sources), 5_000);
    sources.sets = vec!["orders.payment_window=2s".to_owned(), "orders.payment_window = \"3s\"".to_owned()];
    assert_eq!(window(&sources), 3_000);
    assert_eq!(Config::load(&sources).unwrap().shop.carts.user_ms, 86_400_000);
}

#[test]
fn flags_are_above_the_environment_and_below_set() {
    let mut sources = environment(&[("MW_STORE__EMBEDDED__PATH", "/from/environment")]);
    let path = |sources: &Sources| Config::load(sources).unwrap().embedded.path;
    assert_eq!(path(&sources), PathBuf::from("/from/environment"));
    sources.flags = vec![Flag { name: "--data", key: "store.embedded.path", value: "/from/flag".to_owned() }];
    assert_eq!(path(&sources), PathBuf::from("/from/flag"));
    sources.sets = vec!["store.embedded.path=/from/set".to_owned()];
    assert_eq!(path(&sources), PathBuf::from("/from/set"));
}

#[test]
fn values_are_toml_or_bare_words() {
    let config = Config::load(&sets(&[
        "store.embedded.path=2024",
        "server.max_in_flight=7",
        "server.tls={certificate = \"a\", key = \"b\"}",
        "log.filter=info,mw_http=debug",
    ]))
    .unwrap();
    assert_eq!(config.embedded.path, PathBuf::from("2024"));
    assert_eq!(config.server.max_in_flight, 7);
    assert_eq!(config.server.tls.unwrap().key, PathBuf::from("b"));
}

#[test]
fn the_environment_takes_arrays_and_ignores_variables_of_tests() {
    let tokens = format!("[{{role = \"operator\", token = \"{TOKEN}\", rate_limit = 5}}]");
    let config = Config::load(&environment(&[
        ("MW_TOKENS", &tokens),
        ("MW_SEED", "17"),
        ("MW_TEST_LONG", "1"),
        ("MW_TEST_CASSANDRA", "127.0.0.1"),
        ("MW_BLESS", ""),
        ("PATH", "/bin"),
    ]))
    .unwrap();
    assert_eq!(config.tokens.0[0].rate_limit, Some(5));
    assert_eq!(config.tokens.0[0].role, mw_http::Role::Operator);
}

#[test]
fn unknown_keys_name_their_origin_and_a_similar_key() {
    let (_folder, sources) = file("[server]\n\nlistn = \"x\"\n[sever]\na = 1\n");
    assert_eq!(
        problems(&sources),
        [
            "mw.toml:3: server.listn: unknown key; did you mean server.listen?",
            "mw.toml:4: sever: unknown key; `mw config` lists all there are",
        ]
    );
    assert_eq!(
        problem(&environment(&[("MW_ORDER__PAYMENT_WINDOW", "5s")])),
        "environment variable MW_ORDER__PAYMENT_WINDOW: order.payment_window: unknown key; \
         did you mean orders.payment_window?"
    );
    assert_eq!(
        problem(&sets(&["no.such=1"])),
        "--set: no.such: unknown key; `mw config` lists all there are"
    );
}

#[test]
fn bad_values_name_their_key_and_origin() {
    let (_folder, sources) = file("[carts]\nuser_ttl = 30\n");
    assert_eq!(
        problem(&sources),
        "mw.toml:2: carts.user_ttl: expected a whole number with a unit (250ms, 5s, 15m, 24h or 30d), found 30"
    );
    let cases = [
        ("orders.payment_window=0s", "orders.payment_window: 0ms is out of range: it is 1s to 3650d"),
        ("reservations.ttl=25h", "reservations.ttl: 25h is out of range: it is 1s to 1d"),
        ("server.max_in_flight=0", "server.max_in_flight: 0 is out of range: it is 1 to 1000000"),
        ("server.max_in_flight=many", "server.max_in_flight: expected a whole number, found \"many\""),
        ("shop.currency=rubles", "shop.currency: a currency is three capital letters, such as RUB"),
        ("log.format=xml", "log.format: expected \"text\" or \"json\", found \"xml\""),
        (
            "store.embedded.memtable=8MB",
            "store.embedded.memtable: expected a whole number with a unit (512B, 64KiB, 128MiB or 2GiB), found \"8MB\"",
        ),
        (
            "server.tls=off",
            "server.tls: is a table of keys, not a key: server.tls.certificate, server.tls.key",
        ),
        ("nonsense", "expected key=value, found \"nonsense\""),
    ];
    for (set, expected) in cases {
        assert_eq!(problem(&sets(&[set])), format!("--set: {expected}"));
    }
}

#[test]
fn a_bad_value_is_an_error_even_where_a_higher_layer_hides_it() {
    let (_folder, mut sources) = file("[carts]\nuser_ttl = \"soon\"\n");
    sources.sets = vec!["carts.user_ttl=1d".to_owned()];
    assert!(problem(&sources).starts_with("mw.toml:2: carts.user_ttl:"));
}

#[test]
fn an_unreadable_file_is_refused_with_the_reason() {
    let missing = Sources { file: Some("/no/such/mw.toml".into()), ..Sources::default() };
    assert_eq!(problem(&missing), "mw.toml: read the file: No such file or directory (os error 2)");
    let (_folder, sources) = file("[server]\nlisten = \n");
    let message = problem(&sources);
    assert!(message.starts_with("mw.toml:2: not TOML: "), "{message}");
}

#[test]
fn an_open_address_without_tokens_is_refused() {
    let message = problem(&sets(&["server.listen=0.0.0.0:80"]));
    assert!(message.contains("--set: server.listen: 0.0.0.0:80 can be reached"), "{message}");
    assert!(message.contains("add [[tokens]]"), "{message}");
    let token = format!("tokens=[{{role=\"storefront\",token=\"{TOKEN}\"}}]");
    assert!(Config::load(&sets(&["server.listen=0.0.0.0:80", &token])).is_ok());
    assert!(Config::load(&sets(&["server.listen=[::1]:80"])).is_ok());
}

#[test]
fn tls_needs_both_files() {
    assert_eq!(
        problem(&sets(&["server.tls.key=k.pem"])),
        "--set: server.tls.key: is set without server.tls.certificate: TLS needs both files"
    );
    assert!(problem(&sets(&["server.tls.certificate=c.pem"])).contains("without server.tls.key"));
}

#[test]
fn tokens_are_checked_one_by_one_and_never_repeated() {
    let text = format!(
        "[[tokens]]\nrole = \"storefront\"\ntoken = \"{TOKEN}\"\n\
         [[tokens]]\nrole = \"boss\"\ntoken = \"{TOKEN}\"\nrate_limit = 0\n\
         [[tokens]]\nname = \"x\"\ntoken = \"short-secret\"\n\
         [[tokens]]\nrole = \"operator\"\ntoken = \"****\"\n"
    );
    let (_folder, sources) = file(&text);
    let problems = problems(&sources);
    let starts = [
        "mw.toml:5: tokens[1].role: a role is storefront",
        "mw.toml:7: tokens[1].rate_limit: requests a second",
        "mw.toml:6: tokens[1].token: the same token is given twice",
        "mw.toml:9: tokens[2].name: unknown key",
        "mw.toml: tokens[2].role: missing",
        "mw.toml:10: tokens[2].token: a token is 16 to",
        "mw.toml:13: tokens[3].token: is masked",
    ];
    assert_eq!(problems.len(), starts.len(), "{problems:#?}");
    for (problem, start) in problems.iter().zip(starts) {
        assert!(problem.starts_with(start), "{problem} / {start}");
        assert!(!problem.contains("short-secret") && !problem.contains(TOKEN));
    }
    assert!(problem(&environment(&[("MW_TOKENS", "my-secret")])).contains("expected [[tokens]] tables"));
    assert!(!problem(&environment(&[("MW_TOKENS", "my-secret")])).contains("my-secret"));
}

#[test]
fn one_file_serves_both_engines() {
    let text = "[store.cassandra]\ncontact_points = [\"10.0.0.1:9042\"]\nlocal_dc = \"msk\"\nusername = \"u\"\n\
                password = \"p\"\n[store.cassandra.tls]\nca = \"ca.pem\"\n[store.cassandra.replication.core]\nmsk = 3\n\
                [store.cassandra.policy.order_by_id]\nread = \"LOCAL_QUORUM\"\n";
    let (_folder, mut sources) = file(text);
    assert_eq!(Config::load(&sources).unwrap().engine, Engine::Embedded);
    sources.flags = vec![Flag { name: "--store", key: "store.engine", value: "cassandra".to_owned() }];
    let config = Config::load(&sources).unwrap();
    assert_eq!(config.engine, Engine::Cassandra);
    assert_eq!(config.cassandra.local_dc, "msk");
    assert!(problem(&sets(&["store.cassandra.contact_points=[]"])).contains("array of texts"));
    let (_folder, wrong) = file("[store.cassandra]\npassword = 12345\n");
    assert_eq!(problem(&wrong), "mw.toml:2: store.cassandra.password: expected text in quotes");
    let (_folder, wrong) =
        file("[store.cassandra.policy.stock]\nwrite = \"LOCAL_QUORUM\"\nserial = \"SERIAL\"\n");
    assert!(
        problem(&wrong)
            .starts_with("mw.toml:3: store.cassandra.policy.stock.serial: LWTs at SERIAL are decided"),
        "{wrong:?}"
    );
}

#[test]
fn the_shown_configuration_reads_back_as_the_same() {
    let (_folder, mut sources) = file("[server]\nidle_timeout = \"90s\"\n");
    sources.sets = vec!["server.workers=3".to_owned(), "store.cassandra.replication.core.dc1=3".to_owned()];
    sources.environment = environment(&[("MW_ORDERS__PAYMENT_WINDOW", "5s")]).environment;
    let shown = show(&Settings::merge(&sources).unwrap());
    let line = |start: &str| {
        let found = shown.lines().find(|line| line.starts_with(start));
        found.unwrap_or_else(|| panic!("{start} is not in\n{shown}"))
    };
    assert!(line("idle_timeout").ends_with("mw.toml:2"), "{shown}");
    assert!(line("payment_window").ends_with("# environment variable MW_ORDERS__PAYMENT_WINDOW"));
    assert!(line("workers = 3").ends_with("# --set"));
    assert!(line("listen").ends_with("# default"));
    line("# certificate is not set");

    let (_again, read_back) = file(&shown);
    let config = Config::load(&read_back).unwrap();
    assert_eq!(config.server.idle_timeout, Duration::from_secs(90));
    assert_eq!(config.shop.payment_window_ms, 5_000);
    assert_eq!(config.workers, Some(3));
    let settings = Settings::merge(&read_back).unwrap();
    assert!(settings.get("store.cassandra.replication.core.dc1").is_some());
}

#[test]
fn secrets_are_masked() {
    let tokens = format!("tokens=[{{role=\"storefront\",token=\"{TOKEN}\",rate_limit=9}}]");
    let settings = Settings::merge(&sets(&[
        &tokens,
        "store.cassandra.password=hunter2",
        "store.cassandra.internal_token=hunter2hunter2hunter2",
    ]))
    .unwrap();
    let shown = show(&settings);
    assert!(!shown.contains(TOKEN) && !shown.contains("hunter2"), "{shown}");
    assert!(shown.contains("token = \"****\"") && shown.contains("rate_limit = 9"), "{shown}");
    assert!(shown.contains("password = \"****\""), "{shown}");
    assert!(shown.contains("internal_token = \"****\""), "{shown}");
}

#[test]
fn every_key_can_be_named_in_the_environment() {
    for key in KEYS.iter().filter(|key| !key.path.contains('*')) {
        let name = key.path.to_uppercase().replace('.', "__");
        let back = name.to_lowercase().replace("__", ".");
        assert!(matches!(keys::find(&back), Match::Key(found) if found.path == key.path));
    }
}
