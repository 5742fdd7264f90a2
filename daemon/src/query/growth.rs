//! Finds the sites that grew from epoch end to epoch end, and on which ranks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use memctl_analysis::growth::{rank_by_growth, site_series};
use memctl_analysis::unexplained_growth::{Grown, explains, through};
use memctl_answers::report::{Growth, RankGrowth, Through};
use memctl_answers::{self as answers, whole};
use memctl_model::{Finding, Frame, SiteTable, StackId};
use memctl_proto::StackDictionary;

use crate::job_data::concurrently::concurrently;
use crate::job_data::error::ReadError;
use crate::job_data::job::FoundJob;
use crate::job_data::stacks::{dictionary, open_epoch_ends};
use crate::store::{EpochEndRow, SessionKey, Store};

/// Epoch ends that are read per rank. Longer runs are sampled evenly, including the first and the last epoch end.
const EPOCHS: usize = 128;
/// The most sites reported.
const SITES: usize = 20;

/// The growth of one site.
#[derive(Default)]
struct Site {
    ranks: Vec<GrownRank>,
    /// The stack with the most live bytes.
    stack: Vec<Frame>,
    stack_bytes: u64,
}

/// A site's growth on one rank, with its growth rate.
struct GrownRank {
    bytes_per_epoch: f64,
    growth: RankGrowth,
}

/// A site that grew.
pub(super) struct GrownSite {
    site: Frame,
    /// Its stack that grew most, innermost first.
    stack: Vec<Frame>,
    ranks: Vec<GrownRank>,
}

impl From<GrownSite> for Growth {
    fn from(grown: GrownSite) -> Self {
        let stack = grown.stack.iter().map(answers::Frame::from).collect();
        Self {
            site: Some((&grown.site).into()),
            stack: answers::owned(stack).1,
            ranks: grown.ranks.into_iter().map(|rank| rank.growth).collect(),
        }
    }
}

/// The sites that grew most, over all ranks of the selection.
pub(super) async fn growth(
    store: &Arc<dyn Store>,
    found: &FoundJob,
    epoch_ends: &[EpochEndRow],
) -> Result<Vec<GrownSite>, ReadError> {
    let mut sites: BTreeMap<Frame, Site> = BTreeMap::new();
    let by_key = found.by_key();
    let mut ends: HashMap<(SessionKey, u8), Vec<EpochEndRow>> = HashMap::new();
    for end in epoch_ends {
        ends.entry((end.session, end.device)).or_default().push(end.clone());
    }
    let ranks = found.devices.iter().filter_map(|device| {
        let session = by_key.get(&device.session)?;
        let index = device.info.index.0;
        let own = ends.remove(&(session.key, index)).unwrap_or_default();
        let who = Subject { rank: session.info.rank, process: found.process_name(session), device: index };
        Some(rank(store.clone(), session.key, who, own))
    });
    concurrently(ranks.collect(), |rank: Option<Rank>| {
        if let Some(rank) = rank {
            rank.add_to(&mut sites);
        }
    })
    .await?;
    let mut grown: Vec<(Frame, Site)> = sites.into_iter().collect();
    let total = |site: &Site| site.ranks.iter().map(|rank| rank.bytes_per_epoch).sum::<f64>();
    grown.sort_by(|(_, a), (_, b)| total(b).total_cmp(&total(a)));
    grown.truncate(SITES);
    Ok(grown.into_iter().map(|(site, Site { ranks, stack, .. })| GrownSite { site, stack, ranks }).collect())
}

/// Marks growth that a finding explains, and names the call that most of the remaining growth passes through.
pub(super) fn explained(sites: &mut [GrownSite], findings: &[Finding], job: &str) -> Option<Through> {
    let mut rest: Vec<Grown<'_>> = Vec::new();
    for GrownSite { site, stack, ranks } in sites {
        let mut fastest = 0.0_f64;
        for GrownRank { bytes_per_epoch, growth } in ranks {
            match findings.iter().find(|finding| explains(finding, growth.rank, site, stack)) {
                Some(finding) => growth.explained_by = Some(finding.fingerprint(job).to_string()),
                None => fastest = fastest.max(*bytes_per_epoch),
            }
        }
        if fastest > 0.0 {
            rest.push(Grown { stack, bytes_per_epoch: fastest });
        }
    }
    let through = through(&rest)?;
    Some(Through {
        call: (&through.call).into(),
        bytes_per_epoch: whole(through.bytes_per_epoch)?,
        total_bytes_per_epoch: whole(through.total)?,
    })
}

/// A device of a process.
struct Subject {
    rank: u32,
    process: String,
    device: u8,
}

/// The site tables of a device's epoch ends, and the stacks of its process.
struct Rank {
    who: Subject,
    tables: Vec<SiteTable>,
    stacks: StackDictionary,
}

