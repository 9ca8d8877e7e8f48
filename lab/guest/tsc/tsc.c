// Prints how fast the processor's time stamp counter is, in kHz. An emulated guest reads the host's counter, and finds out at
// boot how fast that is; on a busy host it may find a fortieth of it.
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

// Readings of the clock around one of the counter may be so far apart. A farther one was interrupted, and is made again.
#define APART_NS 5000
#define TRIES 100000

static uint64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

// Both at one instant.
static int read_both(uint64_t *ns, uint64_t *counter) {
    for (int try = 0; try < TRIES; try++) {
        uint64_t before = clock_ns();
        *counter = __rdtsc();
        uint64_t after = clock_ns();
        *ns = before + (after - before) / 2;
        if (after - before < APART_NS) return 1;
    }
    return 0;
}

int main(void) {
    uint64_t ns[2], counter[2];
    struct timespec wait = {0, 50000000};
    if (!read_both(&ns[0], &counter[0])) return 1;
    nanosleep(&wait, NULL);
    if (!read_both(&ns[1], &counter[1])) return 1;
    printf("%.0f\n", (double)(counter[1] - counter[0]) * 1e6 / (double)(ns[1] - ns[0]));
    return 0;
}
