//! Sessions: start, hook, stacks, marks, status, stop.
//!
//! Guarantees: without a session, every function does nothing and its return value shows that.

use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use memctl_agent::identity::{self, Identity, IdentityOverrides, Process};
use memctl_agent::live::{self, InterpreterFrame, LiveConfig, code_died, mark_kind};
use memctl_agent::reach::{self, DaemonAddress, Tls};
use memctl_agent::service::{self, Service};
use memctl_agent::source_paths::{self, Mode, SourcePaths};
use memctl_agent::{RING_EVENTS, data_dirs, launch_id, now_ns, settings};
use memctl_model::limits::DEVICES_MAX;
use memctl_model::{DeviceIndex, DeviceInfo, Launch, MarkKind, SessionId, SessionInfo, SourceKind};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::NativeError;

/// Resolution of a live session's times. A coarser resolution makes times cheaper to encode, and 100 ns still
/// distinguish the events of one thread.
const RESOLUTION_NS: u32 = 100;
/// The number of a mark that ends an epoch with the state of the last end of a step or of an evaluation.
const EPOCH_ENDED: u8 = 10;
/// The number of a mark for freed gradients.
const SETTLED: u8 = 11;

type Device = (u32, Option<String>, Option<String>, Option<u64>);

/// The calling thread's Python thread state, with or without the interpreter's lock; 0 when it has none.
extern "C" fn thread_state() -> usize {
    // SAFETY: reads a thread-local; may be called on any thread while the interpreter is initialised, and the gate is
    // closed before it shuts down.
    unsafe { pyo3::ffi::PyGILState_GetThisThreadState() as usize }
}

/// The interpreter's version.
fn python(py: Python<'_>) -> (u8, u8) {
    let version = py.version_info();
    (version.major, version.minor)
}

fn refuse(error: impl std::fmt::Display) -> PyErr {
    NativeError::new_err(error.to_string())
}

/// Starts a session of this process.
#[pyfunction]
#[pyo3(signature = (*, job=None, daemon=None, framework, conf, devices, labels=None, rank=None, world_size=None, attempt=None, role=None, child=None, holders=None))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub fn start<'py>(
    py: Python<'py>,
    job: Option<String>,
    daemon: Option<String>,
    framework: String,
    conf: &str,
    devices: Vec<Device>,
    labels: Option<std::collections::BTreeMap<String, String>>,
    rank: Option<u32>,
    world_size: Option<u32>,
    attempt: Option<u32>,
    role: Option<String>,
    child: Option<(u32, String)>,
    holders: Option<bool>,
) -> PyResult<Bound<'py, PyDict>> {
    log_if_wanted();
    let labels = labels.unwrap_or_default().into_iter().collect();
    let given = IdentityOverrides { job, attempt, rank, world_size, labels, role };
    let (parent_pid, child) = match child {
        Some((parent, name)) => (parent, Some(name)),
        None => (std::os::unix::process::parent_id(), None),
    };
    let process = Process {
        script: script(py).filter(|_| !hides_names()),
        host: host(),
        pid: std::process::id(),
        started_ns: now_ns(),
        title: title(),
        rank_is_inherited: child.is_some() && has_rank_at_birth(),
        child,
    };
    let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let who = identity::identify(&environment, &given, &process);
    for complaint in &who.complaints {
        tracing::warn!(complaint, "identity");
    }
    let socket = environment("MEMCTL_RUN_SOCKET").map(PathBuf::from);
    // The launcher's destination is also this process's own, in case the launcher is killed.
    let of_launcher = |name: &str| environment(name).filter(|_| socket.is_some());
    let named = daemon.or_else(|| of_launcher("MEMCTL_RUN_DAEMON")).or_else(|| environment("MEMCTL_DAEMON"));
    let number = of_launcher(launch_id::VARIABLE).and_then(|text| text.parse().ok());
    let data_dir = of_launcher("MEMCTL_RUN_DATA_DIR").map(PathBuf::from);
    let data_dir = data_dir.or_else(|| data_dirs::data_dir(&|name| std::env::var_os(name).map(PathBuf::from)));
    // This happens before anything is recorded. An error ends the attempt, so paths that must not leave the host never
    // do.
    let source_paths = SourcePaths::from_environment(&environment, data_dir.as_deref()).map_err(refuse)?;
    // Any other value is taken as a ban.
    let allows = environment("MEMCTL_HOLDERS").is_none_or(|text| text == "on" || text == "leaks");
    let holders = allows && holders != Some(false);
    let config = LiveConfig {
        source_paths,
        session: session_info(&who, &process, (parent_pid, number), framework, conf, devices)?,
        ring_events: environment("MEMCTL_RING_EVENTS").and_then(|text| text.parse().ok()).unwrap_or(RING_EVENTS),
        launcher: socket,
        spool: data_dir.as_deref().map(|folder| data_dirs::spool(folder, named.as_deref())),
        daemon: match named {
            Some(url) => DaemonAddress { tls: Tls::from_environment(&environment), ..DaemonAddress::from(url) },
            None => local_daemon(py, data_dir.as_deref()),
        },
        thread_state,
        python: Some(python(py)),
        holders,
        holders_unasked: holders,
    };
    let is_local = config.daemon.service.is_some();
    // The launcher is reached over a socket. Other Python threads need not wait for that.
    let live = py.detach(|| live::start(config)).map_err(refuse)?;
    let report = PyDict::new(py);
    report.set_item("mode", if live.has_launcher() { "launcher" } else { "thread" })?;
    report.set_item("session", live.session().id.to_string())?;
    report.set_item("daemon", live.daemon())?;
    report.set_item("is_local", is_local)?;
    report.set_item("job", &live.session().job)?;
    report.set_item("rank", live.session().rank)?;
    report.set_item("attempt", live.session().attempt)?;
    report.set_item("complaints", who.complaints)?;
    Ok(report)
}

