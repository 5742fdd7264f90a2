//! `memctl diagnose`: a job's report and what was live at its last epoch's end, as a note.

use std::io::Write;

use jiff::Timestamp;
use memctl_answers::diagnose::{Diagnosis, rank_of};
use memctl_answers::ledger::Ledger;
use memctl_answers::sites::View;
use memctl_proto::v1;
use memctl_proto::v1::ledger_request::Moment;

use crate::advising;
use crate::args::{self, Global};
use crate::client::{asking, ledger, live, report, same_job};
use crate::connect::Connection;
use crate::exit::Failure;
use crate::output::show;
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
        // For one rank only: four nearly equal tables do not help.
        let (sites, peak, replay) = match rank_of(&report) {
            Some(rank) => {
                let replay = advising::on_note(connection, &report, rank, &selection).await;
                let selection = Some(same_job(selection, &report, rank));
                let request = v1::SitesRequest { selection: selection.clone(), moment: None };
                let sites = live(connection, request, View::default()).await?;
                (Some(sites), at_peak(connection, selection).await, replay)
            }
            None => (None, None, None),
        };
        Ok(Diagnosis::new(report, sites.as_ref(), peak.as_ref(), replay, &connection.flags))
    });
    show(&note.await?, global, screen, out)
}

/// What the peak was for. Where its events are no longer stored, or the daemon is older than ledgers, the note goes without.
async fn at_peak(connection: &mut Connection, selection: Option<v1::Selection>) -> Option<Ledger> {
    let request = v1::LedgerRequest { selection, moment: Some(Moment::Peak(true)), blocks: false };
    ledger(connection, request).await.ok()
}
