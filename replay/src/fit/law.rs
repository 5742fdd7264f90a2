//! A request's bytes as a function of the number that changed, derived from its bytes at two numbers.
//!
//! Guarantees: at the two numbers the result is the recorded bytes. It is never negative and never above the largest
//! request. Bytes that fell are not extrapolated: they stay at their last value.

use memctl_model::allocator::REQUEST_BYTES_MAX;

use super::split::Split;
use super::{Bound, Scale};

/// Deviation within which a size counts as proportional: tensors contain a few elements that do not scale, and sizes
/// are padded.
const PADDING_BYTES: f64 = 512.0;

/// The dependency of a request's bytes on the number; see the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Law {
    /// Always the same.
    Constant(u64),
    /// Proportional to the number.
    Linear {
        /// Bytes per one of the number.
        each: f64,
    },
    /// Proportional to the square of the number.
    Quadratic {
        /// Bytes per one of the square.
        each: f64,
    },
    /// The sum of a constant part and a proportional part.
    Affine {
        /// The constant part.
        base: f64,
        /// Bytes per one of the number.
        each: f64,
    },
    /// The sum of a part proportional to the number and a part proportional to its square.
    Mixed {
        /// Bytes per one of the number.
        linear: f64,
        /// Bytes per one of the square.
        square: f64,
    },
    /// Fewer bytes at the larger number, because a library chose another algorithm.
    Fallen {
        /// Bytes at the smaller number.
        before: u64,
        /// Bytes at the larger number.
        bytes: u64,
    },
    /// Known at one number only: either constant or proportional.
    Doubtful {
        /// The number.
        number: f64,
        /// Its bytes there.
        bytes: u64,
        /// Whether it is more likely proportional.
        is_proportional: bool,
    },
    /// The buffer of a sum that is split over blocks of threads.
    Split(Split),
    /// Seen only in the larger recording.
    Unmatched {
        /// The number of that recording.
        number: f64,
        /// Its bytes there.
        bytes: u64,
    },
}

impl Law {
    /// The law that follows from the bytes at two numbers, the smaller first.
    pub(super) fn of((few, before): (f64, u64), (many, bytes): (f64, u64)) -> Self {
        if before == bytes {
            return Self::Constant(bytes);
        }
        if bytes < before {
            return Self::Fallen { before, bytes };
        }
        let (low, high, ratio) = (before as f64, bytes as f64, many / few);
        if (high - low * ratio).abs() <= PADDING_BYTES {
            return Self::Linear { each: high / many };
        }
        if (high - low * ratio * ratio).abs() <= PADDING_BYTES {
            return Self::Quadratic { each: high / (many * many) };
        }
        let each = (high - low) / (many - few);
        let base = low - each * few;
        if base >= 0.0 {
            return Self::Affine { base, each };
        }
        let square = (high / many - low / few) / (many - few);
        let linear = low / few - square * few;
        if linear >= 0.0 { Self::Mixed { linear, square } } else { Self::Quadratic { each: high / (many * many) } }
    }

    /// The law that follows from the bytes at one number and from what is known about their scaling.
    pub(super) fn scaled(scale: Scale, number: f64, bytes: u64) -> Self {
        match scale {
            Scale::Fixed => Self::Constant(bytes),
            Scale::Proportional => Self::Linear { each: bytes as f64 / number },
            Scale::PerhapsFixed => Self::Doubtful { number, bytes, is_proportional: false },
            Scale::PerhapsProportional => Self::Doubtful { number, bytes, is_proportional: true },
        }
    }

    /// Whether it is proportional to the number, or probably so.
    pub(super) fn is_proportional(&self) -> bool {
        matches!(self, Self::Linear { .. } | Self::Doubtful { is_proportional: true, .. })
    }

    /// Bytes at a number.
    pub(super) fn bytes(&self, number: f64, bound: Bound) -> u64 {
        let bytes = match *self {
            Self::Constant(bytes) => return bytes,
            Self::Linear { each } => each * number,
            Self::Quadratic { each } => each * number * number,
            Self::Affine { base, each } => base + each * number,
            Self::Mixed { linear, square } => linear * number + square * number * number,
            Self::Fallen { before, bytes } => return if bound == Bound::High { before } else { bytes },
            Self::Doubtful { number: known, bytes, is_proportional } => {
                let scaled = match bound {
                    Bound::Likely => is_proportional,
                    Bound::High => number > known,
                    Bound::Low => number < known,
                };
                if !scaled {
                    return bytes;
                }
                bytes as f64 * number / known
            }
            Self::Split(split) => return split.bytes(number).min(REQUEST_BYTES_MAX),
            Self::Unmatched { number: many, bytes } => match bound {
                Bound::High if number > many => bytes as f64 * number / many,
                Bound::Low if number < many => bytes as f64 * number / many,
                _ => return bytes,
            },
        };
        // The conversion from a float saturates.
        (bytes.round() as u64).min(REQUEST_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_follow_the_number_in_the_simplest_way_that_holds() {
        let law = |before, bytes| Law::of((4.0, before), (8.0, bytes));
        let at = |law: Law, number| law.bytes(number, Bound::Likely);
        assert_eq!(law(4096, 4096), Law::Constant(4096));
        assert_eq!(at(law(4000, 8000), 32.0), 32_000);
        assert_eq!(at(law(16_000, 64_000), 16.0), 256_000);
        assert_eq!(at(law(3000, 4000), 16.0), 6000, "2000 and 250 for each");
        let mixed = law(4 * 1000 + 16 * 100, 8 * 1000 + 64 * 100);
        assert_eq!(at(mixed, 16.0), 16 * 1000 + 256 * 100);
        for number in [4.0, 8.0] {
            assert_eq!(at(mixed, number), (number * 1000.0 + number * number * 100.0) as u64);
        }
        assert_eq!((at(law(9000, 10), 16.0), law(9000, 10).bytes(16.0, Bound::High)), (10, 9000));
        let alone = Law::Unmatched { number: 8.0, bytes: 800 };
        assert_eq!((at(alone, 16.0), alone.bytes(16.0, Bound::High), alone.bytes(4.0, Bound::Low)), (800, 1600, 400));
        for (scale, likely, high) in [(Scale::PerhapsFixed, 800, 1600), (Scale::PerhapsProportional, 1600, 1600)] {
            let law = Law::scaled(scale, 8.0, 800);
            assert_eq!((at(law, 16.0), law.bytes(16.0, Bound::High), law.bytes(16.0, Bound::Low)), (likely, high, 800));
            assert_eq!((law.bytes(4.0, Bound::High), law.bytes(4.0, Bound::Low)), (800, 400));
        }
        assert_eq!(Law::Linear { each: f64::MAX }.bytes(f64::MAX, Bound::High), REQUEST_BYTES_MAX);
    }
}
