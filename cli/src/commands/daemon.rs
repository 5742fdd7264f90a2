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
/// The configuration is wrong, an address is in use, or the store cannot be opened.
pub async fn run(flags: &args::Daemon, global: &Global) -> Result<(), Failure> {
    // The log format was applied earlier, before the first log line.
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
    // The daemon reads their environment variables itself, with lower precedence than flags.
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
    if let Some(folder) = store_folder(&wanted)?.filter(|_| !wanted.check) {
        give_way(&folder).await?;
    }
    tokio::select! {
        served = serve(&wanted) => served,
        never = allocator::keep_little() => match never {},
    }
}
