/*
 * Virtual memory management (cuMem*): physical pieces that are charged to a device, and addresses they are mapped to.
 *
 * A piece is charged when it is created and freed when it was released and its last mapping is gone, as in CUDA.
 * Contents belong to the mapping, not to the piece: what is unmapped is lost, and a piece mapped twice shows two
 * different memories. Pieces cannot be shared with other processes: NOT_SUPPORTED.
 */
#define _GNU_SOURCE
#include "memory.h"
#include "vmm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct piece {
    struct fake_properties properties;
    size_t bytes;
    int held; /* one for the handle while it is not released, one for each mapping */
};
struct mapping {
    char *base;
    size_t bytes;
    struct piece *piece;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct mapping *mappings;
static size_t count, room;

static void drop(struct piece *piece) {
    if (--piece->held) return;
    fake_uncharge(piece->properties.location.id, piece->bytes);
    free(piece);
}

API int cuMemGetAllocationGranularity(size_t *bytes, const struct fake_properties *properties, UNUSED int option) {
    if (!bytes || !properties) return INVALID_VALUE;
    *bytes = GRANULARITY;
    return OK;
}

API int cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, UNUSED uint64_t wish,
                            UNUSED uint64_t flags) {
    if (!address || !bytes || bytes % GRANULARITY || (alignment & (alignment - 1))) return INVALID_VALUE;
    *address = (uintptr_t)fake_address_space(bytes, alignment > GRANULARITY ? alignment : GRANULARITY, PROT_NONE);
    return *address ? OK : OUT_OF_MEMORY;
}

API int cuMemAddressFree(uint64_t address, size_t bytes) { return munmap((void *)address, bytes) ? INVALID_VALUE : OK; }

API int cuMemCreate(struct piece **handle, size_t bytes, const struct fake_properties *properties,
                    UNUSED uint64_t flags) {
    if (!handle || !properties || !bytes || bytes % GRANULARITY) return INVALID_VALUE;
    if (properties->location.type != LOCATION_DEVICE || properties->shareable & ~SHAREABLE_BY_FD) return NOT_SUPPORTED;
    struct piece *piece = malloc(sizeof *piece);
    if (!piece) return OUT_OF_MEMORY;
    int answer = fake_charge(properties->location.id, bytes);
    if (answer) {
        free(piece);
        return answer;
    }
    *piece = (struct piece){.properties = *properties, .bytes = bytes, .held = 1};
    *handle = piece;
    return OK;
}

API int cuMemRelease(struct piece *piece) {
    if (!piece) return INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    drop(piece);
    pthread_mutex_unlock(&mutex);
    return OK;
}

API int cuMemMap(uint64_t address, size_t bytes, size_t offset, struct piece *piece, UNUSED uint64_t flags) {
    if (!piece || offset || bytes != piece->bytes || address % GRANULARITY) return INVALID_VALUE;
    struct fake_range other;
    if (fake_find((void *)address, &other)) return INVALID_VALUE; /* mapped already */
    int answer = OK;
    pthread_mutex_lock(&mutex);
    if (count == room) {
        size_t more = room ? 2 * room : 256;
        struct mapping *grown = realloc(mappings, more * sizeof *mappings);
        if (grown) mappings = grown, room = more;
        else answer = OUT_OF_MEMORY;
    }
    if (!answer &&
        !fake_range_add((struct fake_range){(char *)address, bytes, DEVICE_MEMORY, piece->properties.location.id}))
        answer = OUT_OF_MEMORY;
    if (!answer) {
        mappings[count++] = (struct mapping){(char *)address, bytes, piece};
        piece->held++;
    }
    pthread_mutex_unlock(&mutex);
    return answer;
}

API int cuMemSetAccess(uint64_t address, size_t bytes, const void *access, size_t accesses) {
    if (!access || !accesses) return INVALID_VALUE;
    return mprotect((void *)address, bytes, PROT_READ | PROT_WRITE) ? INVALID_VALUE : OK;
}

API int cuMemUnmap(uint64_t address, size_t bytes) {
    char *begin = (char *)address, *end = begin + bytes;
    size_t unmapped = 0;
    pthread_mutex_lock(&mutex);
    for (size_t at = 0; at < count;) {
        struct mapping mapping = mappings[at];
        if (mapping.base < begin || mapping.base >= end) {
            at++;
            continue;
        }
        struct fake_range range;
        fake_range_take(mapping.base, &range);
        /* fresh pages with no access in place of the old: the addresses stay reserved, the memory goes back */
        mmap(mapping.base, mapping.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        mappings[at] = mappings[--count];
        drop(mapping.piece);
        unmapped++;
    }
    pthread_mutex_unlock(&mutex);
    return unmapped ? OK : INVALID_VALUE;
}

API int cuMemRetainAllocationHandle(struct piece **handle, void *address) {
    int answer = INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    for (size_t at = 0; at < count && answer; at++) {
        if ((size_t)((char *)address - mappings[at].base) >= mappings[at].bytes) continue;
        *handle = mappings[at].piece;
        (*handle)->held++;
        answer = OK;
    }
    pthread_mutex_unlock(&mutex);
    return answer;
}

API int cuMemGetAllocationPropertiesFromHandle(struct fake_properties *properties, struct piece *piece) {
    if (!properties || !piece) return INVALID_VALUE;
    *properties = piece->properties;
    return OK;
}
