//! Who calls, and with which credentials.

use crate::hosting::Credentials;

/// How a caller reaches this process: decides what a tool may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// The program that started this process, as the same user.
    Stdio,
    /// Any program that reaches the port. It may not name files of this machine.
    Http,
}

/// The credentials that an HTTP request showed.
#[derive(Clone, Debug)]
pub struct CallerCredentials(pub Credentials);
