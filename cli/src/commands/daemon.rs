//! `memctl daemon`.

use crate::allocator;
use crate::args::{self, Global};
use crate::connect::{default_data_dir, default_socket};
use crate::exit::Failure;
use crate::hosting::{Serving, ServingTls, serve, store_folder};
use crate::service::give_way;

/// Serves until a signal stops it.
///
/// # Errors
/// A configuration that is wrong, an address in use, a store that cannot be opened.
pub async fn run(flags: &args::Daemon, global: &Global) -> Result<(), Failure> {
    // The format of the log was needed before anything could be logged.
    let args::Daemon {
        local: _,
        listen,
        socket_mode,
        http_listen,
        store,
        config,
        retain_age,
        retain_bytes,
        alert_rules,
        tls_client_ca,
        tls_client_auth,
        insecure,
        log_format: _,
        check,
        retain_bytes_per_job,
        retain_bytes_per_tenant,
        read_only,
    } = flags.clone();
    let data_dir = global.data_dir.clone();
    let default_data_dir = default_data_dir().ok();
    // What the environment says of them the daemon reads itself, behind the flags.
    let tls = ServingTls {
        cert: global.tls_cert.clone(),
        key: global.tls_key.clone(),
        client_ca: tls_client_ca,
        client_auth: tls_client_auth,
    };
    let default_socket = Some(default_socket());
    let wanted = Serving {
        listen,
        socket_mode,
        http_listen,
        store,
        config,
        retain_age,
        retain_bytes,
        retain_bytes_per_job,
        retain_bytes_per_tenant,
        alert_rules,
        tls,
        insecure,
        read_only,
        check,
        data_dir,
        default_data_dir,
        default_socket,
    };
    if let Some(folder) = store_folder(&wanted)? {
        give_way(&folder).await?;
    }
    tokio::select! {
        served = serve(&wanted) => served,
        never = allocator::keep_little() => match never {},
    }
}
