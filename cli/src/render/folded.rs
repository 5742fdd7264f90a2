//! Folded stacks: `main;step;remember_features 3145728`, as flamegraph.pl, inferno and speedscope read them.
//!
//! Guarantees: one stack a line, outermost frame first, the last space before the number; a name
//! cannot break the format.

use std::io::{self, Write};

use super::text::safe;

/// What stands for a stack that was not recorded.
pub const NO_STACK: &str = "(no stack recorded)";

/// Writes one stack; `functions` from the outermost to the innermost.
///
/// # Errors
/// The writer's.
pub fn stack<'a>(
    out: &mut dyn Write,
    root: Option<&str>,
    functions: impl Iterator<Item = &'a str>,
    bytes: u64,
) -> io::Result<()> {
    let mut frames: Vec<String> = root.map(frame).into_iter().collect();
    let before = frames.len();
    frames.extend(functions.map(frame));
    if frames.len() == before {
        frames.push(NO_STACK.to_owned());
    }
    writeln!(out, "{} {bytes}", frames.join(";"))
}

fn frame(name: &str) -> String {
    // `;` separates frames; a name without a character would merge its neighbours.
    let shown = safe(name).replace(';', ":");
    if shown.is_empty() { "?".to_owned() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_break_the_format() {
        let mut out = Vec::new();
        stack(&mut out, None, ["main", "operator new", "a;b\n"].into_iter(), 42).unwrap();
        stack(&mut out, Some("rank 1"), std::iter::empty(), 7).unwrap();
        stack(&mut out, None, [""].into_iter(), 1).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "main;operator new;a:b\\n 42\nrank 1;(no stack recorded) 7\n? 1\n");
    }
}
