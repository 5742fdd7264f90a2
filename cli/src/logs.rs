//! Logs: to standard error, as text or JSON, filtered by `MEMCTL_LOG` or by the daemon's configuration.
//!
//! Guarantees: an invalid filter is an error that names it, and the previous filter stays in force.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, Registry, fmt, reload};

use crate::exit::Failure;

/// The filter's environment variable: it takes precedence over the configuration.
const VARIABLE: &str = "MEMCTL_LOG";

/// The handle that changes the filter later, and the default filter.
static FILTER: OnceLock<(reload::Handle<Targets, Registry>, &'static str)> = OnceLock::new();

/// How a command logs.
#[derive(Clone, Copy, Debug)]
pub struct Logging {
    /// The filter if neither the environment nor the configuration sets one.
    pub default: &'static str,
    /// As JSON.
    pub is_json: bool,
    /// Whether an invalid filter ends the command.
    pub is_strict: bool,
}

/// Starts logging with the filter of `MEMCTL_LOG`, else the default.
///
/// # Errors
/// `MEMCTL_LOG` is not a valid filter.
pub fn start(logging: Logging) -> Result<(), Failure> {
    let Logging { default, is_json, is_strict } = logging;
    let filter = match from_environment().map(|text| parsed(VARIABLE, &text)) {
        Some(Ok(filter)) => filter,
        Some(Err(failure)) if is_strict => return Err(failure),
        // An invalid log filter must not make a training run fail.
        Some(Err(_)) | None => parsed("the default", default)?,
    };
    let (filter, handle) = reload::Layer::new(filter);
    // Set once, only here.
    let _ = FILTER.set((handle, default));
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let layer = fmt::layer().with_writer(std::io::stderr);
    let layer = match is_json {
        true => layer.json().flatten_event(true).with_current_span(false).boxed(),
        false => layer.with_ansi(colours).boxed(),
    };
    Registry::default().with(filter).with(layer).init();
    Ok(())
}

/// Applies a configuration's filter, unless the environment sets one.
///
/// # Errors
/// The filter is invalid.
pub fn follow(configured: Option<&str>) -> Result<(), Failure> {
    let Some((handle, default)) = FILTER.get() else { return Ok(()) };
    if from_environment().is_some() {
        return Ok(());
    }
    let filter = parsed("log in the configuration", configured.unwrap_or(default))?;
    handle.reload(filter).map_err(|error| Failure::usage(format!("the log's filter cannot be changed: {error}")))
}

fn from_environment() -> Option<String> {
    std::env::var("MEMCTL_LOG").ok().filter(|text| !text.is_empty())
}

fn parsed(origin: &str, text: &str) -> Result<Targets, Failure> {
    let refused = |why: &dyn std::fmt::Display| {
        Failure::usage(format!(
            "{origin}: {text:?} is no filter such as info or warn,memctl_daemon::judge=debug: {why}"
        ))
    };
    // The library takes a word without a level for a target whose messages are all logged, and logs no others.
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let level = word.rsplit_once('=').map_or(word, |(_, level)| level);
        if level.parse::<LevelFilter>().is_err() {
            return Err(refused(&format!("{level:?} is no level: off, error, warn, info, debug, trace")));
        }
    }
    text.parse().map_err(|error: tracing_subscriber::filter::ParseError| refused(&error))
}

/// Checks a configuration's filter.
///
/// # Errors
/// It is not.
pub fn check(configured: Option<&str>) -> Result<(), Failure> {
    configured.map_or(Ok(()), |text| parsed("log in the configuration", text).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for valid in ["info", "WARN", "warn,memctl_daemon::judge=debug", "off", "memctl_daemon=trace"] {
            assert!(check(Some(valid)).is_ok(), "{valid}");
        }
        for wrong in ["warning", "loud", "warn;info", "memctl_daemon", "memctl_daemon=loud"] {
            let failure = check(Some(wrong)).unwrap_err().to_string();
            assert!(failure.contains("is no level: off, error, warn, info, debug, trace"), "{failure}");
        }
        assert!(check(None).is_ok());
    }
}
