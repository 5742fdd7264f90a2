//! Findings over all ranks: one finding for the same leak on several ranks, and differences between one rank and its
//! peers.
//!
//! Guarantees: ranks are compared only with ranks that do the same work, which have the same largest sites. Pipeline
//! stages and experts are not peers. A difference that a leak explains is not reported a second time.

use std::collections::BTreeMap;

use memctl_model::{Boundary, Finding, FindingKind, Frame, JudgedKind};

use super::Activity;
use super::candidate::Shape;
use super::history::Per;
use super::leak::{self, Leak};
use super::series::Series;
use super::subjects::Subject;
use super::watch::RankWatch;
use super::words::{self, Excess};
use crate::statistics::upper_median;

/// The key of a finding. Leaks of several ranks with the same kind, function and file of the site are one finding.
type Key = (FindingKind, Option<(String, String)>);

/// Leaks over all ranks.
pub(super) fn leaks(watches: &[&RankWatch], activity: Activity) -> Vec<Finding> {
    let mut by_site: BTreeMap<Key, Vec<Leak>> = BTreeMap::new();
    // Growth that was given back completely has no bytes left.
    let has_grown = |leak: &Leak| leak.shape == Shape::Teeth || leak.group.bytes_gained() > 0;
    for leak in watches.iter().flat_map(|watch| leak::of_rank(watch, activity)).filter(has_grown) {
        let site = leak.group.site.as_ref().map(|site| (site.function.to_string(), site.file.to_string()));
        by_site.entry((leak.kind, site)).or_default().push(leak);
    }
    let merged = same_leak_of_another_kind(by_site);
    let all: Vec<Subject> = watches.iter().map(|watch| watch.who()).collect();
    let all: Vec<&Subject> = all.iter().collect();
    merged.into_values().map(|leaks| words::leak(&leaks, &all)).collect()
}

/// Merges the same leak of several ranks if it has different kinds because the ranks are at different points. The kind
/// of most of its bytes is used.
fn same_leak_of_another_kind(by_site: BTreeMap<Key, Vec<Leak>>) -> BTreeMap<Key, Vec<Leak>> {
    let mut merged: BTreeMap<Key, Vec<Leak>> = BTreeMap::new();
    for ((kind, site), leaks) in by_site {
        let known = merged.keys().find(|(_, other)| site.is_some() && *other == site).cloned();
        match known {
            Some(known) if disjoint(&merged[&known], &leaks) => {
                let mut all = merged.remove(&known).unwrap_or_default();
                let bytes = |leaks: &[Leak]| leaks.iter().map(|leak| leak.live_bytes / 2).sum::<u64>();
                let kind = if bytes(&all) >= bytes(&leaks) { known.0 } else { kind };
                all.extend(leaks);
                all.iter_mut().for_each(|leak| leak.kind = kind);
                merged.insert((kind, site), all);
            }
            _ => drop(merged.insert((kind, site), leaks)),
        }
    }
    merged
}

fn disjoint(one: &[Leak], other: &[Leak]) -> bool {
    one.iter().all(|a| other.iter().all(|b| a.who != b.who))
}

/// Minimum number of boundaries over which a difference must last.
const LASTS: usize = 5;
/// Differences below this are never reported: two segments of large blocks.
const SKEW_BYTES_MIN: u64 = 40 << 20;
/// Differences below this share of the allocated bytes are never reported either.
const SKEW_SHARE_MIN: f64 = 0.1;
/// Number of largest sites by which ranks are recognised as peers.
const ROLE_SITES: usize = 8;

/// Ranks were compared if there are several devices.
pub(super) fn judged(watches: &[&RankWatch]) -> Option<JudgedKind> {
    (watches.len() > 1).then(|| JudgedKind { kind: FindingKind::RankSkew, boundaries: vec![Boundary::StepEnd] })
}

/// Findings about ranks that permanently hold more than their peers, unless a leak explains it.
pub(super) fn skew(watches: &[&RankWatch], leaks: &[Finding]) -> Vec<Finding> {
    let mut found = Vec::new();
    for peers in roles(watches) {
        if peers.len() < 2 {
            continue;
        }
        for &watch in &peers {
            let is_explained = |site: &Frame| {
                leaks.iter().any(|leak| {
                    let same = leak.site.as_ref().is_some_and(|blamed| {
                        (&blamed.function, &blamed.file) == (&site.function, &site.file) || leak.stack.contains(site)
                    });
                    same && leak.processes.contains(&watch.who().name())
                })
            };
            let most = excesses(watch, &peers).into_iter().filter(|excess| !is_explained(excess.site));
            if let Some(excess) = most.max_by_key(|excess| excess.bytes) {
                found.push(words::skew(&excess));
            }
        }
    }
    found
}

