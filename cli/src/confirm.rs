//! A confirmation before something that cannot be undone.

use std::io::{IsTerminal as _, Write as _};

use crate::exit::Failure;

/// Whether the user at the terminal confirms. `what` names the operation: `deleting gpt2`.
///
/// # Errors
/// There is no terminal.
pub fn confirmed(what: &str, question: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format!(
            "{what} needs a confirmation, and standard input is no terminal; add --yes"
        )));
    }
    eprint!("{question} [y/N] ");
    // The question must be visible before the reply is read.
    let _ = std::io::stderr().flush();
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .map_err(|error| Failure::usage(format!("cannot read the confirmation: {error}; add --yes")))?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
