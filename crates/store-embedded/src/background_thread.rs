//! Threads for work that may take long: other threads go first where the processors are busy.

use std::io;

/// What `nice` adds: a thread with it gets about a tenth of a processor that others want whole.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Runs `work` on a thread of its own.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        lower_priority();
        work();
    })?;
    Ok(())
}

/// Linux counts the priority of each thread; elsewhere it is the whole process' and stays.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!(%error, "lower the priority of a background thread");
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_the_new_thread_gets_a_lower_priority() {
        let own = || rustix::process::getpriority_process(None).unwrap();
        let before = own();
        let (send, receive) = std::sync::mpsc::channel();
        spawn("test", move || send.send(own()).unwrap()).unwrap();
        assert_eq!(receive.recv().unwrap(), NICENESS.max(before));
        assert_eq!(own(), before);
    }
}
