/*
 * NVML: the same devices and bytes, as seen from outside any process that uses them.
 *
 * Needs no CUDA context and ignores CUDA_VISIBLE_DEVICES, like the real one. FAKE_GPU_NVML=broken fails every
 * initialisation as a driver update without a reboot does; absent (best said before `run`, which then hides the
 * library) as a missing library does.
 */
#define _GNU_SOURCE
#include "fake.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    NO_INIT = 1,
    BAD_ARGUMENT = 2,
    UNSUPPORTED = 3,
    NO_SUCH = 6,
    TOO_SMALL = 7,
    NO_LIBRARY = 12,
    VERSION_MISMATCH = 18
};
enum { PROCESSES = 1024 };

static int uses; /* initialisations less shutdowns */

static void *handle_of(int physical) { return (void *)(uintptr_t)(physical + 1); }
static int physical_of(const void *device) { return (int)(uintptr_t)device - 1; }

/* OK when NVML is initialised and the handle is one of ours. */
static int check(const void *device) {
    if (!__atomic_load_n(&uses, __ATOMIC_RELAXED)) return NO_INIT;
    return physical_of(device) >= 0 && physical_of(device) < fake_physical_count() ? OK : BAD_ARGUMENT;
}
static int put(char *to, unsigned bytes, const char *text) {
    if (strlen(text) >= bytes) return TOO_SMALL;
    strcpy(to, text);
    return OK;
}

API int nvmlInit_v2(void) {
    if (strcmp(fake_nvml_mode(), "absent") == 0) return NO_LIBRARY;
    if (strcmp(fake_nvml_mode(), "broken") == 0) return VERSION_MISMATCH;
    __atomic_add_fetch(&uses, 1, __ATOMIC_RELAXED); /* a count; nothing else is published through it */
    return OK;
}
API int nvmlInit(void) { return nvmlInit_v2(); }
API int nvmlInitWithFlags(UNUSED unsigned flags) { return nvmlInit_v2(); }
API int nvmlShutdown(void) {
    if (!__atomic_load_n(&uses, __ATOMIC_RELAXED)) return NO_INIT;
    __atomic_sub_fetch(&uses, 1, __ATOMIC_RELAXED);
    return OK;
}
API const char *nvmlErrorString(int error) {
    switch (error) {
    case OK: return "Success";
    case NO_INIT: return "Uninitialized";
    case BAD_ARGUMENT: return "Invalid Argument";
    case UNSUPPORTED: return "Not Supported";
    case NO_SUCH: return "Not Found";
    case TOO_SMALL: return "Insufficient Size";
    case NO_LIBRARY: return "NVML Shared Library Not Found";
    case VERSION_MISMATCH: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}
API int nvmlSystemGetDriverVersion(char *text, unsigned bytes) { return put(text, bytes, "580.00.00"); }
API int nvmlSystemGetNVMLVersion(char *text, unsigned bytes) { return put(text, bytes, "13.580.00.00"); }
API int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13000;
    return OK;
}
API int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }
API int nvmlSystemGetProcessName(unsigned pid, char *text, unsigned bytes) {
    char path[32], name[64] = "";
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    FILE *file = fopen(path, "r");
    if (!file) return NO_SUCH;
    if (fgets(name, sizeof name, file)) name[strcspn(name, "\n")] = 0;
    fclose(file);
    return put(text, bytes, name);
}

/* ---- devices ---- */

API int nvmlDeviceGetCount_v2(unsigned *devices) {
    if (!__atomic_load_n(&uses, __ATOMIC_RELAXED)) return NO_INIT;
    *devices = (unsigned)fake_physical_count();
    return OK;
}
API int nvmlDeviceGetCount(unsigned *devices) { return nvmlDeviceGetCount_v2(devices); }
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = index < MAX_DEVICES ? handle_of((int)index) : NULL;
    return check(*device);
}
API int nvmlDeviceGetHandleByIndex(unsigned index, void **device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}
API int nvmlDeviceGetUUID(const void *device, char *text, unsigned bytes) {
    unsigned char uuid[UUID_BYTES];
    char buffer[64] = "GPU";
    int answer = check(device), at = 3;
    if (answer) return answer;
    fake_uuid(physical_of(device), uuid);
    for (int i = 0; i < UUID_BYTES; i++)
        at += sprintf(buffer + at, "%s%02x", i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
    return put(text, bytes, buffer);
}
API int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    for (int physical = 0; physical < fake_physical_count(); physical++) {
        char text[64];
        int answer = nvmlDeviceGetUUID(handle_of(physical), text, sizeof text);
        if (answer) return answer;
        if (strcasecmp(uuid, text)) continue;
        *device = handle_of(physical);
        return OK;
    }
    return NO_SUCH;
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **device) {
    unsigned domain, bus;
    if (!__atomic_load_n(&uses, __ATOMIC_RELAXED)) return NO_INIT;
    if (sscanf(text, "%x:%x:0", &domain, &bus) != 2) return BAD_ARGUMENT;
    if (domain || bus < 1 || bus > (unsigned)fake_physical_count()) return NO_SUCH;
    *device = handle_of((int)bus - 1);
    return OK;
}
API int nvmlDeviceGetHandleByPciBusId(const char *text, void **device) {
    return nvmlDeviceGetHandleByPciBusId_v2(text, device);
}
API int nvmlDeviceGetName(const void *device, char *text, unsigned bytes) {
    int answer = check(device);
    return answer ? answer : put(text, bytes, "Fake GPU");
}
API int nvmlDeviceGetIndex(const void *device, unsigned *index) {
    *index = (unsigned)physical_of(device);
    return check(device);
}
API int nvmlDeviceGetMinorNumber(const void *device, unsigned *minor) { return nvmlDeviceGetIndex(device, minor); }
struct pci { /* nvmlPciInfo_t */
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char text[32];
};
API int nvmlDeviceGetPciInfo_v3(const void *device, struct pci *pci) {
    int answer = check(device);
    if (answer) return answer;
    *pci = (struct pci){.bus = (unsigned)physical_of(device) + 1, .device_id = 0x233010de};
    fake_pci_id(physical_of(device), pci->text, sizeof pci->text);
    snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", pci->bus);
    return OK;
}
API int nvmlDeviceGetPciInfo_v2(const void *device, struct pci *pci) { return nvmlDeviceGetPciInfo_v3(device, pci); }
API int nvmlDeviceGetPciInfo(const void *device, struct pci *pci) { return nvmlDeviceGetPciInfo_v3(device, pci); }
API int nvmlDeviceGetCudaComputeCapability(const void *device, int *major, int *minor) {
    *major = 9, *minor = 0;
    return check(device);
}
API int nvmlDeviceGetMigMode(const void *device, unsigned *current, unsigned *pending) {
    *current = *pending = 0;
    return check(device);
}

