//! Measures devices and processes from outside the event stream, about once a second and never on the training thread.
//!
//! `nvml` queries the driver for devices and their processes. [`host`] queries the kernel for processes. `driver`
//! queries the trainer's own CUDA context. [`sampler`] combines the results into [`memctl_model::Sample`]s.
//! Guarantees: a figure that cannot be measured is `None` with a reason ([`Unavailable`]), never 0 and never a panic.
//! Refuses: to create a CUDA context, to load a driver into a process that has none, and to wait.

pub mod device;
#[cfg(feature = "driver")]
pub mod driver;
pub mod host;
#[cfg(feature = "nvml")]
pub mod nvml;
pub mod sampler;

#[cfg(all(test, feature = "driver", feature = "nvml"))]
mod device_tests;
#[cfg(test)]
mod host_tests;
#[cfg(test)]
mod sampler_tests;

/// Why something cannot be measured. The texts are written for `memctl doctor`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The library is not there or cannot be loaded.
    #[error(
        "{library} cannot be loaded ({detail}): the NVIDIA driver is not installed here; in a container, start it with the \
         GPUs (`--gpus all`) and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    )]
    NoLibrary {
        /// The file's name.
        library: &'static str,
        /// The loader's message.
        detail: String,
    },
    /// The library is loaded, but the driver refuses the query.
    #[error("{what}: {detail}")]
    Refused {
        /// The query.
        what: &'static str,
        /// The driver's message.
        detail: String,
    },
    /// No such device.
    #[error("no device {0} is visible here: NVML sees the devices of the container or host it runs in")]
    NoDevice(String),
    /// The calling thread has no CUDA context.
    #[error("the calling thread has no CUDA context: the program has not used a device on this thread")]
    NoContext,
    /// CUDA is not in use in this process.
    #[error("CUDA is not in use in this process ({0} is not loaded)")]
    NotInUse(&'static str),
    /// Two different copies of the driver's library.
    #[error(
        "{0} on the library path is not the one that this process uses: take the folder of CUDA's stubs off LD_LIBRARY_PATH"
    )]
    OtherLibrary(&'static str),
    /// The library lacks a function.
    #[error("{library} has no {function}: the driver is older than CUDA 12")]
    NoFunction {
        /// The file's name.
        library: &'static str,
        /// The function's name.
        function: &'static str,
    },
    /// This build has no support for it.
    #[error("this build of memctl has no support for {0}")]
    NotBuilt(&'static str),
}
