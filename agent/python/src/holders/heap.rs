//! Walks all objects that the collector tracks, in slices. Finds the tensors on some blocks, the referrers of some
//! objects, and generators.
//!
//! The collector keeps its objects in rings (linked lists). The walk visits a ring from its newest object to its
//! oldest, so that the program's own objects come before those of imported modules.
//! Guarantees: rings are read and never changed. A call returns each object at most once, even if it visits a ring
//! twice. Callers need this, because they count references.
//!
//! Between two slices a keeper marks the position in a ring. A keeper is a weak reference to a function or a class, a
//! method of a C class, or a list that contains only numbers and texts. Other objects are not kept, so they may be
//! freed meanwhile. The object of a weak reference may also be freed. For example, the newest functions may belong to
//! the search itself. Then the walk continues at an earlier position, or it visits the ring again. A collection between
//! two slices may also make the walk visit objects again.

use std::time::Instant;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::rings::{HEAD_BYTES, before, heads};
use super::rules::{Blocks, Kind, NoCollector, Rules};
use super::until;
use super::visit::{Object, Set, references};

/// Number of objects between two checks of the clock.
const BETWEEN_LOOKS: usize = 64;
/// Maximum number of references of one object that are compared with the wanted objects.
const COMPARED: usize = 1 << 20;
/// Maximum number of objects that are tried as keepers of a position.
const KEEPERS_AMONG: usize = 8_192;

/// How often the position may be lost. It is lost if its keeper was freed, or if no object can keep it.
const STALLS_MAX: u32 = 8;
/// Maximum number of positions that are kept. The newest position is tried first.
const KEPT_MAX: usize = 4;

/// Keeps a position between two slices. The object of the keeper is the last one that was visited.
struct Keeper {
    /// A weak reference, or the object itself if it holds nothing.
    at: Py<PyAny>,
    is_weak: bool,
}

/// A block's index and a tensor on it.
type OnBlock<'py> = (usize, Bound<'py, PyAny>);
/// An object, and the address of an object that it refers to.
type Holder<'py> = (Bound<'py, PyAny>, usize);

/// The walk; see the module's documentation.
#[pyclass(module = "memctl_agent._native")]
pub struct Heap {
    blocks: Blocks,
    heads: Vec<usize>,
    ring: usize,
    keepers: Vec<Keeper>,
    stalls: u32,
    visited: u64,
    /// Whether objects may have been missed, because a position was lost too often.
    has_jumped: bool,
    taken: Vec<usize>,
}

#[pymethods]
impl Heap {
    #[new]
    fn new(py: Python<'_>, blocks: Vec<(u64, u64)>) -> Self {
        Self {
            blocks: Blocks::new(&blocks),
            heads: heads(py),
            ring: 0,
            keepers: Vec::new(),
            stalls: 0,
            visited: 0,
            has_jumped: false,
            taken: Vec::new(),
        }
    }

    /// Whether the layout of the collector's rings is known here.
    fn can_tell(&self) -> bool {
        !self.heads.is_empty()
    }

    /// The number of visited objects, and whether some may have been missed.
    fn counts(&self) -> (u64, bool) {
        (self.visited, self.has_jumped)
    }

    /// Blocks that were freed and whose memory was allocated again. Tensors of other sizes are at their addresses.
    fn taken(&self) -> Vec<usize> {
        self.taken.clone()
    }

    /// Restarts the walk with the first object.
    fn rewind(&mut self) {
        self.ring = 0;
        self.keepers.clear();
    }

