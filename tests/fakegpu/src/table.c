/*
 * Configuration, devices, and the bytes that each process holds of each device.
 *
 * The table is a mapped file (FAKE_GPU_STATE) shared by every process that names it, or this process's own when none is
 * named. A record lock, which the kernel drops with its holder, guards it, so a killed process leaves no lock behind;
 * what it left in the table is swept, by pid and start time, before any figure is read. Refuses (aborts) when the file
 * cannot be used.
 */
#define _GNU_SOURCE
#include "fake.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ENTRIES = 8192, MIB = 1 << 20 };

struct entry { /* pid 0: free */
    int32_t pid;
    int32_t physical;
    uint64_t started; /* field 22 of /proc/PID/stat: distinguishes a process from a later one with its pid */
    uint64_t bytes;
};
struct table {
    struct entry entries[ENTRIES]; /* a new file is all zero: all free */
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct table *table;
static int file = -1;
static int physical_count = 1, visible_count, visible[MAX_DEVICES];
static size_t total_bytes = (size_t)80 << 30, context_bytes, copy_limit_bytes = (size_t)256 << 20;
static int event_lag;
static const char *nvml_mode = "";
static struct entry *mine[MAX_DEVICES]; /* by physical device */
static bool forked;                     /* a fork of a process that held a context */

static long long number(const char *name, long long otherwise, long long least, long long most) {
    const char *text = getenv(name);
    char *end;
    if (!text || !*text) return otherwise;
    long long value = strtoll(text, &end, 10);
    if (*end || value < least || value > most) {
        fprintf(stderr, "fakegpu: %s=%s is not a whole number from %lld to %lld\n", name, text, least, most);
        abort();
    }
    return value;
}

/* One entry of CUDA_VISIBLE_DEVICES: an index, or the beginning of a UUID. */
static int named_device(const char *name) {
    char *end;
    long index = strtol(name, &end, 10);
    if (end != name && !*end) return index >= 0 && index < physical_count ? (int)index : -1;
    for (int device = 0; strncasecmp(name, "GPU-", 4) == 0 && device < physical_count; device++) {
        unsigned char uuid[UUID_BYTES];
        char text[48];
        int at = 0;
        fake_uuid(device, uuid);
        for (int i = 0; i < UUID_BYTES; i++)
            at += snprintf(text + at, sizeof text - (size_t)at, "%s%02x",
                           i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
        if (strncasecmp(name + 4, text, strlen(name + 4)) == 0) return device;
    }
    return -1;
}

static void read_visible(void) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    if (!text) {
        for (; visible_count < physical_count; visible_count++) visible[visible_count] = visible_count;
        return;
    }
    char copy[4096], *rest = copy, *name;
    snprintf(copy, sizeof copy, "%s", text);
    while (visible_count < MAX_DEVICES && (name = strsep(&rest, ","))) {
        int device = named_device(name + strspn(name, " "));
        if (device < 0) break; /* like CUDA: what follows a wrong entry is not seen */
        visible[visible_count++] = device;
    }
}

static void open_table(void) {
    const char *path = getenv("FAKE_GPU_STATE");
    int flags = MAP_SHARED | MAP_ANONYMOUS;
    if (path && *path) {
        file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        struct stat about;
        if (file < 0 || fstat(file, &about) ||
            (about.st_size < (off_t)sizeof *table && ftruncate(file, sizeof *table))) {
            fprintf(stderr, "fakegpu: FAKE_GPU_STATE=%s cannot be used: %m\n", path);
            abort();
        }
        flags = MAP_SHARED;
    }
    table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, flags, file, 0);
    if (table == MAP_FAILED) {
        fprintf(stderr, "fakegpu: the table of processes cannot be mapped: %m\n");
        abort();
    }
}

static void before_fork(void) { pthread_mutex_lock(&mutex); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&mutex); }
static void after_fork_in_child(void) {
    for (int device = 0; device < MAX_DEVICES; device++) {
        forked |= mine[device] != NULL;
        mine[device] = NULL;
    }
    pthread_mutex_unlock(&mutex);
}

