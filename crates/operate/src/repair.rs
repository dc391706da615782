//! Repair, seen and steered: deadlines against `gc_grace`, blackout windows, and the JMX agents of the nodes.
//!
//! The history that the nodes keep is not trusted, since an interrupted or empty run is recorded as finished there: a run counts
//! only if no range failed or was skipped.

mod blackout;
mod deadlines;
mod jolokia;

pub use blackout::{BadBlackout, Blackout};
pub use deadlines::{NodeRun, TableRepairPolicy, must_run_now, table_repair};
pub use jolokia::{AutoRepairRun, Jolokia, JolokiaError, RunResult};
