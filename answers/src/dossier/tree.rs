//! Stacks merged into a tree of calls, outermost first: live memory at one moment, or what changed between two, for
//! flame graphs.
//!
//! Guarantees: the bytes below a call never exceed those of the call. Library frames between the user's own are one
//! call, so that the user's lines are visible. Depth and number of stacks are limited; the smallest stacks are merged
//! into one call. Sums saturate, and nothing recurses.

use std::collections::HashMap;

use super::table::SiteClasses;
use crate::Frame;
use crate::sites::{RankSites, Site};

/// The most stacks that are distinguished; the smaller ones are merged into one call.
const STACKS_MAX: usize = 20_000;
/// Calls of one stack; deeper calls count as part of the last one.
const CALLS_MAX: usize = 96;

/// The meaning of a box in a flame graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Call<'s> {
    /// Everything.
    All,
    /// A frame.
    Frame {
        /// Which one.
        frame: &'s Frame,
        /// Whether it is the user's own code.
        is_own: bool,
    },
    /// Library frames in a row, outermost first.
    Library(Vec<&'s Frame>),
    /// Memory of one name, as the process gave it.
    Owner(&'s str),
    /// Memory without a recorded stack.
    NoStack,
    /// Stacks that are too small to be distinguished.
    Smaller,
}

/// A call with everything below it.
#[derive(Clone, Debug)]
pub struct Node<'s> {
    /// The call.
    pub call: Call<'s>,
    /// How wide it is: bytes that live, or bytes that changed in either direction.
    pub bytes: u64,
    /// Of these, bytes that came.
    pub grown_bytes: u64,
    /// Of these, bytes that went.
    pub shrunk_bytes: u64,
    /// Blocks that live, at the later moment.
    pub blocks: u64,
    /// The calls below, in the order in which they are drawn.
    pub children: Vec<usize>,
    classes: Vec<u64>,
}

/// A tree of calls.
#[derive(Clone, Debug)]
pub struct Tree<'s> {
    nodes: Vec<Node<'s>>,
    classes: Vec<String>,
    /// Live in stacks that did not change, where a change is shown.
    pub unchanged_bytes: u64,
}

/// The data of one stack.
struct Leaf<'s> {
    site: &'s Site,
    before_bytes: u64,
    after_bytes: u64,
    blocks: u64,
}

impl<'s> Tree<'s> {
    /// Live memory at one moment; the largest calls first.
    #[must_use]
    pub fn of_moment(live: &'s RankSites, classes: &SiteClasses) -> Self {
        let leaves = live.sites.iter().map(|site| Leaf {
            site,
            before_bytes: 0,
            after_bytes: site.live_bytes,
            blocks: site.live_blocks,
        });
        let mut tree = Self::grown(leaves.collect(), classes);
        tree.sort_by_key(|node| i128::from(node.bytes));
        tree
    }

    /// The change from one moment to another; the largest growth first.
    #[must_use]
    pub fn of_change(early: &'s RankSites, late: &'s RankSites, classes: &SiteClasses) -> Self {
        let mut leaves: Vec<Leaf<'s>> = Vec::new();
        let mut places: HashMap<(&[Frame], Option<&str>), usize> = HashMap::new();
        for (sites, is_late) in [(&early.sites, false), (&late.sites, true)] {
            for site in sites {
                let place = *places.entry((&site.stack, site.owner.as_deref())).or_insert_with(|| {
                    leaves.push(Leaf { site, before_bytes: 0, after_bytes: 0, blocks: 0 });
                    leaves.len() - 1
                });
                let leaf = &mut leaves[place];
                let sum = if is_late { &mut leaf.after_bytes } else { &mut leaf.before_bytes };
                *sum = sum.saturating_add(site.live_bytes);
                if is_late {
                    leaf.blocks = leaf.blocks.saturating_add(site.live_blocks);
                }
            }
        }
        let (same, changed): (Vec<_>, Vec<_>) =
            leaves.into_iter().partition(|leaf| leaf.before_bytes == leaf.after_bytes);
        let mut tree = Self::grown(changed, classes);
        tree.unchanged_bytes = same.iter().fold(0, |sum, leaf| leaf.after_bytes.saturating_add(sum));
        tree.sort_by_key(|node| i128::from(node.grown_bytes) - i128::from(node.shrunk_bytes));
        tree
    }

