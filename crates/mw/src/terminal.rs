//! What people see: results on standard output, everything else on standard error.

use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};

/// Writes a command's result. A reader that has gone away (`mw config | head`) wanted no more, which is no error.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("write to standard output"),
    }
}

/// Tells of a failure, with its causes, in one line.
pub(crate) fn complain(error: &anyhow::Error) {
    // Nobody is left to be told where standard error is gone too.
    let _ = writeln!(io::stderr().lock(), "mw: {error:#}");
}
