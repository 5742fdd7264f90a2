//! Reads `PYTORCH_CUDA_ALLOC_CONF` like the allocator: `key:value` pairs separated by commas, and lists in brackets.
//!
//! Guarantees: unknown or malformed settings are left out. PyTorch itself refuses such a string before it gets here.
//! Refuses: to guess. Where versions differ, the newest version's default is used.

use memctl_model::AllocatorSettings;

/// The settings of a configuration string. Keys and rules are from c10/cuda/CUDAAllocatorConfig.cpp.
#[must_use]
pub fn parse(conf: &str) -> AllocatorSettings {
    let mut settings = AllocatorSettings { conf: conf.trim().to_owned(), ..AllocatorSettings::default() };
    for pair in pairs(conf) {
        let Some((key, value)) = pair.split_once(':') else { continue };
        let (key, value) = (key.trim(), value.trim());
        match key {
            "max_split_size_mb" => settings.max_split_size = mebibytes(value).or(settings.max_split_size),
            "large_segment_size_mb" => {
                settings.large_segment_size = mebibytes(value).unwrap_or(settings.large_segment_size);
            }
            "expandable_segments" => settings.expandable_segments = value.eq_ignore_ascii_case("true"),
            "garbage_collection_threshold" => {
                let share = value.parse::<f64>().ok().filter(|share| (0.0..1.0).contains(share));
                settings.garbage_collection_permille = share.map_or(0, |share| (share * 1000.0).round() as u32);
            }
            "roundup_power2_divisions" => settings.roundup_power2_divisions = divisions(value).unwrap_or_default(),
            _ => {}
        }
    }
    settings
}

/// Splits at commas outside brackets.
fn pairs(conf: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    conf.split(move |character| {
        match character {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    })
}

fn mebibytes(value: &str) -> Option<u64> {
    value.parse::<u64>().ok()?.checked_mul(1 << 20)
}

/// Reads one number for all sizes, or a list such as `[256:1,512:2,>:8]`. Interval `i` is 2^i MiB. The first entry also
/// covers smaller sizes, and `>` covers sizes above the last entry.
fn divisions(value: &str) -> Option<[u32; 16]> {
    let Some(list) = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
        return value.parse().ok().map(|all| [all; 16]);
    };
    let mut divisions = [0; 16];
    let mut last = None;
    for pair in list.split(',') {
        let (key, value) = pair.split_once(':')?;
        let value: u32 = value.trim().parse().ok()?;
        if key.trim() == ">" {
            divisions[last.map_or(0, |last: usize| last + 1).min(16)..].fill(value);
            continue;
        }
        let size: u64 = key.trim().parse().ok().filter(|size: &u64| size.is_power_of_two())?;
        let place = (size.trailing_zeros() as usize).min(15);
        if last.is_none() {
            divisions[..place].fill(value);
        }
        divisions[place] = value;
        last = Some(place);
    }
    Some(divisions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_set_is_understood() {
        let settings = parse("expandable_segments:True,max_split_size_mb:128, garbage_collection_threshold:0.8");
        assert!(settings.expandable_segments);
        assert_eq!(settings.max_split_size, Some(128 << 20));
        assert_eq!(settings.garbage_collection_permille, 800);
        assert_eq!(parse("").conf, "");
        assert_eq!(parse("roundup_power2_divisions:4").roundup_power2_divisions, [4; 16]);
    }

    #[test]
    fn a_list_of_divisions_fills_as_pytorch_does() {
        // Observed on torch 2.15: index 8 = 1, 9 = 2, 10 = 4, 11 to 15 = 8.
        let settings = parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8],backend:native");
        assert_eq!(settings.roundup_power2_divisions, [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8]);
    }

    #[test]
    fn nonsense_changes_nothing() {
        for conf in [":::", "[", "]", "max_split_size_mb:many", "roundup_power2_divisions:[3:1]", ",,,", "a:[b:c,d"] {
            let settings = parse(conf);
            assert_eq!(AllocatorSettings { conf: String::new(), ..settings }, AllocatorSettings::default(), "{conf}");
        }
    }
}
