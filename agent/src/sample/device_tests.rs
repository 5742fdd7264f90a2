//! Tests of driver and NVML against a working library. It is the fake GPU (`MEMCTL_FAKE_GPU`, the `run` that
//! `tests/fakegpu/setup none` prints), or a real GPU: `cargo test -p memctl-agent --features driver -- --ignored
//! on_a_device`.
//!
//! The asserting test needs its own process, in which CUDA is first used at a known moment. The other test starts that
//! process.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::process::Command;

use memctl_model::DeviceIndex;

use super::Unavailable;
use super::device::Devices;
use super::driver::{device_uuid, mem_info};
use super::host::Proc;
use super::nvml::Nvml;
use super::sampler::{Sampler, Watched};

/// Bytes that the test allocates on the device.
const TAKEN_BYTES: u64 = 64 << 20;

#[test]
fn driver_and_nvml_on_the_fake_gpu() {
    let Some(run) = std::env::var_os("MEMCTL_FAKE_GPU") else {
        println!("not run: MEMCTL_FAKE_GPU is not set; MEMCTL_FAKE_GPU=$(tests/fakegpu/setup none) runs this test");
        return;
    };
    let state = tempfile::NamedTempFile::new().expect("a file");
    let inside = |nvml: &str| {
        Command::new(&run)
            .arg(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "--nocapture", "sample::device_tests::on_a_device"])
            .envs([("FAKE_GPU_COUNT", "2"), ("FAKE_GPU_MIB", "4096"), ("FAKE_GPU_CONTEXT_MIB", "300")])
            .env("FAKE_GPU_STATE", state.path())
            .env("FAKE_GPU_NVML", nvml)
            .output()
            .expect("the fake GPU's run")
    };
    for (mode, said) in [("", "NVML: this process"), ("absent", "cannot be loaded"), ("broken", "NVML does not start")]
    {
        let output = inside(mode);
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && text.contains("1 passed"), "FAKE_GPU_NVML={mode}: {text}");
        assert!(text.contains(said), "FAKE_GPU_NVML={mode}: {text}");
    }
}

/// A function of `libcuda.so.1`, which is loaded in the same way as by a CUDA program.
fn cuda<F: Copy>(name: &CStr) -> F {
    // SAFETY: C strings; the library's initialisers are those that every CUDA program runs.
    let symbol = unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
        assert!(!library.is_null(), "libcuda.so.1 cannot be loaded: this test needs a GPU, or the fake one");
        libc::dlsym(library, name.as_ptr())
    };
    assert!(!symbol.is_null(), "{name:?}");
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    // SAFETY: the callers name the function's type in CUDA's ABI; it has the size of an address.
    unsafe { std::mem::transmute_copy(&symbol) }
}

/// Begins to use device 0 on this thread, and allocates memory on it.
fn use_the_device() -> (u64, u64) {
    let init: unsafe extern "C" fn(c_uint) -> c_int = cuda(c"cuInit");
    let retain: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int = cuda(c"cuDevicePrimaryCtxRetain");
    let set: unsafe extern "C" fn(*mut c_void) -> c_int = cuda(c"cuCtxSetCurrent");
    let alloc: unsafe extern "C" fn(*mut u64, usize) -> c_int = cuda(c"cuMemAlloc_v2");
    let (mut context, mut address) = (std::ptr::null_mut(), 0u64);
    // SAFETY: CUDA's own order of calls, with valid pointers.
    unsafe {
        assert_eq!(init(0), 0);
        assert_eq!(mem_info(), Err(Unavailable::NoContext), "asking makes no context");
        assert_eq!((retain(&raw mut context, 0), set(context)), (0, 0));
        let before = mem_info().expect("a context is current").used_bytes;
        assert_eq!(alloc(&raw mut address, TAKEN_BYTES as usize), 0);
        (before, mem_info().expect("a context is current").used_bytes)
    }
}

#[test]
#[ignore = "needs a GPU, or the fake one: the test above runs it there"]
fn on_a_device() {
    assert!(matches!(mem_info(), Err(Unavailable::NotInUse(_))), "CUDA is not in use yet");
    let (before, after) = use_the_device();
    assert!(after >= before + TAKEN_BYTES, "{before} {after}");
    let uuid = device_uuid(0).expect("device 0");
    assert!(matches!(device_uuid(63), Err(Unavailable::NoDevice(_))));
    let nvml = match Nvml::open() {
        Ok(nvml) => nvml,
        Err(reason) => return println!("{reason}"),
    };
    assert!(nvml.devices().expect("devices").iter().any(|device| device.uuid.ends_with(&uuid)), "{uuid}");
    println!("driver {}, {:?}", nvml.driver_version().expect("a version"), nvml.devices());
    println!("cuMemGetInfo: {:?}", mem_info());
    println!("NVML: this process is {}, {:?}", std::process::id(), nvml.read(&uuid).expect("a device that is in use"));
    assert!(matches!(nvml.read("GPU-00000000-0000-0000-0000-000000000000"), Err(Unavailable::NoDevice(_))));

    let me = Proc::default().key(std::process::id()).expect("this process");
    let watched = Watched { process: me, devices: vec![(DeviceIndex(0), Some(uuid))] };
    let samples = Sampler::open().sample(&[watched], 1);
    let sample = samples[0][0];
    println!("{sample:?}");
    let used = sample.device_used_bytes.expect("NVML reports it");
    assert!(used >= TAKEN_BYTES && used <= sample.device_total_bytes.expect("NVML reports it"));
    // In a container whose pids are not the driver's, this is unknown.
    if let Some(ours) = sample.process_used_bytes {
        assert!((TAKEN_BYTES..=used).contains(&ours), "{sample:?}");
    }
}
