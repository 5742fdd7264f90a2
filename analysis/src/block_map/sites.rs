//! Live memory by allocation site. Every event updates it, so the cost of a table depends on the sites that changed.
//!
//! Guarantees: the rows equal a scan of all blocks. An event costs one look-up, which needs no hashing if the stack's
//! previous block was born in the same epoch and phase. Sites without blocks are removed after their change was
//! reported; the sweeps that remove them cost a constant per added site. Beyond [`SITES_MAX`] sites with blocks,
//! further blocks are counted in the site without a stack. The sums stay true and a table stays within the wire
//! format's limit.

use std::collections::HashMap;

use memctl_model::{Phase, SiteRow, StackId};

/// A site's number.
pub(super) type SiteId = u32;

/// Maximum sites with blocks that are counted separately: half of the wire format's limit for a site table. All
/// further sites are counted in the row without a stack.
pub const SITES_MAX: usize = 1 << 18;
/// Stacks with higher numbers are looked up by hashing. A real session has fewer stacks; only damaged input has more.
const RECENT_MAX: usize = 1 << 20;
/// Sites without blocks that may exist beside those with blocks before a sweep removes them.
const EMPTY_FREE: usize = 1_024;
/// A sweep visits all sites. It runs only if at least one in this many sites was added since the last sweep.
const SWEEP_SHARE: usize = 4;

/// Stack, epoch and phase of birth.
type Key = (StackId, u32, Option<Phase>);

fn key(row: &SiteRow) -> Key {
    (row.stack, row.birth_epoch, row.birth_phase)
}

/// Blocks and bytes of a site at an earlier moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Level {
    blocks: u64,
    bytes: u64,
    /// Whether the site is in that moment's list of sites that may have changed since.
    is_listed: bool,
}

#[derive(Clone, Debug)]
struct Site {
    row: SiteRow,
    /// The state when changes were last reported.
    reported: Level,
    /// The state when the rows were last saved.
    kept: Level,
    is_vacant: bool,
}

impl Site {
    fn is_forgettable(&self) -> bool {
        self.row.blocks == 0 && !self.reported.is_listed && !self.kept.is_listed && !self.is_vacant
    }
}

/// The sites that may have changed since an earlier moment; `None` if there was no such moment yet.
type Moment = Option<Vec<SiteId>>;

/// The live memory of all sites.
#[derive(Clone, Debug, Default)]
pub(super) struct Sites {
    sites: Vec<Site>,
    vacant: Vec<SiteId>,
    numbers: HashMap<Key, SiteId>,
    /// The site of each stack's last block.
    recent: Vec<SiteId>,
    /// Sites with blocks.
    living: usize,
    /// Sites added since the last sweep.
    added: usize,
    /// Sites that sweeps visited in total.
    #[cfg(test)]
    visited: usize,
    reported: Moment,
    kept: Moment,
}

impl Sites {
    /// Counts a new block; returns its site.
    #[inline]
    pub(super) fn enter(&mut self, stack: StackId, epoch: u32, phase: Option<Phase>, bytes: u64) -> SiteId {
        let born = (stack, epoch, phase);
        let recent = self.recent.get(stack.0 as usize).copied();
        let site = match recent {
            Some(site) if self.is_at(site, born) => site,
            _ => self.find(born),
        };
        self.note(site);
        let row = &mut self.sites[site as usize].row;
        self.living += usize::from(row.blocks == 0);
        row.blocks += 1;
        row.bytes += bytes;
        site
    }

    fn is_at(&self, site: SiteId, born: Key) -> bool {
        self.sites.get(site as usize).is_some_and(|site| !site.is_vacant && key(&site.row) == born)
    }

    /// Subtracts a block that is no longer allocated from its site.
    #[inline]
    pub(super) fn leave(&mut self, site: SiteId, bytes: u64) {
        self.note(site);
        let row = &mut self.sites[site as usize].row;
        row.blocks -= 1;
        row.bytes -= bytes;
        self.living -= usize::from(row.blocks == 0);
    }

    /// Changes the size of a live block at a site because the map was corrected.
    pub(super) fn resize(&mut self, site: SiteId, from: u64, to: u64) {
        self.note(site);
        let row = &mut self.sites[site as usize].row;
        row.bytes = row.bytes - from + to;
    }

    /// Records the state of a site before it changes.
    #[inline]
    fn note(&mut self, number: SiteId) {
        let site = &mut self.sites[number as usize];
        let SiteRow { blocks, bytes, .. } = site.row;
        for (moment, level) in [(&mut self.reported, &mut site.reported), (&mut self.kept, &mut site.kept)] {
            if let Some(changed) = moment
                && !level.is_listed
            {
                *level = Level { blocks, bytes, is_listed: true };
                changed.push(number);
            }
        }
    }

    #[cold]
    fn find(&mut self, born: Key) -> SiteId {
        let site = match self.numbers.get(&born) {
            Some(&site) => site,
            None if self.living < SITES_MAX => self.add(born),
            None => {
                let without_stack = (StackId::NONE, 0, None);
                self.numbers.get(&without_stack).copied().unwrap_or_else(|| self.add(without_stack))
            }
        };
        let place = born.0.0 as usize;
        if place < RECENT_MAX {
            if place >= self.recent.len() {
                self.recent.resize(place + 1, SiteId::MAX);
            }
            self.recent[place] = site;
        }
        site
    }

