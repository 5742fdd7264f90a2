//! Waits for several things at once without a thread for each: a connection, the death of a process, the order to end.
//!
//! Guarantees: descriptors are closed with their owner, and a started program never inherits them. A wait that a signal
//! interrupts continues.
//! Refuses: to signal or reap a process. This module only observes processes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// An order that cannot be withdrawn: an eventfd that is never read.
pub(super) struct Order(OwnedFd);

impl Order {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the descriptor is ours from here on.
        unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(OwnedFd::from_raw_fd(fd))) }
        }
    }

    pub(super) fn give(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes that live until the call returns. The call fails only when the counter is full, that is,
        // when the order was already given.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A pidfd, which becomes readable once the process is dead. `None` if the kernel has no pidfds (before 5.3), or if the
/// process is gone or in another namespace.
pub(super) fn process(pid: u32) -> Option<OwnedFd> {
    let pid = libc::pid_t::try_from(pid).ok().filter(|&pid| pid > 0)?;
    // SAFETY: no pointers. The kernel sets close-on-exec on it.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = RawFd::try_from(fd).ok().filter(|&fd| fd >= 0)?;
    // SAFETY: a new descriptor that has no other owner.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether this kernel reports the death of a process that is not a child.
#[must_use]
pub fn can_watch_processes() -> bool {
    process(std::process::id()).is_some()
}

/// Waits until one of `fds` is ready. Returns which are ready, in their order; all are false on timeout. A negative
/// descriptor is never ready.
pub(super) fn ready<const N: usize>(fds: [RawFd; N], limit: Option<Duration>) -> [bool; N] {
    let end = limit.map(|limit| Instant::now() + limit);
    let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    loop {
        let timeout = end.map_or(-1, |end| {
            // The time is rounded up, because a wait of less than a millisecond must not become a busy loop.
            let left = end.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
            libc::c_int::try_from(left.as_millis()).unwrap_or(libc::c_int::MAX)
        });
        // SAFETY: N valid entries that live until the call returns.
        let count = unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, timeout) };
        if count < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
            continue;
        }
        // An end or an error of a descriptor counts as ready, because a read returns it.
        return polled.map(|entry| count > 0 && entry.revents != 0);
    }
}

/// Pid and user of the process that made a connection, from the kernel.
pub(super) fn peer(stream: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: a structure of ours with its length, both valid until the call returns.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // A pid of 0 means a process of another pid namespace.
    Ok((u32::try_from(who.pid).unwrap_or(0), who.uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn an_order_stays_given() {
        let order = Order::new().unwrap();
        assert_eq!(ready([order.fd()], Some(Duration::ZERO)), [false]);
        order.give();
        order.give();
        for _ in 0..2 {
            assert_eq!(ready([-1, order.fd()], None), [false, true]);
        }
    }

    #[test]
    fn a_process_is_ready_when_it_is_dead() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let watched = process(child.id()).expect("a kernel of today");
        assert_eq!(ready([watched.as_raw_fd()], Some(Duration::ZERO)), [false]);
        child.kill().unwrap();
        assert_eq!(ready([watched.as_raw_fd()], None), [true], "before it was awaited");
        child.wait().unwrap();
        assert!(process(0).is_none());
        assert!(process(u32::MAX).is_none());
    }

    #[test]
    fn the_peer_is_who_connected() {
        let (here, _there) = UnixStream::pair().unwrap();
        // SAFETY: no arguments.
        assert_eq!(peer(here.as_fd()).unwrap(), (std::process::id(), unsafe { libc::geteuid() }));
    }
}
