/* Loaded before an agent and its QEMUs (LD_PRELOAD): stops the agent where its journal is written, lets a disk be full, or sets
 * the clock.
 *
 * Files in $LINERATE_LAB_GATE name what is to happen:
 *   source.commit_sent.before   wait before the newest session's record of that side and phase is on disk, until the file is gone
 *   source.commit_sent.after    the same once it is on disk, before the agent goes on
 *   source.commit_sent.full     the disk refuses whatever holds such a record, of any session: ENOSPC, or the errno in the file
 *   source.commit_sent.unsynced the same once it is written: fsync fails with EIO
 *   authority.register.before   wait before a certificate that was signed is in the authority's register on disk
 *   disk.full                   the disk is full for writes to disk.img
 *   clock.ahead                 the wall clock is so many seconds ahead, back if negative; not in QEMU (looked at when the program starts)
 * Whoever waits makes a file of the same name and ".held"; a write to disk.img that was refused, one with ".met".
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static char pending[64];
/* Of the session that began last; other leaves of the tree are written too. */
static unsigned long newest;
static long seconds_ahead;

/* A file of the folder; 0 if there is none. */
static int in_folder(const char *name, const char *how, char *path, size_t room) {
    const char *folder = getenv("LINERATE_LAB_GATE");
    if (!folder) return 0;
    snprintf(path, room, "%s/%s.%s", folder, name, how);
    return access(path, F_OK) == 0;
}

static int is_file(int fd, const char *name) {
    char link[64], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1), end = strlen(name);
    if (length < end) return 0;
    path[length] = 0;
    return strcmp(path + length - end, name) == 0;
}

static int is_journal(int fd) { return is_file(fd, "/journal.redb"); }

static int value(const char *from, const char *end, const char *key, char *to, size_t room) {
    const char *at = memmem(from, end - from, key, strlen(key));
    if (!at) return 0;
    at += strlen(key);
    size_t length = 0;
    while (at + length < end && at[length] != '"' && length + 1 < room) to[length] = at[length], length++;
    to[length] = 0;
    return 1;
}

/* The error of a disk that refuses. */
static int refusal(const char *path) {
    int error = ENOSPC;
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%d", &error) != 1) error = ENOSPC;
    if (file) fclose(file);
    return error;
}

/* Keeps side and phase of the session that began last; the error if the disk is to refuse any of them, or 0. */
static int look(const void *bytes, size_t length) {
    const char *at = bytes, *end = at + length;
    int refused = 0;
    while ((at = memmem(at, end - at, "\"order\":", 8))) {
        at += 8;
        unsigned long order = strtoul(at, NULL, 10);
        const char *stop = memmem(at, end - at, "\"order\":", 8);
        char role[24], phase[24], place[64], path[600];
        if (!value(at, stop ? stop : end, "\"role\":\"", role, sizeof role)) continue;
        if (!value(at, stop ? stop : end, "\"phase\":\"", phase, sizeof phase)) continue;
        snprintf(place, sizeof place, "%s.%s", role, phase);
        if (in_folder(place, "full", path, sizeof path)) refused = refusal(path);
        if (order >= newest) {
            newest = order;
            strcpy(pending, place);
        }
    }
    return refused;
}

static void hold(const char *place, const char *how) {
    char path[600], held[616];
    if (!in_folder(place, how, path, sizeof path)) return;
    snprintf(held, sizeof held, "%s.held", path);
    close(open(held, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    while (access(path, F_OK) == 0) usleep(1000);
}

static void wait_at(const char *how) {
    if (pending[0]) hold(pending, how);
}

/* The lab sees that a write was refused. */
static void say_met(const char *path) {
    char met[616];
    snprintf(met, sizeof met, "%s.met", path);
    close(open(met, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
}

static int is_full(int fd, const void *bytes, size_t length) {
    char path[600];
    int refused = 0;
    if (is_journal(fd)) refused = look(bytes, length);
    else if (in_folder("disk", "full", path, sizeof path) && is_file(fd, "/disk.img")) {
        refused = refusal(path);
        say_met(path);
    }
    if (refused) errno = refused;
    return refused != 0;
}

static ssize_t written(int fd, const void *bytes, size_t length, off64_t offset) {
    ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    if (is_full(fd, bytes, length)) return -1;
    if (is_journal(fd)) wait_at("before");
    return real(fd, bytes, length, offset);
}

static ssize_t gathered(int fd, const struct iovec *parts, int count, off64_t offset) {
    ssize_t (*real)(int, const struct iovec *, int, off64_t) = dlsym(RTLD_NEXT, "pwritev64");
    return is_full(fd, NULL, 0) ? -1 : real(fd, parts, count, offset);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) { return gathered(fd, parts, count, offset); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) { return gathered(fd, parts, count, offset); }
ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) { return written(fd, bytes, length, offset); }
ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) { return written(fd, bytes, length, offset); }

static int synced(int fd, const char *name) {
    int (*real)(int) = dlsym(RTLD_NEXT, name);
    int journal = is_journal(fd);
    if (is_file(fd, "/.register.json.new")) hold("authority.register", "before");
    int done = real(fd);
    if (!journal || !pending[0]) return done;
    char path[600];
    if (in_folder(pending, "unsynced", path, sizeof path)) {
        errno = EIO;
        return -1;
    }
    wait_at("after");
    pending[0] = 0;
    return done;
}

int fdatasync(int fd) { return synced(fd, "fdatasync"); }
int fsync(int fd) { return synced(fd, "fsync"); }

__attribute__((constructor)) static void set_clock(void) {
    char path[600];
    /* QEMU has its time from other calls as well, and hangs if they differ. */
    if (strncmp(program_invocation_short_name, "qemu", 4) == 0) return;
    if (!in_folder("clock", "ahead", path, sizeof path)) return;
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%ld", &seconds_ahead) != 1) seconds_ahead = 0;
    if (file) fclose(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(clock, now);
    if (!done && clock == CLOCK_REALTIME) now->tv_sec += seconds_ahead;
    return done;
}
