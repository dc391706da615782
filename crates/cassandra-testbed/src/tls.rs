//! Certificates for a cluster: an authority of its own and one certificate for all its nodes, made with the keytool that
//! comes with Java. Valid for the nodes' addresses and for nothing else.

use crate::java::Java;
use crate::options::Plan;
use mw_testbed::{ClusterError, Doing, Result, cache};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DAYS: &str = "3650";

/// The password of keystores for loopback addresses.
const PASSWORD: &str = "mobile-world";

/// The keystore of the nodes.
#[derive(Debug, Clone)]
pub(crate) struct Keystore {
    pub(crate) path: PathBuf,
    pub(crate) password: &'static str,
}

#[derive(Debug, Clone)]
pub(crate) struct Certificates {
    pub(crate) keystore: Keystore,
    pub(crate) ca_pem: PathBuf,
}

/// In `dir`; existing ones are used again.
pub(crate) fn certificates(java: &Java, plans: &[Plan], dir: &Path) -> Result<Certificates> {
    let keytool = Keytool { program: java.beside("keytool"), dir };
    let made = Certificates {
        keystore: Keystore { path: dir.join("node.p12"), password: PASSWORD },
        ca_pem: dir.join("ca.pem"),
    };
    if made.keystore.path.exists() && made.ca_pem.exists() {
        return Ok(made);
    }
    cache::remove_dir(dir)?;
    cache::create_dir(dir)?;
    let addresses: Vec<String> = plans.iter().map(|plan| format!("ip:{}", plan.address)).collect();
    let names = format!("san={}", addresses.join(","));
    keytool.make_key("ca.p12", "ca", "CN=Mobile World test authority", &["-ext", "bc:c=ca:true"])?;
    keytool.run("ca.p12", &["-exportcert", "-rfc", "-alias", "ca", "-file", "ca.pem"])?;
    keytool.make_key("node.p12", "node", "CN=Mobile World test node", &[])?;
    keytool.run("node.p12", &["-certreq", "-alias", "node", "-file", "node.csr"])?;
    let sign = ["-gencert", "-rfc", "-alias", "ca", "-validity", DAYS, "-ext", &names];
    keytool.run("ca.p12", &[&sign[..], &["-infile", "node.csr", "-outfile", "node.pem"]].concat())?;
    keytool.run("node.p12", &["-importcert", "-noprompt", "-alias", "ca", "-file", "ca.pem"])?;
    keytool.run("node.p12", &["-importcert", "-noprompt", "-alias", "node", "-file", "node.pem"])?;
    Ok(made)
}

struct Keytool<'a> {
    program: PathBuf,
    dir: &'a Path,
}

impl Keytool<'_> {
    fn make_key(&self, store: &str, alias: &str, name: &str, extensions: &[&str]) -> Result<()> {
        let key =
            ["-genkeypair", "-alias", alias, "-dname", name, "-keyalg", "EC", "-groupname", "secp256r1"];
        self.run(store, &[&key[..], &["-validity", DAYS], extensions].concat())
    }

    fn run(&self, store: &str, arguments: &[&str]) -> Result<()> {
        let output = Command::new(&self.program)
            .args(arguments)
            .args(["-keystore", store, "-storetype", "PKCS12", "-storepass", PASSWORD])
            .current_dir(self.dir)
            .stdin(Stdio::null())
            .output()
            .doing(|| format!("run {}", self.program.display()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(ClusterError::Command {
            command: format!("keytool {}", arguments.join(" ")),
            status: output.status,
            output: String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        })
    }
}
