/*
 * CUDA's driver API: what PyTorch needs in addition to its runtime, and what a program in another language needs for
 * devices, contexts, memory, streams and events. Virtual memory is in vmm.c.
 *
 * Signatures follow cuda.h, with handles as pointers, so that it builds without that header. Devices are ordinals, a
 * context is its device's ordinal plus one. Modules and kernels are not here.
 */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <string.h>

typedef uint64_t address;
typedef struct fake_stream *stream;
typedef struct fake_event *event;

static int ordinal_of(void *context) { return (int)(uintptr_t)context - 1; }
static void *context_of(int ordinal) { return (void *)(uintptr_t)(ordinal + 1); }
static _Thread_local bool bound; /* this thread has a context, from either API */

API int cuInit(UNUSED unsigned flags) { return fake_count() ? OK : NO_DEVICE; }
API int cuDriverGetVersion(int *version) {
    *version = 13000; /* new enough for every torch */
    return OK;
}
API int cuDeviceGetCount(int *devices) {
    *devices = fake_count();
    return OK;
}
API int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return fake_physical(ordinal) < 0 ? INVALID_DEVICE : OK;
}
API int cuDeviceGetName(char *name, int bytes, int device) {
    if (fake_physical(device) < 0) return INVALID_DEVICE;
    snprintf(name, (size_t)bytes, "Fake GPU");
    return OK;
}
API int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    if (fake_physical(device) < 0) return INVALID_DEVICE;
    fake_uuid(fake_physical(device), uuid);
    return OK;
}
API int cuDeviceGetUuid(unsigned char *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
API int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = fake_total_bytes();
    return fake_physical(device) < 0 ? INVALID_DEVICE : OK;
}
API int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = fake_attribute(attribute, device);
    return fake_physical(device) < 0 ? INVALID_DEVICE : OK;
}
API int cuDeviceGetPCIBusId(char *text, int bytes, int device) {
    if (fake_physical(device) < 0) return INVALID_DEVICE;
    fake_pci_id(fake_physical(device), text, bytes);
    return OK;
}
API int cuDeviceComputeCapability(int *major, int *minor, UNUSED int device) {
    *major = 9, *minor = 0;
    return OK;
}
API int cuDeviceCanAccessPeer(int *can, UNUSED int device, UNUSED int peer) {
    *can = 0;
    return OK;
}

/* ---- contexts: only the primary one ---- */

API int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = context_of(device);
    return fake_context(device);
}
API int cuDevicePrimaryCtxRelease_v2(UNUSED int device) { return OK; }
API int cuDevicePrimaryCtxSetFlags_v2(UNUSED int device, UNUSED unsigned flags) { return OK; }
API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0;
    *active = fake_has_context(device);
    return OK;
}
API int cuCtxSetCurrent(void *context) {
    bound = context != NULL;
    return context ? fake_set_current(ordinal_of(context)) : OK;
}
API int cuCtxPushCurrent_v2(void *context) { return cuCtxSetCurrent(context); }
API int cuCtxGetCurrent(void **context) {
    *context = bound || fake_has_context(fake_current()) ? context_of(fake_current()) : NULL;
    return OK;
}
API int cuCtxPopCurrent_v2(void **context) {
    cuCtxGetCurrent(context);
    bound = false;
    return OK;
}
API int cuCtxGetDevice(int *device) {
    *device = fake_current();
    return OK;
}
API int cuCtxSynchronize(void) {
    fake_synchronize();
    return OK;
}
API int cuGetErrorName(int error, const char **text) {
    *text = error == OK ? "CUDA_SUCCESS" : error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return OK;
}
API int cuGetErrorString(int error, const char **text) {
    *text = error == OK ? "no error" : error == OUT_OF_MEMORY ? "out of memory" : "refused by the fake GPU";
    return OK;
}

/* ---- memory ---- */

