//! Whether a recorded training fits into a device of another size, as far as its peaks decide that.
//!
//! Guarantees: pure functions. [`Bound::Fits`] and [`Bound::Fails`] hold for any allocator settings that the recording
//! had: an allocator that never reaches its limit behaves as without one, and no allocator hands out more than it may
//! reserve. Between the two only a replay decides.
//!
//! Does not know what a program does that reads the size of its device and plans with it.

use memctl_model::Sample;

/// A usual size of devices and of MIG instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name on data sheets.
    pub name: &'static str,
    /// Bytes that programs can use on every device of the class, as the driver reports them.
    pub usable_bytes: u64,
}

/// Tenths of a GiB, rounded down.
const fn class(name: &'static str, tenths_gib: u64) -> Class {
    Class { name, usable_bytes: tenths_gib * (1 << 30) / 10 }
}

/// The usual sizes, the smallest first.
///
/// Devices of a class differ: with ECC, and with each driver, less of the same memory is usable. Each figure is at most
/// the lowest that is known of its class. Sources: "total capacity" in PyTorch's messages in public issues (RTX 3060
/// 11.6 GiB, T4 14.56, A10 21.9, RTX 5090 31.3, L40 44.4, A100 and H100 79.1, H100 NVL 93.0), and `nvidia-smi mig -lgip`
/// (A100 and H100: 9.75 for 1g.10gb, 19.6 for 1g.20gb, 39.5 for 3g.40gb). For the other classes 1 to 2 % of the name's
/// number of GiB are left out, and for HBM counted in powers of ten as much of what `nvidia-smi` shows.
pub const CLASSES: [Class; 15] = [
    class("10 GB", 95),
    class("12 GB", 109),
    class("16 GB", 145),
    class("20 GB", 194),
    class("24 GB", 219),
    class("32 GB", 312),
    class("40 GB", 391),
    class("48 GB", 442),
    class("64 GB", 630),
    class("80 GB", 788),
    class("94 GB", 928),
    class("96 GB", 940),
    class("141 GB", 1385),
    class("180 GB", 1770),
    class("192 GB", 1890),
];

/// Bytes that are left for memory outside the allocator where it was not measured: a CUDA context with the kernels of
/// PyTorch's libraries takes some hundred MiB, communicators take as much again.
pub const OUTSIDE_ALLOWANCE: u64 = 1 << 30;

/// Highest bytes of a process on its device outside the allocator; `None` if the driver's list of processes lacks it.
///
/// A process that keeps what it reserved shows it by its highest use. A process that gave much back before the driver
/// was read shows it by the use and the reserved bytes of one moment (`last`).
#[must_use]
pub fn outside_bytes(peak_reserved: u64, highest_used: Option<u64>, last: Option<(u64, u64)>) -> Option<u64> {
    let highest_used = highest_used?;
    let is_listed = Sample { process_used_bytes: Some(highest_used), ..Sample::default() }.lists_process(peak_reserved);
    let last = last.map(|(used, reserved)| used.saturating_sub(reserved)).filter(|&bytes| bytes > 0);
    // If the highest use is below the peak, the peak was between two samples.
    highest_used.checked_sub(peak_reserved).max(last).filter(|_| is_listed)
}

/// What one process needs on one of its devices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// Highest allocated bytes.
    pub peak_allocated_bytes: u64,
    /// Highest reserved bytes.
    pub peak_reserved_bytes: u64,
    /// Bytes outside the allocator; `None` if unknown.
    pub outside_bytes: Option<u64>,
    /// Bytes of the device that it used; `None` if unknown.
    pub device_bytes: Option<u64>,
    /// Bytes that other processes of the job need on the same device at the same time.
    pub beside_bytes: u64,
    /// The share of the device that the settings allow the process, if they limit it.
    pub fraction: Option<f64>,
    /// A request failed: what would have followed is not recorded.
    pub has_failed: bool,
}

/// Bytes that an allocator may reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveLimit {
    /// The bytes.
    pub bytes: u64,
    /// The settings set this limit, not the device.
    pub by_settings: bool,
}

/// What the peaks decide for a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The allocator never reaches its limit.
    Fits,
    /// A request fails: the program holds more than there is room for.
    Fails,
    /// The allocator reaches its limit. A replay shows whether giving back cached memory is enough.
    Open,
}

impl Demand {
    /// Bytes that are left for memory outside the allocator. Where it was not measured, it had at most the room beside
    /// the reserved memory.
    #[must_use]
    pub fn outside_or_allowance(&self) -> u64 {
        let room = self.device_bytes.map_or(u64::MAX, |device| device.saturating_sub(self.peak_reserved_bytes));
        self.outside_bytes.unwrap_or(OUTSIDE_ALLOWANCE.min(room))
    }

    /// Bytes of a device with which the allocator does not reach its limit.
    #[must_use]
    pub fn needed_bytes(&self) -> u64 {
        self.peak_reserved_bytes.saturating_add(self.outside_or_allowance())
    }

    /// What the allocator may reserve on a device with this many usable bytes.
    #[must_use]
    pub fn allowed(&self, device_bytes: u64) -> ReserveLimit {
        let taken = self.outside_or_allowance().saturating_add(self.beside_bytes);
        self.limited(device_bytes, device_bytes.saturating_sub(taken))
    }

    fn limited(&self, device_bytes: u64, left: u64) -> ReserveLimit {
        let share = self.fraction.map(|fraction| (device_bytes as f64 * fraction) as u64);
        match share.filter(|&share| share < left) {
            Some(bytes) => ReserveLimit { bytes, by_settings: true },
            None => ReserveLimit { bytes: left, by_settings: false },
        }
    }

