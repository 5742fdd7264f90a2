//! The exit codes of the command line's contract, and one table from error to code.
//!
//! Guarantees: every failure has exactly one of the codes 0 to 6 and is one line that names the problem and the remedy.
//! Refuses to show a Rust debug dump or a raw control character.

use std::process::ExitCode;

use memctl_answers::wire::UnknownAnswer;
use tonic::{Code, Status};

use crate::render::text;

/// The exit codes that scripts rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// Done.
    Done = 0,
    /// A finding at or above `--fail-on`, or an `assert` that does not hold.
    Found = 1,
    /// Wrong usage.
    Usage = 2,
    /// No daemon or store can be reached.
    Unreachable = 3,
    /// No such job.
    NoSuchJob = 4,
    /// The input is invalid, and nothing of it was stored.
    BadInput = 5,
    /// A token, a certificate or a role does not suffice.
    NotAllowed = 6,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(outcome as u8)
    }
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The exit code.
    pub outcome: Outcome,
    message: String,
}

impl Failure {
    fn new(outcome: Outcome, message: impl AsRef<str>) -> Self {
        // One line, also if an error from elsewhere has several.
        let message = text::safe(message.as_ref().trim()).into_owned();
        Self { outcome, message }
    }

    /// The command succeeded and found a problem.
    pub fn found(message: impl AsRef<str>) -> Self {
        Self::new(Outcome::Found, message)
    }

    /// Wrong usage.
    pub fn usage(message: impl AsRef<str>) -> Self {
        Self::new(Outcome::Usage, message)
    }

    /// No daemon or store can be reached.
    pub fn unreachable(message: impl AsRef<str>) -> Self {
        Self::new(Outcome::Unreachable, message)
    }

    /// No such job.
    pub fn no_such_job(message: impl AsRef<str>) -> Self {
        Self::new(Outcome::NoSuchJob, message)
    }

    /// The input is invalid.
    pub fn input(message: impl AsRef<str>) -> Self {
        Self::new(Outcome::BadInput, message)
    }

    /// A token, a certificate or a role does not suffice.
    pub fn not_allowed(message: impl AsRef<str>) -> Self {
        Self::new(Outcome::NotAllowed, message)
    }

    /// The reader of standard output closed it (`memctl … | head`): no error.
    pub fn reader_left() -> Self {
        Self::new(Outcome::Done, "")
    }

    /// Output that could not be written to `place`.
    pub fn output(place: &str, error: &std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::reader_left();
        }
        Self::usage(format!("cannot write to {place}: {error}; choose another place or free space"))
    }

    /// The same failure without these words.
    #[must_use]
    pub fn without(self, words: &str) -> Self {
        Self { message: self.message.replace(words, ""), ..self }
    }

    /// A failed request to the daemon (or the embedded one) at `place`.
    pub fn from_status(status: &Status, place: &str) -> Self {
        if let Some(words) = memctl_proto::goaway::words(status) {
            return Self::unreachable(format!("{place} does not take this connection: {words}"));
        }
        if let Some(alert) = alert(status) {
            return Self::not_allowed(format!(
                "{place} refuses the certificate of this side, or the lack of one ({alert}): name one that it takes with --tls-cert and --tls-key"
            ));
        }
        let closed = closed(status);
        if let Some(cause) = closed.as_ref().filter(|_| place.contains("https://")) {
            return Self::not_allowed(format!(
                "{place} closed the connection without an answer ({cause}): most likely it refuses the certificate of this side, or the lack of one; name one that it takes with --tls-cert and --tls-key"
            ));
        }
        if place.contains("http://") && is_no_http2(status) {
            return Self::unreachable(format!(
                "{place} does not speak HTTP/2 without TLS there: where it has a certificate, write https://"
            ));
        }
        if let Some(cause) = closed.filter(|_| place.contains("http://")) {
            return Self::unreachable(format!(
                "{place} closed the connection without an answer ({cause}): it ended meanwhile, it has a certificate (then write https://), or this is its HTTP port (then use the port of --listen)"
            ));
        }
        let said = if status.message().is_empty() { status.code().description() } else { status.message() };
        match status.code() {
            // The missing object may not be a job but, for example, a token. Then the daemon's message names the
            // command that lists such objects.
            Code::NotFound if said.contains("`memctl ") => Self::no_such_job(said),
            Code::NotFound => Self::no_such_job(format!("{said}; `memctl jobs` lists the jobs")),
            Code::InvalidArgument | Code::OutOfRange | Code::Aborted => Self::usage(said),
            Code::AlreadyExists | Code::FailedPrecondition => Self::input(said),
            Code::Unimplemented => Self::unreachable(format!(
                "{place} is older than this memctl and does not support this command; upgrade it"
            )),
            Code::Unavailable | Code::DeadlineExceeded => {
                Self::unreachable(format!("{place} does not answer ({said}); `memctl doctor` may show the reason"))
            }
            Code::Unauthenticated | Code::PermissionDenied => Self::not_allowed(format!("{place} refuses: {said}")),
            Code::Ok | Code::Cancelled | Code::Unknown | Code::ResourceExhausted | Code::Internal | Code::DataLoss => {
                Self::unreachable(format!("{place} could not answer: {said}; `memctl doctor` may show the reason"))
            }
        }
    }
}

