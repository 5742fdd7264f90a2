//! Checks that a file is a complete backup before anything is restored from it.
//!
//! Guarantees: a file that is empty, truncated, or holds an item with a wrong checksum is refused, and the error names
//! it. Nothing is written.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use super::super::StoreError;
use super::super::address::StoreAddress;
use super::super::checking::{self, Depth};
use super::store_error;

/// Bytes that are read of SQLite's header. They include the page size and the page count
/// (https://www.sqlite.org/fileformat.html, 1.3).
const HEADER: usize = 32;

/// Characters of SQLite's message that an error shows.
const SAID_MAX: usize = 200;

/// Refuses a file that is empty or has fewer pages than its header states.
pub(super) fn has_all_pages(source: &Path) -> Result<(), StoreError> {
    let cannot = |error: std::io::Error| store_error(source, &error);
    let mut file = File::open(source).map_err(cannot)?;
    let length = file.metadata().map_err(cannot)?.len();
    if length == 0 {
        return Err(refused(source, "it is empty: restore another backup"));
    }
    let mut header = [0; HEADER];
    if file.read_exact(&mut header).is_err() || !header.starts_with(b"SQLite format 3\0") {
        // It is not a database; the error of SQLite, which opens it later, explains why.
        return Ok(());
    }
    let page = match u16::from_be_bytes([header[16], header[17]]) {
        1 => 65_536,
        bytes => u64::from(bytes),
    };
    let pages = u64::from(u32::from_be_bytes([header[28], header[29], header[30], header[31]]));
    if length < pages * page {
        let why = format!(
            "it has {length} bytes of {}: it was cut while it was copied; copy it again, or restore another backup",
            pages * page
        );
        return Err(refused(source, &why));
    }
    Ok(())
}

/// Refuses a backup with a wrong checksum or a wrong sum in a session's row.
pub(super) async fn is_undamaged(source: &Path, current: &Path) -> Result<(), StoreError> {
    let checked = checking::check(&StoreAddress::Sqlite(current.to_owned()), Depth::Bytes).await.map_err(of_pages)?;
    let Some(first) = checked.problems.first() else { return Ok(()) };
    let more = match checked.problems_found {
        0 | 1 => String::new(),
        found => format!(" (and {} more)", found - 1),
    };
    let why = format!("{}{more}; --damaged restores it all the same, and its damaged items stay damaged", first.what);
    Err(refused(source, &why))
}

/// The error for a file with damaged pages. SQLite's message has several lines and no way out.
pub(super) fn of_pages(error: StoreError) -> StoreError {
    let StoreError::Damaged { place, what } = error else { return error };
    let words: String = what.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(SAID_MAX).collect();
    let why = format!(
        "pages of its database are damaged, and --damaged cannot help, because their rows cannot be read: restore another backup (SQLite says: {words})"
    );
    StoreError::Unsound { place, why }
}

fn refused(source: &Path, why: &str) -> StoreError {
    StoreError::Unsound { place: source.display().to_string(), why: why.to_owned() }
}
