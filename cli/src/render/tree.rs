//! A tree of calls: stacks merged from the outermost frame inwards, with the memory below each.
//!
//! Guarantees: the bytes of a branch are the sum of what is below it; a chain of calls without branches takes one line;
//! branches below a share are summed up in one line.

use std::collections::BTreeMap;

use memctl_model::HumanBytes;

use super::screen::{Screen, Tone};
use super::text::{count, cut, plural, safe, width};

/// A call and everything below it.
#[derive(Debug, Default)]
pub struct Node {
    children: BTreeMap<String, Node>,
    bytes: u64,
    blocks: u64,
    /// Information about the memory that was allocated exactly here.
    note: String,
}

impl Node {
    /// Adds memory at the end of a path of calls, outermost first. The note of the largest stack stays.
    pub fn add(&mut self, path: impl Iterator<Item = String>, bytes: u64, blocks: u64, note: String) {
        let mut node = self;
        node.gain(bytes, blocks);
        for call in path {
            node = node.children.entry(call).or_default();
            node.gain(bytes, blocks);
        }
        if node.note.is_empty() {
            node.note = note;
        }
    }

    fn gain(&mut self, bytes: u64, blocks: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.blocks = self.blocks.saturating_add(blocks);
    }

    fn child_bytes(&self) -> u64 {
        self.children.values().fold(0, |sum, child| sum.saturating_add(child.bytes))
    }

    fn leaves(&self) -> u64 {
        if self.children.is_empty() { 1 } else { self.children.values().map(Self::leaves).sum() }
    }
}

/// Draws what is below a root; branches below `min_share` (0..1) of it are summed up.
#[must_use]
pub fn draw(root: &Node, min_share: f64, screen: &Screen) -> String {
    let drawing =
        Drawing { total: root.bytes, min_bytes: (root.bytes as f64 * min_share.clamp(0.0, 1.0)) as u64, screen };
    let mut out = String::new();
    drawing.children(root, "", &mut out);
    out
}

struct Drawing<'a> {
    total: u64,
    min_bytes: u64,
    screen: &'a Screen,
}

impl Drawing<'_> {
    fn children(&self, node: &Node, indent: &str, out: &mut String) {
        let mut children: Vec<(&String, &Node)> = node.children.iter().collect();
        children.sort_by(|a, b| b.1.bytes.cmp(&a.1.bytes).then_with(|| a.0.cmp(b.0)));
        // A single small branch needs no more room than its summary.
        let small = children.iter().filter(|(_, child)| child.bytes < self.min_bytes).count();
        let large = if small > 1 { children.len() - small } else { children.len() };
        let (shown, summed) = children.split_at(large);
        for (at, (call, child)) in shown.iter().enumerate() {
            let last = at + 1 == shown.len() && summed.is_empty();
            self.branch(call, child, indent, last, out);
        }
        if !summed.is_empty() {
            let bytes = summed.iter().fold(0_u64, |sum, (_, child)| sum.saturating_add(child.bytes));
            let blocks = summed.iter().fold(0_u64, |sum, (_, child)| sum.saturating_add(child.blocks));
            let sites = summed.iter().map(|(_, child)| child.leaves()).sum();
            let text = format!("{indent}{}{}", self.elbow(true), plural(sites, "smaller site"));
            self.line(bytes, blocks, &text, None, out);
        }
    }

    fn branch(&self, call: &str, node: &Node, indent: &str, last: bool, out: &mut String) {
        let (mut path, mut end) = (safe(call).into_owned(), node);
        // There is no branch: continue on the same line.
        while let (1, Some((call, child))) = (end.children.len(), end.children.iter().next()) {
            if child.bytes != end.bytes {
                break;
            }
            path.push_str(" > ");
            path.push_str(&safe(call));
            end = child;
        }
        let text = format!("{indent}{}{path}", self.elbow(last));
        let here = end.child_bytes() < end.bytes;
        self.line(node.bytes, node.blocks, &text, here.then_some(end.note.as_str()), out);
        let indent = format!("{indent}{}", if last { "  " } else { self.screen.pick("│ ", "| ") });
        self.children(end, &indent, out);
    }

    fn elbow(&self, last: bool) -> &'static str {
        self.screen.pick(if last { "└ " } else { "├ " }, if last { "` " } else { "|-" })
    }

    fn line(&self, bytes: u64, blocks: u64, text: &str, note: Option<&str>, out: &mut String) {
        let share = if self.total == 0 { 0.0 } else { bytes as f64 / self.total as f64 * 100.0 };
        let figures = format!("{:>9} {share:>5.1} % {:>7}  ", HumanBytes::of(bytes).to_string(), count(blocks));
        let text = match self.screen.columns {
            Some(columns) => shorten(text, columns.saturating_sub(width(&figures)), self.screen.unicode),
            None => text.to_owned(),
        };
        out.push_str(&figures);
        out.push_str(&text);
        if let Some(note) = note.filter(|note| !note.is_empty()) {
            let note = self.screen.fit(&format!("  {}", safe(note)), width(&figures) + width(&text));
            // A note that is cut is not useful.
            if !note.ends_with(['…', '~']) {
                out.push_str(&self.screen.paint(Tone::Faint, &note));
            }
        }
        out.push('\n');
    }
}

