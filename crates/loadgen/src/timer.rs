//! A precise timer. Polling sockets has a resolution of milliseconds; a schedule of thousands a second needs more.

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

    /// A timer that wakes the poll of sockets, exact to some microseconds.
    #[derive(Debug)]
    pub(crate) struct Timer(OwnedFd);

    impl Timer {
        pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Self> {
            let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)?;
            registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
            Ok(Self(timer))
        }

        /// Wakes the next poll after this time, which is above 0.
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

    /// Without a timerfd the schedule has a resolution of a millisecond, which the latencies include.
    #[derive(Debug)]
    pub(crate) struct Timer;

    impl Timer {
        pub(crate) fn new(_: &Registry, _: Token) -> io::Result<Self> {
            Ok(Self)
        }

        pub(crate) fn set(&self, _: Nanos) -> io::Result<()> {
            Ok(())
        }
    }
}

pub(crate) use precise::Timer;
