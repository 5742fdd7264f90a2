/*
 * NCCL: collectives in which every other rank is taken to hold what this one holds, so that no rank ever waits for another.
 *
 * Enough for DistributedDataParallel and friends with backend "nccl": an all-gather repeats the own part, a reduction leaves it as
 * it is, a receive writes nothing. There is no synchronisation between ranks: use gloo where values or barriers matter.
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
};
typedef struct communicator *comm;
typedef struct fake_stream *stream;

static int make(comm *out, int ranks, int rank) {
    if (!out || ranks < 1 || rank < 0) return INVALID_ARGUMENT;
    *out = malloc(sizeof **out);
    if (!*out) return SYSTEM_ERROR;
    **out = (struct communicator){ranks, rank, fake_current()};
    return SUCCESS;
}

API int ncclGetUniqueId(struct unique_id *id) {
    return getrandom(id->bytes, sizeof id->bytes, 0) == (ssize_t)sizeof id->bytes ? SUCCESS : SYSTEM_ERROR;
}
API int ncclCommInitRank(comm *out, int ranks, UNUSED struct unique_id id, int rank) { return make(out, ranks, rank); }
API int ncclCommInitRankConfig(comm *out, int ranks, UNUSED struct unique_id id, int rank, UNUSED void *config) { return make(out, ranks, rank); }
API int ncclCommInitRankScalable(comm *out, int ranks, int rank, UNUSED int ids, UNUSED struct unique_id *id, UNUSED void *config) {
    return make(out, ranks, rank);
}
/* How many ranks name the same colour is not known without them, so a gather there fills the first part alone. */
API int ncclCommSplit(comm from, int color, UNUSED int key, comm *out, UNUSED void *config) {
    *out = NULL;
    return color < 0 ? SUCCESS : make(out, 1, from ? 0 : -1);
}
API int ncclCommDestroy(comm of) {
    free(of);
    return SUCCESS;
}
API int ncclCommAbort(comm of) { return ncclCommDestroy(of); }
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
API int ncclGroupStart(void) { return SUCCESS; }
API int ncclGroupEnd(void) { return SUCCESS; }
API int ncclRedOpCreatePreMulSum(int *operation, UNUSED void *scalar, UNUSED int type, UNUSED int residence, UNUSED comm of) {
    *operation = 0;
    return SUCCESS;
}
API int ncclRedOpDestroy(UNUSED int operation, UNUSED comm of) { return SUCCESS; }

/* One part from `from` to `to`, which may be the same. */
static int part(void *to, const void *from, size_t count, int type, stream on) {
    if (type < 0 || type >= DATA_TYPES) return INVALID_ARGUMENT;
    fake_work(on);
    if (to != from) fake_copy(to, from, count * type_bytes[type]);
    return SUCCESS;
}
API int ncclAllReduce(const void *from, void *to, size_t count, int type, UNUSED int operation, UNUSED comm of, stream on) {
    return part(to, from, count, type, on);
}
API int ncclReduce(const void *from, void *to, size_t count, int type, UNUSED int operation, int root, comm of, stream on) {
    return root == of->rank ? part(to, from, count, type, on) : SUCCESS;
}
API int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, comm of, stream on) {
    return root == of->rank ? part(to, from, count, type, on) : SUCCESS;
}
API int ncclBcast(UNUSED void *both, UNUSED size_t count, UNUSED int type, UNUSED int root, UNUSED comm of, stream on) {
    fake_work(on);
    return SUCCESS;
}
API int ncclAllGather(const void *from, void *to, size_t count, int type, comm of, stream on) {
    int answer = SUCCESS;
    for (int rank = 0; rank < of->ranks && !answer; rank++)
        answer = part((char *)to + (size_t)rank * count * type_bytes[type < 0 || type >= DATA_TYPES ? 0 : type], from, count, type, on);
    return answer;
}
API int ncclReduceScatter(const void *from, void *to, size_t count, int type, UNUSED int operation, comm of, stream on) {
    if (type < 0 || type >= DATA_TYPES) return INVALID_ARGUMENT;
    return part(to, (const char *)from + (size_t)of->rank * count * type_bytes[type], count, type, on);
}
API int ncclSend(UNUSED const void *from, UNUSED size_t count, UNUSED int type, UNUSED int peer, UNUSED comm of, stream on) {
    fake_work(on);
    return SUCCESS;
}
API int ncclRecv(UNUSED void *to, UNUSED size_t count, UNUSED int type, UNUSED int peer, UNUSED comm of, stream on) {
    fake_work(on);
    return SUCCESS;
}
