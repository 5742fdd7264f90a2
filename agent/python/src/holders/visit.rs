//! Reads an object's references with the interpreter's own traversal (`tp_traverse`), like the collector.
//!
//! Guarantees: no reference count changes and none of the program's code runs. Objects with many references are read in
//! windows. A position is the index in the traversal, or the index of the item for lists and tuples.
//! Refuses: objects that the collector does not track, because they have no references.

use std::ffi::{c_int, c_void};
use std::hash::{BuildHasherDefault, Hasher};

use pyo3::ffi::{self, PyObject, PyTypeObject};

/// A borrowed object, valid within a call (see `mod.rs`).
pub type Object = *mut PyObject;
/// The function that visits an object's references.
pub type Traverse = ffi::traverseproc;

/// A hasher for addresses and numbers. One multiplication spreads them well enough.
#[derive(Default)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_usize(usize::from(*byte));
        }
    }
    fn write_u32(&mut self, number: u32) {
        self.write_usize(number as usize);
    }
    fn write_usize(&mut self, number: usize) {
        // Fibonacci hashing: the high bits, which a table uses first, depend on all other bits.
        self.0 = (self.0 ^ number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

/// A table by address or number.
pub type Map<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<Spread>>;
/// A set of addresses or numbers.
pub type Set<K> = std::collections::HashSet<K, BuildHasherDefault<Spread>>;

/// An object's type.
pub fn type_of(object: Object) -> *mut PyTypeObject {
    // SAFETY: a live object.
    unsafe { ffi::Py_TYPE(object) }
}

/// Whether the collector tracks an object. Any other object has no references.
pub fn is_tracked(object: Object) -> bool {
    // SAFETY: a live object.
    unsafe { ffi::PyObject_GC_IsTracked(object) != 0 }
}

/// The function that visits the references of a type's objects; `None` if they have none.
pub fn traverse_of(kind: *mut PyTypeObject) -> Option<Traverse> {
    // SAFETY: a live type; since 3.10 every type is allowed here. The slot's number determines its type.
    unsafe {
        let found = ffi::PyType_GetSlot(kind, ffi::Py_tp_traverse);
        if found.is_null() { None } else { Some(std::mem::transmute::<*mut c_void, Traverse>(found)) }
    }
}

/// The wanted positions of an object's references, and the objects there.
struct Window<'a> {
    from: usize,
    to: usize,
    at: usize,
    out: &'a mut Vec<(u32, Object)>,
}

extern "C" fn gather(object: Object, window: *mut c_void) -> c_int {
    // SAFETY: `references` passes this pointer, which is valid during its call.
    let window = unsafe { &mut *window.cast::<Window<'_>>() };
    if window.at >= window.from && window.at < window.to {
        window.out.push((window.at as u32, object));
    }
    window.at += 1;
    0
}

/// Appends an object's references at some positions to `out`. Returns the number of all its references.
pub fn references(
    object: Object,
    traverse: Traverse,
    (from, to): (usize, usize),
    out: &mut Vec<(u32, Object)>,
) -> usize {
    if let Some(items) = Items::of(object) {
        let count = items.count();
        out.extend((from..to.min(count)).filter_map(|at| Some((at as u32, items.item(at)?))));
        return count;
    }
    let mut window = Window { from, to, at: 0, out };
    // SAFETY: a live object and its own type's function, as the collector calls it.
    unsafe { traverse(object, gather, (&raw mut window).cast()) };
    window.at
}

struct Sought {
    wanted: Object,
    is_there: bool,
}

extern "C" fn compare(object: Object, sought: *mut c_void) -> c_int {
    // SAFETY: `refers_to` passes this pointer, which is valid during its call.
    let sought = unsafe { &mut *sought.cast::<Sought>() };
    sought.is_there |= object == sought.wanted;
    c_int::from(sought.is_there)
}

/// Whether an object refers to another. `place` is the last known position of the reference.
pub fn refers_to(object: Object, traverse: Traverse, wanted: Object, place: usize) -> bool {
    if let Some(items) = Items::of(object)
        && items.item(place) == Some(wanted)
    {
        return true;
    }
    let mut sought = Sought { wanted, is_there: false };
    // SAFETY: as in `references`.
    unsafe { traverse(object, compare, (&raw mut sought).cast()) };
    sought.is_there
}

/// A list or a tuple, whose items are accessed directly.
#[derive(Clone, Copy)]
enum Items {
    List(Object),
    Tuple(Object),
}

impl Items {
    fn of(object: Object) -> Option<Self> {
        let kind = type_of(object);
        // Only lists and tuples themselves count. Objects of subclasses may have attributes as well.
        if kind == &raw mut ffi::PyList_Type {
            Some(Self::List(object))
        } else if kind == &raw mut ffi::PyTuple_Type {
            Some(Self::Tuple(object))
        } else {
            None
        }
    }

    fn count(self) -> usize {
        // SAFETY: a live object of that type.
        let count = unsafe {
            match self {
                Self::List(list) => ffi::PyList_Size(list),
                Self::Tuple(tuple) => ffi::PyTuple_Size(tuple),
            }
        };
        usize::try_from(count).unwrap_or(0)
    }

    fn item(self, at: usize) -> Option<Object> {
        if at >= self.count() {
            return None;
        }
        // SAFETY: as above, and within its bounds.
        let item = unsafe {
            match self {
                Self::List(list) => ffi::PyList_GetItem(list, at as isize),
                Self::Tuple(tuple) => ffi::PyTuple_GetItem(tuple, at as isize),
            }
        };
        (!item.is_null()).then_some(item)
    }
}

/// Whether an object is a traceback, which keeps the frames that an exception passed.
pub fn is_traceback(object: Object) -> bool {
    type_of(object) == &raw mut ffi::PyTraceBack_Type
}

/// Whether an object is a dict, and not a subclass.
pub fn is_dict(object: Object) -> bool {
    type_of(object) == &raw mut ffi::PyDict_Type
}

/// Whether an object is the namespace of a module, or of code that was executed in its own namespace. Functions refer
/// to namespaces. Their contents are visited only when they are roots.
pub fn is_namespace(object: Object) -> bool {
    if !is_dict(object) {
        return false;
    }
    let has = |name: &std::ffi::CStr| {
        // SAFETY: a live dict. The result is a borrowed reference or null, and no error remains set.
        unsafe { !ffi::PyDict_GetItemString(object, name.as_ptr()).is_null() }
    };
    has(c"__builtins__") || has(c"__spec__")
}
