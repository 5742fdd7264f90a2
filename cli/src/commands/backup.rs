//! `memctl backup` and `memctl restore`: writes a whole store to one file, and restores it.

use memctl_model::HumanBytes;

use super::store_place;
use crate::args::{Backup, Global, Restore};
use crate::connect::default_data_dir;
use crate::exit::Failure;
use crate::hosting::stores::{self, Copied};
use crate::render::text::{plural, safe};
use crate::service::give_way;

/// `memctl backup`.
///
/// # Errors
/// The file exists already, or the store cannot be read.
pub async fn backup(args: &Backup, global: &Global) -> Result<(), Failure> {
    let place = store_place("backup", args.store.as_deref(), global)?;
    let copied = stores::backup(&place, &args.target).await?;
    say(global, &format!("backed up {} to {}", described(&copied), safe(&args.target.to_string_lossy())));
    Ok(())
}

/// `memctl restore`.
///
/// # Errors
/// The backup is damaged, or the store is not empty.
pub async fn restore(args: &Restore, global: &Global) -> Result<(), Failure> {
    let place = store_place("restore", args.store.as_deref(), global)?;
    if args.store.is_none() {
        give_way(&global.data_dir.clone().map_or_else(default_data_dir, Ok)?).await?;
    }
    let copied = stores::restore(&args.source, &place, args.damaged).await?;
    say(global, &format!("restored {} into {}", described(&copied), safe(&place.shown())));
    Ok(())
}

fn described(copied: &Copied) -> String {
    let (jobs, sessions) = (plural(copied.totals.jobs, "job"), plural(copied.totals.sessions, "session"));
    format!("{jobs}, {sessions}, {}", HumanBytes::of(copied.file_bytes))
}

fn say(global: &Global, line: &str) {
    if !global.quiet {
        eprintln!("memctl: {line}");
    }
}
