//! Computes the profile of a run: the figures of its report, and live memory at its highest peak by site, class and
//! module.
//!
//! Guarantees: the peak is that of the device with the highest peak, exact if every event up to it is stored. At most
//! [`SITES_MAX`] sites are returned, the largest ones, with the bytes of the omitted ones. A run without stored events
//! has a profile without a peak.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use memctl_analysis::classes::{Class, Shares};
use memctl_answers::Frame;
use memctl_answers::anatomy::Held;
use memctl_answers::dossier::same_job;
use memctl_answers::ledger::shares;
use memctl_answers::profile::{PeakProfile, PeakSite, Profile};
use memctl_answers::report::Rank;
use memctl_model::{BlockState, StackId};
use memctl_proto::v1;

use super::anatomy::{MODULES_MAX, Sum, add, modules};
use super::ledger::{Then, peak, then};
use super::report;
use super::sources::Sources;
use crate::job_data::error::ReadError;
use crate::job_data::job::find;
use crate::store::Selection;

/// The most sites returned. A training allocates at some hundreds of lines of its own.
const SITES_MAX: usize = 1024;

/// Answers the request.
pub(super) async fn profile(from: &Sources, request: v1::ProfileRequest) -> Result<Profile, ReadError> {
    let selection = request.selection.unwrap_or_default();
    let request = v1::ReportRequest { selection: Some(selection.clone()) };
    let report = report::report(&from.store, &from.streams, &from.judge, request).await?;
    let peak = match Profile::highest(&report.ranks) {
        Some(rank) if rank.events > 0 => at_peak(from, &same_job(selection, &report, rank), rank).await?,
        _ => None,
    };
    Ok(Profile::new(&report, peak))
}

/// Live memory at the peak of a device; `None` if the events up to it are not stored.
async fn at_peak(from: &Sources, part: &v1::Selection, rank: &Rank) -> Result<Option<PeakProfile>, ReadError> {
    let store = &*from.store;
    let found = find(store, part).await?;
    let is_its = |session: &&crate::store::SessionRow| found.process_name(session) == rank.process;
    let Some(session) = found.sessions.iter().find(is_its) else { return Ok(None) };
    let devices = found.devices_of(session.key);
    let Some(device) = devices.iter().find(|device| u32::from(device.info.index.0) == rank.device) else {
        return Ok(None);
    };
    let chunks = store.chunks(session.key, device.info.index.0, Selection::default()).await?;
    // If events before the peak have expired, the peak among the rest is another one.
    let position = match peak(store, session, device, &chunks, true).await {
        Ok(Some(position)) => position,
        Ok(None) | Err(ReadError::Expired { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let Then { keyframe, stacks, epoch, step, known } = then(store, session, device, &chunks, position).await?;
    let classed = known.of(&keyframe);
    let mut sums = Shares::default();
    classed.iter().for_each(|(class, block)| sums.add(*class, block.size));
    let (sites, left_out_bytes) = sites(&classed, |stack| stacks.stack(stack).site().map(Frame::from));
    let mut modules: Vec<Held> = modules(&classed, &|stack| stacks.stack(stack));
    modules.truncate(MODULES_MAX);
    Ok(Some(PeakProfile {
        rank: rank.rank,
        process: rank.process.clone(),
        device: rank.device,
        epoch,
        step,
        exact: position.exact,
        allocated_bytes: sums.total(),
        classes: shares(&sums),
        sites,
        modules,
        left_out_bytes,
    }))
}

/// Live memory by site, most first, and the bytes of the sites that are omitted.
fn sites(classed: &[(Class, &BlockState)], site_of: impl Fn(StackId) -> Option<Frame>) -> (Vec<PeakSite>, u64) {
    // Blocks are summed by stack first, because there are far fewer stacks than blocks.
    let mut by_stack: BTreeMap<(StackId, Class), Sum> = BTreeMap::new();
    for (class, block) in classed {
        add(by_stack.entry((block.stack, *class)).or_default(), (block.size, 1));
    }
    let mut by_site: Vec<(Option<Frame>, BTreeMap<Class, u64>, Sum)> = Vec::new();
    let mut places: std::collections::HashMap<Option<Frame>, usize> = std::collections::HashMap::new();
    for ((stack, class), sum) in by_stack {
        let site = site_of(stack);
        let place = *places.entry(site.clone()).or_insert_with(|| {
            by_site.push((site, BTreeMap::new(), (0, 0)));
            by_site.len() - 1
        });
        let (_, classes, all) = &mut by_site[place];
        add(all, sum);
        let of_class = classes.entry(class).or_default();
        *of_class = of_class.saturating_add(sum.0);
    }
    let site = |(site, classes, (live_bytes, live_blocks)): (Option<Frame>, BTreeMap<Class, u64>, Sum)| {
        let class = classes.iter().max_by_key(|(_, bytes)| **bytes).map_or("", |(class, _)| class.name());
        PeakSite { site, class: class.to_owned(), live_bytes, live_blocks }
    };
    let mut sites: Vec<PeakSite> = by_site.into_iter().map(site).collect();
    let place = |site: &PeakSite| site.site.as_ref().map(|site| (site.file.clone(), site.line, site.function.clone()));
    sites.sort_by_cached_key(|site| (Reverse(site.live_bytes), place(site)));
    let rest = sites.split_off(sites.len().min(SITES_MAX));
    (sites, rest.iter().fold(0_u64, |sum, site| sum.saturating_add(site.live_bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_are_summed_over_stacks_and_named_by_their_largest_class() {
        let block = |stack: u32, size| BlockState { stack: StackId(stack), size, ..BlockState::default() };
        let blocks = [block(1, 512), block(1, 512), block(2, 4096), block(3, 64)];
        let classes = [Class::Activations, Class::Activations, Class::Gradients, Class::Unknown];
        let classed: Vec<_> = classes.into_iter().zip(&blocks).collect();
        // Stacks 1 and 2 end in one line.
        let line = |stack: StackId| Frame { function: "f".into(), file: "a.py".into(), line: Some(stack.0.max(2)) };
        let (sites, left_out) = sites(&classed, |stack| Some(line(stack)).filter(|frame| frame.line != Some(3)));
        let seen: Vec<_> =
            sites.iter().map(|site| (site.live_bytes, site.live_blocks, &*site.class, site.site.is_some())).collect();
        assert_eq!(seen, [(5120, 3, "gradients", true), (64, 1, "unknown", false)]);
        assert_eq!(left_out, 0);
    }
}
