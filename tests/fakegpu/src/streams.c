/*
 * Streams, events and captured graphs: nothing runs, so all work is done when it is launched.
 *
 * With FAKE_GPU_EVENT_LAG=N an event answers its first N queries after each record with "not ready", until the stream
 * or device is synchronised. A capture spreads to streams that wait for its events, and a graph counts what was
 * launched. Handles 0, 1 and 2 are CUDA's default streams, which cannot be captured.
 */
#define _GNU_SOURCE
#include "fake.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct fake_stream {
    struct fake_stream *next;
    unsigned flags;
    int priority, ordinal;
    struct fake_graph *graph; /* while capturing */
    bool origin;              /* where the capture began */
};
struct fake_event {
    bool recorded;
    int lag;
    uint64_t number;  /* of this record, among all */
    uint64_t capture; /* id of the graph being captured when it was recorded, 0 for none */
    struct timespec when;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards everything here */
static struct fake_stream *streams;
static uint64_t records, synchronized, graphs;

static bool is_default(const struct fake_stream *stream) { return (uintptr_t)stream <= 2; }

int fake_stream_create(unsigned flags, int priority, struct fake_stream **out) {
    int ordinal, answer = fake_here(&ordinal);
    if (answer) return answer;
    struct fake_stream *stream = calloc(1, sizeof *stream);
    if (!stream) return OUT_OF_MEMORY;
    *stream = (struct fake_stream){.flags = flags, .priority = priority, .ordinal = ordinal};
    pthread_mutex_lock(&mutex);
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&mutex);
    *out = stream;
    return OK;
}

int fake_stream_destroy(struct fake_stream *stream) {
    int answer = INVALID_HANDLE;
    if (is_default(stream)) return answer;
    pthread_mutex_lock(&mutex);
    for (struct fake_stream **link = &streams; *link; link = &(*link)->next) {
        if (*link != stream) continue;
        *link = stream->next;
        free(stream);
        answer = OK;
        break;
    }
    pthread_mutex_unlock(&mutex);
    return answer;
}

int fake_stream_priority(struct fake_stream *stream) { return is_default(stream) ? 0 : stream->priority; }
unsigned fake_stream_flags(struct fake_stream *stream) { return is_default(stream) ? 0 : stream->flags; }
int fake_stream_device(struct fake_stream *stream) { return is_default(stream) ? fake_current() : stream->ordinal; }

void fake_synchronize(void) {
    pthread_mutex_lock(&mutex);
    synchronized = records;
    pthread_mutex_unlock(&mutex);
}

void fake_work(struct fake_stream *stream) {
    if (is_default(stream)) return;
    pthread_mutex_lock(&mutex);
    if (stream->graph) stream->graph->nodes++;
    pthread_mutex_unlock(&mutex);
}

int fake_stream_wait(struct fake_stream *stream, struct fake_event *event) {
    if (!event) return INVALID_HANDLE;
    if (is_default(stream)) return OK;
    pthread_mutex_lock(&mutex);
    for (struct fake_stream *other = streams; event->capture && !stream->graph && other; other = other->next)
        if (other->graph && other->graph->id == event->capture) stream->graph = other->graph;
    pthread_mutex_unlock(&mutex);
    return OK;
}

int fake_capture_begin(struct fake_stream *stream) {
    if (is_default(stream)) return INVALID_VALUE;
    struct fake_graph *graph = calloc(1, sizeof *graph);
    if (!graph) return OUT_OF_MEMORY;
    int answer = OK;
    pthread_mutex_lock(&mutex);
    if (stream->graph) {
        answer = INVALID_VALUE;
    } else {
        graph->id = ++graphs;
        stream->graph = graph;
        stream->origin = true;
    }
    pthread_mutex_unlock(&mutex);
    if (answer) free(graph);
    return answer;
}

int fake_capture_end(struct fake_stream *stream, struct fake_graph **out) {
    *out = NULL;
    if (is_default(stream)) return INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    struct fake_graph *graph = stream->origin ? stream->graph : NULL;
    for (struct fake_stream *other = streams; graph && other; other = other->next)
        if (other->graph == graph) other->graph = NULL, other->origin = false;
    pthread_mutex_unlock(&mutex);
    *out = graph;
    return graph ? OK : CAPTURE_INVALIDATED;
}

bool fake_capturing(struct fake_stream *stream, uint64_t *id, struct fake_graph **graph) {
    if (is_default(stream)) return false;
    pthread_mutex_lock(&mutex);
    struct fake_graph *found = stream->graph;
    if (found) *id = found->id, *graph = found;
    pthread_mutex_unlock(&mutex);
    return found != NULL;
}

int fake_event_create(UNUSED unsigned flags, struct fake_event **out) {
    *out = calloc(1, sizeof **out);
    return *out ? OK : OUT_OF_MEMORY;
}

int fake_event_destroy(struct fake_event *event) {
    free(event);
    return event ? OK : INVALID_HANDLE;
}

int fake_event_record(struct fake_event *event, struct fake_stream *stream) {
    if (!event) return INVALID_HANDLE;
    uint64_t capture = 0;
    struct fake_graph *graph;
    fake_capturing(stream, &capture, &graph);
    pthread_mutex_lock(&mutex);
    *event = (struct fake_event){.recorded = true, .lag = fake_event_lag(), .number = ++records, .capture = capture};
    clock_gettime(CLOCK_MONOTONIC, &event->when);
    pthread_mutex_unlock(&mutex);
    return OK;
}

int fake_event_query(struct fake_event *event) {
    if (!event) return INVALID_HANDLE;
    int answer = OK;
    pthread_mutex_lock(&mutex);
    if (event->lag > 0 && event->number > synchronized) {
        event->lag--;
        answer = NOT_READY;
    }
    pthread_mutex_unlock(&mutex);
    return answer;
}

int fake_event_synchronize(struct fake_event *event) {
    if (!event) return INVALID_HANDLE;
    pthread_mutex_lock(&mutex);
    event->lag = 0;
    pthread_mutex_unlock(&mutex);
    return OK;
}

int fake_event_elapsed(float *milliseconds, struct fake_event *from, struct fake_event *to) {
    if (!from || !to || !from->recorded || !to->recorded) return INVALID_HANDLE;
    *milliseconds =
        (float)(to->when.tv_sec - from->when.tv_sec) * 1e3f + (float)(to->when.tv_nsec - from->when.tv_nsec) / 1e6f;
    return OK;
}
