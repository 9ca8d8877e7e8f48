// Memory that checks itself.
//
// Every page is filled with an incompressible sequence that depends on its number. Pass p then writes one word in each
// 64-byte line of the hot pages, a function of (p, page, line), after checking that it holds what pass p-1 wrote: a page or
// a line that was lost, or came back older, cannot go unseen. Words that no pass writes are checked on one page in 16 and on
// all cold pages, over and over.
#define _GNU_SOURCE
#include "guest.h"

#include <stdlib.h>
#include <sys/mman.h>

#define PAGE_WORDS (PAGE / 8)
#define LINE_WORDS 8
#define CHUNK_PAGES 16
#define MOST_LINES 50 // console lines about bad pages; the count goes on

static uint64_t *memory;

static uint64_t fill_seed(uint64_t page) { return mix(page + 0x51ed2701) | 1; }
static uint64_t pass_seed(uint64_t pass, uint64_t page) { return mix((pass << 32) ^ mix(page)) | 1; }

static void fill_page(uint64_t page) {
    uint64_t *word = memory + page * PAGE_WORDS, x = fill_seed(page);
    for (int i = 0; i < PAGE_WORDS; i++) word[i] = x = xorshift(x);
}

// Lines of the page that do not hold what `pass` wrote; pass 0 is the fill.
static int wrong_lines(uint64_t page, uint64_t pass) {
    const uint64_t *word = memory + page * PAGE_WORDS;
    int wrong = 0;
    if (pass == 0) {
        uint64_t x = fill_seed(page);
        for (int i = 0; i < PAGE_WORDS; i++) {
            x = xorshift(x);
            if (i % LINE_WORDS == 0) wrong += word[i] != x;
        }
        return wrong;
    }
    uint64_t x = pass_seed(pass, page);
    for (int i = 0; i < PAGE_WORDS; i += LINE_WORDS) {
        x += 0x9e3779b97f4a7c15ull;
        wrong += word[i] != x;
    }
    return wrong;
}

static int wrong_fill(uint64_t page, int cold) {
    const uint64_t *word = memory + page * PAGE_WORDS;
    uint64_t x = fill_seed(page);
    int wrong = 0;
    for (int i = 0; i < PAGE_WORDS; i++) {
        x = xorshift(x);
        if (cold || i % LINE_WORDS) wrong += word[i] != x;
    }
    return wrong;
}

static void write_pass(uint64_t page, uint64_t pass) {
    uint64_t *word = memory + page * PAGE_WORDS, x = pass_seed(pass, page);
    for (int i = 0; i < PAGE_WORDS; i += LINE_WORDS) word[i] = x += 0x9e3779b97f4a7c15ull;
}

// The newest earlier pass that the page agrees with in full, or -1: tells a stale page from a damaged one.
static long long looks_like(uint64_t page, uint64_t pass) {
    for (uint64_t back = 1; back <= 16 && back <= pass; back++)
        if (!wrong_lines(page, pass - back)) return pass - back;
    return -1;
}

static void bad_page(uint64_t page, uint64_t pass, int wrong, const char *of) {
    if (COUNT(mem_bad) < MOST_LINES)
        report("MEMBAD page=%llu expected_pass=%llu looks_like=%lld wrong_%s=%d up=%.3f", (unsigned long long)page,
               (unsigned long long)pass, looks_like(page, pass), of, wrong, uptime());
}

static void check_pass(uint64_t page, uint64_t pass) {
    int wrong = wrong_lines(page, pass);
    if (wrong) bad_page(page, pass, wrong, "lines");
}

static void check_fill(uint64_t page, int cold, uint64_t pass) {
    int wrong = wrong_fill(page, cold);
    if (!wrong) return;
    bad_page(page, pass, wrong, "words");
    if (cold) fill_page(page); // one report for one loss
}

static void pass_done(double began, uint64_t bytes_written) {
    uint64_t pass = COUNT(passes) + 1;
    double took = uptime() - began;
    report("OK pass=%llu bad=%llu dirty_mbps=%.1f ms=%.0f up=%.3f", (unsigned long long)pass,
           (unsigned long long)LOOK(mem_bad), took > 0 ? bytes_written / took / MIB : 0.0, took * 1e3, uptime());
}

// Checks cold pages round and round at its own pace, so that a wrong one is seen although nothing writes it.
struct cold {
    uint64_t first, pages;
    struct pace pace;
};
static void *cold_run(void *argument) {
    struct cold *cold = argument;
    for (;;)
        for (uint64_t page = cold->first; page < cold->first + cold->pages; page++) {
            check_fill(page, 1, 0);
            if (page % CHUNK_PAGES == 0) pace(&cold->pace, CHUNK_PAGES * PAGE);
        }
    return NULL;
}

_Noreturn static void idle_run(uint64_t pages, uint64_t bytes_per_s) {
    struct pace rate = {bytes_per_s, 0};
    if (!bytes_per_s) give_up("IDLE");
    for (;;) {
        double began = uptime();
        for (uint64_t page = 0; page < pages; page++) {
            check_fill(page, 1, 0);
            if (page % CHUNK_PAGES == 0) pace(&rate, CHUNK_PAGES * PAGE);
        }
        pass_done(began, 0);
    }
}

_Noreturn static void dirty_run(uint64_t pages, struct pace rate) {
    for (uint64_t pass = 1;; pass++) {
        double began = uptime();
        for (uint64_t page = 0; page < pages; page++) {
            check_pass(page, pass - 1);
            if ((page + pass) % 16 == 0) check_fill(page, 0, pass - 1);
            write_pass(page, pass);
            if (page % CHUNK_PAGES == 0) pace(&rate, CHUNK_PAGES * PAGE);
        }
        pass_done(began, pages * PAGE);
    }
}

void memory_run(const struct memory_options *options) {
    uint64_t pages = options->total_bytes / PAGE, hot = options->hot_bytes / PAGE;
    double began = uptime();
    memory = mmap(NULL, options->total_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) give_up("GUESTERR no room for mem_mb=%llu", (unsigned long long)(options->total_bytes / MIB));
    for (uint64_t page = 0; page < pages; page++) fill_page(page);
    report("FILLED mb=%llu ms=%.0f up=%.3f", (unsigned long long)(options->total_bytes / MIB), (uptime() - began) * 1e3, uptime());

    uint64_t verify = options->verify_mib_s * MIB;
    if (!options->dirty_mib_s || !hot) idle_run(pages, verify);
    static struct cold cold;
    cold = (struct cold){hot, pages - hot, {verify, 0}};
    if (verify && cold.pages) start_thread(cold_run, &cold);
    dirty_run(hot, (struct pace){options->dirty_mib_s > 0 ? options->dirty_mib_s * MIB : 0, 0});
}
