//! Decides which objects are tensors on the requested blocks, and which objects are never entered.
//!
//! Guarantees: an object is classified only by its real type. torch itself reports the address of a tensor's memory
//! (`_data_address`) and the size of its storage. For the allowed classes this runs none of the program's code.
//! Only functions of C are called. Bytecode may give the interpreter's lock to another thread, which may free the
//! objects that a walk has in hand.
//! Does not read the addresses of tensors whose class has its own `__torch_dispatch__`.

use pyo3::exceptions::PyValueError;
use pyo3::ffi::{self, PyTypeObject};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use super::visit::{Map, Object, Set, Traverse, traverse_of, type_of};

/// The role of an object in a search.
#[derive(Clone, Copy)]
pub enum Kind {
    /// Its references are not followed.
    Wall,
    /// Its references are followed.
    Passable(Traverse),
    /// A tensor: its references are followed, and its memory address is read.
    Tensor(Traverse),
    /// A tensor of a refused class: its references are followed, but its memory address is not read.
    Refused(Traverse),
    /// The frame of a function. It is entered only from a traceback.
    Frame(Traverse),
}

/// The types that Python passes to one call, and the roles of types that were determined during this call.
pub struct Rules<'py> {
    address: Bound<'py, PyAny>,
    storages: Storages<'py>,
    /// Tensor classes (true) and refused classes (false), by the address of the class.
    sorts: Map<usize, bool>,
    /// Types of this package's own objects.
    own: Bound<'py, PyTuple>,
    frame: *mut PyTypeObject,
    module_of: Bound<'py, PyAny>,
    /// Names of the program's own modules. Names are usually interned, so their addresses (`near_ids`) are compared
    /// first, and texts only if no address matches.
    near: Vec<Bound<'py, PyAny>>,
    known: Map<usize, Kind>,
    classes: Map<usize, bool>,
    near_ids: Set<usize>,
}

impl<'py> Rules<'py> {
    /// Takes a tuple with these items: the function for a tensor's address, the tensor classes, the refused classes,
    /// this package's own classes, the type of frames, the function for a class's module, what [`Storages`] needs, and
    /// the names of the program's own modules.
    pub fn new(given: &Bound<'py, PyTuple>) -> PyResult<Self> {
        let tuple = |at: usize| -> PyResult<Bound<'py, PyTuple>> {
            given.get_item(at)?.cast_into::<PyTuple>().map_err(|_| PyValueError::new_err("expected a tuple"))
        };
        let frame = given.get_item(4)?.as_ptr().cast::<PyTypeObject>();
        let near: Vec<_> = tuple(7)?.iter().collect();
        Ok(Self {
            module_of: given.get_item(5)?,
            near_ids: near.iter().map(|name| name.as_ptr() as usize).collect(),
            near,
            classes: Map::default(),
            address: given.get_item(0)?,
            storages: Storages::new(&tuple(6)?)?,
            sorts: (tuple(1)?.iter().map(|kind| (kind.as_ptr() as usize, true)))
                .chain(tuple(2)?.iter().map(|kind| (kind.as_ptr() as usize, false)))
                .collect(),
            own: tuple(3)?,
            frame,
            known: Map::default(),
        })
    }

    /// The role of an object.
    pub fn kind(&mut self, object: Object) -> Kind {
        let kind = type_of(object);
        if let Some(known) = self.known.get(&(kind as usize)) {
            return *known;
        }
        let found = self.look(kind);
        self.known.insert(kind as usize, found);
        found
    }

    fn look(&self, kind: *mut PyTypeObject) -> Kind {
        let Some(traverse) = traverse_of(kind) else { return Kind::Wall };
        // SAFETY: both are live types; the function reads their bases.
        let derives = |other| unsafe { ffi::PyType_IsSubtype(kind, other) != 0 };
        match self.sorts.get(&(kind as usize)) {
            Some(true) => Kind::Tensor(traverse),
            Some(false) => Kind::Refused(traverse),
            None if kind == self.frame => Kind::Frame(traverse),
            None if derives(&raw mut ffi::PyType_Type) || derives(&raw mut ffi::PyModule_Type) => Kind::Wall,
            None if self.own.iter().any(|own| own.as_ptr().cast() == kind) => Kind::Wall,
            None => Kind::Passable(traverse),
        }
    }

    /// Whether an object is a tensor whose memory address may be read.
    pub fn is_tensor(&self, object: Object) -> bool {
        self.sorts.get(&(type_of(object) as usize)) == Some(&true)
    }

    /// Whether an object is a class of one of the program's own modules. Such a class is entered.
    pub fn is_own_class(&mut self, object: Object) -> bool {
        // SAFETY: a live object.
        let is_class = unsafe { ffi::PyType_IsSubtype(type_of(object), &raw mut ffi::PyType_Type) != 0 };
        if !is_class {
            return false;
        }
        if let Some(known) = self.classes.get(&(object as usize)) {
            return *known;
        }
        let is_own = self.is_of_own_module(object);
        self.classes.insert(object as usize, is_own);
        is_own
    }

    fn is_of_own_module(&self, class: Object) -> bool {
        // The function is the interpreter's and reads the class's own table.
        let Some(name) = called(&self.module_of, class) else { return false };
        if self.near_ids.contains(&(name.as_ptr() as usize)) {
            return true;
        }
        let Ok(name) = name.cast_exact::<PyString>() else { return false };
        let Ok(name) = name.to_cow() else { return false };
        let is_it = |near: &Bound<'py, PyAny>| {
            near.cast_exact::<PyString>().is_ok_and(|near| near.to_cow().is_ok_and(|near| near == name))
        };
        self.near.iter().any(is_it)
    }

    /// The block of a tensor's memory, if the tensor's storage fits the block.
    pub fn block_of(&self, tensor: Object, blocks: &Blocks) -> Option<usize> {
        self.place_of(tensor, blocks).filter(|place| place.is_whole).map(|place| place.block)
    }

    /// The block that contains a tensor's address. If the tensor's storage does not fit the block, the block was freed
    /// and its memory was allocated again.
    pub fn place_of(&self, tensor: Object, blocks: &Blocks) -> Option<Place> {
        let (block, size) = blocks.at(self.address(tensor)?)?;
        Some(Place { block, is_whole: self.storages.fits(tensor, size) })
    }

    /// The address of a tensor's memory; `None` if it has none.
    fn address(&self, tensor: Object) -> Option<u64> {
        // Without a result the tensor has no storage: it is sparse, wrapped by functorch, or of a backend without
        // addresses.
        let found = called(&self.address, tensor)?;
        // SAFETY: a live object; another one than an integer is an error, which is cleared.
        let address = unsafe {
            let address = ffi::PyLong_AsUnsignedLongLong(found.as_ptr());
            if !ffi::PyErr_Occurred().is_null() {
                ffi::PyErr_Clear();
                return None;
            }
            address
        };
        Some(address).filter(|address| *address != 0)
    }
}

