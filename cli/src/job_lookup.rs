//! Finds the daemon of a job on several nodes, or its store.
//!
//! Guarantees: a daemon counts as found only if it answers and has the certificate in the job's folder.

use std::time::Duration;

use memctl_proto::v1::StatusRequest;
use memctl_proto::v1::query_client::QueryClient;
use tonic::transport::Endpoint;

use crate::args::{Global, NEWEST};
use crate::hosting::{Credentials, JobFolder};

/// How long to wait for an answer from one of the addresses of a job's daemon.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(3);

/// The flags that lead to the daemon of a job on several nodes, under the first of its addresses that answers. `None` if
/// it does not run.
pub async fn job_daemon(folder: &JobFolder, global: &Global) -> Option<Global> {
    let file = Some(folder.certificate());
    for url in folder.addresses()?.urls {
        let global = Global {
            daemon: Some(url),
            tls_ca: file.clone(),
            tls_cert: file.clone(),
            tls_key: file.clone(),
            // A token in the environment belongs to another daemon.
            callers: Some(Credentials::default()),
            ..global.clone()
        };
        let address = global.daemon_address()?;
        let limits = |endpoint: Endpoint| endpoint.connect_timeout(ADDRESS_TIMEOUT).timeout(ADDRESS_TIMEOUT);
        let asked = async {
            let channel = address.connect(limits).await.ok()?;
            QueryClient::new(channel).get_status(StatusRequest {}).await.ok()
        };
        if tokio::time::timeout(ADDRESS_TIMEOUT, asked).await.ok().flatten().is_some() {
            return Some(global);
        }
    }
    None
}

/// For a job of several nodes that the default store does not have: the flags for its daemon, or else for its store.
/// `None` if there is no such job, or if a daemon or a folder was named.
pub async fn of_several_nodes(job: &str, global: &Global) -> Option<Global> {
    if global.daemon().is_some() || global.data_dir.is_some() {
        return None;
    }
    let folder = JobFolder::all().into_iter().find(|folder| job == NEWEST || folder.is_named(job))?;
    let running = job_daemon(&folder, global).await;
    // The next launch may host its daemon on another node, so no service keeps the store open.
    let stored = || Global { data_dir: Some(folder.path().to_owned()), in_process: true, ..global.clone() };
    Some(running.unwrap_or_else(stored))
}
