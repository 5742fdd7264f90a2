/*
 * NCCL: collectives in which every other rank is taken to hold what this one holds, so that no rank ever waits for
 * another.
 *
 * Enough for DistributedDataParallel and friends with backend "nccl": an all-gather repeats the own part, a reduction
 * leaves it as it is. There is no synchronisation between ranks: use gloo where values or
 * barriers matter.
 */
#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, DATA_TYPES = 12 };
static const unsigned char type_bytes[DATA_TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}; /* by ncclDataType_t */

struct unique_id {
    char bytes[128];
};
struct communicator {
    int ranks, rank, ordinal;
    uint64_t bytes;
    void *held; /* these on the device */
};
typedef struct communicator *comm;
typedef struct fake_stream *stream;

static int make(comm *out, int ranks, int rank) {
    if (!out || ranks < 1 || rank < 0) return INVALID_ARGUMENT;
    *out = malloc(sizeof **out);
    if (!*out) return SYSTEM_ERROR;
    **out = (struct communicator){ranks, rank, fake_current(), 0, NULL};
    const char *mib = getenv("FAKE_GPU_NCCL_MIB");
    (*out)->bytes = mib ? strtoull(mib, NULL, 10) << 20 : 0;
    if ((*out)->bytes && fake_alloc((*out)->ordinal, (*out)->bytes, DEVICE_MEMORY, &(*out)->held)) return SYSTEM_ERROR;
    return SUCCESS;
}

API int ncclGetUniqueId(struct unique_id *id) {
    return getrandom(id->bytes, sizeof id->bytes, 0) == (ssize_t)sizeof id->bytes ? SUCCESS : SYSTEM_ERROR;
}
API int ncclCommInitRank(comm *out, int ranks, UNUSED struct unique_id id, int rank) { return make(out, ranks, rank); }
API int ncclCommInitRankConfig(comm *out, int ranks, UNUSED struct unique_id id, int rank, UNUSED void *config) {
    return make(out, ranks, rank);
}
API int ncclCommInitRankScalable(comm *out, int ranks, int rank, UNUSED int ids, UNUSED struct unique_id *id,
                                 UNUSED void *config) {
    return make(out, ranks, rank);
}
/* All ranks in one process, as DataParallel has them. */
API int ncclCommInitAll(comm *out, int ranks, const int *ordinals) {
    int answer = SUCCESS;
    for (int rank = 0; rank < ranks && !answer; rank++) {
        answer = make(out + rank, ranks, rank);
        if (!answer) out[rank]->ordinal = ordinals ? ordinals[rank] : rank;
    }
    return answer;
}
/* How many ranks name the same colour is not known without them, so a gather there fills the first part alone. */
API int ncclCommSplit(comm from, int color, UNUSED int key, comm *out, UNUSED void *config) {
    *out = NULL;
    return color < 0 ? SUCCESS : make(out, 1, from ? 0 : -1);
}
API int ncclCommDestroy(comm of) {
    if (of && of->held) fake_free(of->held);
    free(of);
    return SUCCESS;
}
API int ncclCommAbort(comm of) { return ncclCommDestroy(of); }
/* NCCL 2.29.7: what can be suspended, whether it is, what cannot be, and all of it. */
API int ncclCommMemStats(comm of, int statistic, uint64_t *value) {
    if (!of || !value || statistic < 0 || statistic > 3) return INVALID_ARGUMENT;
    *value = statistic == 1 ? 0 : statistic == 2 ? of->bytes / 4 : statistic == 3 ? of->bytes : of->bytes - of->bytes / 4;
    return SUCCESS;
}
API int ncclCommFinalize(UNUSED comm of) { return SUCCESS; }
API int ncclCommGetAsyncError(UNUSED comm of, int *error) { return *error = SUCCESS; }
API int ncclCommCount(comm of, int *ranks) {
    *ranks = of->ranks;
    return SUCCESS;
}
API int ncclCommUserRank(comm of, int *rank) {
    *rank = of->rank;
    return SUCCESS;
}
API int ncclCommCuDevice(comm of, int *ordinal) {
    *ordinal = of->ordinal;
    return SUCCESS;
}
API int ncclGetVersion(int *version) {
    *version = 22800;
    return SUCCESS;
}
API int ncclRedOpCreatePreMulSum(int *operation, UNUSED void *scalar, UNUSED int type, UNUSED int residence,
                                 UNUSED comm of) {
    *operation = 0;
    return SUCCESS;
}
API int ncclRedOpDestroy(UNUSED int operation, UNUSED comm of) { return SUCCESS; }

/* Memory registered with NCCL: torch 2.15 and later register the pools of their allocator. A handle is the memory
 * itself. */
