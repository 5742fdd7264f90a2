/*
 * CUDA's runtime API: devices, memory, launches. Streams, events and graphs are in runtime_streams.c.
 *
 * Compiled against the headers of the CUDA version that torch was built for, so signatures are checked. Launches
 * succeed and do nothing. What is not written out here is generated and refuses with cudaErrorNotSupported.
 */
#define _GNU_SOURCE
#include "runtime.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static _Thread_local int last_error;

cudaError_t fake_result(int answer) {
    if (answer) last_error = answer;
    return (cudaError_t)answer;
}

API cudaError_t cudaGetLastError(void) {
    int answer = last_error;
    last_error = OK;
    return (cudaError_t)answer;
}
API cudaError_t cudaPeekAtLastError(void) { return (cudaError_t)last_error; }

static const struct {
    int number;
    const char *name, *text;
} errors[] = {
    {OK, "cudaSuccess", "no error"},
    {INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
    {OUT_OF_MEMORY, "cudaErrorMemoryAllocation", "out of memory"},
    {NOT_INITIALIZED, "cudaErrorInitializationError", "initialization error"},
    {NO_DEVICE, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {PEER_UNSUPPORTED, "cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    {INVALID_HANDLE, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {NOT_FOUND, "cudaErrorSymbolNotFound", "named symbol not found"},
    {NOT_READY, "cudaErrorNotReady", "device not ready"},
    {NOT_SUPPORTED, "cudaErrorNotSupported", "operation not supported"},
    {CAPTURE_INVALIDATED, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
};
API const char *cudaGetErrorName(cudaError_t error) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].number == (int)error) return errors[i].name;
    return "cudaErrorUnknown";
}
API const char *cudaGetErrorString(cudaError_t error) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].number == (int)error) return errors[i].text;
    return "unknown error";
}

/* ---- devices ---- */

API cudaError_t cudaGetDeviceCount(int *devices) {
    *devices = fake_count();
    return fake_result(*devices ? OK : NO_DEVICE);
}
API cudaError_t cudaGetDevice(int *device) {
    *device = fake_current();
    return fake_result(fake_count() ? OK : NO_DEVICE);
}
API cudaError_t cudaSetDevice(int device) {
    int answer = fake_set_current(device);
    return fake_result(answer ? answer : fake_context(device)); /* since CUDA 12 this makes the context */
}
API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    if (fake_physical(device) < 0) return fake_result(INVALID_DEVICE);
    *value = fake_attribute((int)attribute, device);
    return cudaSuccess;
}
API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *of, int device) {
    int physical = fake_physical(device);
    if (physical < 0) return fake_result(INVALID_DEVICE);
    memset(of, 0, sizeof *of);
    strcpy(of->name, "Fake GPU");
    fake_uuid(physical, (unsigned char *)of->uuid.bytes);
    of->totalGlobalMem = fake_total_bytes();
    of->major = 9;
    of->pciBusID = fake_attribute(33, device);
    of->multiProcessorCount = fake_attribute(16, device);
    of->warpSize = fake_attribute(10, device);
    of->maxThreadsPerBlock = fake_attribute(1, device);
    of->maxThreadsPerMultiProcessor = fake_attribute(39, device);
    of->maxBlocksPerMultiProcessor = fake_attribute(106, device);
    of->sharedMemPerBlock = (size_t)fake_attribute(8, device);
    of->sharedMemPerMultiprocessor = (size_t)fake_attribute(81, device);
    of->sharedMemPerBlockOptin = (size_t)fake_attribute(97, device);
    of->regsPerBlock = of->regsPerMultiprocessor = fake_attribute(82, device);
    of->l2CacheSize = fake_attribute(38, device);
    of->totalConstMem = (size_t)fake_attribute(9, device);
    of->memoryBusWidth = fake_attribute(37, device);
    of->unifiedAddressing = of->managedMemory = of->concurrentKernels = of->streamPrioritiesSupported =
        of->memoryPoolsSupported = 1;
    for (int axis = 0; axis < 3; axis++) {
        of->maxThreadsDim[axis] = fake_attribute(2 + axis, device);
        of->maxGridSize[axis] = fake_attribute(5 + axis, device);
    }
    return cudaSuccess;
}
API cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device) {
    if (fake_physical(device) < 0) return fake_result(INVALID_DEVICE);
    fake_pci_id(fake_physical(device), text, bytes);
    return cudaSuccess;
}
API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = 0;
    return fake_result(fake_physical(device) < 0 || fake_physical(peer) < 0 ? INVALID_DEVICE : OK);
}
API cudaError_t cudaDeviceEnablePeerAccess(UNUSED int peer, UNUSED unsigned flags) {
    return fake_result(PEER_UNSUPPORTED);
}
API cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
API cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
API cudaError_t cudaDeviceSynchronize(void) {
    int ordinal, answer = fake_here(&ordinal);
    fake_synchronize();
    return fake_result(answer);
}
API cudaError_t cudaDeviceReset(void) { return fake_result(NOT_SUPPORTED); }
API cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
API cudaError_t cudaProfilerStop(void) { return cudaSuccess; }

