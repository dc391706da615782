//! The configuration of a node: cassandra.yaml, rack and data centre, JVM arguments.

use crate::options::{ClusterOptions, Plan, TOKENS};
use crate::tls::Keystore;
use crate::{JOLOKIA_PASSWORD, JOLOKIA_PORT, JOLOKIA_USER};
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;

pub(crate) const JVM_OPTIONS: &str = include_str!("../node/jvm17.options");
pub(crate) const LOGBACK: &str = include_str!("../node/logback.xml");
pub(crate) const QUIET_LOGBACK: &str = include_str!("../node/quiet.xml");

/// The settings that are the same for every node of every cluster. Light rather than fast: several nodes share a machine.
const SETTINGS: &str = "\
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: GossipingPropertyFileSnitch
auto_bootstrap: false
commitlog_sync: periodic
commitlog_sync_period: 10000ms
commitlog_segment_size: 16MiB
commitlog_total_space: 256MiB
commitlog_disk_access_mode: legacy
memtable_heap_space: 96MiB
memtable_offheap_space: 96MiB
memtable_allocation_type: offheap_objects
key_cache_size: 8MiB
counter_cache_size: 0MiB
file_cache_size: 64MiB
networking_cache_size: 32MiB
prepared_statements_cache_size: 10MiB
hinted_handoff_enabled: true
auto_snapshot: false
paxos_variant: v2
storage_compatibility_mode: NONE
sstable:
  selected_format: bti
memtable:
  configurations:
    trie:
      class_name: TrieMemtable
    default:
      inherits: trie
auto_repair:
  enabled: true
";

/// A node that joins a running cluster allocates tokens that even out what the nodes store, and streams its rows from the others.
const JOINING: &str = "\
auto_bootstrap: true
allocate_tokens_for_local_replication_factor: 3
";

const WITH_AUTH: &str = "\
authenticator: PasswordAuthenticator
authorizer: CassandraAuthorizer
role_manager: CassandraRoleManager
";

const WITHOUT_AUTH: &str = "\
authenticator: AllowAllAuthenticator
authorizer: AllowAllAuthorizer
";

/// The cassandra.yaml of a node. `seed` is the seed node.
pub(crate) fn yaml(
    options: &ClusterOptions,
    plan: &Plan,
    seed: &Plan,
    dir: &Path,
    keystore: Option<&Keystore>,
) -> String {
    let tokens: Vec<String> = plan.tokens.iter().map(ToString::to_string).collect();
    let is_joining = tokens.is_empty();
    let mut yaml = format!(
        "cluster_name: {name}\n\
         num_tokens: {TOKENS}\n\
         listen_address: {address}\n\
         rpc_address: {address}\n\
         seed_provider:\n  \
           - class_name: org.apache.cassandra.locator.SimpleSeedProvider\n    \
             parameters:\n      \
               - seeds: \"{seed}\"\n\
         data_file_directories: [\"{dir}/data\"]\n\
         commitlog_directory: \"{dir}/commitlog\"\n\
         hints_directory: \"{dir}/hints\"\n\
         saved_caches_directory: \"{dir}/saved_caches\"\n\
         cdc_raw_directory: \"{dir}/cdc_raw\"\n",
        name = options.name,
        address = plan.address,
        seed = seed.address,
        dir = dir.display(),
    );
    yaml.push_str(SETTINGS);
    if is_joining {
        yaml.push_str(JOINING);
    } else {
        let _ = writeln!(yaml, "initial_token: \"{}\"", tokens.join(","));
    }
    yaml.push_str(if options.auth { WITH_AUTH } else { WITHOUT_AUTH });
    if let Some(keystore) = keystore {
        let _ = write!(
            yaml,
            "client_encryption_options:\n  \
               enabled: true\n  \
               optional: false\n  \
               require_client_auth: false\n  \
               keystore: \"{}\"\n  \
               keystore_password: {}\n",
            keystore.path.display(),
            keystore.password,
        );
    }
    for line in &options.extra_yaml {
        yaml.push_str(line);
        yaml.push('\n');
    }
    yaml
}

/// The data centre and rack of the node. All nodes are in one rack: replicas are placed by the ring alone.
pub(crate) fn rackdc(plan: &Plan) -> String {
    format!("dc={}\nrack=rack1\n", plan.dc)
}

/// The arguments of `java`, without the class path.
pub(crate) fn jvm_arguments(options: &ClusterOptions, dir: &Path, jamm: &Path, jmx_port: u16) -> Vec<String> {
    let dir = dir.display();
    let heap = options.heap_mib;
    let mut arguments = vec![
        format!("-Xmx{heap}m"),
        "-Xss384k".to_owned(),
        "-XX:MaxDirectMemorySize=256m".to_owned(),
        "-XX:+UseSerialGC".to_owned(),
        "-XX:+ExitOnOutOfMemoryError".to_owned(),
        // A killed node would leave its statistics file in the temporary directory.
        "-XX:-UsePerfData".to_owned(),
        format!("-javaagent:{}", jamm.display()),
        format!("-Dcassandra.config=file://{dir}/cassandra.yaml"),
        format!("-Dcassandra-rackdc.properties=file://{dir}/cassandra-rackdc.properties"),
        format!("-Dcassandra.storagedir={dir}"),
        format!("-Dcassandra.jmx.local.port={jmx_port}"),
        format!("-Dcassandra.system_auth.default_rf={}", options.system_replicas()),
        format!("-Dcassandra.system_distributed.default_rf={}", options.system_replicas()),
        format!("-Dlogback.configurationFile=file://{dir}/logback.xml"),
    ];
    if options.quick {
        arguments.extend(["-Xms256m", "-XX:TieredStopAtLevel=1"].map(str::to_owned));
    } else {
        // Requests leave short-lived garbage: a large young generation means few collections.
        arguments.extend([format!("-Xms{heap}m"), format!("-Xmn{}m", heap / 2)]);
    }
    arguments.extend(JVM_OPTIONS.lines().map(str::to_owned));
    arguments
}

