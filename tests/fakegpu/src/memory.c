/*
 * Memory: device memory is host address space, untouched until something is copied there, and charged to its device.
 *
 * Every allocation, pinned host range and mapped piece is in one sorted list, which finds an address's owner. Copies
 * and fills really happen, up to FAKE_GPU_COPY_MIB of each (default 256): past that the contents are left alone, so
 * that a model larger than the host's memory can be "on the GPU". Physical pieces (cuMemCreate) live in vmm.c.
 */
#define _GNU_SOURCE
#include "memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct fake_range *ranges; /* sorted by base, never overlapping */
static size_t count, room;
static struct fake_pool pools[MAX_DEVICES];

/* The first range that begins after the address. */
static size_t after(const void *address) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if ((const char *)ranges[middle].base <= (const char *)address) low = middle + 1;
        else high = middle;
    }
    return low;
}

bool fake_range_add(struct fake_range range) {
    bool added = true;
    pthread_mutex_lock(&mutex);
    if (count == room) {
        size_t more = room ? 2 * room : 256;
        struct fake_range *grown = realloc(ranges, more * sizeof *ranges);
        added = grown != NULL;
        if (added) ranges = grown, room = more;
    }
    if (added) {
        size_t at = after(range.base);
        memmove(ranges + at + 1, ranges + at, (count - at) * sizeof *ranges);
        ranges[at] = range;
        count++;
    }
    pthread_mutex_unlock(&mutex);
    return added;
}

bool fake_range_take(void *base, struct fake_range *taken) {
    pthread_mutex_lock(&mutex);
    size_t at = after(base);
    bool found = at > 0 && ranges[at - 1].base == (char *)base;
    if (found) {
        *taken = ranges[at - 1];
        memmove(ranges + at - 1, ranges + at, (count - at) * sizeof *ranges);
        count--;
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

bool fake_find(const void *address, struct fake_range *found) {
    pthread_mutex_lock(&mutex);
    size_t at = after(address);
    bool inside = at > 0 && (size_t)((const char *)address - ranges[at - 1].base) < ranges[at - 1].bytes;
    if (inside) *found = ranges[at - 1];
    pthread_mutex_unlock(&mutex);
    return inside;
}

void *fake_address_space(size_t bytes, size_t alignment, int protection) {
    if (bytes + alignment < bytes) return NULL;
    char *whole = mmap(NULL, bytes + alignment, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole == MAP_FAILED) return NULL;
    char *base = (char *)(((uintptr_t)whole + alignment - 1) & ~(uintptr_t)(alignment - 1));
    if (base > whole) munmap(whole, (size_t)(base - whole));
    munmap(base + bytes, (size_t)(whole + alignment - base));
    return base;
}

static size_t rounded(size_t bytes, enum fake_kind kind) {
    size_t unit = 4096; /* a page, which is what can be mapped */
    (void)kind;
    return (bytes + unit - 1) & ~(unit - 1);
}

int fake_alloc(int ordinal, size_t bytes, enum fake_kind kind, void **out) {
    size_t whole = rounded(bytes, kind);
    *out = NULL;
    if (!bytes) return OK;
    if (whole < bytes) return OUT_OF_MEMORY;
    bool charged = kind == DEVICE_MEMORY || kind == MANAGED_MEMORY;
    int answer = charged ? fake_charge(ordinal, whole) : OK;
    if (answer) return answer;
    size_t alignment = whole >= GRANULARITY / 2 ? GRANULARITY : 4096;
    char *base = fake_address_space(whole, alignment, PROT_READ | PROT_WRITE);
    if (base && fake_range_add((struct fake_range){base, whole, kind, ordinal})) {
        *out = base;
        return OK;
    }
    if (base) munmap(base, whole);
    if (charged) fake_uncharge(ordinal, whole);
    return OUT_OF_MEMORY;
}

int fake_free(void *base) {
    struct fake_range range;
    if (!base) return OK;
    if (!fake_range_take(base, &range)) return INVALID_VALUE;
    munmap(range.base, range.bytes);
    if (range.kind == DEVICE_MEMORY || range.kind == MANAGED_MEMORY) fake_uncharge(range.ordinal, range.bytes);
    return OK;
}

int fake_host_register(void *base, size_t bytes) {
    struct fake_range other;
    if (!base || !bytes || fake_find(base, &other)) return INVALID_VALUE;
    return fake_range_add((struct fake_range){base, bytes, HOST_PINNED, fake_current()}) ? OK : OUT_OF_MEMORY;
}

int fake_host_unregister(void *base) {
    struct fake_range range;
    return fake_range_take(base, &range) ? OK : INVALID_VALUE;
}

static size_t limited(size_t bytes) {
    size_t limit = fake_copy_limit_bytes();
    return bytes < limit ? bytes : limit;
}

void fake_copy(void *to, const void *from, size_t bytes) { memmove(to, from, limited(bytes)); }

void fake_fill(void *to, uint32_t pattern, size_t unit_bytes, size_t units) {
    size_t bytes = limited(units * unit_bytes);
    struct fake_range range;
    uintptr_t begin = ((uintptr_t)to + 4095) & ~(uintptr_t)4095, end = ((uintptr_t)to + bytes) & ~(uintptr_t)4095;
    if (pattern == 0 && end > begin && fake_find(to, &range) && range.kind == DEVICE_MEMORY) {
        /* whole pages become the kernel's zero page, which costs neither time nor memory */
        memset(to, 0, begin - (uintptr_t)to);
        madvise((void *)begin, end - begin, MADV_DONTNEED);
        memset((void *)end, 0, (uintptr_t)to + bytes - end);
        return;
    }
    for (size_t at = 0; unit_bytes > 1 && at + unit_bytes <= bytes; at += unit_bytes)
        memcpy((char *)to + at, &pattern, unit_bytes);
    if (unit_bytes == 1) memset(to, (int)pattern, bytes);
}

struct fake_pool *fake_pool_of(int ordinal) { return &pools[ordinal >= 0 && ordinal < MAX_DEVICES ? ordinal : 0]; }

int fake_pool_alloc(int ordinal, size_t bytes, void **out) {
    int answer = fake_alloc(ordinal, bytes, DEVICE_MEMORY, out);
    struct fake_pool *pool = fake_pool_of(ordinal);
    pthread_mutex_lock(&mutex);
    if (answer == OK) pool->used_bytes += rounded(bytes, DEVICE_MEMORY);
    if (pool->used_bytes > pool->used_high_bytes) pool->used_high_bytes = pool->used_bytes;
    pthread_mutex_unlock(&mutex);
    return answer;
}

int fake_pool_free(void *base) {
    struct fake_range range;
    if (!base) return OK;
    if (!fake_find(base, &range)) return INVALID_VALUE;
    int answer = fake_free(base);
    pthread_mutex_lock(&mutex);
    if (answer == OK) fake_pool_of(range.ordinal)->used_bytes -= range.bytes;
    pthread_mutex_unlock(&mutex);
    return answer;
}
