// A display adapter's memory, filled with noise, written and checked page by page: it is RAM that belongs to a device, so it
// comes to the destination on another way than the rest.
#define _GNU_SOURCE
#include "guest.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORDS (PAGE / 8)
#define DEVICES "/sys/bus/pci/devices"

static uint64_t *screen, *generations; // by page
static uint64_t pages, mib_s;

static uint64_t word(uint64_t page, uint64_t generation, uint64_t at) {
    return mix(page << 32 ^ generation << 10 ^ at);
}

static void draw(uint64_t page, uint64_t generation) {
    for (uint64_t at = 0; at < WORDS; at++) screen[page * WORDS + at] = word(page, generation, at);
    generations[page] = generation;
}

static void check(uint64_t page) {
    for (uint64_t at = 0; at < WORDS; at++) {
        uint64_t found = screen[page * WORDS + at];
        if (found == word(page, generations[page], at)) continue;
        if (COUNT(mem_bad) < 50)
            report("MEMBAD screen page=%llu generation=%llu word=%llu found=%llx up=%.3f", (unsigned long long)page,
                   (unsigned long long)generations[page], (unsigned long long)at, (unsigned long long)found, uptime());
        return;
    }
}

// A page is drawn twice, the second time when so many others have been: under emulation QEMU itself loses the writes to a page,
// if rarely, when it looks for written pages just as the guest writes there the first time (docs/stream-mode.md).
#define LATER 64

static void *screen_thread(void *argument) {
    (void)argument;
    struct pace rate = {mib_s * MIB, 0};
    uint64_t random = 5, drawn = 0, before[LATER] = {0};
    for (;;) {
        random = mix(random + 1);
        uint64_t page = random % pages, *earlier = &before[drawn % LATER];
        draw(*earlier, generations[*earlier]);
        *earlier = page;
        check(page);
        draw(page, generations[page] + 1);
        if (++drawn % pages == 0) report("SCREEN drawn=%llu up=%.3f", (unsigned long long)drawn, uptime());
        pace(&rate, 2 * PAGE);
    }
    return NULL;
}

// The memory of the first display adapter (PCI class 03): its first resource.
static int open_screen(void) {
    DIR *devices = opendir(DEVICES);
    for (struct dirent *device; devices && (device = readdir(devices));) {
        char path[400], class[16] = "";
        snprintf(path, sizeof path, DEVICES "/%s/class", device->d_name);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0) continue;
        ssize_t length = read(file, class, sizeof class - 1);
        close(file);
        if (length < 4 || strncmp(class, "0x03", 4)) continue;
        snprintf(path, sizeof path, DEVICES "/%s/enable", device->d_name);
        file = open(path, O_WRONLY | O_CLOEXEC);
        if (file < 0 || write(file, "1", 1) != 1) give_up("GUESTERR the display adapter cannot be enabled");
        close(file);
        snprintf(path, sizeof path, DEVICES "/%s/resource0", device->d_name);
        return open(path, O_RDWR | O_CLOEXEC);
    }
    return -1;
}

void screen_start(uint64_t wanted_mib_s) {
    mib_s = wanted_mib_s;
    struct stat facts;
    int file = open_screen();
    if (file < 0 || fstat(file, &facts) || facts.st_size < PAGE) give_up("GUESTERR no display adapter");
    pages = facts.st_size / PAGE;
    screen = mmap(NULL, facts.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    generations = calloc(pages, sizeof *generations);
    if (screen == MAP_FAILED || !generations) give_up("GUESTERR the display adapter's memory cannot be used");
    for (uint64_t page = 0; page < pages; page++) draw(page, 1);
    report("SCREEN filled=%llu up=%.3f", (unsigned long long)(pages * PAGE), uptime());
    start_thread(screen_thread, NULL);
}
