//! The ledger of a rank: all memory in use on the device, by its user.
//!
//! Guarantees: allocated + cached + NCCL + context and libraries + other processes + unexplained = device used, for
//! any set of measurements. A part that was not measured is `None`; its bytes are then in the unexplained rest. NCCL's
//! bytes are then in context and libraries. Measurements and the allocator's state are from different moments, so each
//! measurement is compared with the bytes that the allocator held when it was taken. A negative rest is shown:
//! measurements of different moments can disagree, and the rest shows by how much.

use memctl_model::Sample;

use crate::classes::Shares;

/// All memory in use on a device, in bytes; see the module's documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Allocated by the program, by class.
    pub classes: Shares,
    /// Reserved and not allocated.
    pub cached_bytes: u64,
    /// Used by NCCL's communicators, if NCCL reports it.
    pub nccl_bytes: Option<u64>,
    /// Used by this process outside the allocator and NCCL's figure: CUDA context, kernels, libraries.
    pub context_bytes: Option<u64>,
    /// Used by other processes.
    pub others_bytes: Option<u64>,
    /// The rest; negative if the parts exceed the whole.
    pub unexplained_bytes: Option<i64>,
    /// In use on the device, by all processes.
    pub device_used_bytes: Option<u64>,
    /// All bytes of the device.
    pub device_total_bytes: Option<u64>,
    /// When the device was measured, ns since the Unix epoch.
    pub measured_ns: Option<u64>,
}

/// The bytes that the allocator held when figures were measured; `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldThen {
    /// When this process's use was measured.
    pub at_process_bytes: Option<u64>,
    /// When the device's use was measured.
    pub at_device_bytes: Option<u64>,
}

impl Ledger {
    /// The ledger of an allocator's state (allocated bytes by class, reserved bytes) and of the measurement nearest to
    /// it in time.
    #[must_use]
    pub fn new(classes: Shares, reserved_bytes: u64, sample: Option<&Sample>, then: HeldThen) -> Self {
        let allocated = classes.total();
        let cached_bytes = reserved_bytes.saturating_sub(allocated);
        let ours = allocated.saturating_add(cached_bytes);
        let nccl_bytes = sample.and_then(|sample| sample.nccl_bytes);
        // A list of processes that lacks this process shows neither its memory nor that of others.
        let listed = sample.filter(|sample| sample.lists_process(then.at_process_bytes.unwrap_or(ours)));
        let context_bytes = listed.and_then(|sample| sample.process_used_bytes).map(|used| {
            let beside = used.saturating_sub(then.at_process_bytes.unwrap_or(ours));
            beside.saturating_sub(nccl_bytes.unwrap_or(0))
        });
        let others_bytes = listed.and_then(|sample| sample.foreign_used_bytes);
        // The device's use at the moment of the state: the measured use plus what the allocator has taken or released
        // since.
        let device_used_bytes = sample.and_then(|sample| sample.device_used_bytes).map(|used| {
            let beside = used.saturating_sub(then.at_device_bytes.unwrap_or(ours));
            if then.at_device_bytes.is_some() { beside.saturating_add(ours) } else { used }
        });
        let parts = [nccl_bytes, context_bytes, others_bytes];
        let explained = i128::from(ours) + parts.into_iter().flatten().map(i128::from).sum::<i128>();
        let unexplained_bytes = device_used_bytes.map(|used| {
            let rest = i128::from(used) - explained;
            rest.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
        });
        Self {
            classes,
            cached_bytes,
            nccl_bytes,
            context_bytes,
            others_bytes,
            unexplained_bytes,
            device_used_bytes,
            device_total_bytes: sample.and_then(|sample| sample.device_total_bytes),
            measured_ns: device_used_bytes.and(sample.map(|sample| sample.time_ns)),
        }
    }

    /// Allocated bytes of all classes.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.classes.total()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classes::Class;
    use proptest::prelude::*;

    const BYTES: u64 = 1 << 50;

