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

/// What has been printed so far.
pub struct Progress {
    global: Global,
    is_terminal: bool,
    has_spool: bool,
    said: Cell<Option<Instant>>,
}

impl Progress {
    /// Nothing has been printed yet.
    pub fn of(global: &Global, has_spool: bool) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { global: global.clone(), is_terminal, has_spool, said: Cell::new(None) }
    }

    /// Prints the progress; called once a second.
    pub fn tell(&self, remaining: Remaining) {
        if self.global.quiet {
            return;
        }
        let line = line(remaining, self.has_spool);
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

fn line(Remaining { sessions, events }: Remaining, has_spool: bool) -> String {
    let (sessions, events) = (plural(sessions as u64, "session"), plural(events, "event"));
    let end = if has_spool { "leaves them to the next run" } else { "gives them up, as there is no spool" };
    format!("storing: {events} of {sessions} to go; Ctrl-C {end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_is_left_and_what_can_be_done() {
        let left = Remaining { sessions: 1, events: 42_000 };
        assert_eq!(line(left, true), "storing: 42,000 events of 1 session to go; Ctrl-C leaves them to the next run");
        assert!(line(left, false).ends_with("; Ctrl-C gives them up, as there is no spool"));
    }
}
