//! Streams and buffers that record. Streams have the same calls as cudarc's, and buffers report when they are dropped.
//!
//! Guarantees: [`Recorded`] behaves like a [`CudaSlice`] until it is dropped. It derefs to the slice that cudarc's
//! calls take. A buffer without bytes, or of a device outside the session, is not recorded. A clone of the inner slice
//! (`(*buffer).clone()`) is cudarc's own and is not recorded. [`RecordedStream::clone_dtod`] makes a recorded clone.

use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::Arc;

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError, HostSlice, ValidAsZeroBits};

use super::Shared;

/// A stream whose allocations are recorded. It derefs to cudarc's stream for everything else.
#[derive(Clone)]
pub struct RecordedStream {
    shared: Arc<Shared>,
    stream: Arc<CudaStream>,
}

impl Deref for RecordedStream {
    type Target = Arc<CudaStream>;

    fn deref(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl RecordedStream {
    pub(super) fn new(shared: Arc<Shared>, stream: Arc<CudaStream>) -> Self {
        Self { shared, stream }
    }

    /// `CudaStream::alloc`, recorded with the caller's line.
    ///
    /// # Safety
    /// As for `CudaStream::alloc`: the memory is not initialised.
    ///
    /// # Errors
    /// cudarc's.
    #[track_caller]
    pub unsafe fn alloc<T: DeviceRepr>(&self, len: usize) -> Result<Recorded<T>, DriverError> {
        // SAFETY: promised by the caller.
        let made = unsafe { self.stream.alloc::<T>(len) };
        self.record(made, "alloc", len, Location::caller())
    }

    /// `CudaStream::alloc_zeros`, recorded with the caller's line.
    ///
    /// # Errors
    /// cudarc's.
    #[track_caller]
    pub fn alloc_zeros<T: DeviceRepr + ValidAsZeroBits>(&self, len: usize) -> Result<Recorded<T>, DriverError> {
        self.record(self.stream.alloc_zeros::<T>(len), "alloc_zeros", len, Location::caller())
    }

    /// `CudaStream::clone_htod`, recorded with the caller's line.
    ///
    /// # Errors
    /// cudarc's.
    #[track_caller]
    pub fn clone_htod<T: DeviceRepr, S: HostSlice<T> + ?Sized>(&self, source: &S) -> Result<Recorded<T>, DriverError> {
        self.record(self.stream.clone_htod(source), "clone_htod", source.len(), Location::caller())
    }

    /// `CudaStream::clone_dtod`, recorded with the caller's line.
    ///
    /// # Errors
    /// cudarc's.
    #[track_caller]
    pub fn clone_dtod<T: DeviceRepr, S: DevicePtr<T>>(&self, source: &S) -> Result<Recorded<T>, DriverError> {
        self.record(self.stream.clone_dtod(source), "clone_dtod", source.len(), Location::caller())
    }

    fn record<T>(
        &self,
        made: Result<CudaSlice<T>, DriverError>,
        call: &'static str,
        len: usize,
        at: &'static Location<'static>,
    ) -> Result<Recorded<T>, DriverError> {
        let Some((place, device)) = self.shared.device(self.stream.context().ordinal()) else {
            return made.map(|slice| Recorded { _free: None, slice });
        };
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        let slice = made.inspect_err(|error| {
            if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                device.out_of_memory(bytes, self.shared.site(call, at));
            }
        })?;
        if bytes == 0 {
            return Ok(Recorded { _free: None, slice });
        }
        let (addr, reads) = slice.device_ptr(&self.stream);
        // Only the address was needed. Nothing was read that would need an event.
        std::mem::forget(reads);
        let stream = self.stream.cu_stream() as u64;
        device.alloc(addr, bytes, stream, self.shared.site(call, at));
        let free = Free { shared: self.shared.clone(), place, addr, stream };
        Ok(Recorded { _free: Some(free), slice })
    }
}

/// Records the end of a buffer when it is dropped.
struct Free {
    shared: Arc<Shared>,
    place: usize,
    addr: u64,
    stream: u64,
}

impl Drop for Free {
    fn drop(&mut self) {
        self.shared.devices[self.place].free(self.addr, self.stream);
    }
}

/// A buffer whose allocation is recorded, and also its free when it is dropped. After `std::mem::forget` it appears as
/// a leak, which it is.
pub struct Recorded<T> {
    /// This field precedes the slice because fields are dropped in this order, and the event must precede the free.
    _free: Option<Free>,
    slice: CudaSlice<T>,
}

impl<T> Recorded<T> {
    /// cudarc's own slice. memctl records the buffer's free here.
    #[must_use]
    pub fn into_inner(self) -> CudaSlice<T> {
        self.slice
    }
}

impl<T> Deref for Recorded<T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T> DerefMut for Recorded<T> {
    fn deref_mut(&mut self) -> &mut CudaSlice<T> {
        &mut self.slice
    }
}