    proptest! {
        #[test]
        fn the_parts_sum_to_what_the_device_says(
            allocated in 0..BYTES,
            reserved in 0..BYTES,
            used in 0..BYTES,
            process in prop::option::of(0..BYTES),
            foreign in prop::option::of(0..BYTES),
            nccl in prop::option::of(0..BYTES),
        ) {
            let mut classes = Shares::default();
            classes.add(Class::Activations, allocated / 2);
            classes.add(Class::Unknown, allocated - allocated / 2);
            let sample = Sample {
                device_used_bytes: Some(used),
                process_used_bytes: process,
                foreign_used_bytes: foreign,
                nccl_bytes: nccl,
                ..Sample::default()
            };
            let ledger = Ledger::new(classes, reserved, Some(&sample), HeldThen::default());
            let parts = ledger.allocated_bytes() as i64
                + ledger.cached_bytes as i64
                + ledger.nccl_bytes.unwrap_or(0) as i64
                + ledger.context_bytes.unwrap_or(0) as i64
                + ledger.others_bytes.unwrap_or(0) as i64
                + ledger.unexplained_bytes.unwrap();
            prop_assert_eq!(parts, used as i64);
            prop_assert_eq!(ledger.nccl_bytes, nccl);
            prop_assert_eq!(ledger.allocated_bytes() + ledger.cached_bytes, reserved.max(allocated));
        }
    }

    #[test]
    fn what_was_not_measured_is_not_known() {
        let ledger = Ledger::new(Shares::default(), 7, None, HeldThen::default());
        assert_eq!((ledger.cached_bytes, ledger.context_bytes, ledger.unexplained_bytes), (7, None, None));
        assert_eq!(ledger.measured_ns, None);
    }

    #[test]
    fn what_nccl_tells_is_taken_out_of_the_context() {
        let ledger = |process, nccl| {
            let sample = Sample {
                device_used_bytes: Some(1_000),
                process_used_bytes: process,
                foreign_used_bytes: Some(0),
                nccl_bytes: nccl,
                ..Sample::default()
            };
            let ledger = Ledger::new(Shares::default(), 300, Some(&sample), HeldThen::default());
            (ledger.nccl_bytes, ledger.context_bytes, ledger.unexplained_bytes)
        };
        assert_eq!(ledger(Some(1_000), None), (None, Some(700), Some(0)));
        assert_eq!(ledger(Some(1_000), Some(500)), (Some(500), Some(200), Some(0)));
        assert_eq!(ledger(None, Some(500)), (Some(500), None, Some(200)));
        assert_eq!(
            ledger(Some(1_000), Some(800)),
            (Some(800), Some(0), Some(-100)),
            "the parts exceed the whole, and it shows"
        );
    }

    #[test]
    fn a_list_that_lacks_the_process_shows_nothing_about_it_or_others() {
        let of = |process| {
            let sample = Sample {
                device_used_bytes: Some(9_600),
                process_used_bytes: process,
                foreign_used_bytes: Some(0),
                ..Sample::default()
            };
            let ledger = Ledger::new(Shares::default(), 100, Some(&sample), HeldThen::default());
            (ledger.context_bytes, ledger.others_bytes, ledger.unexplained_bytes)
        };
        assert_eq!(of(Some(0)), (None, None, Some(9_500)), "the process holds at least 100 bytes");
        assert_eq!(of(Some(9_600)), (Some(9_500), Some(0), Some(0)), "listed, so all of it is its own");
    }

    #[test]
    fn a_process_that_was_measured_earlier_has_the_same_context() {
        const MIB: u64 = 1 << 20;
        // The process was measured when 2,000 MiB were reserved; now 2,786 MiB are reserved.
        let sample = Sample {
            device_used_bytes: Some(3000 * MIB),
            process_used_bytes: Some(2818 * MIB),
            foreign_used_bytes: Some(182 * MIB),
            ..Sample::default()
        };
        let mut classes = Shares::default();
        classes.add(Class::Activations, 2700 * MIB);
        let then = HeldThen { at_process_bytes: Some(2000 * MIB), at_device_bytes: Some(2000 * MIB) };
        let ledger = Ledger::new(classes, 2786 * MIB, Some(&sample), then);
        assert_eq!((ledger.context_bytes, ledger.unexplained_bytes), (Some(818 * MIB), Some(0)));
        assert_eq!(ledger.device_used_bytes, Some(3786 * MIB));
    }
}