    fn add(&mut self, born: Key) -> SiteId {
        let has_empty = self.sites.len() - self.vacant.len() > 2 * self.living + EMPTY_FREE;
        if has_empty && self.added >= self.sites.len() / SWEEP_SHARE {
            self.sweep();
            self.added = 0;
        }
        self.added += 1;
        let (stack, birth_epoch, birth_phase) = born;
        let row = SiteRow { stack, birth_epoch, birth_phase, blocks: 0, bytes: 0 };
        let site = Site { row, reported: Level::default(), kept: Level::default(), is_vacant: false };
        let number = match self.vacant.pop() {
            Some(number) => {
                self.sites[number as usize] = site;
                number
            }
            None => {
                self.sites.push(site);
                (self.sites.len() - 1) as SiteId
            }
        };
        self.numbers.insert(born, number);
        number
    }

    /// Removes sites without blocks whose change was reported.
    #[cold]
    fn sweep(&mut self) {
        #[cfg(test)]
        {
            self.visited += self.sites.len();
        }
        for (number, site) in self.sites.iter_mut().enumerate() {
            if site.is_forgettable() {
                site.is_vacant = true;
                self.numbers.remove(&key(&site.row));
                self.vacant.push(number as SiteId);
            }
        }
    }

    /// Removes all blocks from the sites. The reported and the saved states remain.
    pub(super) fn clear(&mut self) {
        for number in 0..self.sites.len() {
            if self.sites[number].row.blocks > 0 {
                self.note(number as SiteId);
                let row = &mut self.sites[number].row;
                (row.blocks, row.bytes) = (0, 0);
            }
        }
        self.living = 0;
    }

    /// Number of sites with blocks.
    pub(super) fn living(&self) -> usize {
        self.living
    }

    /// Every site with blocks, sorted.
    pub(super) fn rows(&self) -> Vec<SiteRow> {
        // The number of rows is known, so the vector never grows.
        let mut rows = Vec::with_capacity(self.living);
        rows.extend(self.sites.iter().map(|site| site.row).filter(|row| row.blocks > 0));
        rows.sort_unstable_by_key(key);
        rows
    }

    /// The same as [`Self::rows`]. The next [`Self::changes`] returns the changes since this call.
    pub(super) fn take_rows(&mut self) -> Vec<SiteRow> {
        for number in self.reported.get_or_insert_default().drain(..) {
            self.sites[number as usize].reported.is_listed = false;
        }
        self.rows()
    }

    /// The sites that changed since this or [`Self::take_rows`] was last called. Sites without blocks have 0 blocks.
    pub(super) fn changes(&mut self) -> Vec<SiteRow> {
        let Some(changed) = &mut self.reported else { return self.take_rows() };
        let sites = &mut self.sites;
        let rows = changed.drain(..).filter_map(|number| {
            let Site { row, reported, .. } = &mut sites[number as usize];
            reported.is_listed = false;
            ((row.blocks, row.bytes) != (reported.blocks, reported.bytes)).then_some(*row)
        });
        sorted(rows)
    }

    /// Saves the present rows, so that [`Self::kept`] can return them after the map has changed.
    pub(super) fn keep(&mut self) {
        for number in self.kept.get_or_insert_default().drain(..) {
            self.sites[number as usize].kept.is_listed = false;
        }
    }

    /// The rows at the last call of [`Self::keep`].
    pub(super) fn kept(&self) -> Vec<SiteRow> {
        let then = self.sites.iter().map(|site| match site.kept {
            Level { blocks, bytes, is_listed: true } => SiteRow { blocks, bytes, ..site.row },
            _ => site.row,
        });
        sorted(then.filter(|row| row.blocks > 0))
    }
}

fn sorted(rows: impl Iterator<Item = SiteRow>) -> Vec<SiteRow> {
    let mut rows: Vec<SiteRow> = rows.collect();
    rows.sort_unstable_by_key(key);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(sites: &mut Sites, stack: usize) -> SiteId {
        sites.enter(StackId(stack as u32), 0, None, 512)
    }

    #[test]
    fn sites_past_the_bound_cost_no_sweeps_and_their_sums_stay_true() {
        let mut sites = Sites::default();
        let count = SITES_MAX + 100_000;
        for stack in 1..=count {
            enter(&mut sites, stack);
        }
        assert_eq!(sites.living(), SITES_MAX + 1, "those beyond are one");
        assert_eq!(sites.visited, 0, "there was nothing to sweep");
        let rows = sites.rows();
        assert_eq!(rows.iter().map(|row| row.blocks).sum::<u64>(), count as u64);
        let merged = rows.iter().find(|row| row.stack == StackId::NONE).unwrap();
        assert_eq!((merged.blocks, merged.bytes), (100_000, 100_000 * 512));
    }

    #[test]
    fn sites_that_come_and_go_are_swept_at_a_constant_cost() {
        let mut sites = Sites::default();
        sites.take_rows();
        let (living, count) = (1_000, 1_000_000);
        let mut alive = std::collections::VecDeque::new();
        for stack in 1..=count {
            alive.push_back(enter(&mut sites, stack));
            if alive.len() > living {
                sites.leave(alive.pop_front().unwrap(), 512);
            }
            // Sites are not removed before their change is reported. This test reports rarely, so most sweeps find
            // nothing to remove.
            if stack % 200_000 == 0 {
                sites.changes();
            }
        }
        assert!(sites.visited <= 2 * SWEEP_SHARE * count, "{} sites visited", sites.visited);
        assert!(sites.sites.len() <= 450_000, "{} sites kept", sites.sites.len());
        assert_eq!(sites.rows().len(), living);
    }
}
