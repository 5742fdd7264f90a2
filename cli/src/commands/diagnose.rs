//! `memctl diagnose`: a job's report and what was live at its last epoch's end, as a note.

use std::io::Write;

use jiff::Timestamp;
use memctl_proto::v1;

use super::questions::{asking, live, report, same_job, show};
use crate::answer::diagnose::{Diagnosis, rank_of};
use crate::answer::sites::View;
use crate::args::{self, Global};
use crate::exit::Failure;
use crate::render::screen::Screen;

/// See the module.
///
/// # Errors
/// See [`Failure`].
pub async fn run(
    args: &args::Diagnose,
    global: &Global,
    screen: &Screen,
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let selection = args.narrow.selection(now);
    let note = asking(global, async |connection| {
        let report = report(connection, selection.clone(), global).await?;
        // One rank's: four nearly equal tables help nobody.
        let sites = match rank_of(&report) {
            Some(rank) => {
                let request = v1::SitesRequest { selection: Some(same_job(selection, &report, rank)), moment: None };
                Some(live(connection, request, View::default()).await?)
            }
            None => None,
        };
        Ok(Diagnosis::new(report, sites.as_ref(), &connection.flags))
    });
    show(&note.await?, global, screen, out)
}
