//! How places, processes and commands are named in every output.
//!
//! Guarantees: external text is escaped; a command can be copied into a POSIX shell unchanged.

use crate::format::text::{file_name, safe};
use crate::{Frame, Job};

/// `remember_features (scenarios.py:57)`.
#[must_use]
pub fn place(frame: &Frame) -> String {
    let function = if frame.function.is_empty() { "?" } else { &frame.function };
    let file = file_name(&frame.file);
    let text = match (file.is_empty(), frame.line) {
        (true, _) => function.to_owned(),
        (false, Some(line)) => format!("{function} ({file}:{line})"),
        (false, None) => format!("{function} ({file})"),
    };
    safe(&text).into_owned()
}

/// Whether a user's text names this frame: `model.py:44`, its whole path with the line, `forward`, `Net.forward`, or
/// the form of [`place`].
#[must_use]
pub fn is_named(frame: &Frame, words: &str) -> bool {
    let line = frame.line.unwrap_or(0);
    let plain = frame.function.rsplit('.').next().unwrap_or_default();
    frame.function == words
        || plain == words
        || format!("{}:{line}", file_name(&frame.file)) == words
        || format!("{}:{line}", frame.file) == words
        || place(frame) == words
}

/// `memctl VERB --job J … FLAGS`, ready to be copied into a shell.
#[must_use]
pub fn command(verb: &str, job: &Job, rest: &str, hint: &str) -> String {
    let mut line = format!("memctl {verb} --job {}", shell_word(&job.id));
    for part in [rest, hint] {
        if !part.is_empty() {
            line.push(' ');
            line.push_str(part);
        }
    }
    line
}

/// The flag that selects one process: by its rank if that is unique, else by its name, because a rank can have several
/// processes.
#[must_use]
pub fn process_flag(process: &str, rank: u32) -> String {
    match process.is_empty() || process.strip_prefix("rank ").is_some_and(|number| number == rank.to_string()) {
        true => format!("--rank {rank}"),
        false => format!("--process {}", shell_word(process)),
    }
}

/// A word, quoted for a POSIX shell if needed.
#[must_use]
pub fn shell_word(word: &str) -> String {
    let plain = !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:@/+-=".contains(&b));
    if plain { word.to_owned() } else { format!("'{}'", safe(word).replace('\'', r"'\''")) }
}

/// A process's name: its rank if the process has no name, as in responses of daemons that do not report processes.
#[must_use]
pub fn name_of(process: &str, rank: u32) -> String {
    if process.is_empty() { format!("rank {rank}") } else { safe(process).into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_asked_for_by_what_names_it() {
        assert_eq!((process_flag("", 2), process_flag("rank 2", 2)), ("--rank 2".to_owned(), "--rank 2".to_owned()));
        assert_eq!(process_flag("worker-1", 0), "--process worker-1");
        assert_eq!(process_flag("rank 2 (pid 7)", 2), "--process 'rank 2 (pid 7)'");
    }

    #[test]
    fn a_frame_is_named_in_several_ways() {
        let frame = Frame { function: "Net.forward".into(), file: "/home/me/model.py".into(), line: Some(44) };
        for words in ["forward", "Net.forward", "model.py:44", "/home/me/model.py:44", "Net.forward (model.py:44)"] {
            assert!(is_named(&frame, words), "{words}");
        }
        for words in ["", "Net", "model.py", "model.py:4", "del.py:44", "forward (model.py:44)"] {
            assert!(!is_named(&frame, words), "{words}");
        }
    }

    #[test]
    fn words_for_a_shell() {
        assert_eq!(shell_word("run/1"), "run/1");
        assert_eq!(shell_word("a b; rm -rf 'x'"), r"'a b; rm -rf '\''x'\'''");
        assert_eq!(shell_word(""), "''");
    }

    #[test]
    fn places() {
        let frame = |function: &str, file: &str, line| Frame { function: function.into(), file: file.into(), line };
        assert_eq!(place(&frame("f", "/a/b.py", Some(3))), "f (b.py:3)");
        assert_eq!(place(&frame("f", "", None)), "f");
        assert_eq!(place(&frame("", "b.cpp", None)), "? (b.cpp)");
        assert_eq!(place(&frame("f\u{1b}]0;x\u{7}", "b", Some(1))), r"f\u{1b}]0;x\u{7} (b:1)");
    }
}
