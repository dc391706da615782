//! JMX over HTTP (Jolokia) to one node: repair of a table, the state of auto-repair, and switching it on and off.

use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use hyper::Method;
use serde_json::{Value, json};

use crate::http_client::{self, HttpError};

const STORAGE: &str = "org.apache.cassandra.db:type=StorageService";
const AUTO_REPAIR: &str = "org.apache.cassandra.db:type=AutoRepairService";
/// The kind of auto-repair that the policy relies on.
const REPAIR_TYPE: &str = "full";
/// Between two looks at a run.
const POLL: Duration = Duration::from_millis(500);
/// A run that takes longer is reported as failed; the node goes on with it.
const RUN_TIMEOUT: Duration = Duration::from_hours(12);

#[derive(Debug, thiserror::Error)]
pub enum JolokiaError {
    #[error("reach JMX of a node through Jolokia: {0}; start the agent on the node and set operate.jolokia")]
    Unreachable(#[from] HttpError),
    #[error("call {what} through Jolokia on {node}: {cause}")]
    Refused { what: String, node: String, cause: String },
}

/// How a run of repair on one node ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunResult {
    Complete,
    /// A range failed, or the run was interrupted; why, as the node says.
    Failed(String),
    /// The node had no range to repair: nothing was compared.
    Empty,
}

/// The state of auto-repair on one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AutoRepairRun {
    pub is_enabled: bool,
    pub is_running: bool,
    pub succeeded_ranges: u64,
    pub failed_ranges: u64,
    pub skipped_ranges: u64,
}

/// The agent of one node.
#[derive(Clone)]
pub struct Jolokia {
    node: String,
    url: String,
    authorization: String,
}

impl std::fmt::Debug for Jolokia {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jolokia").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Jolokia {
    pub fn new(address: &str, port: u16, username: &str, password: &str) -> Self {
        let authorization = format!("Basic {}", BASE64_STANDARD.encode(format!("{username}:{password}")));
        Self { node: address.to_owned(), url: format!("http://{address}:{port}/jolokia/"), authorization }
    }

    pub fn node(&self) -> &str {
        &self.node
    }

    async fn call(&self, what: &str, request: Value) -> Result<Value, JolokiaError> {
        let body = request.to_string().into_bytes();
        let response =
            http_client::send(Method::POST, &self.url, Some(&self.authorization), Some(body)).await?;
        let refused =
            |cause: String| JolokiaError::Refused { what: what.to_owned(), node: self.node.clone(), cause };
        if !response.status.is_success() {
            return Err(refused(format!("status {}", response.status)));
        }
        let mut reply: Value =
            serde_json::from_slice(&response.body).map_err(|error| refused(error.to_string()))?;
        if reply.get("status").and_then(Value::as_u64) != Some(200) {
            let reason = reply.get("error").and_then(Value::as_str).unwrap_or("no reason given");
            return Err(refused(reason.to_owned()));
        }
        Ok(reply.get_mut("value").map(Value::take).unwrap_or_default())
    }

    async fn exec(&self, mbean: &str, operation: &str, arguments: Value) -> Result<Value, JolokiaError> {
        let request = json!({"type": "exec", "mbean": mbean, "operation": operation, "arguments": arguments});
        self.call(operation, request).await
    }

    async fn read(&self, mbean: &str, attribute: &str) -> Result<Value, JolokiaError> {
        self.call(attribute, json!({"type": "read", "mbean": mbean, "attribute": attribute})).await
    }

    /// Repairs the primary ranges of one table of this node, and waits for the end.
    pub async fn repair(&self, keyspace: &str, table: &str) -> Result<RunResult, JolokiaError> {
        let options = json!({
            "primaryRange": "true", "incremental": "false", "parallelism": "parallel", "jobThreads": "1",
            "columnFamilies": table,
        });
        let operation = "repairAsync(java.lang.String,java.util.Map)";
        let run = self.exec(STORAGE, operation, json!([keyspace, options])).await?;
        // The node gives no number to a run without ranges.
        let Some(run) = run.as_i64().filter(|run| *run > 0) else { return Ok(RunResult::Empty) };
        let deadline = tokio::time::Instant::now() + RUN_TIMEOUT;
        while tokio::time::Instant::now() < deadline {
            let status = self.exec(STORAGE, "getParentRepairStatus(int)", json!([run])).await?;
            match status.get(0).and_then(Value::as_str) {
                Some("COMPLETED") => return Ok(RunResult::Complete),
                Some("FAILED") => return Ok(RunResult::Failed(cause_of(&status))),
                _ => tokio::time::sleep(POLL).await,
            }
        }
        Ok(RunResult::Failed(format!("it did not end within {} h", RUN_TIMEOUT.as_secs() / 3_600)))
    }

    /// Whether the node runs auto-repair, and what its present or last run came to.
    pub async fn auto_repair(&self) -> Result<AutoRepairRun, JolokiaError> {
        let gauge = async |name: &str| {
            let mbean =
                format!("org.apache.cassandra.metrics:type=AutoRepair,name={name},repairType={REPAIR_TYPE}");
            Ok::<_, JolokiaError>(self.read(&mbean, "Value").await?.as_u64().unwrap_or_default())
        };
        Ok(AutoRepairRun {
            is_enabled: is_enabled(
                self.read(AUTO_REPAIR, "AutoRepairConfiguration").await?.as_str().unwrap_or_default(),
            ),
            is_running: gauge("RepairsInProgress").await? > 0,
            succeeded_ranges: gauge("SucceededTokenRangesCount").await?,
            failed_ranges: gauge("FailedTokenRangesCount").await?,
            skipped_ranges: gauge("SkippedTokenRangesCount").await?,
        })
    }

    /// Switches auto-repair of this node on or off. A run that is under way ends after its present range.
    pub async fn set_auto_repair(&self, is_enabled: bool) -> Result<(), JolokiaError> {
        let operation = "setAutoRepairEnabled(java.lang.String,boolean)";
        self.exec(AUTO_REPAIR, operation, json!([REPAIR_TYPE, is_enabled])).await.map(drop)
    }
}

/// Why a run failed: the last message of its status.
fn cause_of(status: &Value) -> String {
    let messages = status.as_array().into_iter().flatten().skip(1);
    let last = messages.filter_map(Value::as_str).last().unwrap_or("the node gives no reason");
    last.lines().next().unwrap_or_default().to_owned()
}

/// Whether the description of a node's configuration has the repair type enabled.
fn is_enabled(configuration: &str) -> bool {
    let lower = configuration.to_ascii_lowercase();
    let of_type = lower.split("repair_type:").find(|part| part.trim_start().starts_with(REPAIR_TYPE));
    of_type.is_some_and(|part| part.contains("enabled: true"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_says_which_type_is_enabled() {
        let both = "repair scheduler configuration:\n\tx: y\nconfiguration for repair_type: full\n\tenabled: true\n\
                    configuration for repair_type: incremental\n\tenabled: false\n";
        assert!(is_enabled(both));
        let other = both.replace("true", "false").replacen("enabled: false\n\tx", "", 1);
        assert!(!is_enabled(&other) && !is_enabled("Auto-repair is not enabled"));
    }
}