/* ---- figures ---- */

struct memory { /* nvmlMemory_t */
    unsigned long long total, free, used;
};
struct memory_v2 { /* nvmlMemory_v2_t */
    unsigned version;
    unsigned long long total, reserved, free, used;
};
API int nvmlDeviceGetMemoryInfo(const void *device, struct memory *memory) {
    int answer = check(device);
    if (answer) return answer;
    size_t used = fake_used_bytes(physical_of(device)), total = fake_total_bytes();
    *memory = (struct memory){.total = total, .free = total - used, .used = used};
    return OK;
}
API int nvmlDeviceGetMemoryInfo_v2(const void *device, struct memory_v2 *memory) {
    struct memory plain;
    if (memory->version != (sizeof *memory | 2u << 24)) return 25; /* NVML_ERROR_ARGUMENT_VERSION_MISMATCH */
    int answer = nvmlDeviceGetMemoryInfo(device, &plain);
    if (answer) return answer;
    *memory = (struct memory_v2){memory->version, plain.total, 0, plain.free, plain.used};
    return OK;
}
struct utilization { /* nvmlUtilization_t, percent */
    unsigned gpu, memory;
};
API int nvmlDeviceGetUtilizationRates(const void *device, struct utilization *rates) {
    struct fake_process one;
    struct memory memory;
    int answer = nvmlDeviceGetMemoryInfo(device, &memory);
    if (answer) return answer;
    /* no work is ever under way; a device that is used at all is called busy, so that the two can be distinguished */
    rates->gpu = fake_processes(physical_of(device), &one, 1) ? 100 : 0;
    rates->memory = (unsigned)(memory.used * 100 / memory.total);
    return OK;
}

struct process_v1 { /* nvmlProcessInfo_v1_t */
    unsigned pid;
    unsigned long long bytes;
};
struct process { /* nvmlProcessInfo_t, of versions 2 and 3 */
    unsigned pid;
    unsigned long long bytes;
    unsigned instance, compute_instance;
};
static int processes(const void *device, unsigned *count, void *out, size_t each_bytes) {
    static const unsigned none = 0xffffffff; /* not on a part of a device */
    int answer = check(device);
    if (answer) return answer;
    struct fake_process *found = malloc(PROCESSES * sizeof *found);
    if (!found) return 999;
    unsigned room = *count, there = (unsigned)fake_processes(physical_of(device), found, PROCESSES);
    if (there > PROCESSES) there = PROCESSES;
    *count = there;
    for (unsigned i = 0; out && i < there && i < room; i++) {
        struct process one = {(unsigned)found[i].pid, found[i].bytes, none, none};
        memcpy((char *)out + i * each_bytes, &one, each_bytes);
    }
    free(found);
    return there > room ? TOO_SMALL : OK;
}
API int nvmlDeviceGetComputeRunningProcesses(const void *device, unsigned *count, struct process_v1 *out) {
    return processes(device, count, out, sizeof *out);
}
API int nvmlDeviceGetComputeRunningProcesses_v2(const void *device, unsigned *count, struct process *out) {
    return processes(device, count, out, sizeof *out);
}
API int nvmlDeviceGetComputeRunningProcesses_v3(const void *device, unsigned *count, struct process *out) {
    return processes(device, count, out, sizeof *out);
}
static int no_processes(const void *device, unsigned *count) {
    *count = 0;
    return check(device);
}
API int nvmlDeviceGetGraphicsRunningProcesses(const void *device, unsigned *count, UNUSED void *out) {
    return no_processes(device, count);
}
API int nvmlDeviceGetGraphicsRunningProcesses_v2(const void *device, unsigned *count, UNUSED void *out) {
    return no_processes(device, count);
}
API int nvmlDeviceGetGraphicsRunningProcesses_v3(const void *device, unsigned *count, UNUSED void *out) {
    return no_processes(device, count);
}
API int nvmlDeviceGetTemperature(const void *device, UNUSED int sensor, unsigned *celsius) {
    *celsius = 40;
    return check(device);
}
API int nvmlDeviceGetPowerUsage(const void *device, unsigned *milliwatts) {
    *milliwatts = 100000;
    return check(device);
}