/// The default destination of this process: this user's own daemon if it runs, otherwise the local service of the data
/// folder, which the first connection starts.
fn local_daemon(py: Python<'_>, data_dir: Option<&Path>) -> DaemonAddress {
    let interpreter = py.import("sys").and_then(|sys| sys.getattr("executable")).and_then(|it| it.extract::<PathBuf>());
    let service = || {
        let program = service::program(interpreter.ok().as_deref())?;
        Service::of(data_dir?, &program).ok()
    };
    if !service::is_allowed() || service::connect(&reach::own_socket()).is_ok() {
        return DaemonAddress::own();
    }
    service().map_or_else(DaemonAddress::own, DaemonAddress::of_service)
}

fn session_info(
    who: &Identity,
    process: &Process,
    (parent_pid, launcher): (u32, Option<u64>),
    framework: String,
    conf: &str,
    devices: Vec<Device>,
) -> PyResult<SessionInfo> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(refuse)?;
    let count = devices.iter().map(|device| device.0 as usize + 1).max().unwrap_or(1).min(DEVICES_MAX);
    let mut infos: Vec<DeviceInfo> =
        (0..count).map(|index| DeviceInfo { index: DeviceIndex(index as u8), ..DeviceInfo::default() }).collect();
    for (ordinal, uuid, name, total_bytes) in devices {
        if let Some(info) = infos.get_mut(ordinal as usize) {
            *info = DeviceInfo { index: info.index, uuid, name, total_bytes };
        }
    }
    Ok(SessionInfo {
        id: SessionId(id),
        job: who.job.clone(),
        attempt: who.attempt,
        rank: who.rank,
        world_size: who.world_size,
        source: SourceKind::Live,
        host: who.host.clone(),
        pid: Some(process.pid),
        // A pid of 0 means that the parent is in another namespace.
        parent_pid: Some(parent_pid).filter(|pid| *pid > 0),
        launch: launch_of(who, process, parent_pid, launcher),
        role: who.role.clone(),
        found_by: None,
        started_ns: process.started_ns,
        framework: Some(framework),
        settings: settings::parse(conf),
        devices: infos,
        labels: who.labels.clone(),
        resolution_ns: RESOLUTION_NS,
    })
}

/// What started this process: `memctl run`, whose id is given, otherwise the parent of its ranks or siblings, otherwise
/// this process itself.
fn launch_of(who: &Identity, process: &Process, parent_pid: u32, launcher: Option<u64>) -> Launch {
    let group = who.group.clone();
    if launcher.is_some() {
        return Launch { launcher, group, ..Launch::default() };
    }
    let is_one_of_several = who.world_size.is_some_and(|size| size > 1) || process.child.is_some();
    let starter = if is_one_of_several && parent_pid > 0 { parent_pid } else { process.pid };
    Launch { launcher: Some(launch_id::of_process(starter)), group, attached: true, into_run: None }
}