    /// What the peaks decide for a device with this many usable bytes.
    #[must_use]
    pub fn bound(&self, device_bytes: u64) -> Bound {
        // What others need at their peak, and what was not measured, may be less at the moment of this peak.
        let most = self.limited(device_bytes, device_bytes.saturating_sub(self.outside_bytes.unwrap_or(0)));
        if self.peak_allocated_bytes > most.bytes {
            Bound::Fails
        } else if !self.has_failed && self.peak_reserved_bytes <= self.allowed(device_bytes).bytes {
            Bound::Fits
        } else {
            Bound::Open
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn classes_ascend_and_are_smaller_than_their_names() {
        let nominal = |class: &Class| class.name.strip_suffix(" GB").unwrap().parse::<u64>().unwrap() * GIB;
        assert!(CLASSES.is_sorted_by_key(|class| class.usable_bytes) && CLASSES.is_sorted_by_key(nominal));
        for class in CLASSES {
            assert!(class.usable_bytes < nominal(&class), "{}", class.name);
            assert!(class.usable_bytes * 10 >= nominal(&class) * 9, "{} is not far from its name", class.name);
        }
        // Figures from public messages.
        for (name, seen_hundredths) in [("16 GB", 1456), ("24 GB", 2199), ("32 GB", 3136), ("48 GB", 4440)] {
            let class = CLASSES.iter().find(|class| class.name == name).unwrap();
            assert!(class.usable_bytes <= seen_hundredths * GIB / 100, "{name}");
        }
    }

    #[test]
    fn memory_outside_is_what_the_driver_counts_beyond_the_allocator() {
        assert_eq!(outside_bytes(10 * GIB, Some(11 * GIB), None), Some(GIB));
        assert_eq!(outside_bytes(10 * GIB, None, Some((2 * GIB, GIB))), None, "the driver does not list it");
        assert_eq!(outside_bytes(10 * GIB, Some(GIB), Some((GIB, GIB / 2))), None, "it lists another process");
        assert_eq!(outside_bytes(10 * GIB, Some(9 * GIB), None), None, "the peak was between two samples");
        assert_eq!(outside_bytes(10 * GIB, Some(9 * GIB), Some((8 * GIB, 7 * GIB))), Some(GIB));
        assert_eq!(outside_bytes(0, Some(GIB), None), Some(GIB), "a context alone");
        assert_eq!(outside_bytes(GIB, Some(GIB), None), Some(0), "nothing outside");
    }

    #[test]
    fn peaks_decide_all_sizes_but_those_between_them() {
        let demand = Demand {
            peak_allocated_bytes: 10 * GIB,
            peak_reserved_bytes: 12 * GIB,
            outside_bytes: Some(GIB),
            ..Demand::default()
        };
        assert_eq!(demand.needed_bytes(), 13 * GIB);
        for (bytes, bound) in [
            (13 * GIB, Bound::Fits),
            (13 * GIB - 1, Bound::Open),
            (11 * GIB, Bound::Open),
            (11 * GIB - 1, Bound::Fails),
        ] {
            assert_eq!(demand.bound(bytes), bound, "{bytes}");
        }
        assert_eq!(demand.allowed(0), ReserveLimit { bytes: 0, by_settings: false });
        assert_eq!(demand.bound(0), Bound::Fails);
        // What was not measured may be nothing, and may be the allowance.
        let unmeasured = Demand { outside_bytes: None, ..demand };
        assert_eq!(unmeasured.bound(12 * GIB + OUTSIDE_ALLOWANCE), Bound::Fits);
        assert_eq!(unmeasured.bound(10 * GIB), Bound::Open);
        assert_eq!(unmeasured.bound(10 * GIB - 1), Bound::Fails);
        let narrow = Demand { device_bytes: Some(12 * GIB + GIB / 4), ..unmeasured };
        assert_eq!(narrow.needed_bytes(), 12 * GIB + GIB / 4, "it ran on this device");
        let failed = Demand { has_failed: true, ..demand };
        assert_eq!(failed.bound(100 * GIB), Bound::Open, "what follows is not recorded");
        assert_eq!(failed.bound(10 * GIB), Bound::Fails);
        let shared = Demand { beside_bytes: 20 * GIB, ..demand };
        assert_eq!((shared.bound(33 * GIB), shared.bound(32 * GIB)), (Bound::Fits, Bound::Open));
        assert_eq!(shared.bound(10 * GIB), Bound::Fails);
    }

    #[test]
    fn a_share_of_the_device_is_a_limit_too() {
        let demand = Demand {
            peak_allocated_bytes: 8 * GIB,
            peak_reserved_bytes: 9 * GIB,
            outside_bytes: Some(GIB),
            fraction: Some(0.5),
            ..Demand::default()
        };
        assert_eq!(demand.allowed(20 * GIB), ReserveLimit { bytes: 10 * GIB, by_settings: true });
        assert_eq!(demand.bound(18 * GIB), Bound::Fits);
        assert_eq!(demand.bound(16 * GIB), Bound::Open);
        assert_eq!(demand.bound(15 * GIB), Bound::Fails);
        let nearly_all = Demand { fraction: Some(0.99), ..demand };
        assert_eq!(nearly_all.allowed(20 * GIB), ReserveLimit { bytes: 19 * GIB, by_settings: false });
    }

    #[test]
    fn extreme_figures_do_not_overflow() {
        let all = Demand {
            peak_allocated_bytes: u64::MAX,
            peak_reserved_bytes: u64::MAX,
            outside_bytes: Some(u64::MAX),
            device_bytes: Some(0),
            beside_bytes: u64::MAX,
            fraction: Some(f64::NAN),
            has_failed: false,
        };
        assert_eq!((all.needed_bytes(), all.bound(u64::MAX)), (u64::MAX, Bound::Fails));
    }
}