/// Reads a rank; returns `None` if no two tables can be compared.
async fn rank(
    store: Arc<dyn Store>,
    session: SessionKey,
    who: Subject,
    epoch_ends: Vec<EpochEndRow>,
) -> Result<Option<Rank>, ReadError> {
    let mut tables = epoch_tables(&*store, session, &epoch_ends).await?;
    tables.retain(|table| table.device.0 == who.device);
    if tables.len() < 2 {
        return Ok(None);
    }
    Ok(Some(Rank { who, tables, stacks: dictionary(&*store, session).await? }))
}

impl Rank {
    fn add_to(&self, sites: &mut BTreeMap<Frame, Site>) {
        let Self { who, tables, stacks } = self;
        let unknown = || Frame { function: "(no stack recorded)".into(), file: "".into(), line: 0 };
        let site_of = |stack: StackId| stacks.site(stack).cloned().unwrap_or_else(unknown);
        let last = tables.iter().map(|table| table.epoch).max();
        let first = tables.iter().map(|table| table.epoch).min();
        // The initial bytes of each stack, because a site shows the stack that grew most.
        let mut before: HashMap<StackId, u64> = HashMap::new();
        for row in tables.iter().filter(|table| Some(table.epoch) == first).flat_map(|table| &table.rows) {
            let bytes = before.entry(row.stack).or_default();
            *bytes = bytes.saturating_add(row.bytes);
        }
        let mut now: HashMap<StackId, u64> = HashMap::new();
        for row in tables.iter().filter(|table| Some(table.epoch) == last).flat_map(|table| &table.rows) {
            let bytes = now.entry(row.stack).or_default();
            *bytes = bytes.saturating_add(row.bytes);
        }
        let gained = |stack: StackId| {
            now.get(&stack).copied().unwrap_or(0).saturating_sub(before.get(&stack).copied().unwrap_or(0))
        };
        let mut live: HashMap<Frame, (u64, u64, StackId, u64)> = HashMap::new();
        for row in tables.iter().filter(|table| Some(table.epoch) == last).flat_map(|table| &table.rows) {
            let (bytes, blocks, most, most_bytes) = live.entry(site_of(row.stack)).or_default();
            // Saturating: the figures come from the network.
            *bytes = bytes.saturating_add(row.bytes);
            *blocks = blocks.saturating_add(row.blocks);
            let gained = gained(row.stack);
            if gained >= *most_bytes {
                (*most, *most_bytes) = (row.stack, gained);
            }
        }
        for grown in rank_by_growth(site_series(tables, site_of)) {
            let points = &grown.series.points;
            let first_epoch =
                points.windows(2).find(|pair| pair[1].bytes > pair[0].bytes).map_or(0, |pair| pair[0].epoch);
            let (live_bytes, live_blocks, stack, _) = live.get(&grown.series.site).copied().unwrap_or_default();
            let site = sites.entry(grown.series.site).or_default();
            if live_bytes >= site.stack_bytes {
                site.stack_bytes = live_bytes;
                site.stack = stacks.frames(stack).cloned().collect();
            }
            let bytes_per_epoch = grown.growth.bytes_per_epoch;
            let growth = RankGrowth {
                rank: who.rank,
                process: who.process.clone(),
                device: u32::from(who.device),
                bytes_per_epoch: whole(bytes_per_epoch).unwrap_or(0),
                live_bytes,
                live_blocks,
                first_epoch,
                series_bytes: points.iter().map(|point| point.bytes).collect(),
                explained_by: None,
            };
            site.ranks.push(GrownRank { bytes_per_epoch, growth });
        }
    }
}

/// The site tables of a session's epoch ends, all devices.
async fn epoch_tables(
    store: &dyn Store,
    session: SessionKey,
    epoch_ends: &[EpochEndRow],
) -> Result<Vec<SiteTable>, ReadError> {
    let mut epochs: Vec<u32> = epoch_ends.iter().map(|end| end.epoch).collect();
    epochs.sort_unstable();
    epochs.dedup();
    if epochs.len() > EPOCHS {
        let last = epochs.len() - 1;
        epochs = (0..EPOCHS).map(|index| epochs[index * last / (EPOCHS - 1)]).collect();
    }
    let chosen = epoch_ends.iter().filter(|end| epochs.binary_search(&end.epoch).is_ok());
    let mut seqs: Vec<u64> = chosen.map(|end| end.table_seq).collect();
    seqs.sort_unstable();
    seqs.dedup();
    let mut tables = Vec::new();
    for row in store.items_at(session, &seqs).await? {
        tables.extend(open_epoch_ends(session, &row, &epochs)?);
    }
    Ok(tables)
}
