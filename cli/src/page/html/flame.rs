//! Flame graphs on the page, as icicles: everything on top, callees below, width = bytes.
//!
//! Guarantees: bounded, whatever was recorded: the widest calls are drawn, and how many are not is said; a call is named in
//! full on hover and to screen readers; arrows, Enter and Escape do what the mouse does.

use memctl_answers::Frame;
use memctl_answers::dossier::tree::{Call, Node, Tree};
use memctl_answers::format::folded::NO_STACK;
use memctl_answers::format::html::escape;
use memctl_answers::ledger::CLASSES;
use memctl_answers::naming::place;
use memctl_model::HumanBytes;

use super::{bytes, percent};
use crate::render::text::{count, cut, plural};

/// Calls that are drawn at most.
const NODES_MAX: usize = 1_500;
/// A call that is narrower than this part of the whole is not drawn.
const PARTS: u64 = 2_000;
/// Widths in the file are whole numbers of this.
const WHOLE: u64 = 1_000_000;
/// Height of a row.
const ROW: usize = 18;
/// Letters of a label and of a full name.
const LABEL_LETTERS: usize = 90;
const NAME_LETTERS: usize = 400;

/// What a tree shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Live memory.
    Moment,
    /// What changed.
    Change,
}

/// The figure with its heading.
#[must_use]
pub fn figure(tree: &Tree<'_>, title: &str, kind: Kind) -> String {
    let root = tree.root();
    let title = escape(title);
    let sums = match kind {
        Kind::Moment => format!("{} in {}", bytes(root.bytes), plural(root.blocks, "block")),
        Kind::Change => format!(
            "{} more, {} less, {} unchanged",
            bytes(root.grown_bytes),
            bytes(root.shrunk_bytes),
            bytes(tree.unchanged_bytes)
        ),
    };
    if root.bytes == 0 {
        let nothing = if kind == Kind::Change { "No stack holds more or less than before" } else { "Nothing was live" };
        return format!("<p><strong>{title}</strong>: {sums}.</p>\n<p class=\"prose\">{nothing}.</p>\n");
    }
    let drawn = draw(tree, kind);
    let left_out = match drawn.left_out {
        0 => String::new(),
        calls => format!(" {} too narrow to be drawn.", plural(calls, "call")),
    };
    let height = drawn.rows * ROW;
    format!(
        "<figure class=\"flame\">\n<figcaption><strong>{title}</strong>: {sums}. <span class=\"faint\">Callers above, what they call below; width is bytes; your own code is bold.{left_out}</span>{}</figcaption>\n\
         <div class=\"tools\" hidden><label>Search <input type=\"search\"></label><button type=\"button\" disabled>Whole graph</button><span class=\"faint\">Click or Enter zooms, arrows move, Esc goes back.</span></div>\n\
         <svg class=\"tree\" role=\"tree\" aria-label=\"{title}\" width=\"100%\" height=\"{height}\">\n{}</svg>\n<output hidden></output>\n</figure>\n",
        legend(tree, kind),
        drawn.boxes
    )
}

struct Drawn {
    boxes: String,
    rows: usize,
    left_out: u64,
}

/// Boxes in the order in which they are read, each behind its caller.
fn draw(tree: &Tree<'_>, kind: Kind) -> Drawn {
    let whole = tree.root().bytes;
    let mut widths: Vec<u64> = tree.nodes().map(|node| node.bytes).collect();
    widths.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
    let too_narrow = widths.get(NODES_MAX).copied().unwrap_or(0);
    let mut drawn = Drawn { boxes: String::new(), rows: 0, left_out: 0 };
    let mut waiting: Vec<(usize, u64, usize)> = vec![(0, 0, 1)];
    let mut boxes = 0;
    while let Some((at, left, level)) = waiting.pop() {
        let Some(node) = tree.node(at) else { continue };
        if node.bytes <= too_narrow || node.bytes.saturating_mul(PARTS) < whole {
            continue;
        }
        boxes += 1;
        drawn.rows = drawn.rows.max(level);
        drawn.boxes.push_str(&one(tree, node, (left, level, whole), kind));
        let mut next = left;
        let mut children = Vec::new();
        for &child in &node.children {
            children.push((child, next, level + 1));
            next = next.saturating_add(tree.node(child).map_or(0, |node| node.bytes));
        }
        waiting.extend(children.into_iter().rev());
    }
    drawn.left_out = widths.len().saturating_sub(boxes) as u64;
    drawn
}