impl From<UnknownAnswer> for Failure {
    fn from(unknown: UnknownAnswer) -> Self {
        Self::unreachable(unknown.to_string())
    }
}

/// Whether the peer answered with something other than HTTP/2: a TLS alert, read as a frame, has a size of about a
/// megabyte.
fn is_no_http2(status: &Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.to_string().contains("frame with invalid size") {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The TLS alert that ended an established connection: a client learns only then that its certificate was refused.
fn alert(status: &Status) -> Option<String> {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let text = error.to_string();
        // rustls's words for an alert from its peer.
        if let Some((_, alert)) = text.split_once("received fatal alert: ") {
            return Some(alert.to_owned());
        }
        cause = error.source();
    }
    None
}

/// Why a connection ended without a response. A connection that ends before a request is handed to it loses the alert;
/// a request that is being written then finds the connection closed.
fn closed(status: &Status) -> Option<String> {
    let said = status.message();
    if !["operation was canceled", "transport error"].contains(&said) {
        return None;
    }
    let first = std::error::Error::source(status);
    let last = std::iter::successors(first, |error| error.source()).last();
    Some(last.map_or_else(|| said.to_owned(), ToString::to_string))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_ends_under_tls_names_the_certificate() {
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let mut broken = Status::unknown("transport error");
        broken.set_source(std::sync::Arc::new(reset));
        for (lost, cause) in [(Status::cancelled("operation was canceled"), "canceled"), (broken, "connection reset")] {
            let said = Failure::from_status(&lost, "the daemon at https://a:1").to_string();
            assert!(said.contains("most likely it refuses the certificate") && said.contains(cause), "{said}");
            let said = Failure::from_status(&lost, "the daemon at http://a:1").to_string();
            assert!(!said.contains("refuses the certificate"), "{said}");
        }
    }

    #[test]
    fn every_status_has_its_exit_code() {
        let table = [
            (Code::NotFound, 4),
            (Code::InvalidArgument, 2),
            (Code::OutOfRange, 2),
            (Code::AlreadyExists, 5),
            (Code::FailedPrecondition, 5),
            (Code::Unimplemented, 3),
            (Code::Unavailable, 3),
            (Code::DeadlineExceeded, 3),
            (Code::Unauthenticated, 6),
            (Code::PermissionDenied, 6),
            (Code::Cancelled, 3),
            (Code::Unknown, 3),
            (Code::ResourceExhausted, 3),
            (Code::Aborted, 2),
            (Code::Internal, 3),
            (Code::DataLoss, 3),
        ];
        for (code, exit) in table {
            let failure = Failure::from_status(&Status::new(code, "words"), "the daemon");
            assert_eq!(failure.outcome as u8, exit, "{code:?}");
            assert!(failure.to_string().contains("words") || code == Code::Unimplemented, "{failure}");
        }
    }

    #[test]
    fn what_is_not_found_names_one_list() {
        for (words, expected) in [
            ("no job j here", "no job j here; `memctl jobs` lists the jobs"),
            ("no token t; `memctl token list` shows them", "no token t; `memctl token list` shows them"),
        ] {
            assert_eq!(Failure::from_status(&Status::not_found(words), "the daemon").to_string(), expected);
        }
    }

    #[test]
    fn a_message_is_one_line_without_escapes() {
        let failure = Failure::from_status(&Status::internal("a\u{1b}[31m\nb"), "the daemon");
        assert_eq!(
            failure.to_string(),
            r"the daemon could not answer: a\u{1b}[31m\nb; `memctl doctor` may show the reason"
        );
    }

    #[test]
    fn a_reader_that_left_is_no_failure() {
        let error = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert_eq!(Failure::output("standard output", &error).outcome, Outcome::Done);
        let error = std::io::Error::from(std::io::ErrorKind::StorageFull);
        assert_eq!(Failure::output("standard output", &error).outcome, Outcome::Usage);
    }
}
