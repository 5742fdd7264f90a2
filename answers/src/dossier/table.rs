//! Live memory by site at two epoch ends and at the peak, in one table, with the class of each site.
//!
//! Guarantees: every site of one of these moments has a row; sums saturate. A site's class is the one with most of its
//! bytes at the peak, if the ledger listed its blocks.

use std::collections::{BTreeMap, HashMap};

use crate::Frame;
use crate::ledger::Block;
use crate::sites::RankSites;

/// The class with most bytes of each site.
#[derive(Clone, Debug, Default)]
pub struct SiteClasses(HashMap<Option<Frame>, String>);

impl SiteClasses {
    /// Computes the classes from the live blocks of a ledger.
    #[must_use]
    pub fn new(blocks: &[Block]) -> Self {
        let mut sums: HashMap<&Option<Frame>, BTreeMap<&str, u64>> = HashMap::new();
        for block in blocks {
            let sum = sums.entry(&block.site).or_default().entry(&block.class).or_default();
            *sum = sum.saturating_add(block.bytes);
        }
        let most = |classes: BTreeMap<&str, u64>| {
            classes.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(class, _)| class.to_owned())
        };
        Self(sums.into_iter().filter_map(|(site, classes)| Some((site.clone(), most(classes)?))).collect())
    }

    /// The class of a site.
    #[must_use]
    pub fn of(&self, site: &Option<Frame>) -> Option<&str> {
        self.0.get(site).map(String::as_str)
    }
}

/// A site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The innermost frame of the user's own code; `None` without a stack.
    pub site: Option<Frame>,
    /// Live at the end of the last epoch.
    pub live_bytes: u64,
    /// Blocks of these.
    pub live_blocks: u64,
    /// Live at the end of the early epoch; `None` where there is none.
    pub early_bytes: Option<u64>,
    /// Live when most was allocated; `None` where that is not known.
    pub peak_bytes: Option<u64>,
}

/// The rows, most bytes first.
#[must_use]
pub fn rows(late: &RankSites, early: Option<&RankSites>, peak: Option<&RankSites>) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut places: HashMap<Option<Frame>, usize> = HashMap::new();
    let mut add = |from: &RankSites, put: fn(&mut Row, u64, u64)| {
        for site in &from.sites {
            let place = *places.entry(site.site.clone()).or_insert_with(|| {
                rows.push(Row {
                    site: site.site.clone(),
                    live_bytes: 0,
                    live_blocks: 0,
                    early_bytes: early.map(|_| 0),
                    peak_bytes: peak.map(|_| 0),
                });
                rows.len() - 1
            });
            put(&mut rows[place], site.live_bytes, site.live_blocks);
        }
    };
    add(late, |row, bytes, blocks| {
        row.live_bytes = row.live_bytes.saturating_add(bytes);
        row.live_blocks = row.live_blocks.saturating_add(blocks);
    });
    if let Some(early) = early {
        add(early, |row, bytes, _| row.early_bytes = row.early_bytes.map(|sum| sum.saturating_add(bytes)));
    }
    if let Some(peak) = peak {
        add(peak, |row, bytes, _| row.peak_bytes = row.peak_bytes.map(|sum| sum.saturating_add(bytes)));
    }
    rows.sort_by_key(|row| std::cmp::Reverse((row.live_bytes, row.peak_bytes, row.early_bytes)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sites::Site;

    fn frame(line: u32) -> Frame {
        Frame { function: "f".into(), file: "/home/me/a.py".into(), line: Some(line) }
    }

    fn sites(of: &[(u32, u64)]) -> RankSites {
        let site =
            |&(line, live_bytes): &(u32, u64)| Site { live_bytes, live_blocks: 1, ..Site::new(vec![frame(line)]) };
        RankSites { sites: of.iter().map(site).collect(), ..RankSites::default() }
    }

    #[test]
    fn every_site_has_its_row() {
        let (late, early, peak) = (sites(&[(1, 5), (2, 9), (1, 5)]), sites(&[(1, 4), (3, 2)]), sites(&[(4, 8)]));
        let rows = rows(&late, Some(&early), Some(&peak));
        let short: Vec<_> = rows
            .iter()
            .map(|row| (row.site.as_ref().unwrap().line.unwrap(), row.live_bytes, row.early_bytes, row.peak_bytes))
            .collect();
        let expected =
            [(1, 10, Some(4), Some(0)), (2, 9, Some(0), Some(0)), (4, 0, Some(0), Some(8)), (3, 0, Some(2), Some(0))];
        assert_eq!(short, expected);
        assert_eq!(super::rows(&late, None, None)[0].early_bytes, None);
    }

    #[test]
    fn a_site_is_of_the_class_that_has_most_of_it() {
        let block = |class: &str, bytes| Block {
            address: 0,
            bytes,
            requested_bytes: bytes,
            class: class.into(),
            birth_epoch: 0,
            birth_step: 0,
            birth_phase: None,
            site: None,
            owner: None,
        };
        let classes = SiteClasses::new(&[block("gradients", 2), block("activations", 3), block("gradients", 2)]);
        assert_eq!(classes.of(&None), Some("gradients"));
        assert_eq!(classes.of(&Some(Frame { function: String::new(), file: String::new(), line: None })), None);
    }
}
