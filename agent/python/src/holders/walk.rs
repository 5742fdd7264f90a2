//! Walks from the program's roots down to the tensors on some blocks, in slices. The nearest objects come first.
//!
//! For every visited object, the walk stores its address, the index of its referrer, and where the reference is in it.
//! Guarantees: between two slices no object is held. A slice follows only references that still exist, from live roots,
//! so it never reads a freed object. Each object is entered once. The number of objects is bounded.
//! Not entered: modules and their globals (except roots), classes that are not the program's own, running functions.

use std::collections::VecDeque;
use std::collections::hash_map::Entry as Slot;
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::rules::{Blocks, Kind, NoCollector, Rules};
use super::until;
use super::visit::{Map, Object, Set, Traverse, is_tracked, references, refers_to};

/// Maximum number of visited objects.
const SEEN_MAX: usize = 1 << 20;
/// First this many references of an object are visited, and half as many from the end. A wide object has more.
const WIDE: usize = 2_048;
/// Number of references of a wide object that are visited at a time later.
const WINDOW: usize = 8_192;
/// Maximum depth below a root.
const DEPTH_MAX: u8 = 64;
/// Maximum number of tensors whose graphs may be searched.
const STARTS_MAX: usize = 4_096;
/// Number of objects between two checks of the clock.
const BETWEEN_LOOKS: usize = 16;
/// Maximum number of an object's references that are compared with the visited objects at once.
const MATCHED: usize = 8_192;

/// The parent of a root.
const NONE: u32 = u32::MAX;

/// A visited object.
#[derive(Clone, Copy)]
struct Entry {
    id: usize,
    /// The address of the object's type.
    kind: usize,
    above: u32,
    place: u32,
    depth: u8,
}

/// The references of an object from the index `from` on. They are not visited yet.
#[derive(Clone, Copy)]
struct Turn {
    entry: u32,
    from: usize,
}

/// The walk; see the module's documentation.
#[pyclass(module = "memctl_agent._native")]
pub struct Walk {
    entries: Vec<Entry>,
    seen: Map<usize, u32>,
    waiting: VecDeque<Turn>,
    /// References that are visited when nothing else is left.
    later: VecDeque<Turn>,
    blocks: Blocks,
    found: Vec<Option<u32>>,
    starts: Vec<u32>,
    looked_at: u64,
    /// Number of tensors whose address was not read.
    not_asked: u64,
    is_full: bool,
}

/// The visited objects that are known to be alive in this slice.
#[derive(Default)]
struct Alive {
    objects: Map<u32, Object>,
    matched: Set<u32>,
}

#[pymethods]
impl Walk {
    #[new]
    fn new(blocks: Vec<(u64, u64)>) -> Self {
        Self {
            entries: Vec::new(),
            seen: Map::default(),
            waiting: VecDeque::new(),
            later: VecDeque::new(),
            found: vec![None; blocks.len()],
            blocks: Blocks::new(&blocks),
            starts: Vec::new(),
            looked_at: 0,
            not_asked: 0,
            is_full: false,
        }
    }

    /// Adds a root. Returns its index; `None` if it was visited already or must not be entered.
    fn root(&mut self, rules: &Bound<'_, PyTuple>, object: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
        let mut rules = Rules::new(rules)?;
        let _still = NoCollector::new();
        let object = object.as_ptr();
        if self.seen.contains_key(&(object as usize)) || !is_tracked(object) {
            return Ok(None);
        }
        // A root may be an object that the walk does not enter through references, such as the globals of a module.
        Ok(self.put(&mut rules, object, (NONE, 0, 0), true))
    }

