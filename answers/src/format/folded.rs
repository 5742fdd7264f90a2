//! Folded stacks: `main (train.py:9);step (train.py:31) 3145728`, as flamegraph.pl, inferno and speedscope read them.
//!
//! Guarantees: one stack per line, outermost frame first; the last space precedes the number; no name can break the
//! format.

use super::text::safe;

/// The text for a stack that was not recorded.
pub const NO_STACK: &str = "(no stack recorded)";

/// One stack in the format of a line; `frames` go from the outermost to the innermost.
#[must_use]
pub fn stack<'a>(root: Option<&str>, frames: impl Iterator<Item = &'a str>) -> String {
    let mut parts: Vec<String> = root.map(frame).into_iter().collect();
    let before = parts.len();
    parts.extend(frames.map(frame));
    if parts.len() == before {
        parts.push(NO_STACK.to_owned());
    }
    parts.join(";")
}

fn frame(name: &str) -> String {
    // `;` separates frames; an empty name would merge its neighbours.
    let shown = safe(name).replace(';', ":");
    if shown.is_empty() { "?".to_owned() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_break_the_format() {
        assert_eq!(stack(None, ["main", "operator new", "a;b\n"].into_iter()), "main;operator new;a:b\\n");
        assert_eq!(stack(Some("rank 1"), std::iter::empty()), "rank 1;(no stack recorded)");
        assert_eq!(stack(None, [""].into_iter()), "?");
    }
}
