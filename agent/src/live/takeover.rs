//! Continues a session after its launcher was killed: threads of this process take over.
//!
//! Guarantees: the training waits only for the exchange of the hook. After a failure the training is no longer
//! recorded, as it would be without this module.
//! Refuses: to continue a session that has ended meanwhile, and to continue in a forked child.

use std::io::{ErrorKind, Read as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use memctl_model::{KeyframeReason, SessionId};

use super::{Level, Live, LiveConfig, LiveError, is_silent, live, made};
use crate::hook::{self, Hook};

/// Stack size of the thread that only waits for the connection's end.
const STACK_BYTES: usize = 256 << 10;

/// The connection to a launcher. The session ends with it.
pub(super) struct Launcher {
    stream: UnixStream,
    /// Set when this side closes the connection.
    left: Arc<AtomicBool>,
    owner: u32,
}

impl Launcher {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, left: Arc::default(), owner: std::process::id() }
    }

    /// If the launcher ends first, continues without it, with this `config`.
    pub(super) fn watch(&self, session: &Arc<Live>, config: LiveConfig) {
        let Ok(mut stream) = self.stream.try_clone() else { return };
        let (left, session) = (self.left.clone(), Arc::downgrade(session));
        let watching = std::thread::Builder::new().name("memctl-launcher".into()).stack_size(STACK_BYTES);
        let watched = watching.spawn(move || {
            while !has_ended(&mut stream) {}
            // Relaxed: the flag is set before this side closes the connection, and the end of the connection was seen.
            if !left.load(Ordering::Relaxed) {
                go_on(&session, config);
            }
        });
        if let Err(error) = watched {
            tracing::warn!(%error, "no thread to notice the launcher's end: what follows it is not recorded");
        }
    }
}

/// Waits for data or for the end of the connection. Returns whether it has ended. A live launcher may send nothing for
/// any time.
fn has_ended(stream: &mut UnixStream) -> bool {
    match stream.read(&mut [0; 16]) {
        Ok(bytes) => bytes == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted),
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // A forked child has the parent's connection, but not its session.
        if self.owner == std::process::id() {
            self.left.store(true, Ordering::Relaxed);
            let _ = self.stream.shutdown(Shutdown::Both);
        }
    }
}

fn go_on(session: &Weak<Live>, config: LiveConfig) {
    let Some(old) = session.upgrade() else { return };
    if is_silent() {
        return;
    }
    let job = config.session.job.clone();
    match exchanged(&old, config) {
        Ok(true) => say(&format!("the launcher has ended; job {job} is recorded on by the process itself")),
        Ok(false) => {}
        Err(error) => say(&format!("the launcher has ended, and recording with it: {error}")),
    }
    // The old session is never freed, because other code in this process may have addresses in its region.
    std::mem::forget(old);
}

/// Replaces the session by another one. Returns whether it did.
fn exchanged(old: &Arc<Live>, mut config: LiveConfig) -> Result<bool, LiveError> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| LiveError::NoRandom(error.to_string()))?;
    config.session.id = SessionId(id);
    config.session.started_ns = crate::clock::now_ns();
    config.launcher = None;
    // The thread that serves requests for holders only has the old region.
    config.holders = false;
    let new = Arc::new(made(config)?);
    let mut slot = live();
    if !slot.as_ref().is_some_and(|current| Arc::ptr_eq(current, old)) || is_silent() {
        return Ok(false);
    }
    let (level, walks) = (old.region.level(), old.hook().as_ref().map(|hook| hook.walks()));
    old.close_gate();
    if let (Some(shim), Some(walks)) = (old.shim.get(), walks) {
        let _ = new.shim.set(*shim);
        let mut hook = new.hook.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let hook = hook.insert(Box::new(Hook::new(new.region.clone(), new.thread_state, shim.for_hook())));
        hook.walk_as(walks);
        // SAFETY: `close_gate` removes it before the box is dropped.
        unsafe { hook::install(Some(hook)) };
        new.region.set_level(Level::Events);
    }
    *slot = Some(new.clone());
    drop(slot);
    if new.shim.get().is_some() {
        new.snapshot(KeyframeReason::Start);
    }
    new.region.set_level(level);
    Ok(true)
}

/// Prints one line for the user, in the first process of a machine.
fn say(line: &str) {
    if std::env::var("LOCAL_RANK").is_ok_and(|rank| rank != "0") {
        return;
    }
    // Standard error may be gone with the launcher's terminal, which is no reason to stop.
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("memctl: {line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_launcher_that_says_nothing_lives() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        // This is the state after the greeting.
        ours.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        assert!(!has_ended(&mut ours), "silence is no end");
        theirs.write_all(b"x").unwrap();
        assert!(!has_ended(&mut ours));
        drop(theirs);
        assert!(has_ended(&mut ours));
    }
}