    /// Continues for one slice below `roots`, which are pairs of index and object. Returns whether nothing is left.
    fn go(
        &mut self,
        rules: &Bound<'_, PyTuple>,
        roots: Vec<(u32, Bound<'_, PyAny>)>,
        slice_us: u64,
        is_late: bool,
    ) -> PyResult<bool> {
        let (mut rules, end) = (Rules::new(rules)?, until(slice_us));
        let _still = NoCollector::new();
        let mut alive = self.alive(&roots);
        let (mut turns, mut scratch) = (0, Vec::with_capacity(WIDE));
        while let Some(turn) = self.next(is_late) {
            if let Some(object) = self.resolve(&mut rules, &mut alive, turn.entry) {
                self.enter(&mut rules, &mut alive, turn, object, &mut scratch);
            }
            turns += 1 + scratch.len() / 64;
            if turns >= BETWEEN_LOOKS {
                turns = 0;
                if Instant::now() >= end {
                    break;
                }
            }
        }
        Ok(self.waiting.is_empty() && (!is_late || self.later.is_empty()))
    }

    /// Records the object at `held`, if it is new and `holder` refers to it. Returns whether it was recorded.
    fn adopt(
        &mut self,
        rules: &Bound<'_, PyTuple>,
        roots: Vec<(u32, Bound<'_, PyAny>)>,
        holder: u32,
        held: usize,
    ) -> PyResult<bool> {
        let mut rules = Rules::new(rules)?;
        let _still = NoCollector::new();
        let mut alive = self.alive(&roots);
        let Some(object) = self.resolve(&mut rules, &mut alive, holder) else { return Ok(false) };
        let Some(traverse) = super::visit::traverse_of(super::visit::type_of(object)) else { return Ok(false) };
        let depth = self.entries[holder as usize].depth;
        let is_there = !self.seen.contains_key(&held) && refers_to(object, traverse, held as Object, 0);
        Ok(is_there && self.put(&mut rules, held as Object, (holder, 0, depth.saturating_add(1)), false).is_some())
    }

    /// Defers all waiting references. They are visited when nothing else is left.
    fn shelve(&mut self) {
        self.later.append(&mut self.waiting);
    }

    /// Whether a tensor was found on every block.
    fn has_all(&self) -> bool {
        self.found.iter().all(Option::is_some)
    }

    /// Whether references are left that were not visited, or the limit of objects was reached.
    fn is_cut(&self) -> bool {
        self.is_full || !self.later.is_empty() || !self.waiting.is_empty()
    }

    /// For each block with a tensor, the block's index and the tensor's index.
    fn found(&self) -> Vec<(usize, u32)> {
        self.found.iter().enumerate().filter_map(|(block, entry)| Some((block, (*entry)?))).collect()
    }

    /// The tensors whose graphs may lead to further objects, in the order in which they were found.
    fn starts(&self) -> Vec<u32> {
        self.starts.clone()
    }

    /// The number of visited objects, and of tensors whose address was not read.
    fn counts(&self) -> (u64, u64) {
        (self.looked_at, self.not_asked)
    }

    /// The roots above some objects.
    fn roots(&self, entries: Vec<u32>) -> Vec<u32> {
        entries.into_iter().map(|entry| self.root_of(entry)).collect()
    }

    /// The indices from a root down to each of these objects.
    fn chains(&self, entries: Vec<u32>) -> Vec<Vec<u32>> {
        entries.into_iter().map(|entry| self.chain(entry)).collect()
    }

    /// The addresses of the types that some objects had when they were visited.
    fn types(&self, entries: Vec<u32>) -> Vec<usize> {
        entries.into_iter().map(|entry| self.entries.get(entry as usize).map_or(0, |entry| entry.kind)).collect()
    }

    /// The index of a visited object.
    fn number(&self, id: usize) -> Option<u32> {
        self.seen.get(&id).copied()
    }

    /// For each of these indices, the objects from its root down to it; `None` if the path no longer exists.
    fn paths<'py>(
        &self,
        py: Python<'py>,
        rules: &Bound<'py, PyTuple>,
        roots: Vec<(u32, Bound<'py, PyAny>)>,
        entries: Vec<u32>,
    ) -> PyResult<Vec<Option<Vec<Bound<'py, PyAny>>>>> {
        let mut rules = Rules::new(rules)?;
        let _still = NoCollector::new();
        let mut alive = self.alive(&roots);
        let mut paths = Vec::with_capacity(entries.len());
        for entry in entries {
            let chain = self.chain(entry);
            let is_there = self.resolve(&mut rules, &mut alive, entry).is_some();
            let objects = chain.iter().map(|at| alive.objects.get(at).copied());
            let objects: Option<Vec<_>> = objects
                // SAFETY: alive within this call; each becomes a reference of its own.
                .map(|object| object.map(|object| unsafe { Bound::from_borrowed_ptr(py, object) }))
                .collect();
            paths.push(objects.filter(|_| is_there));
        }
        Ok(paths)
    }
}

/// Whether an object refers to a dict that refers to the object `wanted`.
fn has_dict_with(object: Object, traverse: Traverse, wanted: Object) -> bool {
    let mut below = Vec::new();
    references(object, traverse, (0, WIDE), &mut below);
    let holds = |dict: Object| {
        let traverse = super::visit::traverse_of(super::visit::type_of(dict));
        traverse.is_some_and(|traverse| refers_to(dict, traverse, wanted, 0))
    };
    below.into_iter().any(|(_, dict)| super::visit::is_dict(dict) && holds(dict))
}

impl Walk {
    fn next(&mut self, is_late: bool) -> Option<Turn> {
        self.waiting.pop_front().or_else(|| if is_late { self.later.pop_front() } else { None })
    }

    fn root_of(&self, mut entry: u32) -> u32 {
        while let Some(Entry { above, .. }) = self.entries.get(entry as usize).filter(|entry| entry.above != NONE) {
            entry = *above;
        }
        entry
    }

    /// The indices from a root down to an object.
    fn chain(&self, entry: u32) -> Vec<u32> {
        let mut chain = vec![entry];
        while let Some(Entry { above, .. }) = self.entries.get(chain[chain.len() - 1] as usize)
            && *above != NONE
            && chain.len() <= usize::from(DEPTH_MAX) + 1
        {
            chain.push(*above);
        }
        chain.reverse();
        chain
    }

