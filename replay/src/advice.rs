//! Advice about allocator settings: the settings that are tried, the reasons against each, and the one to choose.
//!
//! Guarantees: a setting is recommended only after a replay. In its replay it must reserve less memory than in the
//! replay of the recorded setting, by a share that is worth a change. It must not fail or call the driver much more
//! often.

use memctl_model::{HumanBytes, Sharing};

use crate::allocator::Limit;
use crate::settings::{Conf, Version};
use crate::trial::Outcome;

/// Maximum number of events that are replayed for a query that did not request replays itself. They take some seconds
/// under all settings.
pub const EVENTS_MAX: u64 = 4_000_000;

/// Settings that are tried if the caller names none.
const TRIED: [&str; 12] = [
    "expandable_segments:True",
    "expandable_segments:True,roundup_power2_divisions:8",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:16",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "garbage_collection_threshold:0.8",
    "max_split_size_mb:128,garbage_collection_threshold:0.8",
    "large_segment_size_mb:64",
];

/// Minimum saving, in percent of the reserved memory, that is worth a change of settings. Two runs of a job differ by
/// less.
const WORTH_PERCENT: u64 = 2;
/// Driver calls wait for the device. A setting with more than this many times as many calls is not recommended.
const DRIVER_CALLS_FACTOR: u64 = 3;
/// If the recorded setting makes next to no driver calls, up to this many more do not matter.
const DRIVER_CALLS_FEW: u64 = 100;

/// The settings that are tried, without those that this version would reject, because only accepted settings may be
/// recommended.
#[must_use]
pub fn tried(version: Version) -> Vec<&'static str> {
    TRIED.into_iter().filter(|text| Conf::parse(text, version).is_ok()).collect()
}

/// The cautions about a setting that apply regardless of its replay.
#[must_use]
pub fn cautions(conf: &Conf, baseline: &Outcome, outcome: &Outcome, sharing: Sharing) -> Vec<String> {
    let mut cautions = Vec::new();
    if let Some(bounds) = outcome.bounds {
        return vec![bounded(bounds)];
    }
    if conf.expandable_segments {
        cautions.push(expandable(sharing));
    }
    if outcome.counts.peak_reserved_bytes > baseline.counts.peak_reserved_bytes {
        cautions.push("it holds more memory than the recorded setting".to_owned());
    }
    let (before, after) = (driver_calls(baseline), driver_calls(outcome));
    if after > before + DRIVER_CALLS_FEW {
        cautions
            .push(format!("the driver is called {after} times instead of {before}; each call may wait for the device"));
    }
    if outcome.counts.retries > baseline.counts.retries {
        cautions
            .push(format!("{} requests are served only after the whole cache was released", outcome.counts.retries));
    }
    if outcome.survived > 0 {
        cautions.push("what the job would have done after the request that failed is not known".to_owned());
    }
    cautions
}

/// The caution about what expandable segments may break. It is a warning if the process was seen to use one of these
/// features.
fn expandable(sharing: Sharing) -> String {
    let used: Vec<&str> = sharing.names().collect();
    if used.is_empty() {
        return "expandable segments cannot be shared between processes with CUDA IPC by every version, nor registered as \
                NCCL user buffers or for RDMA by every transport"
            .to_owned();
    }
    format!(
        "WARNING: this process uses {}, which can fail with expandable segments or become many times slower; try it on a short \
         run and measure the transfers first",
        used.join(" and ")
    )
}

/// The meaning of bounds and their basis.
fn bounded([low, high]: [u64; 2]) -> String {
    let (low, high) = (HumanBytes::of(low), HumanBytes::of(high));
    format!(
        "it packs inside the driver, which nothing outside can replay: it holds between {low}, what lives at once, and {high}, if \
         memory is used again only for requests of the same size; and its memory is not recorded event by event"
    )
}

/// The setting to choose: its index among the trials and the bytes that it saves. `None` if no setting is worth it.
///
/// If the recorded setting fails, the result is the setting that does not fail and empties its cache least often.
#[must_use]
pub fn recommended(baseline: &Outcome, trials: &[Outcome]) -> Option<(usize, u64)> {
    let held = baseline.counts.peak_reserved_bytes;
    let saved = |trial: &Outcome| held.saturating_sub(trial.counts.peak_reserved_bytes);
    // A trial that has only bounds was not replayed.
    let is_known = |trial: &Outcome| trial.out_of_memory.is_none() && trial.bounds.is_none();
    let survives = trials.iter().enumerate().filter(|(_, trial)| is_known(trial));
    if baseline.out_of_memory.is_some() {
        let least = |(_, trial): &(usize, &Outcome)| (trial.counts.retries, trial.counts.peak_reserved_bytes);
        return survives.min_by_key(least).map(|(index, trial)| (index, saved(trial)));
    }
    let candidates = survives.filter(|(_, trial)| !asks_often(baseline, trial) && !retries_more(baseline, trial));
    // If several are equal, the first is chosen: the list begins with the settings that cause least trouble.
    let (index, best) = candidates.min_by_key(|(_, trial)| trial.counts.peak_reserved_bytes)?;
    is_worth(held, saved(best)).then_some((index, saved(best)))
}

