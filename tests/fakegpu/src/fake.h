/*
 * What the parts of the fake GPU share: devices, memory accounted per device and process, and streams.
 *
 * One library implements CUDA's runtime, driver and NVML, so all three report the same devices and the same bytes.
 * "ordinal" is a device's number in this process (CUDA_VISIBLE_DEVICES), "physical" its number in NVML. Error numbers
 * are CUDA's; runtime and driver share every one that is used here. Every function may be called from any thread.
 */
#ifndef FAKE_H
#define FAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))
#define UNUSED __attribute__((unused))

enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3, /* also what CUDA answers in a fork of a process that used it */
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    PEER_UNSUPPORTED = 217,
    NOT_SUPPORTED = 801,
    CAPTURE_INVALIDATED = 901
};

enum { MAX_DEVICES = 64, UUID_BYTES = 16, GRANULARITY = 2 << 20 };

/* ---- table.c: configuration, devices, and the bytes that every process holds ---- */

int fake_physical_count(void);
int fake_count(void);               /* devices visible to this process */
int fake_physical(int ordinal);     /* -1 when there is no such device */
size_t fake_total_bytes(void);      /* of one device */
size_t fake_copy_limit_bytes(void); /* of one copy or fill, see memory.c */
int fake_event_lag(void);
const char *fake_nvml_mode(void); /* "" , "absent" or "broken" */
void fake_uuid(int physical, unsigned char uuid[UUID_BYTES]);
void fake_pci_id(int physical, char *text, int bytes); /* 00000000:01:00.0 */

int fake_context(int ordinal); /* makes this process a user of the device; OK, NOT_INITIALIZED or OUT_OF_MEMORY */
bool fake_has_context(int ordinal);
int fake_charge(int ordinal, size_t bytes); /* OK or OUT_OF_MEMORY */
void fake_uncharge(int ordinal, size_t bytes);
size_t fake_used_bytes(int physical); /* of all living processes */

struct fake_process {
    int pid;
    size_t bytes;
};
int fake_processes(int physical, struct fake_process *found, int room); /* how many there are, which may exceed room */

/* ---- memory.c ---- */

enum fake_kind { HOST_PAGEABLE, HOST_PINNED, DEVICE_MEMORY, MANAGED_MEMORY };

struct fake_range {
    char *base;
    size_t bytes;
    enum fake_kind kind;
    int ordinal;
};

int fake_alloc(int ordinal, size_t bytes, enum fake_kind kind, void **out);
int fake_free(void *base); /* INVALID_VALUE when it is not the start of a range */
int fake_host_register(void *base, size_t bytes);
int fake_host_unregister(void *base);
bool fake_find(const void *address, struct fake_range *found);
void fake_copy(void *to, const void *from, size_t bytes);
void fake_fill(void *to, uint32_t pattern, size_t unit_bytes, size_t count);

struct fake_pool { /* cudaMallocAsync: what the device's default pool holds */
    size_t used_bytes, used_high_bytes;
};
struct fake_pool *fake_pool_of(int ordinal);
int fake_pool_alloc(int ordinal, size_t bytes, void **out);
int fake_pool_free(void *base);

/* ---- device.c: the calling thread's device, last error, and what a device is said to be ---- */

int fake_current(void);
int fake_set_current(int ordinal);
int fake_here(int *ordinal); /* the current device, with a context */
int fake_attribute(int attribute, int ordinal);

/* ---- streams.c ---- */

struct fake_graph {
    uint64_t id;
    size_t nodes;
};
struct fake_stream;
struct fake_event;

int fake_stream_create(unsigned flags, int priority, struct fake_stream **out);
int fake_stream_destroy(struct fake_stream *stream);
int fake_stream_priority(struct fake_stream *stream);
unsigned fake_stream_flags(struct fake_stream *stream);
int fake_stream_device(struct fake_stream *stream);
void fake_synchronize(void);
void fake_work(struct fake_stream *stream); /* something was launched: a node of the graph while capturing */
int fake_stream_wait(struct fake_stream *stream, struct fake_event *event);
int fake_capture_begin(struct fake_stream *stream);
int fake_capture_end(struct fake_stream *stream, struct fake_graph **out);
bool fake_capturing(struct fake_stream *stream, uint64_t *id, struct fake_graph **graph);

int fake_event_create(unsigned flags, struct fake_event **out);
int fake_event_destroy(struct fake_event *event);
int fake_event_record(struct fake_event *event, struct fake_stream *stream);
int fake_event_query(struct fake_event *event);
int fake_event_synchronize(struct fake_event *event);
int fake_event_elapsed(float *milliseconds, struct fake_event *from, struct fake_event *to);

#endif
