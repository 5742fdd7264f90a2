//! The native half of the Python package `memctl_agent`. Its Python half calls it, not users.
//!
//! Guarantees: a panic becomes a Python exception, which the Python half catches, and never an abort. Functions that a
//! training loop calls take microseconds and keep the interpreter's lock only that long.
//! Refuses: to hold any Python object beyond a call.

mod blocks;
mod foreign;
mod holders;
mod session;

use pyo3::prelude::*;

pyo3::create_exception!(
    _native,
    NativeError,
    pyo3::exceptions::PyRuntimeError,
    "Nothing is recorded; the sentence says why."
);

/// The source of the C++ hook.
#[pyfunction]
fn shim_source() -> &'static str {
    include_str!("../../shim/shim.cpp")
}

/// The version that a built hook must have.
#[pyfunction]
fn shim_abi() -> u32 {
    memctl_agent::live::SHIM_ABI
}

/// The native module.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("NativeError", module.py().get_type::<NativeError>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(shim_source, module)?)?;
    module.add_function(wrap_pyfunction!(shim_abi, module)?)?;
    module.add_function(wrap_pyfunction!(session::start, module)?)?;
    module.add_function(wrap_pyfunction!(session::attach_hook, module)?)?;
    module.add_function(wrap_pyfunction!(session::check_stacks, module)?)?;
    module.add_function(wrap_pyfunction!(session::mark, module)?)?;
    module.add_function(wrap_pyfunction!(session::status, module)?)?;
    module.add_function(wrap_pyfunction!(session::stop, module)?)?;
    module.add_function(wrap_pyfunction!(session::silence, module)?)?;
    module.add_function(wrap_pyfunction!(blocks::counters, module)?)?;
    module.add_function(wrap_pyfunction!(blocks::blocks, module)?)?;
    module.add_function(wrap_pyfunction!(holders::holders_asked, module)?)?;
    module.add_function(wrap_pyfunction!(holders::holders_answer, module)?)?;
    module.add_function(wrap_pyfunction!(holders::holders_word, module)?)?;
    module.add_function(wrap_pyfunction!(holders::frame_values, module)?)?;
    module.add_class::<holders::Walk>()?;
    module.add_class::<holders::Heap>()?;
    module.add_function(wrap_pyfunction!(foreign::attach_foreign, module)?)?;
    module.add_function(wrap_pyfunction!(foreign::record, module)?)?;
    module.add_function(wrap_pyfunction!(foreign::device_uuid, module)?)?;
    Ok(())
}