fn is_worth(held: u64, saves: u64) -> bool {
    saves > 0 && saves.saturating_mul(100) >= held.saturating_mul(WORTH_PERCENT)
}

fn asks_often(baseline: &Outcome, trial: &Outcome) -> bool {
    driver_calls(trial) > driver_calls(baseline) * DRIVER_CALLS_FACTOR + DRIVER_CALLS_FEW
}

fn retries_more(baseline: &Outcome, trial: &Outcome) -> bool {
    trial.counts.retries > baseline.counts.retries
}

/// The conclusion if the limit is known only as an interval: the trials under its lower and under its upper end are
/// compared.
#[must_use]
pub fn conclusion_between(
    low: (&Outcome, &[(&str, Outcome)], Limit),
    high: (&Outcome, &[(&str, Outcome)], Limit),
) -> Vec<String> {
    let serving = |trials: &[(&str, Outcome)], baseline: &Outcome| {
        let outcomes: Vec<Outcome> = trials.iter().map(|(_, outcome)| *outcome).collect();
        recommended(baseline, &outcomes).map(|(index, _)| index)
    };
    let (at_least, at_most) = (limit_words(low.2), limit_words(high.2));
    if low.0.out_of_memory.is_none() || serving(low.1, low.0).is_some() {
        return conclusion(low.0, low.1, low.2);
    }
    match serving(high.1, high.0).map(|index| high.1[index]) {
        Some((text, outcome)) if high.0.out_of_memory.is_some() => vec![format!(
            "Whether a setting would have served the failed request is not known: with {at_least}, which the process had for \
             certain, none of {} that were replayed does; with {at_most}, which it may have had, {} does: {} reserved at most{}.",
            low.1.len(),
            named(text),
            reserved(&outcome),
            retries(&outcome),
        )],
        _ => conclusion(high.0, high.1, high.2),
    }
}

fn limit_words(limit: Limit) -> String {
    match limit {
        Limit::None => String::new(),
        Limit::Share(bytes) | Limit::Device(bytes) => HumanBytes::of(bytes).to_string(),
    }
}

/// The result of the trials in sentences: the setting to use and its effect, or that no setting helps.
#[must_use]
pub fn conclusion(baseline: &Outcome, trials: &[(&str, Outcome)], limit: Limit) -> Vec<String> {
    let outcomes: Vec<Outcome> = trials.iter().map(|(_, outcome)| *outcome).collect();
    let chosen = recommended(baseline, &outcomes).map(|(index, saves)| (trials[index], saves));
    let under = if limit == Limit::None { String::new() } else { format!(" and {}", limit_words(limit)) };
    let tried = trials.len();
    if baseline.out_of_memory.is_some() {
        return match chosen {
            Some(((text, outcome), _)) => vec![format!(
                "Replayed under {tried} other allocator settings{under}, the failed request is served with {}: {} reserved at most{}.",
                named(text),
                reserved(&outcome),
                retries(&outcome),
            )],
            None => vec![format!(
                "No allocator setting helps: replayed under {tried} others{under}, the process runs out of memory with each of them."
            )],
        };
    }
    if baseline.survived > 0 {
        return vec![format!(
            "What a setting would have done is not known: replayed under the recorded one{under}, the failed request is served, so the limit was another."
        )];
    }
    if let Some(((text, outcome), saves)) = chosen {
        let (held, saves) = (reserved(baseline), HumanBytes::of(saves));
        return vec![format!(
            "Replayed under {tried} other allocator settings, {} reserves least: {} at most instead of {held}, {saves} less.",
            named(text),
            reserved(&outcome),
        )];
    }
    vec![none_helps(baseline, trials)]
}

/// A sentence about the best setting that does not help, and the reason.
fn none_helps(baseline: &Outcome, trials: &[(&str, Outcome)]) -> String {
    let start = format!("No allocator setting helps: of {} others that were replayed", trials.len());
    let held = baseline.counts.peak_reserved_bytes;
    let replayed = trials.iter().filter(|(_, trial)| trial.bounds.is_none());
    let Some((text, best)) = replayed.min_by_key(|(_, trial)| trial.counts.peak_reserved_bytes) else {
        return "No other allocator setting was replayed.".to_owned();
    };
    if best.counts.peak_reserved_bytes >= held {
        return format!("{start}, none reserves less than the recorded one, {}.", reserved(baseline));
    }
    let saves = held - best.counts.peak_reserved_bytes;
    let but = if best.out_of_memory.is_some() {
        ", and runs out of memory".to_owned()
    } else if is_worth(held, saves) && asks_often(baseline, best) {
        format!(", and calls the driver {} times instead of {}", driver_calls(best), driver_calls(baseline))
    } else if is_worth(held, saves) && retries_more(baseline, best) {
        retries(best)
    } else {
        String::new()
    };
    format!(
        "{start}, {} comes closest: {} at most instead of {}{but}.",
        named(text),
        reserved(best),
        reserved(baseline)
    )
}