API int ncclCommRegister(UNUSED comm of, void *base, UNUSED size_t bytes, void **handle) {
    *handle = base;
    return SUCCESS;
}
API int ncclCommDeregister(UNUSED comm of, UNUSED void *handle) { return SUCCESS; }
API int ncclCommWindowRegister(comm of, void *base, size_t bytes, void **window, UNUSED int flags) {
    return ncclCommRegister(of, base, bytes, window);
}
API int ncclCommWindowDeregister(UNUSED comm of, UNUSED void *window) { return SUCCESS; }
API int ncclMemAlloc(void **out, size_t bytes) {
    int ordinal, answer = fake_here(&ordinal);
    return answer || fake_alloc(ordinal, bytes, DEVICE_MEMORY, out) ? SYSTEM_ERROR : SUCCESS;
}
API int ncclMemFree(void *base) { return fake_free(base) ? INVALID_ARGUMENT : SUCCESS; }

/*
 * A gather may also be a group of sends and receives, or of broadcasts from every rank in turn. What is received in a
 * group is what was last sent in it, if that is as large; what is received outside a group is left as it is.
 */
enum { GROUP_RECEIVES = 1024 };
static _Thread_local struct {
    int depth;
    const void *sent;
    size_t sent_bytes, receives;
    struct {
        void *to;
        size_t bytes;
    } receive[GROUP_RECEIVES];
} group;

static void send(const void *from, size_t bytes) {
    group.sent = group.depth ? from : NULL;
    group.sent_bytes = bytes;
}
static int receive(void *to, size_t bytes) {
    if (!group.depth) return SUCCESS;
    if (group.receives == GROUP_RECEIVES) return SYSTEM_ERROR;
    group.receive[group.receives].to = to;
    group.receive[group.receives++].bytes = bytes;
    return SUCCESS;
}
API int ncclGroupStart(void) {
    group.depth++;
    return SUCCESS;
}
API int ncclGroupEnd(void) {
    if (!group.depth) return INVALID_ARGUMENT;
    if (--group.depth) return SUCCESS;
    for (size_t i = 0; group.sent && i < group.receives; i++)
        if (group.receive[i].bytes == group.sent_bytes) fake_copy(group.receive[i].to, group.sent, group.sent_bytes);
    group.sent = NULL;
    group.receives = 0;
    return SUCCESS;
}

/* One part from `from` to `to`, which may be the same. */
static int part(void *to, const void *from, size_t count, int type, stream on) {
    if (type < 0 || type >= DATA_TYPES) return INVALID_ARGUMENT;
    fake_work(on);
    if (to != from) fake_copy(to, from, count * type_bytes[type]);
    return SUCCESS;
}
API int ncclAllReduce(const void *from, void *to, size_t count, int type, UNUSED int operation, UNUSED comm of,
                      stream on) {
    return part(to, from, count, type, on);
}
API int ncclReduce(const void *from, void *to, size_t count, int type, UNUSED int operation, int root, comm of,
                   stream on) {
    return root == of->rank ? part(to, from, count, type, on) : SUCCESS;
}
API int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, comm of, stream on) {
    if (type < 0 || type >= DATA_TYPES) return INVALID_ARGUMENT;
    if (root != of->rank) return receive(to, count * type_bytes[type]);
    send(from, count * type_bytes[type]);
    return part(to, from, count, type, on);
}
API int ncclBcast(void *both, size_t count, int type, int root, comm of, stream on) {
    fake_work(on);
    return ncclBroadcast(both, both, count, type, root, of, on);
}
API int ncclAllGather(const void *from, void *to, size_t count, int type, comm of, stream on) {
    int answer = SUCCESS;
    for (int rank = 0; rank < of->ranks && !answer; rank++)
        answer = part((char *)to + (size_t)rank * count * type_bytes[type < 0 || type >= DATA_TYPES ? 0 : type], from,
                      count, type, on);
    return answer;
}
API int ncclGather(const void *from, void *to, size_t count, int type, int root, comm of, stream on) {
    return root == of->rank ? ncclAllGather(from, to, count, type, of, on) : SUCCESS;
}
API int ncclAlltoAll(const void *from, void *to, size_t count, int type, comm of, stream on) {
    if (type < 0 || type >= DATA_TYPES) return INVALID_ARGUMENT;
    return ncclAllGather((const char *)from + (size_t)of->rank * count * type_bytes[type], to, count, type, of, on);
}
API int ncclReduceScatter(const void *from, void *to, size_t count, int type, UNUSED int operation, comm of,
                          stream on) {
    if (type < 0 || type >= DATA_TYPES) return INVALID_ARGUMENT;
    return part(to, (const char *)from + (size_t)of->rank * count * type_bytes[type], count, type, on);
}
API int ncclSend(const void *from, size_t count, int type, UNUSED int peer, UNUSED comm of, stream on) {
    if (type < 0 || type >= DATA_TYPES) return INVALID_ARGUMENT;
    fake_work(on);
    send(from, count * type_bytes[type]);
    return SUCCESS;
}
API int ncclRecv(void *to, size_t count, int type, UNUSED int peer, UNUSED comm of, stream on) {
    if (type < 0 || type >= DATA_TYPES) return INVALID_ARGUMENT;
    fake_work(on);
    return receive(to, count * type_bytes[type]);
}
