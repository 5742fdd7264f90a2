//! Detects a flag that `memctl run` does not have, typed before the command.
//!
//! Everything after the first word that is not a flag belongs to the command, so a mistyped flag would be taken for the
//! command itself. Refuses a command whose name begins with `-`, and names the flag that was meant.

use std::ffi::OsString;

use clap::CommandFactory as _;

use crate::args::Cli;
use crate::exit::Failure;

/// The similarity (Jaro-Winkler, 0 to 1) from which a word may be a mistyped flag.
const NEAR: f64 = 0.8;

/// Refuses a command that is a mistyped flag.
pub(super) fn check(command: &[OsString]) -> Result<(), Failure> {
    let Some(first) = command.first().map(|word| word.to_string_lossy()).filter(|word| word.starts_with('-')) else {
        return Ok(());
    };
    let flag = first.split('=').next().unwrap_or_default();
    let meant = nearest(flag).map_or_else(String::new, |flag| format!(" Did you mean {flag}?"));
    Err(Failure::usage(format!(
        "`memctl run` has no option {flag}.{meant} Write the command behind --: memctl run -- CMD"
    )))
}

fn nearest(flag: &str) -> Option<String> {
    let mut cli = Cli::command();
    // Global flags belong to subcommands once the command is built.
    cli.build();
    let run = cli.find_subcommand("run")?;
    let flags = run.get_arguments().filter_map(|argument| Some(format!("--{}", argument.get_long()?)));
    let near = flags.map(|known| (strsim::jaro_winkler(flag, &known), known)).filter(|(near, _)| *near >= NEAR);
    near.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_flag_is_no_command() {
        let said = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            check(&words).map_err(|failure| failure.to_string())
        };
        assert!(said(&["--jobb", "x", "--", "true"]).unwrap_err().contains("Did you mean --job?"));
        assert!(said(&["--no-stack=1"]).unwrap_err().contains("Did you mean --no-stacks?"));
        assert!(said(&["-v", "true"]).is_err());
        assert!(said(&["python", "train.py", "--jobb"]).is_ok());
    }
}