/* ---- memory ---- */

static cudaError_t allocate(void **out, size_t bytes, enum fake_kind kind) {
    int ordinal, answer = fake_here(&ordinal);
    return fake_result(answer ? answer : fake_alloc(ordinal, bytes, kind, out));
}
API cudaError_t cudaMalloc(void **out, size_t bytes) { return allocate(out, bytes, DEVICE_MEMORY); }
API cudaError_t cudaMallocManaged(void **out, size_t bytes, UNUSED unsigned flags) {
    return allocate(out, bytes, MANAGED_MEMORY);
}
API cudaError_t cudaHostAlloc(void **out, size_t bytes, UNUSED unsigned flags) {
    return allocate(out, bytes, HOST_PINNED);
}
API cudaError_t cudaMallocHost(void **out, size_t bytes) { return allocate(out, bytes, HOST_PINNED); }
API cudaError_t cudaFree(void *base) {
    int ordinal, answer = fake_here(&ordinal); /* cudaFree(0) is how programs make a context */
    fake_synchronize();
    return fake_result(answer ? answer : fake_free(base));
}
API cudaError_t cudaFreeHost(void *base) { return fake_result(fake_free(base)); }
API cudaError_t cudaHostRegister(void *base, size_t bytes, UNUSED unsigned flags) {
    return fake_result(fake_host_register(base, bytes));
}
API cudaError_t cudaHostUnregister(void *base) { return fake_result(fake_host_unregister(base)); }
API cudaError_t cudaHostGetDevicePointer(void **device, void *host, UNUSED unsigned flags) {
    *device = host;
    return cudaSuccess;
}
API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    int ordinal, answer = fake_here(&ordinal);
    if (answer) return fake_result(answer);
    size_t used_bytes = fake_used_bytes(fake_physical(ordinal));
    *total_bytes = fake_total_bytes();
    *free_bytes = *total_bytes - used_bytes;
    return cudaSuccess;
}
API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *of, const void *address) {
    struct fake_range range;
    memset(of, 0, sizeof *of);
    if (!fake_find(address, &range)) {
        of->type = cudaMemoryTypeUnregistered;
        of->device = -2;
        of->hostPointer = (void *)address;
        return cudaSuccess;
    }
    of->device = range.ordinal;
    of->devicePointer = (void *)address;
    of->hostPointer = range.kind == DEVICE_MEMORY ? NULL : (void *)address;
    of->type = range.kind == DEVICE_MEMORY ? cudaMemoryTypeDevice
               : range.kind == HOST_PINNED ? cudaMemoryTypeHost
                                           : cudaMemoryTypeManaged;
    return cudaSuccess;
}