static int allocate(address *out, size_t bytes, enum fake_kind kind) {
    void *base = NULL;
    int ordinal, answer = fake_here(&ordinal);
    if (!bytes) return INVALID_VALUE;
    if (!answer) answer = fake_alloc(ordinal, bytes, kind, &base);
    *out = (uintptr_t)base;
    return answer;
}
API int cuMemAlloc_v2(address *out, size_t bytes) { return allocate(out, bytes, DEVICE_MEMORY); }
API int cuMemFree_v2(address base) { return fake_free((void *)base); }
API int cuMemAllocManaged(address *out, size_t bytes, UNUSED unsigned flags) {
    return allocate(out, bytes, MANAGED_MEMORY);
}
API int cuMemHostAlloc(void **out, size_t bytes, UNUSED unsigned flags) {
    return allocate((address *)out, bytes, HOST_PINNED);
}
API int cuMemAllocHost_v2(void **out, size_t bytes) { return allocate((address *)out, bytes, HOST_PINNED); }
API int cuMemFreeHost(void *base) { return fake_free(base); }
API int cuMemAllocAsync(address *out, size_t bytes, stream on) {
    void *base = NULL;
    int ordinal, answer = fake_here(&ordinal);
    fake_work(on);
    if (!answer) answer = fake_pool_alloc(ordinal, bytes, &base);
    *out = (uintptr_t)base;
    return answer;
}
API int cuMemFreeAsync(address base, stream on) {
    fake_work(on);
    return fake_pool_free((void *)base);
}
API int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    int ordinal, answer = fake_here(&ordinal);
    if (answer) return answer;
    *total_bytes = fake_total_bytes();
    *free_bytes = *total_bytes - fake_used_bytes(fake_physical(ordinal));
    return OK;
}
API int cuMemGetAddressRange_v2(address *base, size_t *bytes, address inside) {
    struct fake_range range;
    if (!fake_find((void *)inside, &range)) return INVALID_VALUE;
    if (base) *base = (uintptr_t)range.base;
    if (bytes) *bytes = range.bytes;
    return OK;
}
API int cuPointerGetAttribute(void *value, int attribute, address of) {
    struct fake_range range;
    bool found = fake_find((void *)of, &range);
    switch (attribute) {
    case 1: *(void **)value = context_of(range.ordinal); return found ? OK : INVALID_VALUE; /* context */
    case 2:
        *(unsigned *)value = found && range.kind == DEVICE_MEMORY ? 2 : 1;
        return found ? OK : INVALID_VALUE;                                                 /* memory type */
    case 3: *(address *)value = of; return found ? OK : INVALID_VALUE;                     /* device pointer */
    case 9: *(int *)value = found ? range.ordinal : -2; return found ? OK : INVALID_VALUE; /* ordinal */
    default: return NOT_SUPPORTED;
    }
}
static int copy(address to, address from, size_t bytes, stream on) {
    fake_work(on);
    fake_copy((void *)to, (const void *)from, bytes);
    return OK;
}
API int cuMemcpyHtoD_v2(address to, const void *from, size_t bytes) { return copy(to, (uintptr_t)from, bytes, NULL); }
API int cuMemcpyDtoH_v2(void *to, address from, size_t bytes) { return copy((uintptr_t)to, from, bytes, NULL); }
API int cuMemcpyDtoD_v2(address to, address from, size_t bytes) { return copy(to, from, bytes, NULL); }
API int cuMemcpy(address to, address from, size_t bytes) { return copy(to, from, bytes, NULL); }
API int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, stream on) {
    return copy(to, (uintptr_t)from, bytes, on);
}
API int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, stream on) {
    return copy((uintptr_t)to, from, bytes, on);
}
API int cuMemcpyDtoDAsync_v2(address to, address from, size_t bytes, stream on) { return copy(to, from, bytes, on); }
API int cuMemcpyAsync(address to, address from, size_t bytes, stream on) { return copy(to, from, bytes, on); }
static int fill(address to, uint32_t pattern, size_t unit_bytes, size_t count, stream on) {
    fake_work(on);
    fake_fill((void *)to, pattern, unit_bytes, count);
    return OK;
}
API int cuMemsetD8_v2(address to, unsigned char value, size_t count) { return fill(to, value, 1, count, NULL); }
API int cuMemsetD16_v2(address to, unsigned short value, size_t count) { return fill(to, value, 2, count, NULL); }
API int cuMemsetD32_v2(address to, unsigned value, size_t count) { return fill(to, value, 4, count, NULL); }
API int cuMemsetD8Async(address to, unsigned char value, size_t count, stream on) {
    return fill(to, value, 1, count, on);
}
API int cuMemsetD16Async(address to, unsigned short value, size_t count, stream on) {
    return fill(to, value, 2, count, on);
}
API int cuMemsetD32Async(address to, unsigned value, size_t count, stream on) { return fill(to, value, 4, count, on); }

/* ---- streams and events ---- */

API int cuStreamCreate(stream *out, unsigned flags) { return fake_stream_create(flags, 0, out); }
API int cuStreamCreateWithPriority(stream *out, unsigned flags, int priority) {
    return fake_stream_create(flags, priority, out);
}
API int cuStreamDestroy_v2(stream of) { return fake_stream_destroy(of); }
API int cuStreamSynchronize(UNUSED stream of) {
    fake_synchronize();
    return OK;
}
API int cuStreamQuery(UNUSED stream of) { return OK; }
API int cuStreamWaitEvent(stream of, event on, UNUSED unsigned flags) { return fake_stream_wait(of, on); }
API int cuStreamGetCtx(stream of, void **context) {
    *context = context_of(fake_stream_device(of));
    return OK;
}
API int cuStreamIsCapturing(stream of, int *status) {
    uint64_t id;
    struct fake_graph *graph;
    *status = fake_capturing(of, &id, &graph);
    return OK;
}
API int cuEventCreate(event *out, unsigned flags) { return fake_event_create(flags, out); }
API int cuEventDestroy_v2(event of) { return fake_event_destroy(of); }
API int cuEventRecord(event of, stream on) { return fake_event_record(of, on); }
API int cuEventQuery(event of) { return fake_event_query(of); }
API int cuEventSynchronize(event of) { return fake_event_synchronize(of); }
API int cuEventElapsedTime_v2(float *milliseconds, event from, event to) {
    return fake_event_elapsed(milliseconds, from, to);
}
API int cuEventElapsedTime(float *milliseconds, event from, event to) {
    return fake_event_elapsed(milliseconds, from, to);
}
