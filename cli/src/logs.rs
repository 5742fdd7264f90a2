//! Logs: to standard error, as text or JSON, filtered by `MEMCTL_LOG` or by the daemon's configuration.
//!
//! Guarantees: an invalid filter is an error that names it, and the previous filter stays in force.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use tracing_subscriber::filter::Targets;
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
    text.parse().map_err(|error: tracing_subscriber::filter::ParseError| {
        Failure::usage(format!(
            "{origin}: {text:?} is no filter such as info or warn,memctl_daemon::judge=debug: {error}"
        ))
    })
}
