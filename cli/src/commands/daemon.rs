//! `memctl daemon`.

use crate::args::{self, Global};
use crate::connect::default_data_dir;
use crate::exit::Failure;
use crate::seams::{Serving, serve};

/// Serves until it is told to stop.
///
/// # Errors
/// A configuration that is wrong, an address in use, a store that cannot be opened.
pub async fn run(flags: &args::Daemon, global: &Global) -> Result<(), Failure> {
    let args::Daemon { listen, store, config, retain_age, retain_bytes, alert_rules, check } = flags.clone();
    let data_dir = global.data_dir.clone();
    let default_data_dir = default_data_dir().ok();
    let wanted =
        Serving { listen, store, config, retain_age, retain_bytes, alert_rules, check, data_dir, default_data_dir };
    serve(&wanted).await
}
