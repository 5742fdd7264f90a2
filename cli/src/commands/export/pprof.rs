//! `memctl export --format pprof`: live memory of all selected ranks as one profile.

use std::io::Write;
use std::path::Path;

use memctl_answers::sites::View;
use memctl_proto::v1;

use super::at_end;
use super::stored::StoredPart;
use crate::client::live;
use crate::connect::Connection;
use crate::exit::Failure;
use crate::export::pprof::Pprof;
use crate::output_file::{Target, name_of};

/// Asks rank by rank: an answer names the classes of a few devices only, and its size has a limit.
pub(super) async fn pprof(
    connection: &mut Connection,
    selection: v1::Selection,
    stored: &StoredPart,
    file: Option<&Path>,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let mut profile = Pprof::new(&stored.job);
    let mut is_recorded = false;
    for &rank in &stored.ranks {
        let of_rank = v1::Selection { ranks: vec![rank], ..selection.clone() };
        let sites = live(connection, at_end(of_rank), View::default()).await?;
        is_recorded |= !sites.ranks.is_empty();
        sites.ranks.iter().for_each(|rank| profile.add(rank));
    }
    if profile.is_empty() {
        return Err(if is_recorded { stored.nothing_live() } else { stored.nothing() });
    }
    let mut target = Target::open(file, out)?;
    profile.write(target.writer()).map_err(|error| Failure::output(&name_of(file), &error))?;
    target.keep()
}