    /// The tensors on the blocks. Returns whether all objects were visited, and pairs of a block's index and a tensor.
    fn tensors<'py>(
        &mut self,
        py: Python<'py>,
        rules: &Bound<'py, PyTuple>,
        slice_us: u64,
    ) -> PyResult<(bool, Vec<OnBlock<'py>>)> {
        let (rules, end) = (Rules::new(rules)?, until(slice_us));
        let _still = NoCollector::new();
        let (mut found, blocks) = (Vec::new(), std::mem::take(&mut self.blocks));
        let (mut known, mut taken) = (Set::default(), Vec::new());
        let is_done = self.go(py, end, |object| {
            if rules.is_tensor(object)
                && let Some(place) = rules.place_of(object, &blocks)
                && known.insert(object as usize)
            {
                match place.is_whole {
                    true => found.push((place.block, object)),
                    false => taken.push(place.block),
                }
            }
        });
        self.blocks = blocks;
        self.taken.append(&mut taken);
        // SAFETY: alive within this call; each becomes a reference of its own.
        let bound = |(block, object)| (block, unsafe { Bound::from_borrowed_ptr(py, object) });
        Ok((is_done, found.into_iter().map(bound).collect()))
    }

    /// Generators, coroutines and asynchronous generators. Returns whether all objects were visited, and the objects
    /// that were found.
    fn generators<'py>(&mut self, py: Python<'py>, slice_us: u64) -> (bool, Vec<Bound<'py, PyAny>>) {
        let end = until(slice_us);
        let _still = NoCollector::new();
        let (mut found, mut known) = (Vec::new(), Set::default());
        let kinds = generator_types(py);
        let is_done = self.go(py, end, |object| {
            if kinds.contains(&(super::visit::type_of(object) as usize)) && known.insert(object as usize) {
                found.push(object);
            }
        });
        // SAFETY: as above.
        let bound = |object| unsafe { Bound::from_borrowed_ptr(py, object) };
        (is_done, found.into_iter().map(bound).collect())
    }

    /// The referrers of some objects. Returns whether all objects were visited, and pairs of a referrer and the address
    /// of the object that it refers to.
    fn holders<'py>(
        &mut self,
        py: Python<'py>,
        rules: &Bound<'py, PyTuple>,
        wanted: Vec<usize>,
        slice_us: u64,
    ) -> PyResult<(bool, Vec<Holder<'py>>)> {
        let (mut rules, end) = (Rules::new(rules)?, until(slice_us));
        let _still = NoCollector::new();
        let (mut found, mut below, mut known) = (Vec::new(), Vec::new(), Set::default());
        let wanted: Set<usize> = wanted.into_iter().collect();
        // Most references are not to wanted objects. A filter of 64 bits excludes most of them quickly.
        let bit = |id: usize| 1_u64 << ((id >> 4) & 63);
        let bits = wanted.iter().fold(0, |bits, id| bits | bit(*id));
        let is_done = self.go(py, end, |object| {
            let traverse = match rules.kind(object) {
                Kind::Passable(traverse) | Kind::Tensor(traverse) | Kind::Refused(traverse) | Kind::Frame(traverse) => {
                    traverse
                }
                Kind::Wall => match super::visit::traverse_of(super::visit::type_of(object)) {
                    Some(traverse) => traverse,
                    None => return,
                },
            };
            below.clear();
            references(object, traverse, (0, COMPARED), &mut below);
            let ids = below.iter().map(|(_, child)| *child as usize);
            let held: Set<usize> = ids.filter(|id| bits & bit(*id) != 0 && wanted.contains(id)).collect();
            if held.is_empty() || !known.insert(object as usize) {
                return;
            }
            found.extend(held.into_iter().map(|id| (object, id)));
        });
        // SAFETY: as above.
        let bound = |(object, id)| (unsafe { Bound::from_borrowed_ptr(py, object) }, id);
        Ok((is_done, found.into_iter().map(bound).collect()))
    }
}

impl Heap {
    /// Visits the objects from the current position until the time is up. Returns whether all objects were visited.
    fn go(&mut self, py: Python<'_>, end: Instant, mut show: impl FnMut(Object)) -> bool {
        while let Some(head) = self.heads.get(self.ring).copied() {
            let Some(mut at) = self.place(py, head) else { return true };
            let mut looks = 0;
            while !self.heads.contains(&at) {
                if looks >= BETWEEN_LOOKS {
                    looks = 0;
                    if Instant::now() >= end {
                        self.keep(py, head, at, &mut show);
                        return false;
                    }
                }
                show((at + HEAD_BYTES) as Object);
                self.visited += 1;
                looks += 1;
                at = before(at);
            }
            self.ring += 1;
            self.keepers.clear();
        }
        true
    }

    /// The first object of a ring that was not visited yet, or the ring's head if there is none. `None` if the position
    /// was lost too often. Then the rest of all rings is not visited.
    fn place(&mut self, py: Python<'_>, head: usize) -> Option<usize> {
        if self.keepers.is_empty() {
            return Some(before(head));
        }
        while let Some(keeper) = self.keepers.last() {
            let Some(object) = keeper.object(py) else {
                self.keepers.pop();
                continue;
            };
            // A collection may have moved the keeper's object into another ring, together with most of its neighbours.
            // Then the walk visits the objects after it in that ring, then the rest of the keeper's former ring, and
            // then the other rings.
            let place = before(object as usize - HEAD_BYTES);
            return Some(if place != head && self.heads.contains(&place) { head } else { place });
        }
        self.may_go_back().then(|| before(head))
    }

    /// Counts a lost position. Returns whether the walk may go back to an earlier position.
    fn may_go_back(&mut self) -> bool {
        self.stalls += 1;
        let may = self.stalls <= STALLS_MAX;
        if !may {
            (self.has_jumped, self.ring) = (true, self.heads.len());
        }
        may
    }

