//! A cache of replay results.
//!
//! Guarantees: at most [`KEPT`] results; the least recently used one is evicted first.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// The most results of a kind: some kilobytes each.
const KEPT: usize = 64;

/// See the module.
pub(super) struct Cache<K, V>(Mutex<VecDeque<(K, V)>>);

impl<K: PartialEq, V: Clone> Cache<K, V> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(VecDeque::new()))
    }

    pub(super) fn known(&self, key: &K) -> Option<V> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(known, _)| known == key)?;
        let one = kept.remove(at)?;
        let done = one.1.clone();
        kept.push_back(one);
        Some(done)
    }

    pub(super) fn keep(&self, key: K, done: V) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(known, _)| *known != key);
        kept.push_back((key, done));
        while kept.len() > KEPT {
            kept.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_longest_ago_goes_first() {
        let kept = Cache::new();
        (0..KEPT).for_each(|number| kept.keep(number, ()));
        assert!(kept.known(&0).is_some(), "and is the last to go now");
        kept.keep(200, ());
        let is_kept = |number: usize| kept.known(&number).is_some();
        assert!(is_kept(0) && !is_kept(1) && is_kept(2) && is_kept(200));
    }
}