/// Cuts a path of calls: the two innermost calls are kept first, then the outermost. If only one has room and the innermost
/// one is a library's, which has no line, the user's call above it is kept.
fn shorten(text: &str, columns: usize, unicode: bool) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let gap = if unicode { "… > " } else { "~ > " };
    let Some((head, rest)) = text.split_once(" > ") else { return cut(text, columns, unicode) };
    let indent: String = head.chars().take_while(|c| " │├└|`-".contains(*c)).collect();
    let tails: Vec<&str> =
        std::iter::successors(Some(rest), |tail| tail.split_once(" > ").map(|(_, tail)| tail)).collect();
    let (with_two, last) = tails.split_at(tails.len() - 1);
    let behind_head = with_two.iter().skip(1).map(|tail| format!("{head} {gap}{tail}"));
    let alone = with_two.iter().map(|tail| format!("{indent}{gap}{tail}"));
    let end = gap.trim_end_matches([' ', '>']);
    let own = with_two
        .last()
        .and_then(|tail| tail.split_once(" > "))
        .map_or(head.trim_start_matches(&*indent), |(own, _)| own);
    let is_library = last.iter().any(|last| !last.contains(['(', '[']));
    let own = is_library.then(|| format!("{indent}{}{own} > {end}", if with_two.is_empty() { "" } else { gap }));
    let innermost = last.iter().flat_map(|last| [format!("{head} {gap}{last}"), format!("{indent}{gap}{last}")]);
    let mut candidates = behind_head.chain(alone).chain(own).chain(innermost);
    let fallback = || cut(&format!("{indent}{}", last.first().unwrap_or(&rest)), columns, unicode);
    candidates.find(|candidate| width(candidate) <= columns).unwrap_or_else(fallback)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Node {
        let mut root = Node::default();
        let path = |calls: &str| calls.split('>').map(str::to_owned).collect::<Vec<_>>().into_iter();
        root.add(path("main (m.py:1)>step (m.py:9)>remember (m.py:57)"), 27 << 20, 9, "born in epochs 0-8".into());
        root.add(path("main (m.py:1)>step (m.py:9)>forward (m.py:20)"), 60 << 20, 40, String::new());
        root.add(path("main (m.py:1)>build (m.py:3)"), 10 << 20, 12, String::new());
        root.add(path("main (m.py:1)>tiny (m.py:4)"), 512, 1, String::new());
        root.add(path("main (m.py:1)>tiny\u{1b} (m.py:5)"), 512, 1, String::new());
        root.add(path("(no stack recorded)"), 3 << 20, 7, String::new());
        root
    }

    #[test]
    fn merged_sorted_and_pruned() {
        let screen = Screen { columns: Some(80), unicode: true, colour: false };
        insta::assert_snapshot!(draw(&tree(), 0.01, &screen));
    }

    #[test]
    fn everything_in_ascii() {
        let screen = Screen { columns: None, unicode: false, colour: false };
        insta::assert_snapshot!(draw(&tree(), 0.0, &screen));
    }

    #[test]
    fn narrow_keeps_the_last_call() {
        let mut root = Node::default();
        let calls = ["main (train.py:1)", "run (trainer.py:200)", "epoch (trainer.py:300)", "leak (loss.py:7)"];
        root.add(calls.into_iter().map(str::to_owned), 1 << 20, 1, "a note".into());
        let screen = |columns| Screen { columns: Some(columns), unicode: true, colour: false };
        insta::assert_snapshot!(draw(&root, 0.01, &screen(72)), @" 1.00 MiB 100.0 %       1  └ main (train.py:1) … > leak (loss.py:7)");
        insta::assert_snapshot!(draw(&root, 0.01, &screen(46)), @" 1.00 MiB 100.0 %       1  └ leak (loss.py:7)");
    }

    #[test]
    fn sums_do_not_overflow() {
        let mut root = Node::default();
        root.add(std::iter::once("a".to_owned()), u64::MAX, u64::MAX, String::new());
        root.add(std::iter::once("b".to_owned()), u64::MAX, u64::MAX, String::new());
        assert_eq!(draw(&root, 0.01, &Screen { columns: Some(60), unicode: true, colour: false }).lines().count(), 2);
    }

    #[test]
    fn the_user_s_own_line_is_kept_beside_a_library_s_call() {
        let path = "├ Trainer.fit (p11.py:16) > Trainer.end (p11.py:7) > Parameter.__deepcopy__";
        assert_eq!(shorten(path, 52, true), "├ … > Trainer.end (p11.py:7) > …");
        assert_eq!(shorten(path, 58, true), "├ … > Trainer.end (p11.py:7) > Parameter.__deepcopy__");
        assert_eq!(
            shorten("├ Trainer.end (p11.py:7) > Parameter.__deepcopy__", 40, true),
            "├ Trainer.end (p11.py:7) > …"
        );
        assert_eq!(shorten("├ fit (a.py:1) > end (b.py:2)", 20, true), "├ … > end (b.py:2)");
    }
}
