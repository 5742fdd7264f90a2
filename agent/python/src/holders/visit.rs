//! One object's references, by the interpreter's own traversal (`tp_traverse`), as the collector sees them.
//!
//! Guarantees: no reference count changes and no code of the program runs. Of a wide object a window is taken: positions are
//! those of the traversal, of lists and tuples those of their items.
//! Refuses: what the collector does not track; nothing is behind it.

use std::ffi::{c_int, c_void};
use std::hash::{BuildHasherDefault, Hasher};

use pyo3::ffi::{self, PyObject, PyTypeObject};

/// A borrowed object. True within a call, see the module above.
pub type Object = *mut PyObject;
/// What gives an object's references.
pub type Traverse = ffi::traverseproc;

/// Addresses are spread well enough by one multiplication.
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
        // Fibonacci hashing; the high bits, where a table looks first, depend on all others.
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

/// Whether the collector tracks an object: anything else holds nothing.
pub fn is_tracked(object: Object) -> bool {
    // SAFETY: a live object.
    unsafe { ffi::PyObject_GC_IsTracked(object) != 0 }
}

/// How a type's objects give their references; none where they have none.
pub fn traverse_of(kind: *mut PyTypeObject) -> Option<Traverse> {
    // SAFETY: a live type; since 3.10 any type may be asked. The slot's type is that of its number.
    unsafe {
        let found = ffi::PyType_GetSlot(kind, ffi::Py_tp_traverse);
        if found.is_null() { None } else { Some(std::mem::transmute::<*mut c_void, Traverse>(found)) }
    }
}

/// Positions of an object's references that are wanted, and what lies there.
struct Window<'a> {
    from: usize,
    to: usize,
    at: usize,
    out: &'a mut Vec<(u32, Object)>,
}

extern "C" fn gather(object: Object, window: *mut c_void) -> c_int {
    // SAFETY: what `references` passes, for the time of its call.
    let window = unsafe { &mut *window.cast::<Window<'_>>() };
    if window.at >= window.from && window.at < window.to {
        window.out.push((window.at as u32, object));
    }
    window.at += 1;
    0
}

/// The references of an object at some positions, appended to `out`; how many it has in all.
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
    // SAFETY: what `refers_to` passes, for the time of its call.
    let sought = unsafe { &mut *sought.cast::<Sought>() };
    sought.is_there |= object == sought.wanted;
    c_int::from(sought.is_there)
}

/// Whether an object refers to another. `place`: where it did.
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

/// A list or a tuple, whose items are reached without going over those before.
#[derive(Clone, Copy)]
enum Items {
    List(Object),
    Tuple(Object),
}

impl Items {
    fn of(object: Object) -> Option<Self> {
        let kind = type_of(object);
        // Of the types themselves: what derives from them may have attributes as well.
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

/// Whether an object is what an exception keeps of the functions that it passed.
pub fn is_traceback(object: Object) -> bool {
    type_of(object) == &raw mut ffi::PyTraceBack_Type
}

/// Whether an object is a dict and nothing that derives from it.
pub fn is_dict(object: Object) -> bool {
    type_of(object) == &raw mut ffi::PyDict_Type
}

/// Whether an object is the namespace of a module, or of code that was executed in one of its own: functions refer to it, and
/// what it holds is looked at where it is a root.
pub fn is_namespace(object: Object) -> bool {
    if !is_dict(object) {
        return false;
    }
    let has = |name: &std::ffi::CStr| {
        // SAFETY: a live dict; a borrowed reference or none, and no error is left.
        unsafe { !ffi::PyDict_GetItemString(object, name.as_ptr()).is_null() }
    };
    has(c"__builtins__") || has(c"__spec__")
}