/// Whether the script's name must not leave the host.
fn hides_names() -> bool {
    std::env::var(source_paths::MODE_VARIABLE).is_ok_and(|mode| mode == Mode::Hashed.name())
}

/// `sys.argv[0]`, for a made-up name of the job.
fn script(py: Python<'_>) -> Option<String> {
    let argv = py.import("sys").ok()?.getattr("argv").ok()?;
    argv.get_item(0).ok()?.extract().ok()
}

/// The title of the process, if it has set one.
fn title() -> Option<String> {
    let words = std::fs::read("/proc/self/cmdline").ok()?;
    Some(String::from_utf8_lossy(&words[..words.len().min(256)]).into_owned())
}

/// Whether the process's initial environment had a rank. A process that is a rank itself may set the variable later.
fn has_rank_at_birth() -> bool {
    let environment = std::fs::read("/proc/self/environ").unwrap_or_default();
    let has = |name: &str| environment.split(|byte| *byte == 0).any(|pair| is_variable(pair, name));
    identity::rank_variables().any(has)
}

fn is_variable(pair: &[u8], name: &str) -> bool {
    pair.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
}

fn host() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned())
}

/// Prints logs of the agent to standard error if `MEMCTL_LOG` requests them. Otherwise nothing is printed.
fn log_if_wanted() {
    let filter = std::env::var("MEMCTL_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    if let Some(filter) = filter {
        let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let _ = tracing_subscriber::registry().with(filter).with(layer).try_init();
    }
}

/// Loads the hook, if it is for this build of torch, and attaches it.
#[pyfunction]
pub fn attach_hook(py: Python<'_>, path: PathBuf, device: Option<u32>, build: &str) -> PyResult<()> {
    let live = live::current().ok_or_else(|| refuse("nothing is recorded here: start first"))?;
    py.detach(|| {
        if let Some(device) = device {
            live.populate(device);
        }
        live.attach_hook(&path, build)
    })
    .map_err(refuse)
}

/// Turns stacks on if the walk of the frames agrees with the interpreter's own `sys._getframe()`.
#[pyfunction]
pub fn check_stacks(py: Python<'_>) -> bool {
    let Some(live) = live::current() else { return false };
    // A native function has no frame of its own. Both sides see the caller's frame, at the instruction of this call.
    let deaths = watch_code(py);
    frames(py).is_ok_and(|expected| live.check_stacks(python(py), &expected, deaths))
}

/// Makes the interpreter report every code object that dies, from now on for the life of the process. Returns whether
/// it does.
///
/// `PyCode_AddWatcher` is not part of the stable interface, so it is looked up by name. CPython has it from 3.12 on.
fn watch_code(_py: Python<'_>) -> bool {
    static WATCHED: OnceLock<bool> = OnceLock::new();
    *WATCHED.get_or_init(|| {
        // SAFETY: a valid name; the lookup has no other effect.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"PyCode_AddWatcher".as_ptr()) };
        if found.is_null() {
            return false;
        }
        // SAFETY: this is its type in Include/cpython/code.h in every version that has it.
        let add = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(OnCode) -> c_int>(found) };
        // SAFETY: the interpreter's lock is held; the callback is code that is never unloaded.
        let is_watched = unsafe { add(on_code) } >= 0;
        if !is_watched {
            // SAFETY: as above. All eight watchers are taken, which raised an exception.
            unsafe { pyo3::ffi::PyErr_Clear() };
        }
        is_watched
    })
}

type OnCode = extern "C" fn(c_int, *mut pyo3::ffi::PyObject) -> c_int;

/// The interpreter's callback for a code object that was created (0) or dies (1).
extern "C" fn on_code(event: c_int, code: *mut pyo3::ffi::PyObject) -> c_int {
    if event == 1 {
        code_died(code as usize);
    }
    0
}

