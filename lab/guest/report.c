// Console lines, threads and time.
#define _GNU_SOURCE
#include "guest.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct counters counters;
static pthread_mutex_t console = PTHREAD_MUTEX_INITIALIZER;

static void put_line(const char *format, va_list arguments) {
    char line[512];
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    if (length < 0) return;
    if (length > (int)sizeof line - 2) length = sizeof line - 2;
    line[length++] = '\n';
    pthread_mutex_lock(&console);
    for (int done = 0; done < length;) {
        ssize_t n = write(1, line + done, length - done);
        if (n <= 0) break;
        done += n;
    }
    pthread_mutex_unlock(&console);
}

void report(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    put_line(format, arguments);
    va_end(arguments);
}

// Process 1 may not end (the kernel would panic), so a guest that cannot do its work says so and stays.
void give_up(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    put_line(format, arguments);
    va_end(arguments);
    for (;;) pause();
}

void start_thread(void *(*body)(void *), void *argument) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, body, argument)) give_up("GUESTERR cannot start a thread");
}

uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

double uptime(void) { return monotonic_ns() / 1e9; }

void pace(struct pace *pace, uint64_t bytes) {
    if (!pace->bytes_per_s) return;
    uint64_t now = monotonic_ns();
    if (pace->due_ns + 100000000 < now) pace->due_ns = now;
    pace->due_ns += (uint64_t)((double)bytes * 1e9 / pace->bytes_per_s);
    // Shorter sleeps than a millisecond cost more than they even out.
    if (pace->due_ns < now + 1000000) return;
    struct timespec due = {pace->due_ns / 1000000000, pace->due_ns % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
}