static cudaError_t copy(void *to, const void *from, size_t bytes, cudaStream_t stream) {
    fake_work((struct fake_stream *)stream);
    fake_copy(to, from, bytes);
    return cudaSuccess;
}
API cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, UNUSED enum cudaMemcpyKind kind) {
    fake_synchronize();
    return copy(to, from, bytes, NULL);
}
API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, UNUSED enum cudaMemcpyKind kind,
                                cudaStream_t stream) {
    return copy(to, from, bytes, stream);
}
API cudaError_t cudaMemcpyPeerAsync(void *to, UNUSED int to_device, const void *from, UNUSED int from_device,
                                    size_t bytes, cudaStream_t stream) {
    return copy(to, from, bytes, stream);
}
API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                  size_t height, UNUSED enum cudaMemcpyKind kind, cudaStream_t stream) {
    fake_work((struct fake_stream *)stream);
    for (size_t row = 0; row < height; row++)
        fake_copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    return cudaSuccess;
}
/* the symbol's address is the host's shadow of a device variable: no kernel reads either */
API cudaError_t cudaMemcpyToSymbol(UNUSED const void *symbol, UNUSED const void *from, UNUSED size_t bytes,
                                   UNUSED size_t offset, UNUSED enum cudaMemcpyKind kind) {
    return cudaSuccess;
}
API cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    fake_fill(to, (unsigned char)value, 1, bytes);
    return cudaSuccess;
}
API cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    fake_work((struct fake_stream *)stream);
    return cudaMemset(to, value, bytes);
}

/* ---- memory pools: one for each device, which keeps nothing ---- */

API cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream) {
    int ordinal, answer = fake_here(&ordinal);
    fake_work((struct fake_stream *)stream);
    return fake_result(answer ? answer : fake_pool_alloc(ordinal, bytes, out));
}
API cudaError_t cudaFreeAsync(void *base, cudaStream_t stream) {
    fake_work((struct fake_stream *)stream);
    return fake_result(fake_pool_free(base));
}
API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    *pool = (cudaMemPool_t)fake_pool_of(device);
    return fake_result(fake_physical(device) < 0 ? INVALID_DEVICE : OK);
}
API cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device) {
    return cudaDeviceGetDefaultMemPool(pool, device);
}
API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, enum cudaMemPoolAttr attribute, void *value) {
    const struct fake_pool *pool = (const struct fake_pool *)handle;
    bool high = attribute == cudaMemPoolAttrReservedMemHigh || attribute == cudaMemPoolAttrUsedMemHigh;
    bool low = attribute == cudaMemPoolAttrReservedMemCurrent || attribute == cudaMemPoolAttrUsedMemCurrent;
    if (!high && !low) return fake_result(NOT_SUPPORTED);
    *(uint64_t *)value = high ? pool->used_high_bytes : pool->used_bytes;
    return cudaSuccess;
}
API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, enum cudaMemPoolAttr attribute, UNUSED void *value) {
    struct fake_pool *pool = (struct fake_pool *)handle;
    if (attribute == cudaMemPoolAttrReservedMemHigh || attribute == cudaMemPoolAttrUsedMemHigh)
        pool->used_high_bytes = pool->used_bytes;
    return cudaSuccess;
}
API cudaError_t cudaMemPoolTrimTo(UNUSED cudaMemPool_t pool, UNUSED size_t bytes) { return cudaSuccess; }
API cudaError_t cudaMemPoolSetAccess(UNUSED cudaMemPool_t pool, UNUSED const struct cudaMemAccessDesc *access,
                                     UNUSED size_t count) {
    return cudaSuccess;
}

/* ---- kernels ---- */