fn one(tree: &Tree<'_>, node: &Node<'_>, (left, level, whole): (u64, usize, u64), kind: Kind) -> String {
    let part = |bytes: u64| (u128::from(bytes) * u128::from(WHOLE) / u128::from(whole.max(1))) as u64;
    let (x, width) = (part(left), part(node.bytes));
    let share = |part: u64| format!("{:.3}%", 100.0 * part as f64 / WHOLE as f64);
    let box_at = format!("x=\"{}\" y=\"{}\" width=\"{}\" height=\"{ROW}\"", share(x), (level - 1) * ROW, share(width));
    let class = tree.class(node);
    let (label, name) = names(&node.call);
    let focus = if level == 1 { 0 } else { -1 };
    format!(
        "<g role=\"treeitem\" aria-level=\"{level}\" tabindex=\"{focus}\" data-x=\"{x}\" data-w=\"{width}\" class=\"{}\"><title>{}\n{}</title><rect {box_at}/><svg {box_at}><text x=\"4\" y=\"13\">{}</text></svg></g>\n",
        style(&node.call, node, class, kind),
        escape(&cut(&name, NAME_LETTERS, true)),
        figures(node, whole, class, kind),
        escape(&cut(&label, LABEL_LETTERS, true)),
    )
}

fn style(call: &Call<'_>, node: &Node<'_>, class: Option<&str>, kind: Kind) -> String {
    let own = if matches!(call, Call::Frame { is_own: true, .. }) { "own" } else { "lib" };
    let colour = match kind {
        Kind::Change if node.grown_bytes > node.shrunk_bytes => "grown".to_owned(),
        Kind::Change if node.grown_bytes < node.shrunk_bytes => "shrunk".to_owned(),
        Kind::Change => String::new(),
        Kind::Moment => class.and_then(class_number).map_or(String::new(), |number| format!("c{number}")),
    };
    format!("{own} {colour}").trim_end().to_owned()
}

/// The number of a class in the style.
#[must_use]
pub fn class_number(class: &str) -> Option<usize> {
    CLASSES.iter().position(|known| *known == class)
}

fn figures(node: &Node<'_>, whole: u64, class: Option<&str>, kind: Kind) -> String {
    let blocks = plural(node.blocks, "block");
    let text = match kind {
        Kind::Moment => {
            let class = class.map_or(String::new(), |class| format!(", mostly {}", escape(&class.replace('_', " "))));
            format!("{}, {}, {blocks}{class}", HumanBytes::of(node.bytes), percent(node.bytes, whole))
        }
        Kind::Change => {
            let (more, less) = (HumanBytes::of(node.grown_bytes), HumanBytes::of(node.shrunk_bytes));
            format!("{more} more, {less} less, {blocks} now")
        }
    };
    let exact = format!("{} bytes", count(node.bytes));
    format!("{text} ({exact})")
}

/// What stands in a box, and the whole of it.
fn names(call: &Call<'_>) -> (String, String) {
    let both = |text: &str| (text.to_owned(), text.to_owned());
    match call {
        Call::All => both("all"),
        Call::NoStack => both(NO_STACK),
        Call::Smaller => both("(smaller stacks)"),
        Call::Frame { frame, .. } => {
            let place = place(frame);
            let whole = if frame.file.is_empty() { place.clone() } else { format!("{place} in {}", frame.file) };
            (place, whole)
        }
        Call::Library(frames) => {
            let of = |frame: &Frame| if frame.function.is_empty() { "?".to_owned() } else { frame.function.clone() };
            let innermost = frames.last().copied().map(of).unwrap_or_default();
            let label = match frames.len() {
                1 => innermost,
                several => format!("{innermost} (and {} of the library)", plural(several as u64 - 1, "frame")),
            };
            // The innermost says what was asked for.
            let whole: Vec<String> = frames.iter().rev().map(|frame| place(frame)).collect();
            (label, whole.join(" < "))
        }
    }
}

/// The classes that are there, with their colours.
fn legend(tree: &Tree<'_>, kind: Kind) -> String {
    let key = |class: &str, name: &str| {
        format!(
            "<li><svg width=\"12\" height=\"12\" aria-hidden=\"true\"><rect class=\"{class}\" width=\"12\" height=\"12\"/></svg>{name}</li>"
        )
    };
    let keys: String = match kind {
        Kind::Change => [("key-grown", "more than before"), ("key-shrunk", "less than before")]
            .into_iter()
            .map(|(class, name)| key(class, name))
            .collect(),
        Kind::Moment => {
            let there = |class: &&str| tree.nodes().any(|node| tree.class(node) == Some(*class));
            let known = CLASSES.iter().enumerate().filter(|(_, class)| there(class));
            known.map(|(number, class)| key(&format!("c{number}"), &class.replace('_', " "))).collect()
        }
    };
    if keys.is_empty() { String::new() } else { format!("<ul class=\"legend\">{keys}</ul>") }
}
