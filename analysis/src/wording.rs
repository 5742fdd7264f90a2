//! Words that findings share: places, ranks, bytes, lists.
//!
//! Guarantees: no text is longer than a line or states unknown facts. Names appear in texts as recorded and are not
//! escaped; code that displays texts must escape them.

use memctl_model::{Frame, HumanBytes, Stack};

/// What remains open about growth until its holder is known.
pub const CACHE_DOUBT: &str = " A cache looks the same until it is full.";

/// Advice about allocator settings, as a part of a sentence.
pub(crate) const REPLAYED: &str = "`memctl what-if --job JOB` replays the job under other allocator settings";

/// `remember_features (scenarios.py:57)`.
#[must_use]
pub fn place(frame: &Frame) -> String {
    let function = if frame.function.is_empty() { "?" } else { &*frame.function };
    let file = frame.file.rsplit(['/', '\\']).next().unwrap_or_default();
    match (file.is_empty(), frame.line) {
        (true, _) => function.to_owned(),
        (false, 0) => format!("{function} ({file})"),
        (false, line) => format!("{function} ({file}:{line})"),
    }
}

/// Maximum number of lines that a place names.
const LINES_NAMED: usize = 4;

/// `remember_features (scenarios.py:57)`, or with several lines of the function `remember_features (scenarios.py:57, 58)`.
#[must_use]
pub fn places(frame: &Frame, lines: &[u32]) -> String {
    let one = place(frame);
    let named: Vec<String> = lines.iter().take(LINES_NAMED).map(u32::to_string).collect();
    let more = if lines.len() > LINES_NAMED { ", …" } else { "" };
    match one.strip_suffix(&format!(":{})", frame.line)) {
        Some(before) if lines.len() > 1 => format!("{before}:{}{more})", named.join(", ")),
        _ => one,
    }
}

/// The place, or words for a place that was not recorded.
#[must_use]
pub fn place_or_none(frame: Option<&Frame>) -> String {
    frame.map_or_else(|| "an unrecorded place".to_owned(), place)
}

/// The place of a request. Autograd runs the backward pass of a forward call under that call's frames. The line is
/// therefore the forward call's, whereas the program's traceback shows its `backward()`.
#[must_use]
pub fn requested_in(stack: &Stack) -> String {
    let place = place_or_none(stack.site());
    let is_backward = stack.frames.first().is_some_and(|frame| &*frame.file == "<autograd>");
    if is_backward { format!("the backward pass of {place}") } else { place }
}

/// `all 4 ranks`, `rank 3`, `ranks 0-2, 7`. `ranks` is ascending; `known` is the number of ranks that were seen.
#[must_use]
pub fn ranks(ranks: &[u32], known: usize) -> String {
    match ranks {
        [] => "no rank".to_owned(),
        [_, _, ..] if ranks.len() == known => format!("all {known} ranks"),
        [rank] => format!("rank {rank}"),
        many => {
            let runs = many.chunk_by(|a, b| a.checked_add(1) == Some(*b));
            let words: Vec<String> = runs
                .map(|run| match run {
                    [first, .., last] => format!("{first}-{last}"),
                    [only] => only.to_string(),
                    [] => String::new(),
                })
                .collect();
            match words.len() {
                0..=8 => format!("ranks {}", words.join(", ")),
                _ => format!("{} ranks ({}, …)", many.len(), words[..8].join(", ")),
            }
        }
    }
}

/// The text as the begin of a sentence: `Rank 0`, `All 4 ranks`. Only memctl's own words get a capital; the name of a
/// process stays unchanged.
#[must_use]
pub fn opening(text: &str) -> String {
    const OWN: [&str; 6] = ["rank ", "ranks ", "all ", "device ", "devices ", "no "];
    if OWN.iter().any(|word| text.starts_with(word)) { opening_letter(text) } else { text.to_owned() }
}

/// The text with a capital as first letter.
#[must_use]
pub fn opening_letter(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// The text as a whole sentence: a capital at its begin, a full stop at its end.
#[must_use]
pub fn sentence(text: impl AsRef<str>) -> String {
    let text = opening_letter(text.as_ref());
    if text.is_empty() || text.ends_with(['.', '!', '?']) { text } else { text + "." }
}

/// `a`, `a and b`, `a, b and c`.
#[must_use]
pub fn all_of(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [only] => only.clone(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    }
}

/// `1.20 GiB`.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    HumanBytes::of(bytes).to_string()
}

/// `2.60 to 5.04 GiB`, or one figure if both are displayed alike.
#[must_use]
pub fn byte_range(low: u64, high: u64) -> String {
    let (from, to) = (bytes(low), bytes(high));
    if from == to {
        return to;
    }
    match (from.rsplit_once(' '), to.rsplit_once(' ')) {
        (Some((number, unit)), Some((_, other))) if unit == other => format!("{number} to {to}"),
        _ => format!("{from} to {to}"),
    }
}

/// `1 block`, `300 blocks`.
#[must_use]
pub fn plural(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// `in epoch 2, step 117` with a leading space; empty if neither is known.
#[must_use]
pub fn moment(epoch: Option<u32>, step: Option<u64>) -> String {
    match (epoch, step) {
        (Some(epoch), Some(step)) => format!(" in epoch {epoch}, step {step}"),
        (Some(epoch), None) => format!(" in epoch {epoch}"),
        (None, Some(step)) => format!(" in step {step}"),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_in_words() {
        assert_eq!(ranks(&[0, 1, 2, 3], 4), "all 4 ranks");
        assert_eq!(ranks(&[0], 1), "rank 0");
        assert_eq!(ranks(&[0, 1, 2, 7], 9), "ranks 0-2, 7");
        let even: Vec<u32> = (0..40).map(|rank| rank * 2).collect();
        assert_eq!(ranks(&even, 80), "40 ranks (0, 2, 4, 6, 8, 10, 12, 14, …)");
        assert_eq!(ranks(&[], 3), "no rank");
    }

    #[test]
    fn sentences_begin_and_end() {
        assert_eq!(opening("rank 0"), "Rank 0");
        assert_eq!(opening("all 4 ranks"), "All 4 ranks");
        assert_eq!(opening("worker-1"), "worker-1", "a name stays as it is");
        assert_eq!(sentence("set a: b"), "Set a: b.");
        assert_eq!(sentence("Done."), "Done.");
        assert_eq!(sentence(""), "");
    }

    #[test]
    fn bytes_and_places_in_words() {
        assert_eq!(byte_range(2 << 30, 5 << 30), "2.00 to 5.00 GiB");
        assert_eq!(byte_range(5 << 20, 5 << 30), "5.00 MiB to 5.00 GiB");
        assert_eq!(byte_range(7, 7), "7 B");
        let frame = Frame { function: "f".into(), file: "/a/b.py".into(), line: 3 };
        assert_eq!(place(&frame), "f (b.py:3)");
        assert_eq!(place_or_none(None), "an unrecorded place");
        assert_eq!(moment(Some(2), Some(117)), " in epoch 2, step 117");
    }
}