    /// Visits objects from `at` on until one of them can keep the position. `at` is the first object that was not
    /// visited.
    fn keep(&mut self, py: Python<'_>, head: usize, mut at: usize, show: &mut impl FnMut(Object)) {
        let mut scratch = Vec::new();
        for _ in 0..KEEPERS_AMONG {
            if at == head {
                break;
            }
            let object = (at + HEAD_BYTES) as Object;
            show(object);
            self.visited += 1;
            if let Some((at, is_weak)) = keeper(py, object, &mut scratch) {
                if self.keepers.len() == KEPT_MAX {
                    self.keepers.remove(0);
                }
                self.keepers.push(Keeper { at, is_weak });
                return;
            }
            at = before(at);
        }
        if at == head {
            self.ring += 1;
            self.keepers.clear();
            return;
        }
        // No object there can keep the position.
        self.may_go_back();
    }
}

/// The types of generators, coroutines and asynchronous generators. The stable interface does not name them.
fn generator_types(py: Python<'_>) -> [usize; 3] {
    static FOUND: pyo3::sync::PyOnceLock<[usize; 3]> = pyo3::sync::PyOnceLock::new();
    let look = || -> PyResult<[usize; 3]> {
        let types = py.import("types")?;
        let of = |name: &str| -> PyResult<usize> { Ok(types.getattr(name)?.as_ptr() as usize) };
        Ok([of("GeneratorType")?, of("CoroutineType")?, of("AsyncGeneratorType")?])
    };
    FOUND.get_or_try_init(py, look).copied().unwrap_or_default()
}

/// The type of functions that are written in Python. The stable interface does not name it.
fn function_type(py: Python<'_>) -> *mut ffi::PyTypeObject {
    static FOUND: pyo3::sync::PyOnceLock<usize> = pyo3::sync::PyOnceLock::new();
    let look = || -> PyResult<usize> { Ok(py.import("types")?.getattr("FunctionType")?.as_ptr() as usize) };
    FOUND.get_or_try_init(py, look).copied().unwrap_or_default() as *mut ffi::PyTypeObject
}

impl Keeper {
    /// The object, if it is alive and in a ring.
    fn object(&self, py: Python<'_>) -> Option<Object> {
        let object = if self.is_weak {
            // SAFETY: a weak reference. Its result is a new reference, which is released here at once. Either another
            // holder keeps the object, or it is freed now, as it would have been without this call.
            let found = unsafe { ffi::PyObject_CallNoArgs(self.at.as_ptr()) };
            if found.is_null() {
                // SAFETY: the interpreter's lock is held.
                unsafe { ffi::PyErr_Clear() };
                return None;
            }
            // SAFETY: our own reference.
            let found: Bound<'_, PyAny> = unsafe { Bound::from_owned_ptr(py, found) };
            if found.is_none() { None } else { Some(found.as_ptr()) }
        } else {
            Some(self.at.as_ptr())
        };
        object.filter(|object| super::visit::is_tracked(*object))
    }
}

/// Makes a keeper for an object's position, if this is possible. The keeper is a weak reference to a function or a
/// class, or the object itself if it refers to nothing of the program. A keeper keeps no object of the program alive,
/// except for the object itself in the second case.
fn keeper(py: Python<'_>, object: Object, scratch: &mut Vec<(u32, Object)>) -> Option<(Py<PyAny>, bool)> {
    let kind = super::visit::type_of(object);
    let is_weak = [&raw mut ffi::PyType_Type, &raw mut ffi::PyCFunction_Type, function_type(py)].contains(&kind);
    if is_weak {
        // SAFETY: a live object; the result is a new reference or none.
        let made = unsafe { ffi::PyWeakref_NewRef(object, std::ptr::null_mut()) };
        if made.is_null() {
            // SAFETY: the interpreter's lock is held.
            unsafe { ffi::PyErr_Clear() };
            return None;
        }
        // SAFETY: our own reference.
        return Some((unsafe { Bound::from_owned_ptr(py, made) }.unbind(), true));
    }
    // These are methods of C classes. Binding libraries make thousands of them in a row. They refer to none of the
    // program's objects.
    if [&raw mut ffi::PyMethodDescr_Type, &raw mut ffi::PyWrapperDescr_Type].contains(&kind) {
        // SAFETY: a live object; this becomes a reference of its own.
        return Some((unsafe { Bound::from_borrowed_ptr(py, object) }.unbind(), false));
    }
    // (A tuple or a dict with only such objects cannot be a keeper, because the next collection removes it from the
    // rings.)
    if kind != &raw mut ffi::PyList_Type {
        return None;
    }
    scratch.clear();
    let count = references(object, super::visit::traverse_of(kind)?, (0, 64), scratch);
    let is_leaf = count <= 64 && scratch.iter().all(|(_, below)| !super::visit::is_tracked(*below));
    // SAFETY: a live object; this becomes a reference of its own.
    is_leaf.then(|| (unsafe { Bound::from_borrowed_ptr(py, object) }.unbind(), false))
}
