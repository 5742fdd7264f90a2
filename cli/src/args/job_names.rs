//! Job names for shell completion.
//!
//! Guarantees: if the store or the daemon does not answer, nothing is completed and nothing is printed. No error may
//! appear while a user types.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use clap_complete::engine::CompletionCandidate;

/// The environment variable that a shell's completion script sets when it calls memctl.
pub const ASKS: &str = "COMPLETE";
/// Flags that choose the store or the daemon.
const PLACES: [&str; 5] = ["--daemon", "--data-dir", "--tls-ca", "--tls-cert", "--tls-key"];

/// The jobs of the store or the daemon that the words typed so far choose.
pub fn job_names() -> Vec<CompletionCandidate> {
    names().unwrap_or_default().into_iter().map(CompletionCandidate::new).collect()
}

fn names() -> Option<Vec<String>> {
    let mut asks = Command::new(std::env::current_exe().ok()?);
    asks.args(["jobs", "-o", "json"]).args(places(std::env::args_os())).env_remove(ASKS);
    let output = asks.stdin(Stdio::null()).stderr(Stdio::null()).output().ok().filter(|it| it.status.success())?;
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    let names = answer["jobs"].as_array()?.iter().filter_map(|job| Some(job["id"].as_str()?.to_owned()));
    Some(names.chain(["latest".to_owned()]).collect())
}

/// The flags that choose the store or the daemon, among the words typed so far, with their values.
fn places(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let words: Vec<OsString> = words.collect();
    let flags = words.windows(2).filter(|pair| PLACES.iter().any(|&flag| pair[0] == flag));
    let joined = words.iter().filter(|word| {
        word.to_str().is_some_and(|word| PLACES.iter().any(|&flag| word.starts_with(&format!("{flag}="))))
    });
    flags.flatten().chain(joined).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_that_was_typed_is_the_place_that_is_asked() {
        let words = "memctl -- memctl query --data-dir /d --daemon=http://h:1 --job".split(' ').map(OsString::from);
        assert_eq!(places(words), ["--data-dir", "/d", "--daemon=http://h:1"]);
        assert!(places(["memctl", "--daemon"].map(OsString::from).into_iter()).is_empty());
    }
}
