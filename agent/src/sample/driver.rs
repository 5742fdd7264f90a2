//! Reads device memory through the calling thread's own CUDA context, and the UUIDs of CUDA's ordinals.
//!
//! Guarantees: creates and loads nothing. The result is [`Unavailable`] if `libcuda.so.1` is not in the process
//! already, if `cuInit` has not run, if this thread has no context, or if a function is missing.
//!
//! cudarc finds the library and has the types. Its call wrappers are not used. They panic when a function is missing,
//! and they read the result into an enum that lacks a newer driver's error codes. Results are plain numbers here.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{CUcontext, CUdevice, CUuuid, culib};

use super::Unavailable;

/// The name by which PyTorch and all other CUDA programs load the library.
const LIBRARY: &str = "libcuda.so.1";
const LIBRARY_C: &CStr = c"libcuda.so.1";
/// `CUDA_SUCCESS`.
const SUCCESS: c_int = 0;
/// `CUDA_ERROR_NOT_INITIALIZED`: `cuInit` has not run.
const NOT_INITIALISED: c_int = 3;
/// `CUDA_ERROR_DEINITIALIZED`: the process is shutting down.
const DEINITIALISED: c_int = 4;
/// `CUDA_ERROR_INVALID_DEVICE`: no such ordinal.
const INVALID_DEVICE: c_int = 101;

type CtxGetCurrent = unsafe extern "C" fn(*mut CUcontext) -> c_int;
type MemGetInfo = unsafe extern "C" fn(*mut usize, *mut usize) -> c_int;
type DeviceGet = unsafe extern "C" fn(*mut CUdevice, c_int) -> c_int;
type DeviceGetUuid = unsafe extern "C" fn(*mut CUuuid, CUdevice) -> c_int;

/// The functions that are called here. All exist since CUDA 11.4.
struct Functions {
    ctx_get_current: CtxGetCurrent,
    mem_get_info: MemGetInfo,
    device_get: DeviceGet,
    device_get_uuid: DeviceGetUuid,
}

/// Memory of the device of the current context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemInfo {
    /// Bytes in use by all processes.
    pub used_bytes: u64,
    /// All bytes that programs can allocate. This is the total of `cuMemGetInfo`, which excludes the driver's own
    /// share.
    pub total_bytes: u64,
}

/// Device memory of the calling thread's current context (`cuMemGetInfo`).
///
/// # Errors
/// CUDA is not in use in this process, this thread has no context, or the driver refuses.
pub fn mem_info() -> Result<MemInfo, Unavailable> {
    let functions = functions()?;
    let mut context: CUcontext = std::ptr::null_mut();
    // SAFETY: a valid pointer to a context; the function is that of the loaded driver with the signature of its ABI.
    let result = unsafe { (functions.ctx_get_current)(&raw mut context) };
    if matches!(result, NOT_INITIALISED | DEINITIALISED) || (result == SUCCESS && context.is_null()) {
        return Err(Unavailable::NoContext);
    }
    check("cuCtxGetCurrent", result)?;
    let (mut free, mut total) = (0usize, 0usize);
    // SAFETY: two valid pointers to numbers of pointer size; a context is current on this thread, so none is created.
    check("cuMemGetInfo", unsafe { (functions.mem_get_info)(&raw mut free, &raw mut total) })?;
    let (free, total) = (free as u64, total as u64);
    Ok(MemInfo { used_bytes: total.saturating_sub(free), total_bytes: total })
}

