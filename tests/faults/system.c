// Simulated faults of the machine: a library that is preloaded into an unmodified daemon and controlled through a file.
//
// The file named by MEMCTL_FAULTS is an array of 64-bit numbers (struct orders). A test writes orders into it at any time and
// reads from it how often each was carried out. Only regular files are affected, not sockets and terminals.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct orders {
    int64_t sync_delay_ms;    // every sync takes so much longer
    int64_t sync_errno;       // every sync fails with this
    int64_t write_errno;      // every write fails with this
    int64_t clock_offset_s;   // the wall clock is so far off
    int64_t syncs_delayed;    // how often it happened
    int64_t syncs_failed;
    int64_t writes_failed;
    int64_t clocks_shifted;
};

static struct orders none;
static volatile struct orders *orders = &none;

__attribute__((constructor)) static void open_orders(void) {
    const char *path = getenv("MEMCTL_FAULTS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *map = mmap(NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) orders = map;
    close(fd);
}

static void count(volatile int64_t *counter) { __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

static int is_file(int fd) {
    struct stat stat;
    return fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int disturbed_sync(int fd) {
    if (!is_file(fd)) return 0;
    int64_t delay = orders->sync_delay_ms;
    if (delay > 0) {
        struct timespec time = {delay / 1000, delay % 1000 * 1000000};
        nanosleep(&time, NULL);
        count(&orders->syncs_delayed);
    }
    if (orders->sync_errno) {
        errno = (int)orders->sync_errno;
        count(&orders->syncs_failed);
        return -1;
    }
    return 0;
}

int fsync(int fd) { return disturbed_sync(fd) ? -1 : NEXT(fsync)(fd); }
int fdatasync(int fd) { return disturbed_sync(fd) ? -1 : NEXT(fdatasync)(fd); }

static int disturbed_write(int fd) {
    if (!orders->write_errno || !is_file(fd)) return 0;
    errno = (int)orders->write_errno;
    count(&orders->writes_failed);
    return -1;
}

ssize_t write(int fd, const void *bytes, size_t size) { return disturbed_write(fd) ? -1 : NEXT(write)(fd, bytes, size); }
ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at) {
    return disturbed_write(fd) ? -1 : NEXT(pwrite)(fd, bytes, size, at);
}
ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t at) {
    return disturbed_write(fd) ? -1 : NEXT(pwrite64)(fd, bytes, size, at);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    static __typeof__(&clock_gettime) next;
    if (!next) next = NEXT(clock_gettime);
    int result = next(clock, time);
    int64_t offset = orders->clock_offset_s;
    if (offset && clock == CLOCK_REALTIME && result == 0) {
        time->tv_sec += offset;
        count(&orders->clocks_shifted);
    }
    return result;
}
