// What the parts of the lab guest share. Each part is one thread family started by init.c.
#ifndef LAB_GUEST_H
#define LAB_GUEST_H

#include "sequence.h"

#include <time.h>

#define PAGE 4096
#define MIB (1024ull * 1024)

// Counters that the heartbeat carries and the report lines show.
struct counters {
    uint64_t passes;    // finished passes over the hot working set (or over all memory when idle)
    uint64_t mem_bad;   // pages whose content was not what this guest wrote last
    uint64_t disk_ops;  // slots read or written
    uint64_t disk_bad;  // slots whose content was not what this guest wrote last, and I/O errors
};
extern struct counters counters;

#define COUNT(field) __atomic_fetch_add(&counters.field, 1, __ATOMIC_RELAXED)
#define LOOK(field) __atomic_load_n(&counters.field, __ATOMIC_RELAXED)

// report.c: one whole line on the console, never mixed with another's.
__attribute__((format(printf, 1, 2))) void report(const char *format, ...);
_Noreturn __attribute__((format(printf, 1, 2))) void give_up(const char *format, ...);
void start_thread(void *(*body)(void *), void *argument);
double uptime(void);
uint64_t monotonic_ns(void);

// Keeps a loop at `bytes_per_s` without catching up after a pause: a guest that was stopped must not come back with a burst.
struct pace {
    uint64_t bytes_per_s;  // 0: no limit
    uint64_t due_ns;
};
void pace(struct pace *pace, uint64_t bytes);

struct memory_options {
    uint64_t total_bytes, hot_bytes;
    int64_t dirty_mib_s;   // 0: idle, negative: as fast as it goes
    uint64_t verify_mib_s; // reading and checking pages that are not written
};
_Noreturn void memory_run(const struct memory_options *options);

struct disk_options {
    int direct, threads;
    uint64_t mib_s;      // all threads together, 0: no limit
    int64_t generation;  // of slots not touched since boot, negative: whatever a valid slot says
};
void disk_start(const struct disk_options *options);

void heartbeat_start(const char *spec); // ADDRESS/PREFIX,PEER,PORT,HZ
void echo_start(uint16_t port);
void screen_start(uint64_t mib_s); // 0: no limit
void work_start(void);

#endif
