//! Logs: to standard error, as text or JSON, filtered by `MEMCTL_LOG` or by what the daemon's configuration says.
//!
//! Guarantees: a filter that is wrong is an error that names it, and the one before stays in force.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, Registry, fmt, reload};

use crate::exit::Failure;

/// Names the filter in the environment: it wins over the configuration.
const VARIABLE: &str = "MEMCTL_LOG";

/// How the filter is changed later, and what it is where nobody says.
static FILTER: OnceLock<(reload::Handle<Targets, Registry>, &'static str)> = OnceLock::new();

/// How a command logs.
#[derive(Clone, Copy, Debug)]
pub struct Logging {
    /// What is logged where nobody says.
    pub default: &'static str,
    /// As JSON.
    pub is_json: bool,
    /// Whether a filter that is wrong ends the command.
    pub is_strict: bool,
}

/// Starts logging, as `MEMCTL_LOG` or else the default says.
///
/// # Errors
/// `MEMCTL_LOG` is no filter.
pub fn start(logging: Logging) -> Result<(), Failure> {
    let Logging { default, is_json, is_strict } = logging;
    let filter = match from_environment().map(|text| parsed(VARIABLE, &text)) {
        Some(Ok(filter)) => filter,
        Some(Err(failure)) if is_strict => return Err(failure),
        // A training must not fail for the sake of a log.
        Some(Err(_)) | None => parsed("the default", default)?,
    };
    let (filter, handle) = reload::Layer::new(filter);
    // Set once: this is the only place.
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

/// Puts the filter of a configuration in force, unless the environment names one.
///
/// # Errors
/// It is no filter.
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
