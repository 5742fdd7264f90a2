//! The bytes that sites held when growth began, at a later boundary, and at the end of the recording.
//!
//! Guarantees: memory that the first call at a site makes only once is not part of its growth.

use super::history::Per;
use super::series::Point;
use super::watch::{RankWatch, Site};
use crate::growth::FIRST_LEVEL_FACTOR;

/// At most one part in this many of the gain may be left for memory to count as given back.
const LEFT_SHARE: u64 = 5;

/// Whether the end of the recording shows that the gain of these sites since a boundary was given back. A site may have
/// older memory that was freed instead, such as a library's workspace: then its blocks decide.
pub(super) fn given_back<'w>(
    watch: &RankWatch,
    per: Per,
    begun_at: u32,
    sites: impl Iterator<Item = (usize, &'w Site)>,
) -> bool {
    let (mut bytes, mut blocks, mut left_at_most) = (Gain::default(), Gain::default(), 0_u64);
    for (index, site) in sites {
        let Some((bytes_at_end, blocks_at_end)) = watch.held_at_end(index) else { return false };
        let (then, last) = held(site, (per, begun_at), per);
        bytes.add(then, last, bytes_at_end);
        left_at_most = left_at_most.saturating_add(last.saturating_sub(then).min(bytes_at_end));
        let (then, last) = blocks_held(site, (per, begun_at), per);
        blocks.add(then, last, blocks_at_end);
    }
    let is_little = |left: u64| left <= bytes.gained / LEFT_SHARE;
    let are_blocks_gone = blocks.left <= blocks.gained / LEFT_SHARE;
    bytes.gained > 0 && is_little(bytes.left) && (is_little(left_at_most) || are_blocks_gone)
}

/// A gain of sites, and what is left of it at the end if older memory is there as before.
#[derive(Clone, Copy, Default)]
struct Gain {
    gained: u64,
    left: u64,
}

impl Gain {
    fn add(&mut self, then: u64, last: u64, at_end: u64) {
        self.gained = self.gained.saturating_add(last.saturating_sub(then));
        self.left = self.left.saturating_add(last.min(at_end).saturating_sub(then));
    }
}

/// Blocks of a site at the boundary at which growth began, and at the last boundary of the kind `per`.
fn blocks_held(site: &Site, (began_per, begun_at): (Per, u32), per: Per) -> (u64, u64) {
    let points = site.series(began_per).points();
    let next = points.partition_point(|point| point.at <= begun_at);
    let then = next.checked_sub(1).map_or(0, |index| u64::from(points[index].blocks));
    let later = points[next..].iter().map(|point| u64::from(point.blocks));
    let last = site.series(per).points().last().map_or(0, |last| u64::from(last.blocks));
    (later.min().map_or(then, |lowest| then.min(lowest)), last)
}

/// Bytes of a site at the boundary at which growth began, and at the last boundary of the kind `per`. What was freed since
/// the first of these was no part of the memory that grew.
pub(super) fn held(site: &Site, (began_per, begun_at): (Per, u32), per: Per) -> (u64, u64) {
    let points = site.series(began_per).points();
    let then = match site.series(began_per).bytes_at(begun_at) {
        0 => made_once(site, points, begun_at),
        then => then,
    };
    let later = points.iter().filter(|point| point.at > begun_at).map(|point| point.bytes);
    let then = later.min().map_or(then, |lowest| then.min(lowest));
    (then, site.series(per).points().last().map_or(0, |last| last.bytes))
}

/// Bytes of a site's first level, after the boundary at which growth began, that are not part of the growth. The first
/// call also makes memory that is made only once (a library's workspace, gradients). One typical rise of the first
/// level is growth.
fn made_once(site: &Site, points: &[Point], begun_at: u32) -> u64 {
    let held = &points[points.partition_point(|point| point.at <= begun_at || point.bytes == 0)..];
    let rises: Vec<u64> =
        held.windows(2).map(|pair| pair[1].bytes.saturating_sub(pair[0].bytes)).filter(|rise| *rise > 0).collect();
    let (Some(first), Some(largest)) = (held.first(), rises.iter().max()) else { return 0 };
    let typical = rises.iter().fold(0_u64, |sum, rise| sum.saturating_add(*rise)) / rises.len() as u64;
    let is_beyond = first.bytes > largest.saturating_mul(FIRST_LEVEL_FACTOR);
    // What another phase made and is still there was made once, even where the first level has no rise yet.
    let [now, at_first] = &site.phases;
    let grown = (0..now.len()).max_by_key(|&phase| now[phase].saturating_sub(at_first[phase]));
    let others =
        (0..now.len()).filter(|&phase| Some(phase) != grown).fold(0_u64, |sum, phase| sum.saturating_add(now[phase]));
    if is_beyond { first.bytes.saturating_sub(typical).max(others.min(first.bytes)) } else { 0 }
}
