//! Starts the program that becomes a service, and reads whether it succeeded.
//!
//! Guarantees: the program is started with `posix_spawn`, so this process is not copied. Secrets in this environment
//! are not passed on. The program's answer is one line on its standard output, an [`Answer`], followed by the end of
//! the file.

use std::io::Read as _;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use super::{Files, Unstarted};

/// Variables of memctl that a service inherits: its log level, its alert rules, and its idle time.
pub const KEPT_VARIABLES: [&str; 3] = ["MEMCTL_LOG", "MEMCTL_ALERT_RULES", "MEMCTL_SERVICE_IDLE"];
/// Maximum bytes of an answer. No reason is that long.
const WORDS_BYTES_MAX: u64 = 8 << 10;

/// The answer of a program that was started as a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The program serves, or another service does.
    Serves,
    /// The program cannot serve, for this reason.
    Cannot(String),
}

impl Answer {
    /// The line on standard output.
    #[must_use]
    pub fn line(&self) -> String {
        match self {
            Self::Serves => "+\n".to_owned(),
            Self::Cannot(reason) => format!("-{reason}\n"),
        }
    }

    fn heard(text: &str) -> Option<Self> {
        let line = text.lines().next()?;
        if let Some(reason) = line.strip_prefix('-') {
            return Some(Self::Cannot(reason.trim().to_owned()));
        }
        (line == "+").then_some(Self::Serves)
    }
}

/// Starts the program and waits for its answer, for at most `wait`.
pub(super) fn start(program: &Path, files: &Files, wait: Duration) -> Result<(), Unstarted> {
    let log = files.open_log().map_err(|source| Unstarted::Folder { folder: files.folder().to_owned(), source })?;
    let mut command = Command::new(program);
    command.args(["daemon", "service", "--data-dir"]).arg(files.folder());
    for (name, _) in std::env::vars_os() {
        let is_ours = name.to_string_lossy().starts_with("MEMCTL_");
        if is_ours && !KEPT_VARIABLES.iter().any(|kept| name == *kept) {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let cannot = |source| Unstarted::Program { program: program.to_owned(), source };
    let mut child = command.spawn().map_err(cannot)?;
    let heard = child.stdout.take().and_then(|stdout| listen(stdout, wait));
    // The program detaches itself. The process that was started here is only its parent, which has ended once its
    // output was read to the end.
    let ended = if heard.is_some() { child.wait().map(Some) } else { child.try_wait() };
    match heard.as_deref().map(Answer::heard) {
        Some(Some(Answer::Serves)) => Ok(()),
        Some(Some(Answer::Cannot(reason))) => Err(Unstarted::Ended(reason)),
        Some(None) => {
            let how = ended.ok().flatten().map_or_else(String::new, |status| format!(" ({status})"));
            Err(Unstarted::Ended(format!(
                "the local service ended without a word{how}; its log is {}",
                files.log().display()
            )))
        }
        None => Err(Unstarted::Silent { log: files.log() }),
    }
}

/// Reads all output until the end of the file. Returns `None` on timeout.
fn listen(mut stdout: ChildStdout, wait: Duration) -> Option<String> {
    let (sender, receiver) = mpsc::channel();
    let listening = std::thread::Builder::new().name("memctl-service".into()).spawn(move || {
        let mut words = Vec::new();
        let _ = (&mut stdout).take(WORDS_BYTES_MAX).read_to_end(&mut words);
        let _ = sender.send(String::from_utf8_lossy(&words).into_owned());
    });
    listening.ok()?;
    receiver.recv_timeout(wait).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard() {
        for answer in [Answer::Serves, Answer::Cannot("the store is in use".into())] {
            assert_eq!(Answer::heard(&answer.line()), Some(answer));
        }
        for other in ["", "hello", "\n"] {
            assert_eq!(Answer::heard(other), None);
        }
    }
}