/// Groups ranks that do the same work: they have the same role, and at least half of their largest sites are the same.
fn roles<'a>(watches: &[&'a RankWatch]) -> Vec<Vec<&'a RankWatch>> {
    let mut roles: Vec<(Vec<Frame>, Vec<&RankWatch>)> = Vec::new();
    for &watch in watches {
        let own = largest_sites(watch);
        let known = roles.iter_mut().find(|(sites, members)| {
            if members.first().is_none_or(|peer| peer.facts.role != watch.facts.role) {
                return false;
            }
            let same = own.iter().filter(|site| sites.contains(site)).count();
            same * 2 >= own.len().max(sites.len())
        });
        match known {
            Some((_, members)) => members.push(watch),
            None => roles.push((own, vec![watch])),
        }
    }
    roles.into_iter().map(|(_, members)| members).collect()
}

/// Whether two devices are peers. The devices of one process share its work, so they are not compared.
fn are_peers(one: &RankWatch, other: &RankWatch) -> bool {
    let (one, other) = (&one.facts, &other.facts);
    (one.rank, &one.process) != (other.rank, &other.process)
}

fn largest_sites(watch: &RankWatch) -> Vec<Frame> {
    let mut sites: Vec<(u64, &Frame)> = watch
        .sites
        .iter()
        .filter_map(|site| Some((site.series(Per::Step).last()?.bytes, site.frame.as_deref()?)))
        .filter(|(bytes, _)| *bytes > 0)
        .collect();
    sites.sort_by(|a, b| b.cmp(a));
    sites.truncate(ROLE_SITES);
    sites.into_iter().map(|(_, frame)| frame.clone()).collect()
}

fn excesses<'a>(watch: &'a RankWatch, peers: &[&RankWatch]) -> Vec<Excess<'a>> {
    // Every peer has reached this boundary. A rank that is ahead is not compared beyond it.
    let until = peers.iter().map(|peer| peer.history.steps()).min().unwrap_or(0);
    let mut found = Vec::new();
    for site in watch.sites.iter().filter(|site| site.frame.is_some()) {
        let lowest = extreme(site.series(Per::Step), until, u64::min);
        if lowest < SKEW_BYTES_MIN {
            continue;
        }
        let others = peers.iter().filter(|peer| are_peers(watch, peer));
        let mut highest: Vec<u64> = others
            .map(|peer| {
                let same = peer.sites.iter().filter(|other| other.frame == site.frame);
                same.map(|other| extreme(other.series(Per::Step), until, u64::max)).max().unwrap_or(0)
            })
            .collect();
        highest.sort_unstable();
        let (Some(&peers_bytes), Some(&upper)) = (upper_median(&highest), highest.get(highest.len() * 3 / 4)) else {
            break;
        };
        let bytes = lowest.saturating_sub(peers_bytes);
        let allocated = watch.history.last_level().map_or(1, |level| level.counters.allocated_bytes.max(1));
        let share = bytes as f64 / allocated as f64;
        // A quarter of the peers may have an excess themselves; all others must be far below.
        let spread = upper.saturating_sub(peers_bytes);
        if bytes < SKEW_BYTES_MIN || share < SKEW_SHARE_MIN || bytes < spread.saturating_mul(4) {
            continue;
        }
        let since =
            site.series(Per::Step).points().iter().find(|point| point.bytes > peers_bytes.saturating_add(bytes / 2));
        found.push(Excess {
            who: watch.who(),
            peers: peers.iter().filter(|peer| are_peers(watch, peer)).map(|peer| peer.who()).collect(),
            site: site.frame.as_deref().unwrap_or_else(|| unreachable!("only sites with a frame come here")),
            bytes,
            peers_bytes,
            share,
            first_step: since.map(|point| point.step),
            first_epoch: since.map(|point| point.epoch),
            total_bytes: watch.facts.device_total_bytes,
        });
    }
    found
}

/// The lowest or highest of the last values up to a boundary.
fn extreme(series: &Series, until: u32, pick: fn(u64, u64) -> u64) -> u64 {
    let points = series.points();
    let known = points.partition_point(|point| point.at <= until);
    let from = until.saturating_sub(LASTS as u32);
    // The value at the begin of the range counts as well.
    let begun = points[..known].partition_point(|point| point.at <= from).saturating_sub(1);
    let values = points[begun..known].iter().map(|point| point.bytes);
    values.reduce(pick).unwrap_or(0)
}
