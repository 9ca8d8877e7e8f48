// A disk that is written and read all the time, and remembers what it must hold.
//
// The generation of each slot lives in memory: a write that was acknowledged and lost shows as an older generation. Blocks
// that were read or written by DMA stay in a pool of buffers and are checked again later, so a RAM page that a device wrote
// and a migration missed is seen too.
#define _GNU_SOURCE
#include "guest.h"
#include "slot.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define BUFFERS 128
#define MOST_LINES 50

struct buffer {
    pthread_mutex_t lock;
    uint64_t *words;
    uint64_t slot, generation; // slot is SLOT_UNKNOWN while the buffer was never used
};

static struct disk_options options;
static struct buffer buffers[BUFFERS];
static uint64_t *generations;     // by slot
static pthread_mutex_t locks[64]; // over slots, by slot number modulo 64
static uint64_t slots;
static int disk;

static void bad(const char *what, uint64_t slot, uint64_t expected, uint64_t found, uint64_t magic) {
    if (COUNT(disk_bad) < MOST_LINES)
        report("DISKBAD %s slot=%llu expected_generation=%lld found_generation=%lld magic=%s up=%.3f", what,
               (unsigned long long)slot, (long long)expected, (long long)found, magic == SLOT_MAGIC ? "ok" : "wrong", uptime());
}

static void check_buffer(struct buffer *buffer) {
    if (buffer->slot == SLOT_UNKNOWN) return;
    uint64_t found = slot_read(buffer->words, buffer->slot);
    if (found == buffer->generation) return;
    bad("in memory", buffer->slot, buffer->generation, found, buffer->words[SLOT_AT_MAGIC]);
    buffer->slot = SLOT_UNKNOWN;
}

static void read_slot(struct buffer *buffer, uint64_t slot) {
    if (pread(disk, buffer->words, SLOT_BYTES, slot * SLOT_BYTES) != SLOT_BYTES) {
        COUNT(disk_bad);
        report("DISKERR read slot=%llu errno=%d", (unsigned long long)slot, errno);
        buffer->slot = SLOT_UNKNOWN;
        return;
    }
    uint64_t found = slot_read(buffer->words, slot);
    if (generations[slot] == SLOT_UNKNOWN && found != SLOT_UNKNOWN) generations[slot] = found;
    if (found != generations[slot] || found == SLOT_UNKNOWN)
        bad("on disk", slot, generations[slot], found, buffer->words[SLOT_AT_MAGIC]);
    // From here on the slot is what it is: one report for one loss.
    if (found != SLOT_UNKNOWN) generations[slot] = found;
    buffer->slot = found == SLOT_UNKNOWN ? SLOT_UNKNOWN : slot;
    buffer->generation = found;
}

// Buffered writes are put on the disk and dropped from the page cache, so that the next read asks the disk.
static int settle(uint64_t slot) {
    if (options.direct) return 0;
    if (fdatasync(disk)) return -1;
    posix_fadvise(disk, slot * SLOT_BYTES, SLOT_BYTES, POSIX_FADV_DONTNEED);
    return 0;
}

static void write_slot(struct buffer *buffer, uint64_t slot) {
    uint64_t next = generations[slot] == SLOT_UNKNOWN ? 1 : generations[slot] + 1;
    buffer->slot = slot;
    buffer->generation = next;
    slot_write(buffer->words, slot, next);
    if (pwrite(disk, buffer->words, SLOT_BYTES, slot * SLOT_BYTES) == SLOT_BYTES && !settle(slot)) {
        generations[slot] = next;
        return;
    }
    COUNT(disk_bad);
    report("DISKERR write slot=%llu errno=%d", (unsigned long long)slot, errno);
    generations[slot] = SLOT_UNKNOWN;
}

static void *disk_thread(void *argument) {
    uint64_t random = mix((uintptr_t)argument + 77);
    struct pace rate = {options.mib_s * MIB / options.threads, 0};
    for (;;) {
        random = mix(random + 1);
        uint64_t slot = (random >> 16) % slots;
        struct buffer *buffer = &buffers[random % BUFFERS];
        pthread_mutex_lock(&buffer->lock);
        check_buffer(buffer);
        pthread_mutex_lock(&locks[slot % 64]);
        // A slot is read before its first write: what another host or a copy left there is checked too.
        if (random >> 63 && generations[slot] != SLOT_UNKNOWN) {
            read_slot(buffer, slot);
            write_slot(buffer, slot);
        } else {
            read_slot(buffer, slot);
        }
        pthread_mutex_unlock(&locks[slot % 64]);
        pthread_mutex_unlock(&buffer->lock);
        COUNT(disk_ops);
        pace(&rate, SLOT_BYTES);
    }
    return NULL;
}

static void *sweep_thread(void *argument) {
    (void)argument;
    for (;;) {
        usleep(1000000);
        for (int i = 0; i < BUFFERS; i++) {
            pthread_mutex_lock(&buffers[i].lock);
            check_buffer(&buffers[i]);
            pthread_mutex_unlock(&buffers[i].lock);
        }
        report("DISK ops=%llu bad=%llu up=%.3f", (unsigned long long)LOOK(disk_ops), (unsigned long long)LOOK(disk_bad), uptime());
    }
    return NULL;
}

static void *zeroed(uint64_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) give_up("GUESTERR no room for the disk checker");
    return at;
}

static void open_disk(void) {
    for (int tries = 0; tries < 200; tries++) {
        disk = open("/dev/vda", O_RDWR | (options.direct ? O_DIRECT : 0));
        if (disk >= 0) break;
        usleep(50000);
    }
    uint64_t bytes = 0;
    if (disk < 0 || ioctl(disk, BLKGETSIZE64, &bytes) || bytes < SLOT_BYTES) give_up("GUESTERR no usable /dev/vda");
    slots = bytes / SLOT_BYTES;
}

void disk_start(const struct disk_options *wanted) {
    options = *wanted;
    open_disk();
    generations = zeroed(slots * sizeof *generations);
    for (uint64_t i = 0; i < slots; i++) generations[i] = options.generation < 0 ? SLOT_UNKNOWN : (uint64_t)options.generation;
    uint64_t *words = zeroed((uint64_t)BUFFERS * SLOT_BYTES);
    for (int i = 0; i < BUFFERS; i++) {
        buffers[i].words = words + (uint64_t)i * SLOT_WORDS;
        buffers[i].slot = SLOT_UNKNOWN;
        pthread_mutex_init(&buffers[i].lock, NULL);
    }
    for (int i = 0; i < 64; i++) pthread_mutex_init(&locks[i], NULL);
    for (long i = 0; i < options.threads; i++) start_thread(disk_thread, (void *)i);
    start_thread(sweep_thread, NULL);
}