/// The argument of `java` that loads the agent for JMX over HTTP, on the address of the node alone and with a password.
pub(crate) fn jolokia_argument(agent: &Path, address: Ipv4Addr) -> String {
    let agent = agent.display();
    format!(
        "-javaagent:{agent}=host={address},port={JOLOKIA_PORT},user={JOLOKIA_USER},password={JOLOKIA_PASSWORD},\
         discoveryEnabled=false"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{joining_plan, plans};

    fn rendered(options: &ClusterOptions, keystore: Option<&Keystore>) -> String {
        let plans = plans(options, [127, 0, 7]);
        yaml(options, &plans[1], &plans[0], Path::new("/cache/node2"), keystore)
    }

    fn three() -> ClusterOptions {
        ClusterOptions { name: "lab".to_owned(), nodes: 3, ..ClusterOptions::default() }
    }

    #[track_caller]
    fn assert_has(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|it| it == *line), "no line `{line}` in\n{text}");
        }
    }

    #[test]
    fn a_plain_node_has_its_address_its_seed_and_its_directories() {
        let yaml = rendered(&three(), None);
        assert_has(
            &yaml,
            &[
                "cluster_name: lab",
                "num_tokens: 16",
                "listen_address: 127.0.7.2",
                "rpc_address: 127.0.7.2",
                "      - seeds: \"127.0.7.1\"",
                "data_file_directories: [\"/cache/node2/data\"]",
                "commitlog_directory: \"/cache/node2/commitlog\"",
                "authenticator: AllowAllAuthenticator",
                "auto_snapshot: false",
                "paxos_variant: v2",
                "auto_repair:",
            ],
        );
        assert!(!yaml.contains("client_encryption_options"));
        let tokens = yaml.lines().find_map(|line| line.strip_prefix("initial_token: ")).unwrap();
        assert_eq!(tokens.split(',').count(), TOKENS);
    }

    #[test]
    fn a_joining_node_allocates_its_tokens_and_bootstraps() {
        let plans = plans(&three(), [127, 0, 7]);
        let joining = joining_plan(&plans, "dc1").unwrap();
        let yaml = yaml(&three(), &joining, &plans[0], Path::new("/cache/node4"), None);
        assert!(!yaml.contains("initial_token"), "{yaml}");
        // Of a duplicate setting the last one counts.
        let bootstraps: Vec<&str> = yaml.lines().filter(|line| line.starts_with("auto_bootstrap:")).collect();
        assert_eq!(bootstraps, ["auto_bootstrap: false", "auto_bootstrap: true"]);
        assert_has(&yaml, &["listen_address: 127.0.7.4", "allocate_tokens_for_local_replication_factor: 3"]);
    }

    #[test]
    fn passwords_and_certificates_are_asked_for() {
        let keystore = Keystore { path: "/cache/tls/node.p12".into(), password: "secret" };
        let yaml = rendered(&ClusterOptions { auth: true, ..three() }, Some(&keystore));
        assert_has(
            &yaml,
            &[
                "authenticator: PasswordAuthenticator",
                "authorizer: CassandraAuthorizer",
                "client_encryption_options:",
                "  enabled: true",
                "  optional: false",
                "  keystore: \"/cache/tls/node.p12\"",
                "  keystore_password: secret",
            ],
        );
        assert!(!yaml.contains("AllowAll"));
    }

    #[test]
    fn extra_lines_come_last() {
        let extra_yaml = vec!["auto_snapshot: true".to_owned(), "cdc_enabled: true".to_owned()];
        let yaml = rendered(&ClusterOptions { extra_yaml, ..three() }, None);
        assert!(yaml.ends_with("\nauto_snapshot: true\ncdc_enabled: true\n"), "{yaml}");
    }

    #[test]
    fn the_second_data_centre_says_so() {
        let plans = plans(&ClusterOptions { nodes: 6, dcs: 2, ..ClusterOptions::default() }, [127, 0, 7]);
        assert_eq!(rackdc(&plans[0]), "dc=dc1\nrack=rack1\n");
        assert_eq!(rackdc(&plans[3]), "dc=dc2\nrack=rack1\n");
    }

    #[test]
    fn the_jvm_has_its_heap_its_port_and_auto_repair() {
        let options = ClusterOptions { heap_mib: 512, quick: false, ..three() };
        let arguments = jvm_arguments(&options, Path::new("/cache/node1"), Path::new("/lib/jamm.jar"), 7199);
        for wanted in [
            "-Xmx512m",
            "-Xms512m",
            "-Xmn256m",
            "-javaagent:/lib/jamm.jar",
            "-Dcassandra.jmx.local.port=7199",
            "-Dcassandra.system_auth.default_rf=3",
            "-Dcassandra.autorepair.enable=true",
        ] {
            assert!(arguments.iter().any(|it| it == wanted), "no `{wanted}` in {arguments:?}");
        }
        assert!(!arguments.iter().any(|it| it.contains("TieredStopAtLevel")));
    }
}
