//! Progress of storing while the end of a run waits for it: one line, rewritten on a terminal; a line at intervals if
//! the output goes to a file.
//!
//! Guarantees: prints nothing with `--quiet` or if the end is quick; uses standard error only.

use std::cell::Cell;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use super::say;
use crate::args::Global;
use crate::hosting::host::Remaining;
use crate::render::text::plural;

/// The interval of lines if the output is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// What was said so far.
pub struct Progress {
    global: Global,
    is_terminal: bool,
    said: Cell<Option<Instant>>,
}

impl Progress {
    /// Nothing is said yet.
    pub fn of(global: &Global) -> Self {
        Self { global: global.clone(), is_terminal: std::io::stderr().is_terminal(), said: Cell::new(None) }
    }

    /// Says how far it is; called once a second.
    pub fn tell(&self, remaining: Remaining) {
        if self.global.quiet {
            return;
        }
        let line = line(remaining);
        if self.is_terminal {
            // A closed standard error is not an error here.
            let _ = write!(std::io::stderr(), "\r\x1b[Kmemctl: {line}");
            self.said.set(Some(Instant::now()));
        } else if self.said.get().is_none_or(|said| said.elapsed() >= LINE_EVERY) {
            say(&self.global, &line);
            self.said.set(Some(Instant::now()));
        }
    }

    /// The wait is over.
    pub fn end(&self) {
        if self.is_terminal && self.said.get().is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(Remaining { sessions, events }: Remaining) -> String {
    let (sessions, events) = (plural(sessions as u64, "session"), plural(events, "event"));
    format!("storing: {events} of {sessions} to go; Ctrl-C leaves them to the next run")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_is_left_and_what_can_be_done() {
        assert_eq!(
            line(Remaining { sessions: 1, events: 42_000 }),
            "storing: 42,000 events of 1 session to go; Ctrl-C leaves them to the next run"
        );
    }
}
