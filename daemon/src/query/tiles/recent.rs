//! A least-recently-used cache, bounded in bytes.
//!
//! Guarantees: the entries never exceed the bound in total. The least recently used entry is evicted first. A value
//! larger than the bound is not stored. A returned value remains valid after its eviction.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The cache; see the module.
pub(super) struct Recent<K, V> {
    bytes_max: usize,
    kept: Mutex<CacheEntries<K, V>>,
}

struct CacheEntries<K, V> {
    bytes: usize,
    /// The number of uses so far; each use has its own number.
    uses: u64,
    by_key: HashMap<K, One<V>>,
    by_use: BTreeMap<u64, K>,
}

struct One<V> {
    value: Arc<V>,
    bytes: usize,
    used: u64,
}

impl<K: Clone + Eq + Hash, V> Recent<K, V> {
    pub fn new(bytes_max: usize) -> Self {
        let kept = CacheEntries { bytes: 0, uses: 0, by_key: HashMap::new(), by_use: BTreeMap::new() };
        Self { bytes_max, kept: Mutex::new(kept) }
    }

    /// The value of a key. The call counts as a use.
    pub fn get(&self, key: &K) -> Option<Arc<V>> {
        let mut kept = self.lock();
        let CacheEntries { uses, by_key, by_use, .. } = &mut *kept;
        let one = by_key.get_mut(key)?;
        *uses += 1;
        by_use.remove(&one.used);
        by_use.insert(*uses, key.clone());
        one.used = *uses;
        Some(one.value.clone())
    }

    /// Stores a value of `bytes` bytes and replaces an earlier value of the key.
    pub fn put(&self, key: K, value: Arc<V>, bytes: usize) {
        let mut kept = self.lock();
        kept.remove(&key);
        if bytes > self.bytes_max {
            return;
        }
        while kept.bytes + bytes > self.bytes_max {
            let Some((_, oldest)) = kept.by_use.pop_first() else { break };
            kept.remove(&oldest);
        }
        kept.uses += 1;
        let used = kept.uses;
        kept.bytes += bytes;
        kept.by_use.insert(used, key.clone());
        kept.by_key.insert(key, One { value, bytes, used });
    }

    fn lock(&self) -> MutexGuard<'_, CacheEntries<K, V>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash, V> CacheEntries<K, V> {
    fn remove(&mut self, key: &K) {
        if let Some(gone) = self.by_key.remove(key) {
            self.by_use.remove(&gone.used);
            self.bytes -= gone.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let recent = Recent::new(100);
        for key in 0..4 {
            recent.put(key, Arc::new(key), 25);
        }
        assert!(recent.get(&0).is_some());
        recent.put(4, Arc::new(4), 30);
        let there: Vec<i32> = (0..5).filter(|key| recent.get(key).is_some()).collect();
        assert_eq!(there, [0, 3, 4]);
        recent.put(5, Arc::new(5), 101);
        assert!(recent.get(&5).is_none() && recent.get(&0).is_some(), "too large by itself");
    }

    proptest! {
        #[test]
        fn it_never_comes_to_more_than_its_bound(puts in prop::collection::vec((0_u8..9, 0_usize..60), 0..200)) {
            let recent = Recent::new(100);
            for (key, bytes) in puts {
                recent.put(key, Arc::new(bytes), bytes);
                let kept = recent.lock();
                prop_assert!(kept.bytes <= 100);
                prop_assert_eq!(kept.bytes, kept.by_key.values().map(|one| one.bytes).sum::<usize>());
                prop_assert_eq!(kept.by_use.len(), kept.by_key.len());
            }
        }
    }
}