fn frames(py: Python<'_>) -> PyResult<Vec<InterpreterFrame>> {
    let mut frame = py.import("sys")?.call_method1("_getframe", (0,))?;
    let mut frames = Vec::new();
    while !frame.is_none() {
        frames.push(shown(&frame)?);
        frame = frame.getattr("f_back")?;
    }
    Ok(frames)
}

/// A frame as the interpreter reports it.
fn shown(frame: &Bound<'_, PyAny>) -> PyResult<InterpreterFrame> {
    let code = frame.getattr("f_code")?;
    let text = |name: &str| -> PyResult<(usize, String)> {
        let text = code.getattr(name)?;
        // The hook's side also replaces what cannot be encoded as UTF-8.
        let plain =
            text.call_method1("encode", ("utf-16", "surrogatepass"))?.call_method1("decode", ("utf-16", "replace"))?;
        Ok((text.as_ptr() as usize, plain.extract()?))
    };
    let lasti: i64 = frame.getattr("f_lasti")?.extract()?;
    Ok(InterpreterFrame {
        code: code.as_ptr() as usize,
        lasti: lasti.max(0) as u32,
        line: frame.getattr("f_lineno")?.extract()?,
        file: text("co_filename")?,
        name: if code.hasattr("co_qualname")? { text("co_qualname")? } else { text("co_name")? },
        table: code.getattr("co_linetable")?.as_ptr() as usize,
        first_line: code.getattr("co_firstlineno")?.extract()?,
    })
}

/// Marks this moment.
#[pyfunction]
#[pyo3(signature = (kind, number=0, name=""))]
pub fn mark(kind: u8, number: u64, name: &str) -> bool {
    if kind == SETTLED {
        return live::current().is_some_and(|live| live.settled());
    }
    if kind == EPOCH_ENDED {
        return match (live::current(), u32::try_from(number)) {
            (Some(live), Ok(epoch)) => live.mark_ended(&MarkKind::EpochEnd(epoch)),
            _ => false,
        };
    }
    match (live::current(), mark_kind(kind, number, name)) {
        (Some(live), Some(kind)) => live.mark(&kind),
        _ => false,
    }
}

/// The state of the session.
#[pyfunction]
pub fn status(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let report = PyDict::new(py);
    let live = live::current();
    report.set_item("attached", live.is_some())?;
    let Some(live) = live else { return Ok(report) };
    let status = live.status();
    report.set_item("mode", if live.has_launcher() { "launcher" } else { "thread" })?;
    report.set_item("job", &live.session().job)?;
    report.set_item("rank", live.session().rank)?;
    report.set_item("attempt", live.session().attempt)?;
    report.set_item("role", &live.session().role)?;
    report.set_item("parent_pid", live.session().parent_pid)?;
    report.set_item("session", live.session().id.to_string())?;
    report.set_item("level", status.level.name())?;
    report.set_item("produced", status.produced)?;
    report.set_item("stored", status.stored)?;
    report.set_item("dropped", status.dropped)?;
    report
        .set_item("in_flight", status.stored.map(|stored| status.produced.saturating_sub(stored + status.dropped)))?;
    report.set_item("stacks", status.stacks)?;
    report.set_item("stacks_lost", status.stacks_lost)?;
    report.set_item("notes_dropped", status.notes_dropped)?;
    report.set_item("trouble", status.trouble)?;
    Ok(report)
}

/// Ends the session.
#[pyfunction]
#[pyo3(signature = (failure=None, patience_s=0.25, leaving=false))]
pub fn stop(py: Python<'_>, failure: Option<String>, patience_s: f64, leaving: bool) -> PyResult<Bound<'_, PyDict>> {
    let patience = Duration::try_from_secs_f64(patience_s).unwrap_or_default();
    let stopped = py.detach(|| live::stop(failure.as_deref(), patience, leaving)).unwrap_or_default();
    let report = PyDict::new(py);
    report.set_item("delivered", stopped.delivered)?;
    report.set_item("produced", stopped.produced)?;
    report.set_item("stored", stopped.stored)?;
    report.set_item("dropped", stopped.dropped)?;
    report.set_item("waiting", stopped.waiting)?;
    report.set_item("refused", stopped.refused)?;
    Ok(report)
}

/// Closes the gate in this process permanently.
#[pyfunction]
pub fn silence() {
    live::silence();
}
