//! Where the command line meets the daemon and the agent: hosting one in this process, serving, importing.
//!
//! Guarantees: nothing else in this crate names those crates.

mod devices;
mod embedded;
mod hosted;
mod importing;
mod job_daemon;
mod job_folder;
mod local_service;
mod page_proxy;
mod paths;
mod playback;
mod serving;
mod signals;
mod spool;
pub mod stores;

use memctl_daemon::server::ServeError;
use memctl_daemon::store::StoreError;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use crate::exit::Failure;

pub use devices::{DeviceUse, device_readings, devices};
pub use embedded::{Beside, Embedded, embedded};
pub use hosted::hosted;
pub use importing::{
    DAEMON_SILENCE_MAX, EMBEDDED_SILENCE_MAX, ImportOutcome, ImportRequest, OnProgress, Progress, check_files,
    import_files,
};
pub use job_folder::{Guest, JobFolder};
pub use local_service::{say_cannot, serve_folder};
pub use memctl_agent::credentials::{Credentials, TokenSource};
pub use memctl_agent::reach::{self, DaemonAddress, ReachError, Tls};
pub use memctl_agent::source_paths::{MODE_VARIABLE as SOURCE_PATHS_VARIABLE, Mode as SourcePathsMode, SourcePaths};
pub use memctl_agent::{Daemon, SpoolConfig, data_dirs, host, identity, launch_id, now_ns, private_files, service};
pub use memctl_daemon::access::fits;
pub use memctl_daemon::config::TlsLayer as ServingTls;
pub use page_proxy::forwarded;
pub use paths::{of_a_run, of_an_import};
pub use serving::{Serving, serve, store_folder};
pub use signals::told_to_stop;
pub use spool::backoff;

/// The page's script and style, which a report embeds.
#[must_use]
pub fn page_files() -> (&'static str, &'static str) {
    let text = |bytes: &'static [u8]| std::str::from_utf8(bytes).unwrap_or_default();
    (text(memctl_daemon::http::SCRIPT), text(memctl_daemon::http::STYLE))
}

/// A channel that sends the token and tenant with each request.
pub type Asking = InterceptedService<Channel, Credentials>;

fn store_failure(error: &StoreError) -> Failure {
    Failure::unreachable(error.to_string())
}

fn serve_failure(error: &ServeError) -> Failure {
    Failure::unreachable(error.to_string())
}
