//! Waking up in time. The wait for sockets counts in milliseconds; a schedule of thousands a second needs more.

#[cfg(target_os = "linux")]
mod precise {
    use std::io;
    use std::os::fd::{AsRawFd, OwnedFd};

    use mio::unix::SourceFd;
    use mio::{Interest, Registry, Token};
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    use crate::schedule::{Nanos, SECOND};

    /// A timer that wakes the wait for sockets, exact to some microseconds.
    #[derive(Debug)]
    pub(crate) struct Alarm(OwnedFd);

    impl Alarm {
        pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Self> {
            let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)?;
            registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
            Ok(Self(timer))
        }

        /// Wakes the next wait after this time, which is above 0.
        pub(crate) fn set(&self, after: Nanos) -> io::Result<()> {
            let seconds = (after / SECOND).cast_signed();
            let nanos = (after % SECOND).cast_signed();
            let it_value = Timespec { tv_sec: seconds, tv_nsec: nanos };
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value })?;
            Ok(())
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod precise {
    use std::io;

    use mio::{Registry, Token};

    use crate::schedule::Nanos;

    /// Where there is no such timer the schedule is kept to the millisecond, and the latencies tell so.
    #[derive(Debug)]
    pub(crate) struct Alarm;

    impl Alarm {
        pub(crate) fn new(_: &Registry, _: Token) -> io::Result<Self> {
            Ok(Self)
        }

        pub(crate) fn set(&self, _: Nanos) -> io::Result<()> {
            Ok(())
        }
    }
}

pub(crate) use precise::Alarm;
