//! Subjects: devices of processes of ranks, and how findings name several of them.
//!
//! Guarantees: processes named by their ranks are listed as ranks, others by their names. A device is named only if
//! the other devices of its process do not show the same. Lists are sorted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::wording;

/// Maximum number of names in a sentence; more are counted.
const NAMES_MAX: usize = 6;

/// A device of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// The rank.
    pub rank: u32,
    /// The process's name within its job; empty if its rank names it.
    pub process: Arc<str>,
    /// The device's index within the process.
    pub device: u8,
}

impl Subject {
    /// The key of its process.
    fn key(&self) -> (u32, &str) {
        (self.rank, &self.process)
    }

    /// The name of the process: `rank 0`, `worker-1`.
    #[must_use]
    pub fn name(&self) -> String {
        if self.process.is_empty() { format!("rank {}", self.rank) } else { self.process.to_string() }
    }

    /// Whether both belong to one process.
    #[must_use]
    pub fn is_same_process(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

/// The ranks of several subjects, sorted.
#[must_use]
pub fn ranks<'a>(some: impl IntoIterator<Item = &'a Subject>) -> Vec<u32> {
    some.into_iter().map(|who| who.rank).collect::<BTreeSet<u32>>().into_iter().collect()
}

/// The names of several subjects' processes, each once, by rank.
#[must_use]
pub fn processes<'a>(some: impl IntoIterator<Item = &'a Subject>) -> Vec<String> {
    let names: BTreeSet<(u32, String)> = some.into_iter().map(|who| (who.rank, who.name())).collect();
    names.into_iter().map(|(_, name)| name).collect()
}

/// Whether these are all processes, and more than one.
#[must_use]
pub fn are_all(some: &[&Subject], all: &[&Subject]) -> bool {
    let count = |subjects: &[&Subject]| subjects.iter().map(|who| who.key()).collect::<BTreeSet<_>>().len();
    count(all) > 1 && count(some) == count(all)
}

/// The subjects in words: `rank 0`, `ranks 0-2, 7`, `all 4 ranks`, `worker-1`, `device 1 of rank 0`.
#[must_use]
pub fn on(some: &[&Subject], all: &[&Subject]) -> String {
    let devices = |subjects: &[&Subject]| -> BTreeMap<(u32, String), BTreeSet<u8>> {
        let mut devices: BTreeMap<_, BTreeSet<u8>> = BTreeMap::new();
        for who in subjects {
            devices.entry((who.rank, who.process.to_string())).or_default().insert(who.device);
        }
        devices
    };
    let (shown, known) = (devices(some), devices(all));
    let parts: BTreeSet<&BTreeSet<u8>> = shown
        .iter()
        .filter(|(process, own)| known.get(*process).is_some_and(|all| all.len() > own.len()))
        .map(|(_, own)| own)
        .collect();
    let processes = named(some, all);
    // Devices are named only if all processes have the same ones. Otherwise the sentence would need a list.
    match (parts.len(), parts.first()) {
        (1, Some(own)) if shown.values().all(|devices| devices == *own) => {
            let numbers: Vec<String> = own.iter().map(u8::to_string).collect();
            format!("device{} {} of {processes}", if own.len() == 1 { "" } else { "s" }, numbers.join(", "))
        }
        _ => processes,
    }
}

/// The processes in words, without devices.
fn named(some: &[&Subject], all: &[&Subject]) -> String {
    if all.iter().chain(some).all(|who| who.process.is_empty()) {
        let known = ranks(all.iter().copied()).len();
        return wording::ranks(&ranks(some.iter().copied()), known);
    }
    let count = processes(some.iter().copied()).len();
    if are_all(some, all) {
        return format!("all {count} processes");
    }
    let (plain, others): (Vec<&Subject>, Vec<&Subject>) = some.iter().copied().partition(|who| who.process.is_empty());
    let mut names = if plain.is_empty() { Vec::new() } else { vec![wording::ranks(&ranks(plain), usize::MAX)] };
    names.extend(processes(others));
    match names.as_slice() {
        [] => "no process".to_owned(),
        names if names.len() <= NAMES_MAX => names.join(", "),
        names => format!("{count} processes ({}, …)", names[..NAMES_MAX].join(", ")),
    }
}

/// The same for use in brackets: `0-2`, `trainer, worker-2`.
#[must_use]
pub fn listed(some: &[&Subject], all: &[&Subject]) -> String {
    let words = named(some, all);
    let bare = words.strip_prefix("ranks ").or_else(|| words.strip_prefix("rank "));
    bare.map(str::to_owned).unwrap_or(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(rank: u32, process: &str, device: u8) -> Subject {
        Subject { rank, process: process.into(), device }
    }

    fn said(some: &[Subject], all: &[Subject]) -> String {
        on(&some.iter().collect::<Vec<_>>(), &all.iter().collect::<Vec<_>>())
    }

    #[test]
    fn ranks_are_numbers_and_others_names() {
        let all: Vec<Subject> = (0..4).map(|rank| who(rank, "", 0)).collect();
        assert_eq!(said(&all[2..3], &all), "rank 2");
        assert_eq!(said(&[all[3].clone(), all[0].clone(), all[1].clone()], &all), "ranks 0-1, 3");
        assert_eq!(said(&all, &all), "all 4 ranks");
        let all = [who(0, "trainer", 0), who(0, "worker-1", 0), who(0, "worker-2", 0)];
        assert_eq!(said(&all[1..2], &all), "worker-1");
        assert_eq!(said(&all[1..], &all), "worker-1, worker-2");
        assert_eq!(said(&all, &all), "all 3 processes");
        assert_eq!(listed(&[&all[0], &all[2]], &[&all[0], &all[1], &all[2]]), "trainer, worker-2");
    }

    #[test]
    fn a_device_is_named_where_the_others_of_its_process_do_not_show_the_same() {
        let all = [who(0, "", 0), who(0, "", 1)];
        assert_eq!(said(&all[1..], &all), "device 1 of rank 0");
        assert_eq!(said(&all, &all), "rank 0");
        assert_eq!(said(&[], &all), "no rank");
        let four: Vec<Subject> = (0..2).flat_map(|rank| [who(rank, "", 0), who(rank, "", 1)]).collect();
        assert_eq!(said(&[four[1].clone(), four[3].clone()], &four), "device 1 of all 2 ranks");
    }
}
