//! This process as the local service of a data folder.
//!
//! Guarantees: serves two sockets in the folder, for its owner only; reports whether it serves, so that the process
//! that starts it never waits in vain; ends at SIGTERM, after having no connection for long enough, or, after SIGUSR1
//! (a newer version follows), as soon as no session streams.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memctl_agent::service::{Alive, Answer, Files};
use memctl_daemon::config::{self, AlertsLayer, Config, Defaults, Layer};
use memctl_daemon::idle::Idle;
use memctl_daemon::listen::{Listen, SocketAccess};
use memctl_daemon::{entry, quantity};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use super::{JobFolder, job_daemon, serve_failure, told_to_stop};
use crate::exit::Failure;

/// The variable with the idle time after which the service ends.
const IDLE_VARIABLE: &str = "MEMCTL_SERVICE_IDLE";
const IDLE: Duration = Duration::from_secs(600);
/// A service drains before it ends; the next one waits for it.
const FORMER_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Serves until it is time to end.
///
/// # Errors
/// The store cannot be opened; the settings are wrong; a former service does not end.
pub async fn serve_folder(folder: &Path) -> Result<(), Failure> {
    let files = Files::of(folder).map_err(|error| unusable(folder, &error))?;
    let Some(alive) = only_one(&files).await? else {
        // Another service already serves.
        say(&Answer::Serves);
        return Ok(());
    };
    let (retire, retiring) = watch::channel(false);
    let mut wishes = signal(SignalKind::user_defined1()).map_err(|error| unusable(folder, &error))?;
    let waiting = tokio::spawn(async move {
        wishes.recv().await;
        retire.send_replace(true);
        // Keeps the channel and the signal's stream open.
        std::future::pending::<()>().await;
    });
    let job = JobFolder::at(files.folder());
    let config = configuration(&files, retiring)?;
    let config = match &job {
        Some(job) => job_daemon::configured(job, config)?,
        None => config,
    };
    let terminated = told_to_stop()?;
    // (A path may be longer than a socket's address, so paths are relative to the folder.)
    std::env::set_current_dir(files.folder()).map_err(|error| unusable(folder, &error))?;
    let (_nobody, reread) = mpsc::channel(1);
    let has_served = AtomicBool::new(false);
    let ready = |places: &[String], _: &[String]| {
        // Relaxed: it is read after the future that sets it has ended.
        has_served.store(true, Ordering::Relaxed);
        let published = job.as_ref().map_or(Ok(()), |job| job_daemon::publish(job, places));
        say(&match published {
            Ok(()) => Answer::Serves,
            Err(error) => Answer::Cannot(format!("other nodes cannot find this daemon: {error}")),
        });
    };
    let served = entry::serve(config, Box::new(ready), Box::pin(terminated), reread).await;
    waiting.abort();
    // A service that could not begin leaves the claim and the address to the next one of this host.
    if let Some(job) = job.as_ref().filter(|_| has_served.load(Ordering::Relaxed)) {
        job.release();
    }
    drop(alive);
    served.map_err(|error| serve_failure(&error))
}

/// Reports that this process does not serve, and why.
pub fn say_cannot(failure: &Failure) {
    say(&Answer::Cannot(failure.to_string()));
}

/// The lock that only one service holds; `None` if another one already serves.
async fn only_one(files: &Files) -> Result<Option<Alive>, Failure> {
    let end = tokio::time::Instant::now() + FORMER_MAX;
    loop {
        if let Some(alive) = files.lock_alive().map_err(|error| unusable(files.folder(), &error))? {
            return Ok(Some(alive));
        }
        if memctl_agent::service::connect(&files.socket()).is_ok() {
            return Ok(None);
        }
        if tokio::time::Instant::now() >= end {
            return Err(Failure::unreachable(format!(
                "the former local service of {} does not end: see {}",
                files.folder().display(),
                files.log().display()
            )));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn configuration(files: &Files, retiring: watch::Receiver<bool>) -> Result<Config, Failure> {
    let rules = std::env::var_os("MEMCTL_ALERT_RULES").filter(|path| !path.is_empty()).map(PathBuf::from);
    let layer = Layer {
        data_dir: Some(files.folder().to_owned()),
        alerts: rules.map(|path| AlertsLayer { rules: Some(path) }),
        ..Layer::default()
    };
    let defaults = Defaults { socket: Some(files.socket()), ..Defaults::default() };
    let config = config::resolve(&[("the environment".to_owned(), layer)], &defaults);
    let config = config.map_err(|error| Failure::usage(error.to_string()))?;
    let here = |name: &str| Listen::Unix {
        path: Path::new("/proc/self/cwd").join(name),
        own_folder: false,
        access: SocketAccess::Owner,
    };
    let idle = Idle { after: idle()?, retiring };
    Ok(Config { listen: vec![here("service.sock")], http: vec![here("page.sock")], idle: Some(idle), ..config })
}

/// The idle time without a connection.
fn idle() -> Result<Duration, Failure> {
    let Some(text) = std::env::var(IDLE_VARIABLE).ok().filter(|text| !text.is_empty()) else { return Ok(IDLE) };
    let wrong = |error| Failure::usage(format!("{IDLE_VARIABLE}: {error}"));
    quantity::duration_ns(&text).map(Duration::from_nanos).map_err(wrong)
}

fn unusable(folder: &Path, error: &std::io::Error) -> Failure {
    Failure::unreachable(format!("{}: {error}", folder.display()))
}

/// One line for the process that started this one, and the end of standard output, which it waits for.
fn say(answer: &Answer) {
    use std::io::Write as _;
    let mut stdout = std::io::stdout();
    // The service continues even if the process that started it is gone.
    let _ = stdout.write_all(answer.line().as_bytes()).and_then(|()| stdout.flush());
    // SAFETY: both are open descriptors of this process; what is written from now on goes to the log.
    unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) };
}
