// How much a guest gets done: units of mixed computing and memory writes per guest second. Uses a whole vCPU.
#define _GNU_SOURCE
#include "guest.h"

#include <sys/mman.h>

#define SCRATCH_WORDS (4 * MIB / 8)

static void *work_thread(void *argument) {
    uint64_t *scratch = argument, x = 1, units = 0, began = monotonic_ns();
    for (;;) {
        for (int i = 0; i < 1000; i++) {
            x = mix(x + i);
            scratch[x % SCRATCH_WORDS] = x;
        }
        units++;
        uint64_t now = monotonic_ns();
        if (now - began < 1000000000) continue;
        report("WORK n=%llu ms=%llu up=%.3f", (unsigned long long)units, (unsigned long long)((now - began) / 1000000), uptime());
        units = 0;
        began = now;
    }
    return NULL;
}

void work_start(void) {
    void *scratch = mmap(NULL, SCRATCH_WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (scratch == MAP_FAILED) give_up("GUESTERR no room for the work loop");
    start_thread(work_thread, scratch);
}