fn reserved(outcome: &Outcome) -> HumanBytes {
    HumanBytes::of(outcome.counts.peak_reserved_bytes)
}

fn retries(outcome: &Outcome) -> String {
    match outcome.counts.retries {
        0 => String::new(),
        1 => ", after the cache was emptied once".to_owned(),
        times => format!(", after the cache was emptied {times} times"),
    }
}

fn named(text: &str) -> &str {
    if text.is_empty() { "default settings" } else { text }
}

fn driver_calls(outcome: &Outcome) -> u64 {
    outcome.counts.device_allocs + outcome.counts.device_frees
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Counts;
    use crate::request::Requested;
    use crate::trial::Ending;

    fn outcome(peak_reserved_bytes: u64, device_allocs: u64) -> Outcome {
        let counts = Counts { peak_reserved_bytes, device_allocs, ..Counts::default() };
        Outcome { counts, out_of_memory: None, survived: 0, bounds: None }
    }

    #[test]
    fn the_smallest_wins_where_it_is_worth_a_change() {
        let baseline = outcome(1000, 10);
        assert_eq!(recommended(&baseline, &[outcome(990, 10), outcome(985, 10)]), None);
        assert_eq!(recommended(&baseline, &[outcome(900, 10), outcome(800, 20), outcome(800, 10)]), Some((1, 200)));
        assert_eq!(recommended(&baseline, &[outcome(500, 1000)]), None, "too many calls of the driver");
        assert_eq!(recommended(&baseline, &[outcome(2000, 10)]), None);
        assert_eq!(recommended(&baseline, &[]), None);
    }

    #[test]
    fn what_serves_the_failed_request_is_taken_by_its_retries() {
        let requested = Requested { bytes: 512, stream: 0, pool: memctl_model::PoolId::DEFAULT };
        let ending = Ending { event: 7, requested, reserved_bytes: 1000, allocated_bytes: 900 };
        let failing = Outcome { out_of_memory: Some(ending), ..outcome(1000, 10) };
        let mut retried = outcome(800, 10);
        retried.counts.retries = 3;
        assert_eq!(recommended(&failing, &[failing, retried, outcome(900, 10)]), Some((2, 100)));
        assert_eq!(recommended(&failing, &[failing]), None);
        let sentences =
            |baseline: &Outcome, trials: &[(&str, Outcome)]| conclusion(baseline, trials, Limit::Share(1 << 30));
        assert_eq!(
            sentences(&failing, &[("a:1", failing), ("b:2", retried)])[0],
            "Replayed under 2 other allocator settings and 1.00 GiB, the failed request is served with b:2: 800 B reserved \
             at most, after the cache was emptied 3 times."
        );
        assert!(sentences(&failing, &[("a:1", failing)])[0].starts_with("No allocator setting helps"));
        let survived = Outcome { survived: 1, ..outcome(1000, 10) };
        let between = |low: (&str, Outcome), high: (&str, Outcome)| {
            let (low, high) = ([low], [high]);
            let one = (&failing, low.as_slice(), Limit::Share(1 << 30));
            conclusion_between(one, (&failing, high.as_slice(), Limit::Share(2 << 30))).join(" ")
        };
        assert!(between(("a:1", failing), ("a:1", retried)).starts_with("Whether a setting would have served"));
        assert!(between(("a:1", failing), ("a:1", failing)).contains("under 1 others and 2.00 GiB"));
        assert!(between(("a:1", retried), ("a:1", retried)).contains("and 1.00 GiB, the failed request is served"));
        assert!(
            sentences(&survived, &[("a:1", outcome(500, 10))])[0]
                .starts_with("What a setting would have done is not known")
        );
    }

    #[test]
    fn a_setting_is_named_with_its_bytes_or_none_helps() {
        let baseline = outcome(1000, 10);
        let text = |trials: &[(&str, Outcome)]| conclusion(&baseline, trials, Limit::None).join(" ");
        assert_eq!(
            text(&[("a:1", outcome(600, 10)), ("b:2", outcome(700, 10))]),
            "Replayed under 2 other allocator settings, a:1 reserves least: 600 B at most instead of 1000 B, 400 B less."
        );
        assert!(text(&[("a:1", outcome(990, 10))]).ends_with("a:1 comes closest: 990 B at most instead of 1000 B."));
        assert!(text(&[("a:1", outcome(500, 1000))]).ends_with("and calls the driver 1000 times instead of 10."));
        assert!(text(&[("a:1", outcome(1500, 10))]).ends_with("none reserves less than the recorded one, 1000 B."));
    }

    #[test]
    fn old_versions_are_spared_what_they_refuse() {
        assert_eq!(tried(Version::of(2, 11)).len(), TRIED.len());
        assert!(!tried(Version::of(2, 8)).contains(&"large_segment_size_mb:64"));
    }
}