    /// The root, which contains everything.
    #[must_use]
    pub fn root(&self) -> &Node<'s> {
        &self.nodes[0]
    }

    /// A call by its number; number 0 is the root.
    #[must_use]
    pub fn node(&self, at: usize) -> Option<&Node<'s>> {
        self.nodes.get(at)
    }

    /// All calls, in unspecified order.
    pub fn nodes(&self) -> impl Iterator<Item = &Node<'s>> {
        self.nodes.iter()
    }

    /// The class with most of a call's bytes; `None` if no class is known.
    #[must_use]
    pub fn class(&self, node: &Node<'_>) -> Option<&str> {
        let most = node.classes.iter().enumerate().filter(|(_, bytes)| **bytes > 0).max_by_key(|(_, bytes)| **bytes);
        most.and_then(|(at, _)| self.classes.get(at)).map(String::as_str)
    }

    fn grown(mut leaves: Vec<Leaf<'s>>, classes: &SiteClasses) -> Self {
        let mut tree = Self { nodes: vec![Node::new(Call::All)], classes: Vec::new(), unchanged_bytes: 0 };
        leaves.sort_by_key(|leaf| std::cmp::Reverse(leaf.after_bytes.abs_diff(leaf.before_bytes)));
        let mut places: HashMap<(usize, Call<'s>), usize> = HashMap::new();
        let mut own: HashMap<&str, bool> = HashMap::new();
        for (number, leaf) in leaves.iter().enumerate() {
            let path = match number < STACKS_MAX {
                true => calls(leaf.site, &mut own),
                false => vec![Call::Smaller],
            };
            let class = classes.of(&leaf.site.site).map(|class| tree.class_number(class));
            let mut at = 0;
            tree.nodes[0].add(leaf, class);
            for call in path {
                let key = (at, call);
                at = match places.get(&key) {
                    Some(&known) => known,
                    None => {
                        let new = tree.nodes.len();
                        tree.nodes.push(Node::new(key.1.clone()));
                        tree.nodes[at].children.push(new);
                        places.insert(key, new);
                        new
                    }
                };
                tree.nodes[at].add(leaf, class);
            }
        }
        tree
    }

    fn class_number(&mut self, class: &str) -> usize {
        self.classes.iter().position(|known| known == class).unwrap_or_else(|| {
            self.classes.push(class.to_owned());
            self.classes.len() - 1
        })
    }

    fn sort_by_key(&mut self, key: impl Fn(&Node<'s>) -> i128) {
        let keys: Vec<i128> = self.nodes.iter().map(key).collect();
        for node in &mut self.nodes {
            node.children.sort_by_key(|&child| std::cmp::Reverse(keys[child]));
        }
    }
}

impl<'s> Node<'s> {
    fn new(call: Call<'s>) -> Self {
        let (bytes, grown_bytes, shrunk_bytes, blocks) = (0, 0, 0, 0);
        Self { call, bytes, grown_bytes, shrunk_bytes, blocks, children: Vec::new(), classes: Vec::new() }
    }

    fn add(&mut self, leaf: &Leaf<'_>, class: Option<usize>) {
        let bytes = leaf.after_bytes.abs_diff(leaf.before_bytes);
        let one_way = if leaf.after_bytes > leaf.before_bytes { &mut self.grown_bytes } else { &mut self.shrunk_bytes };
        *one_way = one_way.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        self.blocks = self.blocks.saturating_add(leaf.blocks);
        if let Some(class) = class {
            if self.classes.len() <= class {
                self.classes.resize(class + 1, 0);
            }
            self.classes[class] = self.classes[class].saturating_add(bytes);
        }
    }
}

/// The calls of a stack, outermost first, followed by the owner of the memory. A stack without the user's own frames is
/// shown frame by frame.
fn calls<'f>(site: &'f Site, own: &mut HashMap<&'f str, bool>) -> Vec<Call<'f>> {
    let (stack, owner) = (&site.stack, site.owner.as_deref().map(Call::Owner));
    if stack.is_empty() {
        return [Call::NoStack].into_iter().chain(owner).collect();
    }
    let mut is_own = |frame: &'f Frame| *own.entry(&frame.file).or_insert_with(|| frame.is_user_code());
    let all_library = !stack.iter().any(&mut is_own);
    // C++ frames between Python frames are left out, because they are unknown to users.
    let all_native = stack.iter().all(Frame::is_native);
    let mut calls: Vec<Call<'f>> = Vec::new();
    for frame in stack.iter().rev().filter(|frame| all_native || !frame.is_native()) {
        let is_own = is_own(frame);
        if is_own || all_library {
            calls.push(Call::Frame { frame, is_own });
        } else if let Some(Call::Library(frames)) = calls.last_mut() {
            frames.push(frame);
        } else {
            calls.push(Call::Library(vec![frame]));
        }
    }
    calls.truncate(CALLS_MAX - usize::from(owner.is_some()));
    calls.extend(owner);
    calls
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sites::Site;

    fn sites(of: &[(&[&str], u64)]) -> RankSites {
        // Innermost first, as on the wire; the prefix `lib.` marks a library's frame.
        let frame = |name: &&str| Frame {
            function: (*name).into(),
            file: match name.split_once('.') {
                Some(("lib", _)) => "/usr/lib/python3/site-packages/torch/nn.py".into(),
                Some(("of", _)) => "<owner>".into(),
                Some(("cpp", _)) => "RegisterCUDA.cpp".into(),
                _ => "/home/me/train.py".into(),
            },
            line: Some(1),
        };
        let site = |(stack, bytes): &(&[&str], u64)| Site {
            live_bytes: *bytes,
            live_blocks: 1,
            ..Site::new(stack.iter().map(frame).collect())
        };
        RankSites { sites: of.iter().map(site).collect(), ..RankSites::default() }
    }

    /// Names by depth with their bytes, as they are drawn.
    fn drawn(tree: &Tree<'_>) -> Vec<String> {
        let (mut out, mut stack) = (Vec::new(), vec![(0, 0)]);
        while let Some((at, depth)) = stack.pop() {
            let node = tree.node(at).unwrap();
            let name = match &node.call {
                Call::All => "all".to_owned(),
                Call::Frame { frame, .. } => frame.function.clone(),
                Call::Library(frames) => {
                    frames.iter().map(|frame| frame.function.as_str()).collect::<Vec<_>>().join("+")
                }
                Call::Owner(name) => format!("[{name}]"),
                Call::NoStack => "none".to_owned(),
                Call::Smaller => "smaller".to_owned(),
            };
            out.push(format!("{}{name} +{} -{}", " ".repeat(depth), node.grown_bytes, node.shrunk_bytes));
            stack.extend(node.children.iter().rev().map(|&child| (child, depth + 1)));
        }
        out
    }

    #[test]
    fn stacks_are_merged_and_library_frames_folded() {
        let live = sites(&[
            (&["lib.b", "lib.a", "step", "main"], 4),
            (&["keep", "main"], 6),
            (&[], 1),
            (&["lib.x", "lib.y"], 2),
        ]);
        let tree = Tree::of_moment(&live, &SiteClasses::default());
        let expected = [
            "all +13 -0",
            " main +10 -0",
            "  keep +6 -0",
            "  step +4 -0",
            "   lib.a+lib.b +4 -0",
            " lib.y +2 -0",
            "  lib.x +2 -0",
            " none +1 -0",
        ];
        assert_eq!(drawn(&tree), expected);
        assert_eq!((tree.root().bytes, tree.root().blocks), (13, 4));
    }

    #[test]
    fn frames_of_cpp_are_left_out_where_there_are_others() {
        let live = sites(&[(&["cpp.x", "lib.a", "cpp.y", "step", "cpp.z"], 4), (&["cpp.x", "cpp.y"], 1)]);
        let expected = ["all +5 -0", " step +4 -0", "  lib.a +4 -0", " cpp.y +1 -0", "  cpp.x +1 -0"];
        assert_eq!(drawn(&Tree::of_moment(&live, &SiteClasses::default())), expected);
    }

    #[test]
    fn a_name_lies_below_the_line_that_allocated_it() {
        let live = sites(&[
            (&["of.KV cache", "lib.a", "step"], 4),
            (&["of.weights", "lib.a", "step"], 2),
            (&["lib.a", "step"], 1),
            (&["of.pool"], 3),
        ]);
        let expected = [
            "all +10 -0",
            " step +7 -0",
            "  lib.a +7 -0",
            "   [of.KV cache] +4 -0",
            "   [of.weights] +2 -0",
            " none +3 -0",
            "  [of.pool] +3 -0",
        ];
        assert_eq!(drawn(&Tree::of_moment(&live, &SiteClasses::default())), expected);
        assert_eq!(drawn(&Tree::of_change(&live, &live, &SiteClasses::default())), ["all +0 -0"]);
    }

    #[test]
    fn a_change_shows_what_grew_first_and_leaves_out_what_did_not() {
        let early = sites(&[(&["model", "main"], 100), (&["keep", "main"], 1), (&["cache", "main"], 30)]);
        let late = sites(&[(&["model", "main"], 100), (&["cache", "main"], 10), (&["keep", "main"], 8), (&["new"], 2)]);
        let tree = Tree::of_change(&early, &late, &SiteClasses::default());
        let expected = ["all +9 -20", " new +2 -0", " main +7 -20", "  keep +7 -0", "  cache +0 -20"];
        assert_eq!(drawn(&tree), expected);
        assert_eq!((tree.root().bytes, tree.unchanged_bytes), (29, 100));
    }

    #[test]
    fn nothing_is_too_deep_or_too_large() {
        let names: Vec<String> = (0..5000).map(|at| format!("f{at}")).collect();
        let deep: Vec<&str> = names.iter().map(String::as_str).collect();
        let live = sites(&[(&deep, u64::MAX), (&deep[1..], u64::MAX)]);
        let tree = Tree::of_moment(&live, &SiteClasses::default());
        assert_eq!(tree.nodes().count(), 1 + CALLS_MAX);
        assert_eq!(tree.root().bytes, u64::MAX);
    }
}
