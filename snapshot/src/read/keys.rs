//! The words of a snapshot: every key and every fixed string that memctl reads, with a number.
//!
//! The interner gets them first, in this order. So the number of a string is the number of its word, and a dict's key
//! is found without comparing text.

use memctl_model::Action;

/// Numbers the names from `$first` upwards and lists their texts in the same order.
macro_rules! words {
    ($texts:ident, $end:ident; $first:expr; $($name:ident = $text:literal),+ $(,)?) => {
        words!(@number $end; $first; $($name)+);
        const $texts: &[&str] = &[$($text),+];
    };
    (@number $end:ident; $n:expr; $name:ident $($rest:ident)*) => {
        pub(crate) const $name: u32 = $n;
        words!(@number $end; $n + 1; $($rest)*);
    };
    (@number $end:ident; $n:expr;) => {
        const $end: u32 = $n;
    };
}

words! { IN_DICTS, IN_DICTS_END; 0;
    // A trace entry.
    ACTION = "action",
    ADDR = "addr",
    SIZE = "size",
    STREAM = "stream",
    TIME_US = "time_us",
    FRAMES = "frames",
    POOL_ID = "pool_id",
    DEVICE_FREE = "device_free",
    USER_METADATA = "user_metadata",
    COMPILE_CONTEXT = "compile_context",
    INTERNAL_METADATA = "internal_metadata",
    // A frame.
    NAME = "name",
    FILENAME = "filename",
    LINE = "line",
    FX_ORIGINAL_TRACE = "fx_original_trace",
    // An annotation.
    STAGE = "stage",
    DEVICE = "device",
    // A segment.
    ADDRESS = "address",
    TOTAL_SIZE = "total_size",
    SEGMENT_TYPE = "segment_type",
    SEGMENT_POOL_ID = "segment_pool_id",
    IS_EXPANDABLE = "is_expandable",
    BLOCKS = "blocks",
    // A block.
    REQUESTED_SIZE = "requested_size",
    STATE = "state",
    // The settings.
    ALLOC_CONF = "PYTORCH_CUDA_ALLOC_CONF",
    MAX_SPLIT_SIZE = "max_split_size",
    GC_THRESHOLD = "garbage_collection_threshold",
    EXPANDABLE_SEGMENTS = "expandable_segments",
    ROUNDUP_DIVISIONS = "roundup_power2_divisions",
}

/// The intervals of `roundup_power2_divisions`, in MiB.
const INTERVALS: [&str; ROUNDUPS] =
    ["1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096", "8192", "16384", "32768"];
/// Number of intervals of `roundup_power2_divisions`.
pub(crate) const ROUNDUPS: usize = 16;
/// The first interval's key; the others follow.
pub(crate) const ROUNDUP_FIRST: u32 = IN_DICTS_END;

words! { ELSEWHERE, ELSEWHERE_END; ROUNDUP_FIRST + ROUNDUPS as u32;
    // The top level.
    SEGMENTS = "segments",
    DEVICE_TRACES = "device_traces",
    ALLOCATOR_SETTINGS = "allocator_settings",
    EXTERNAL_ANNOTATIONS = "external_annotations",
    // Fixed values.
    EMPTY = "",
    NOT_COMPILED = "N/A",
    START = "START",
    END = "END",
    SMALL = "small",
    ACTIVE_ALLOCATED = "active_allocated",
    ACTIVE_PENDING_FREE = "active_pending_free",
    // The name that torch's documentation uses for the previous state.
    ACTIVE_AWAITING_FREE = "active_awaiting_free",
}

/// Number of the first action's name; the others follow in the order of [`Action::ALL`].
const FIRST_ACTION: u32 = ELSEWHERE_END;
/// Keys below this number have a place in a `DictSlot`.
pub(crate) const DICT_KEYS: usize = SEGMENTS as usize;

// A dict stores which keys it has in the bits of one u64.
const _: () = assert!(DICT_KEYS <= 64);

/// Every word, in the order of the numbers.
pub(crate) fn words() -> impl Iterator<Item = &'static str> {
    let texts = IN_DICTS.iter().chain(&INTERVALS).chain(ELSEWHERE).copied();
    texts.chain(Action::ALL.into_iter().map(Action::name))
}

/// The action whose name has this number.
#[inline]
pub(crate) fn action_of(word: u32) -> Option<Action> {
    word.checked_sub(FIRST_ACTION).and_then(|n| u8::try_from(n).ok()).and_then(Action::from_number)
}

/// Whether the value of a top-level key is read.
pub(crate) fn is_read_at_top(word: u32) -> bool {
    (SEGMENTS..=EXTERNAL_ANNOTATIONS).contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_positions() {
        let all: Vec<_> = words().collect();
        assert_eq!(all[ROUNDUP_FIRST as usize + ROUNDUPS - 1], "32768");
        assert_eq!(all[SEGMENTS as usize], "segments");
        assert_eq!(all[ACTIVE_AWAITING_FREE as usize], "active_awaiting_free");
        for (number, word) in (0..).zip(&all) {
            assert_eq!(action_of(number), Action::from_name(word), "{word}");
        }
    }

    #[test]
    fn no_word_twice() {
        let distinct: std::collections::HashSet<_> = words().collect();
        assert_eq!(distinct.len(), words().count());
    }
}
