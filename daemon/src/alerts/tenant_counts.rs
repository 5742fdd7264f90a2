//! A count since the daemon started, by tenant, because a caller of one tenant gets only the figures of this tenant.
//!
//! Guarantees: the sum counts everything. Memory is bounded: when there are too many tenants, the one with the lowest
//! count is forgotten.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::store::Scope;

/// The most tenants with a count of their own.
const TENANTS_MAX: usize = 4_096;

/// The count; see the module.
#[derive(Default)]
pub(super) struct ByTenant(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    sum: u64,
    tenants: BTreeMap<String, u64>,
}

impl ByTenant {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts more of a tenant.
    pub(super) fn add(&self, tenant: &str, more: u64) {
        let mut counts = self.counts();
        counts.sum = counts.sum.saturating_add(more);
        if !counts.tenants.contains_key(tenant) && counts.tenants.len() >= TENANTS_MAX {
            let lowest = counts.tenants.iter().min_by_key(|(_, count)| **count).map(|(tenant, _)| tenant.clone());
            lowest.and_then(|tenant| counts.tenants.remove(&tenant));
        }
        let count = counts.tenants.entry(tenant.to_owned()).or_default();
        *count = count.saturating_add(more);
    }

    /// The count of one tenant, or of all.
    pub(super) fn of(&self, scope: &Scope) -> u64 {
        let counts = self.counts();
        match scope {
            Scope::All => counts.sum,
            Scope::One(tenant) => counts.tenants.get(tenant.name()).copied().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Tenant;

    #[test]
    fn a_tenant_sees_its_own_count_and_the_sum_has_all() {
        let (counts, of) = (ByTenant::default(), |name: &str| Scope::One(Tenant::stored(name)));
        counts.add("a", 2);
        counts.add("b", 3);
        assert_eq!((counts.of(&of("a")), counts.of(&of("b")), counts.of(&of("c"))), (2, 3, 0));
        for number in 0..TENANTS_MAX {
            counts.add(&format!("other-{number}"), 1);
        }
        assert_eq!((counts.of(&of("b")), counts.of(&Scope::All)), (3, 5 + TENANTS_MAX as u64));
        assert!(counts.counts().tenants.len() <= TENANTS_MAX);
    }
}