static void configure(void) {
    physical_count = (int)number("FAKE_GPU_COUNT", 1, 0, MAX_DEVICES);
    total_bytes = (size_t)number("FAKE_GPU_MIB", 81920, 1, 1 << 24) * MIB;
    context_bytes = (size_t)number("FAKE_GPU_CONTEXT_MIB", 0, 0, 1 << 20) * MIB;
    copy_limit_bytes = (size_t)number("FAKE_GPU_COPY_MIB", 256, 0, 1 << 24) * MIB;
    event_lag = (int)number("FAKE_GPU_EVENT_LAG", 0, 0, 1 << 30);
    const char *mode = getenv("FAKE_GPU_NVML");
    if (mode) nvml_mode = strdup(mode);
    read_visible();
    open_table();
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static void ready(void) { pthread_once(&once, configure); }

/* Threads exclude each other with the mutex, processes with a record lock: that belongs to the process and dies with
 * it. */
static void lock(void) {
    ready();
    pthread_mutex_lock(&mutex);
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    while (file >= 0 && fcntl(file, F_SETLKW, &whole) < 0) continue; /* only a signal ends the wait early */
}

static void unlock(void) {
    struct flock whole = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    if (file >= 0) fcntl(file, F_SETLK, &whole);
    pthread_mutex_unlock(&mutex);
}

/* When the process began, in clock ticks since boot; 0 when it is gone or a zombie (whose GPU memory a driver has
 * freed). */
static uint64_t started(int pid) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int stat_file = open(path, O_RDONLY | O_CLOEXEC);
    if (stat_file < 0) return 0;
    ssize_t bytes = read(stat_file, text, sizeof text - 1);
    close(stat_file);
    if (bytes <= 0) return 0;
    text[bytes] = 0;
    char *after = strrchr(text, ')'); /* the name before it may hold anything */
    char state;
    unsigned long long ticks;
    if (!after ||
        sscanf(after + 1, " %c%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s %llu", &state, &ticks) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? 0 : ticks;
}

static void sweep(void) {
    int self = getpid();
    for (struct entry *entry = table->entries; entry < table->entries + ENTRIES; entry++)
        if (entry->pid && entry->pid != self && started(entry->pid) != entry->started) memset(entry, 0, sizeof *entry);
}

static uint64_t used(int physical) {
    uint64_t bytes = 0;
    for (const struct entry *entry = table->entries; entry < table->entries + ENTRIES; entry++)
        if (entry->pid && entry->physical == physical) bytes += entry->bytes;
    return bytes;
}

static bool fits(int physical, size_t bytes) {
    if (bytes > total_bytes) return false;
    if (used(physical) <= total_bytes - bytes) return true;
    sweep();
    return used(physical) <= total_bytes - bytes;
}

int fake_physical_count(void) { return ready(), physical_count; }
int fake_count(void) { return ready(), visible_count; }
int fake_physical(int ordinal) { return ready(), ordinal >= 0 && ordinal < visible_count ? visible[ordinal] : -1; }
size_t fake_total_bytes(void) { return ready(), total_bytes; }
size_t fake_copy_limit_bytes(void) { return ready(), copy_limit_bytes; }
int fake_event_lag(void) { return ready(), event_lag; }
const char *fake_nvml_mode(void) { return ready(), nvml_mode; }

void fake_uuid(int physical, unsigned char uuid[UUID_BYTES]) {
    /* any fixed bytes do; the first and the last distinguish the devices, also to someone who reads only the beginning
     */
    static const unsigned char base[UUID_BYTES] = {0xfa, 0xce, 0x60, 0x00, 0x5e, 0xed, 0x4a, 0x11,
                                                   0x8b, 0x0c, 0x9d, 0x3f, 0x27, 0x71, 0xe4, 0x00};
    memcpy(uuid, base, UUID_BYTES);
    uuid[3] = uuid[UUID_BYTES - 1] = (unsigned char)physical;
}

void fake_pci_id(int physical, char *text, int bytes) {
    snprintf(text, (size_t)bytes, "00000000:%02X:00.0", physical + 1);
}

int fake_context(int ordinal) {
    int physical = fake_physical(ordinal), answer = OK;
    if (physical < 0) return INVALID_DEVICE;
    if (__atomic_load_n(&mine[physical], __ATOMIC_ACQUIRE))
        return OK; /* pairs with the release below: the entry is filled in */
    lock();
    if (forked) {
        answer = NOT_INITIALIZED;
    } else if (!mine[physical]) {
        struct entry *entry = table->entries;
        if (!fits(physical, context_bytes)) answer = OUT_OF_MEMORY;
        for (sweep(); entry < table->entries + ENTRIES && entry->pid; entry++) continue;
        if (entry == table->entries + ENTRIES) answer = OUT_OF_MEMORY;
        if (answer == OK) {
            int self = getpid();
            *entry =
                (struct entry){.pid = self, .physical = physical, .started = started(self), .bytes = context_bytes};
            __atomic_store_n(&mine[physical], entry, __ATOMIC_RELEASE);
        }
    }
    unlock();
    return answer;
}

bool fake_has_context(int ordinal) {
    int physical = fake_physical(ordinal);
    return physical >= 0 && __atomic_load_n(&mine[physical], __ATOMIC_ACQUIRE);
}

int fake_charge(int ordinal, size_t bytes) {
    int answer = fake_context(ordinal);
    if (answer) return answer;
    int physical = fake_physical(ordinal);
    lock();
    if (fits(physical, bytes)) mine[physical]->bytes += bytes;
    else answer = OUT_OF_MEMORY;
    unlock();
    return answer;
}

void fake_uncharge(int ordinal, size_t bytes) {
    int physical = fake_physical(ordinal);
    lock();
    if (physical >= 0 && mine[physical]) mine[physical]->bytes -= bytes;
    unlock();
}

size_t fake_used_bytes(int physical) {
    lock();
    sweep();
    size_t bytes = used(physical);
    unlock();
    return bytes;
}

int fake_processes(int physical, struct fake_process *found, int room) {
    int count = 0;
    lock();
    sweep();
    for (const struct entry *entry = table->entries; entry < table->entries + ENTRIES; entry++) {
        if (!entry->pid || entry->physical != physical) continue;
        if (count < room) found[count] = (struct fake_process){.pid = entry->pid, .bytes = entry->bytes};
        count++;
    }
    unlock();
    return count;
}
