//! `memctl daemon status` and `memctl daemon stop`: the local service of a data folder, shown and ended.
//!
//! Guarantees: neither command starts a service.

use std::io::Write;
use std::time::{Duration, Instant};

use memctl_answers::SCHEMA;
use memctl_answers::format::time::Time;
use memctl_answers::format::{json, time};
use memctl_proto::v1;
use memctl_proto::v1::query_client::QueryClient;
use serde::Serialize;

use crate::allocator;
use crate::args::{Format, Global};
use crate::connect::default_data_dir;
use crate::exit::Failure;
use crate::hosting::service::{self, Service};
use crate::hosting::{Asking, Credentials, DaemonAddress, serve_folder};
use crate::render::text::safe;
use crate::service::{detach, signal};

/// The time in which a service ends. It drains within ten seconds, but its store may be slow.
const END_MAX: Duration = Duration::from_secs(60);
/// A running service responds within this time.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// A running service, as JSON.
#[derive(Debug, Serialize)]
struct Running<'a> {
    schema: u32,
    running: bool,
    pid: Option<i32>,
    version: Option<&'a str>,
    started: Option<Time>,
    data_dir: String,
    socket: String,
    log: String,
    sessions_streaming: Option<u64>,
}

/// `memctl daemon service`: this process becomes the service.
///
/// # Errors
/// The process cannot serve.
pub async fn serve(global: &Global) -> Result<(), Failure> {
    let folder = global.data_dir.clone().map_or_else(default_data_dir, Ok)?;
    let served = tokio::select! {
        served = serve_folder(&folder) => served,
        never = allocator::keep_little() => match never {},
    };
    if let Err(failure) = &served {
        crate::hosting::say_cannot(failure);
    }
    served
}

/// Leaves the parent's session; must be called before there is a second thread.
///
/// # Errors
/// The system cannot create a process.
pub fn begin() -> Result<(), Failure> {
    detach()
}

/// `memctl daemon status`.
///
/// # Errors
/// No service runs.
pub async fn status(global: &Global, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    let service = named(global)?;
    let pid = service::server_process(&service.files().socket()).ok();
    let status = match pid {
        Some(_) => asked(&service).await,
        None => None,
    };
    let files = service.files();
    let shown = Running {
        schema: SCHEMA,
        running: pid.is_some(),
        pid,
        version: status.as_ref().map(|status| status.version.as_str()),
        started: status.as_ref().map(|status| Time(status.started_ns)),
        data_dir: files.folder().display().to_string(),
        socket: files.socket().display().to_string(),
        log: files.log().display().to_string(),
        sessions_streaming: status.as_ref().map(|status| status.sessions_streaming),
    };
    let written = match global.output {
        Format::Table => page(&shown, out),
        Format::Json => json::pretty(out, &shown),
        Format::Ndjson => json::line(out, &shown),
        Format::Csv => return Err(Failure::usage("the status has no rows: take -o json")),
    };
    written.map_err(|error| Failure::output("standard output", &error))?;
    match pid {
        Some(_) => Ok(()),
        None => Err(Failure::unreachable(format!(
            "no local service runs for {}; a command that needs it starts it",
            files.folder().display()
        ))),
    }
}

fn page(shown: &Running<'_>, out: &mut (dyn Write + Send)) -> std::io::Result<()> {
    let Some(pid) = shown.pid else { return Ok(()) };
    let version = shown.version.map_or_else(String::new, |version| format!(", version {}", safe(version)));
    let since = shown.started.map_or_else(String::new, |started| format!(", since {}", time::date(started.0)));
    writeln!(out, "local service  running (process {pid}){version}{since}")?;
    writeln!(out, "data folder    {}", safe(&shown.data_dir))?;
    writeln!(out, "socket         {}", safe(&shown.socket))?;
    writeln!(out, "log            {}", safe(&shown.log))?;
    match shown.sessions_streaming {
        Some(count) => writeln!(out, "sessions       {count} streaming"),
        None => writeln!(out, "sessions       it does not answer"),
    }
}

/// `memctl daemon stop`: the service drains, and has ended when this returns.
///
/// # Errors
/// The service does not end.
pub async fn stop(global: &Global) -> Result<(), Failure> {
    let service = named(global)?;
    let folder = service.files().folder().display().to_string();
    let say = |line: String| {
        if !global.quiet {
            eprintln!("memctl: {line}");
        }
    };
    let pid = match signal(&service, libc::SIGTERM) {
        Ok(pid) => pid,
        Err(error) if service.answers() => {
            return Err(Failure::unreachable(format!(
                "the local service of {folder} cannot be stopped from here: {error}"
            )));
        }
        Err(_) => {
            say(format!("no local service runs for {folder}"));
            return Ok(());
        }
    };
    let end = Instant::now() + END_MAX;
    while service.files().is_alive() {
        if Instant::now() >= end {
            let log = service.files().log().display().to_string();
            return Err(Failure::unreachable(format!("process {pid} does not end: see {log}")));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    say(format!("the local service of {folder} (process {pid}) has ended; what still runs starts it again"));
    Ok(())
}

fn named(global: &Global) -> Result<Service, Failure> {
    if global.daemon().is_some() && global.data_dir.is_none() {
        return Err(Failure::usage("the local service has a folder and no address: name it with --data-dir DIR"));
    }
    let folder = global.data_dir.clone().map_or_else(default_data_dir, Ok)?;
    let program = std::env::current_exe().map_err(|error| Failure::unreachable(error.to_string()))?;
    Service::of(&folder, &program).map_err(|error| Failure::unreachable(format!("{}: {error}", folder.display())))
}

async fn asked(service: &Service) -> Option<v1::Status> {
    // An address without the service does not start one.
    let address = DaemonAddress { service: None, ..DaemonAddress::of_service(service.clone()) };
    let asking = async {
        let channel = address.connect(|endpoint| endpoint).await.ok()?;
        let mut client = QueryClient::new(Asking::new(channel, Credentials::default()));
        Some(client.get_status(v1::StatusRequest {}).await.ok()?.into_inner())
    };
    tokio::time::timeout(ANSWER_MAX, asking).await.ok()?
}