    fn alive(&self, roots: &[(u32, Bound<'_, PyAny>)]) -> Alive {
        let mut alive = Alive::default();
        for (number, object) in roots {
            // A variable that has another value now is not the same root.
            if self.entries.get(*number as usize).is_some_and(|entry| entry.id == object.as_ptr() as usize) {
                alive.objects.insert(*number, object.as_ptr());
            }
        }
        alive
    }

    /// A visited object, if all references from its root down to it still exist.
    fn resolve(&self, rules: &mut Rules<'_>, alive: &mut Alive, entry: u32) -> Option<Object> {
        if let Some(known) = alive.objects.get(&entry) {
            return Some(*known);
        }
        let chain = self.chain(entry);
        let mut at = chain.iter().rposition(|number| alive.objects.contains_key(number))?;
        while at + 1 < chain.len() {
            let (above, below) = (chain[at], chain[at + 1]);
            let holder = *alive.objects.get(&above)?;
            let Entry { id, place, .. } = *self.entries.get(below as usize)?;
            let wanted = id as Object;
            let traverse = match rules.kind(holder) {
                Kind::Passable(traverse) | Kind::Tensor(traverse) | Kind::Refused(traverse) | Kind::Frame(traverse) => {
                    traverse
                }
                // The holder is a class that is a root.
                Kind::Wall => super::visit::traverse_of(super::visit::type_of(holder))?,
            };
            self.match_below(alive, above, holder, traverse);
            if let Slot::Vacant(slot) = alive.objects.entry(below) {
                let is_there = refers_to(holder, traverse, wanted, place as usize)
                    // The object's attributes may have moved into a dict of their own meanwhile.
                    || has_dict_with(holder, traverse, wanted);
                if !is_there {
                    return None;
                }
                slot.insert(wanted);
            }
            at += 1;
        }
        alive.objects.get(&entry).copied()
    }

    /// Records objects as alive: those that the walk first reached from `holder`, among its first references.
    fn match_below(&self, alive: &mut Alive, above: u32, holder: Object, traverse: Traverse) {
        if !alive.matched.insert(above) {
            return;
        }
        let mut below = Vec::new();
        references(holder, traverse, (0, MATCHED), &mut below);
        for (_, object) in below {
            if let Some(number) = self.seen.get(&(object as usize))
                && self.entries[*number as usize].above == above
            {
                alive.objects.insert(*number, object);
            }
        }
    }

    /// Visits the references of an object.
    fn enter(
        &mut self,
        rules: &mut Rules<'_>,
        alive: &mut Alive,
        turn: Turn,
        object: Object,
        scratch: &mut Vec<(u32, Object)>,
    ) {
        scratch.clear();
        let Some(Entry { depth, .. }) = self.entries.get(turn.entry as usize).copied() else { return };
        let Some(traverse) = super::visit::traverse_of(super::visit::type_of(object)) else { return };
        let is_first = turn.from == 0;
        let to = if is_first { WIDE } else { turn.from + WINDOW };
        let count = references(object, traverse, (turn.from, to), scratch);
        if is_first && count > WIDE {
            // A container's last items are as likely to hold the tensors as its first items.
            references(object, traverse, (count - (WIDE / 2).min(count - WIDE), count), scratch);
        }
        if count > to {
            self.later.push_back(Turn { entry: turn.entry, from: to });
        }
        self.looked_at += u64::from(is_first);
        // Frames are entered only from a traceback. Other frames may be running, or may have called a running one.
        let is_traceback = super::visit::is_traceback(object);
        for &(place, child) in scratch.iter() {
            if self.seen.contains_key(&(child as usize)) || !is_tracked(child) || super::visit::is_namespace(child) {
                continue;
            }
            if let Some(number) = self.put(rules, child, (turn.entry, place, depth + 1), is_traceback) {
                alive.objects.insert(number, child);
            }
        }
    }

    /// Records an object and its references for a later turn. If `is_open` is set, frames are entered, too.
    fn put(&mut self, rules: &mut Rules<'_>, object: Object, at: (u32, u32, u8), is_open: bool) -> Option<u32> {
        let (above, place, depth) = at;
        let kind = rules.kind(object);
        match kind {
            Kind::Wall if above != NONE && !rules.is_own_class(object) => return None,
            Kind::Frame(_) if !is_open => return None,
            _ => {}
        }
        if self.entries.len() >= SEEN_MAX {
            self.is_full = true;
            return None;
        }
        let number = self.entries.len() as u32;
        let type_at = super::visit::type_of(object) as usize;
        self.entries.push(Entry { id: object as usize, kind: type_at, above, place, depth });
        self.seen.insert(object as usize, number);
        match kind {
            Kind::Tensor(_) => {
                if let Some(block) = rules.block_of(object, &self.blocks) {
                    self.found[block].get_or_insert(number);
                }
                // A tensor's autograd graph may hold wanted tensors. A loss holds the tensors it was computed from.
                if self.starts.len() < STARTS_MAX {
                    self.starts.push(number);
                }
            }
            Kind::Refused(_) => self.not_asked += 1,
            Kind::Wall | Kind::Passable(_) | Kind::Frame(_) => {}
        }
        if depth < DEPTH_MAX {
            self.waiting.push_back(Turn { entry: number, from: 0 });
        }
        Some(number)
    }
}