static cudaError_t launched(cudaStream_t stream) {
    int ordinal, answer = fake_here(&ordinal);
    fake_work((struct fake_stream *)stream);
    return fake_result(answer);
}
API cudaError_t cudaLaunchKernel(UNUSED const void *kernel, UNUSED dim3 grid, UNUSED dim3 block,
                                 UNUSED void **arguments, UNUSED size_t shared, cudaStream_t stream) {
    return launched(stream);
}
API cudaError_t cudaLaunchCooperativeKernel(UNUSED const void *kernel, UNUSED dim3 grid, UNUSED dim3 block,
                                            UNUSED void **arguments, UNUSED size_t shared, cudaStream_t stream) {
    return launched(stream);
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *with, UNUSED const void *kernel,
                                    UNUSED void **arguments) {
    return launched(with->stream);
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    uint64_t id;
    struct fake_graph *graph;
    fake_work((struct fake_stream *)stream);
    if (!fake_capturing((struct fake_stream *)stream, &id, &graph)) function(data);
    return cudaSuccess;
}
API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *of, UNUSED const void *kernel) {
    memset(of, 0, sizeof *of);
    of->maxThreadsPerBlock = 1024;
    of->numRegs = 32;
    of->binaryVersion = of->ptxVersion = 90;
    return cudaSuccess;
}
API cudaError_t cudaFuncSetAttribute(UNUSED const void *kernel, UNUSED enum cudaFuncAttribute attribute,
                                     UNUSED int value) {
    return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, UNUSED const void *kernel,
                                                              UNUSED int threads, UNUSED size_t shared) {
    *blocks = 2; /* any small number: kernels' grids are sized by it */
    return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel, int threads,
                                                                       size_t shared, UNUSED unsigned flags) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, shared);
}
API cudaError_t cudaGetSymbolAddress(void **address, UNUSED const void *symbol) {
    static char variable[1 << 16]; /* used for every device variable */
    *address = variable;
    return cudaSuccess;
}

/* What the compiler of kernels puts around them; its own header declares these for C++ only. */
API void **__cudaRegisterFatBinary(void *binary);
API void **__cudaRegisterFatBinary(UNUSED void *binary) {
    static void *handle;
    return &handle;
}
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream);
static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    void *stream;
} call;
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    call.grid = grid, call.block = block, call.shared = shared, call.stream = stream;
    return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = call.grid, *block = call.block, *shared = call.shared;
    *(void **)stream = call.stream;
    return cudaSuccess;
}
/* CUDA 12.8 and later launch with <<<>>> through these two. */
API cudaError_t __cudaGetKernel(void **kernel, const void *entry);
API cudaError_t __cudaGetKernel(void **kernel, const void *entry) {
    *kernel = (void *)entry;
    return cudaSuccess;
}
API cudaError_t __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                                   cudaStream_t stream);
API cudaError_t __cudaLaunchKernel(UNUSED const void *kernel, UNUSED dim3 grid, UNUSED dim3 block,
                                   UNUSED void **arguments, UNUSED size_t shared, cudaStream_t stream) {
    return launched(stream);
}

/* ---- the driver's entries, which torch gets from the runtime ---- */

static int refuse(void) { return NOT_SUPPORTED; }

static cudaError_t entry_point(const char *name, void **entry, enum cudaDriverEntryPointQueryResult *result) {
    char versioned[128];
    snprintf(versioned, sizeof versioned, "%s_v2", name); /* as the headers map cuMemAlloc to cuMemAlloc_v2 */
    *entry = dlsym(RTLD_DEFAULT, versioned);
    if (!*entry) *entry = dlsym(RTLD_DEFAULT, name);
    if (!*entry) *entry = (void *)(uintptr_t)refuse;
    if (result) *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
#if CUDART_VERSION < 13000
API cudaError_t cudaGetDriverEntryPoint(const char *name, void **entry, UNUSED unsigned long long flags,
                                        enum cudaDriverEntryPointQueryResult *result) {
    return entry_point(name, entry, result);
}
#endif
#if CUDART_VERSION >= 12050
API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **entry, UNUSED unsigned version,
                                                 UNUSED unsigned long long flags,
                                                 enum cudaDriverEntryPointQueryResult *result) {
    return entry_point(name, entry, result);
}
#endif
