/*
 * CUDA's runtime API: streams, events, capture and graphs. See streams.c for what they do; a launched graph does
 * nothing.
 */
#define _GNU_SOURCE
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>

static struct fake_stream *own(cudaStream_t stream) { return (struct fake_stream *)stream; }
static struct fake_event *its(cudaEvent_t event) { return (struct fake_event *)event; }

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    return fake_result(fake_stream_create(flags, priority, (struct fake_stream **)stream));
}
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
API cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
API cudaError_t cudaStreamDestroy(cudaStream_t stream) { return fake_result(fake_stream_destroy(own(stream))); }
API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    *priority = fake_stream_priority(own(stream));
    return cudaSuccess;
}
API cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) {
    *flags = fake_stream_flags(own(stream));
    return cudaSuccess;
}
API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0, *greatest = -5;
    return cudaSuccess;
}
API cudaError_t cudaStreamQuery(UNUSED cudaStream_t stream) { return cudaSuccess; }
API cudaError_t cudaStreamSynchronize(UNUSED cudaStream_t stream) {
    fake_synchronize();
    return cudaSuccess;
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, UNUSED unsigned flags) {
    return fake_result(fake_stream_wait(own(stream), its(event)));
}
API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data,
                                      UNUSED unsigned flags) {
    callback(stream, cudaSuccess, data);
    return cudaSuccess;
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    return fake_result(fake_event_create(flags, (struct fake_event **)event));
}
/* In C++ the header also declares a cudaEventCreate with flags; in C this is the only one. */
API cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t event) { return fake_result(fake_event_destroy(its(event))); }
API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return fake_result(fake_event_record(its(event), own(stream)));
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, UNUSED unsigned flags) {
    return cudaEventRecord(event, stream);
}
API cudaError_t cudaEventQuery(cudaEvent_t event) { return fake_result(fake_event_query(its(event))); }
API cudaError_t cudaEventSynchronize(cudaEvent_t event) { return fake_result(fake_event_synchronize(its(event))); }
API cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
    return fake_result(fake_event_elapsed(milliseconds, its(from), its(to)));
}

API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, UNUSED enum cudaStreamCaptureMode mode) {
    return fake_result(fake_capture_begin(own(stream)));
}
API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    return fake_result(fake_capture_end(own(stream), (struct fake_graph **)graph));
}
API cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    static _Thread_local enum cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
    enum cudaStreamCaptureMode before = current;
    current = *mode;
    *mode = before;
    return cudaSuccess;
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    uint64_t id;
    struct fake_graph *graph;
    *status = fake_capturing(own(stream), &id, &graph) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
static cudaError_t capture_info(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                cudaGraph_t *graph, size_t *dependencies) {
    uint64_t number = 0;
    struct fake_graph *found = NULL;
    *status =
        fake_capturing(own(stream), &number, &found) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (id) *id = number;
    if (graph) *graph = (cudaGraph_t)found;
    if (dependencies) *dependencies = 0;
    return cudaSuccess;
}
#if CUDART_VERSION >= 13000
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                         unsigned long long *id, cudaGraph_t *graph,
                                         UNUSED const cudaGraphNode_t **nodes, UNUSED const cudaGraphEdgeData **edges,
                                         size_t *dependencies) {
    return capture_info(stream, status, id, graph, dependencies);
}
#else
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                         unsigned long long *id, cudaGraph_t *graph,
                                         UNUSED const cudaGraphNode_t **nodes, size_t *dependencies) {
    return capture_info(stream, status, id, graph, dependencies);
}
#endif

/* ---- graphs ---- */

static cudaError_t instantiate(cudaGraphExec_t *out, cudaGraph_t graph) {
    struct fake_graph *copy = malloc(sizeof *copy);
    if (!copy || !graph) {
        free(copy);
        return fake_result(graph ? OUT_OF_MEMORY : INVALID_VALUE);
    }
    *copy = *(struct fake_graph *)graph;
    *out = (cudaGraphExec_t)copy;
    return cudaSuccess;
}
API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, UNUSED unsigned long long flags) {
    return instantiate(out, graph);
}
API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph,
                                              UNUSED unsigned long long flags) {
    return instantiate(out, graph);
}
API cudaError_t cudaGraphLaunch(UNUSED cudaGraphExec_t graph, cudaStream_t stream) {
    fake_work(own(stream));
    return cudaSuccess;
}
API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    free(graph);
    return cudaSuccess;
}
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    free(graph);
    return cudaSuccess;
}
/* The nodes are numbers: the only query about one is for its dependencies, and it has none. */
API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    size_t there = ((struct fake_graph *)graph)->nodes;
    for (size_t i = 0; nodes && i < *count && i < there; i++) nodes[i] = (cudaGraphNode_t)(i + 1);
    if (!nodes || *count > there) *count = there;
    return cudaSuccess;
}
#if CUDART_VERSION >= 13000
API cudaError_t cudaGraphNodeGetDependencies(UNUSED cudaGraphNode_t node, UNUSED cudaGraphNode_t *on,
                                             UNUSED cudaGraphEdgeData *edges, size_t *count) {
    *count = 0;
    return cudaSuccess;
}
#else
API cudaError_t cudaGraphNodeGetDependencies(UNUSED cudaGraphNode_t node, UNUSED cudaGraphNode_t *on, size_t *count) {
    *count = 0;
    return cudaSuccess;
}
#endif
API cudaError_t cudaGraphDebugDotPrint(UNUSED cudaGraph_t graph, const char *path, UNUSED unsigned flags) {
    FILE *out = fopen(path, "w");
    if (!out) return fake_result(INVALID_VALUE);
    fputs("digraph fake {}\n", out);
    return fake_result(fclose(out) ? INVALID_VALUE : OK);
}