/// The UUID of the device that CUDA calls `ordinal` in this process, as NVML writes it after `GPU-` or `MIG-`.
///
/// # Errors
/// CUDA is not in use in this process, has no such device, or the driver refuses.
pub fn device_uuid(ordinal: u32) -> Result<String, Unavailable> {
    let functions = functions()?;
    let asked = c_int::try_from(ordinal).map_err(|_| Unavailable::NoDevice(ordinal.to_string()))?;
    let mut device: CUdevice = 0;
    // SAFETY: a valid pointer to a device handle; neither creates a context nor initialises anything.
    match unsafe { (functions.device_get)(&raw mut device, asked) } {
        NOT_INITIALISED | DEINITIALISED => return Err(Unavailable::NotInUse(LIBRARY)),
        INVALID_DEVICE => return Err(Unavailable::NoDevice(ordinal.to_string())),
        result => check("cuDeviceGet", result)?,
    }
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: a valid pointer to 16 bytes and the handle that the driver has just returned.
    check("cuDeviceGetUuid", unsafe { (functions.device_get_uuid)(&raw mut uuid, device) })?;
    // `c_char` is signed on one architecture and unsigned on another.
    Ok(uuid_text(uuid.bytes.map(|byte| byte as u8)))
}

/// The UUID's text: `8-4-4-4-12` hexadecimal digits.
fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

fn check(what: &'static str, result: c_int) -> Result<(), Unavailable> {
    if result == SUCCESS {
        return Ok(());
    }
    Err(Unavailable::Refused { what, detail: format!("CUDA error {result}") })
}

fn functions() -> Result<&'static Functions, Unavailable> {
    // Only success is cached, because a process without CUDA may load it later.
    static FOUND: OnceLock<Functions> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(found);
    }
    let found = find()?;
    Ok(FOUND.get_or_init(|| found))
}

fn find() -> Result<Functions, Unavailable> {
    // SAFETY: a C string; RTLD_NOLOAD loads nothing and runs no initialiser.
    let resident = unsafe { libc::dlopen(LIBRARY_C.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if resident.is_null() {
        return Err(Unavailable::NotInUse(LIBRARY));
    }
    let found = found(resident);
    // SAFETY: the handle from above, closed once; the library stays loaded for its other users.
    unsafe { libc::dlclose(resident) };
    found
}

/// Looks the functions up through cudarc, and refuses a copy of the library other than the resident one.
fn found(resident: *mut c_void) -> Result<Functions, Unavailable> {
    // SAFETY: the handle is open during this call, the name is a C string.
    let of_process = unsafe { libc::dlsym(resident, c"cuCtxGetCurrent".as_ptr()) };
    let of_cudarc: *mut c_void = symbol("cuCtxGetCurrent", c"cuCtxGetCurrent")?;
    if of_process != of_cudarc {
        return Err(Unavailable::OtherLibrary(LIBRARY));
    }
    Ok(Functions {
        ctx_get_current: symbol("cuCtxGetCurrent", c"cuCtxGetCurrent")?,
        mem_get_info: symbol("cuMemGetInfo_v2", c"cuMemGetInfo_v2")?,
        device_get: symbol("cuDeviceGet", c"cuDeviceGet")?,
        device_get_uuid: symbol("cuDeviceGetUuid_v2", c"cuDeviceGetUuid_v2")?,
    })
}

fn symbol<F: Copy>(function: &'static str, name: &CStr) -> Result<F, Unavailable> {
    // SAFETY: `libcuda.so.1` is resident and among the names that cudarc tries, so this finds a library and cannot
    // panic. `F` is the function's type in CUDA's ABI (or a plain address). The library is never unloaded: cudarc keeps
    // it in a static.
    let found = unsafe { culib().get::<F>(name.to_bytes_with_nul()).map(|symbol| *symbol) };
    found.map_err(|_| Unavailable::NoFunction { library: LIBRARY, function })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvml_writes_it() {
        let bytes = std::array::from_fn(|at| at as u8 * 17);
        assert_eq!(uuid_text(bytes), "00112233-4455-6677-8899-aabbccddeeff");
    }

    /// The test process does not use CUDA, with or without a driver on the machine.
    #[test]
    fn a_process_without_cuda_stays_without_it() {
        assert_eq!(mem_info(), Err(Unavailable::NotInUse(LIBRARY)));
        assert_eq!(device_uuid(0), Err(Unavailable::NotInUse(LIBRARY)));
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the maps of this process");
        assert!(!maps.contains("libcuda"), "nothing was loaded by asking");
    }
}