/// Reads the sizes of tensors' storages.
struct Storages<'py> {
    storage: Bound<'py, PyAny>,
    bytes: Bound<'py, PyAny>,
    /// The classes whose storage may be read. Any other may have a `__torch_function__`, which is code of the program.
    plain: Set<usize>,
    rounded: u64,
    larger_max: u64,
}

impl<'py> Storages<'py> {
    /// Takes a tuple with these items: torch's function for a tensor's storage, its function for a storage's bytes, the
    /// classes whose storage may be read, and the two limits of `Tensors.fits` in Python. Both functions are of C.
    fn new(given: &Bound<'py, PyTuple>) -> PyResult<Self> {
        let plain = given.get_item(2)?.cast_into::<PyTuple>().map_err(|_| PyValueError::new_err("expected a tuple"))?;
        Ok(Self {
            storage: given.get_item(0)?,
            bytes: given.get_item(1)?,
            plain: plain.iter().map(|kind| kind.as_ptr() as usize).collect(),
            rounded: given.get_item(3)?.extract()?,
            larger_max: given.get_item(4)?.extract()?,
        })
    }

    /// Whether a block of this size can have been allocated for a tensor's storage; true if that is unknown. The same
    /// rule as `Tensors.fits` in Python.
    fn fits(&self, tensor: Object, block: u64) -> bool {
        if !self.plain.contains(&(type_of(tensor) as usize)) {
            return true;
        }
        let Some(size) = self.size(tensor).filter(|size| *size > 0) else { return true };
        size <= block && (block - size < self.rounded || size.saturating_mul(self.larger_max) >= block)
    }

    /// The bytes of a tensor's storage; `None` if it has none.
    fn size(&self, tensor: Object) -> Option<u64> {
        let storage = called(&self.storage, tensor)?;
        let bytes = called(&self.bytes, storage.as_ptr())?;
        bytes.extract().ok()
    }
}

/// The result of a function of C for an object; `None` if it raises.
fn called<'py>(function: &Bound<'py, PyAny>, object: Object) -> Option<Bound<'py, PyAny>> {
    // SAFETY: both objects are live, and the interpreter's lock is held. The result is a new reference or null.
    unsafe {
        let found =
            ffi::PyObject_CallFunctionObjArgs(function.as_ptr(), object, std::ptr::null_mut::<pyo3::ffi::PyObject>());
        if found.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        Some(Bound::from_owned_ptr(function.py(), found))
    }
}

/// The block of a tensor's memory.
#[derive(Clone, Copy)]
pub struct Place {
    /// The block's index.
    pub block: usize,
    /// Whether the tensor's storage fits the block.
    pub is_whole: bool,
}

/// The requested blocks, by their addresses.
#[derive(Default)]
pub struct Blocks {
    /// Begin, end and index.
    sorted: Vec<(u64, u64, usize)>,
}

impl Blocks {
    pub fn new(blocks: &[(u64, u64)]) -> Self {
        let mut sorted: Vec<_> =
            blocks.iter().enumerate().map(|(number, (at, size))| (*at, at.saturating_add(*size), number)).collect();
        sorted.sort_unstable();
        Self { sorted }
    }

    /// The index of the block that contains an address, and the block's size.
    fn at(&self, address: u64) -> Option<(usize, u64)> {
        let behind = self.sorted.partition_point(|(begin, ..)| *begin <= address);
        let (begin, end, number) = self.sorted.get(behind.checked_sub(1)?)?;
        (address < *end).then_some((*number, end - begin))
    }
}

/// Disables the collector while it exists. In some versions of CPython, the creation of an object, such as an error,
/// may start a collection.
pub struct NoCollector {
    was_on: bool,
}

impl NoCollector {
    pub fn new() -> Self {
        // SAFETY: the interpreter's lock is held.
        Self { was_on: unsafe { ffi::PyGC_Disable() != 0 } }
    }
}

impl Drop for NoCollector {
    fn drop(&mut self) {
        if self.was_on {
            // SAFETY: as above.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}
