// What the guests without a kernel have in common: the console, the command line, and memory that is filled, checked and
// written. In pass p one word in each 64-byte line of the hot pages is checked and written; the rest is checked once in eight passes.
typedef unsigned int u32;

#define BASE 0x400000u // above the program; what firmware and loader use lies below
#define PAGE 4096u
#define LINE_WORDS 16u
#define COLD_EVERY 8u
#define MOST_LINES 50u
#define COM1 0x3f8

// What the multiboot loader tells; addresses have 32 bits.
struct facts {
    u32 flags, memory[2], boot_device, command_line;
};

static void out(unsigned short port, unsigned char value) { __asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(port)); }
static unsigned char in(unsigned short port) {
    unsigned char value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

static void say(const char *text) {
    for (; *text; text++) {
        while (!(in(COM1 + 5) & 0x20)) {}
        out(COM1, (unsigned char)*text);
    }
}

static void say_number(const char *before, u32 number) {
    char digits[11], *at = digits + 10;
    *at = 0;
    do *--at = (char)('0' + number % 10);
    while (number /= 10);
    say(before);
    say(at);
}

static const char *command_line(const struct facts *facts) {
    return facts->flags & 4 ? (const char *)(unsigned long)facts->command_line : "";
}

static u32 parameter(const char *line, const char *name, u32 otherwise) {
    for (; *line; line++) {
        const char *a = line, *b = name;
        while (*b && *a == *b) a++, b++;
        if (*b || *a != '=') continue;
        u32 value = 0;
        for (a++; *a >= '0' && *a <= '9'; a++) value = value * 10 + (u32)(*a - '0');
        return value;
    }
    return otherwise;
}

static u32 mix_word(u32 x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

static volatile u32 *page_at(u32 page) { return (volatile u32 *)(unsigned long)(BASE + page * PAGE); }
static u32 seed(u32 pass, u32 page) { return mix_word(pass * 0x9e3779b9u ^ mix_word(page + 1)); }

static void fill(u32 page) {
    volatile u32 *word = page_at(page);
    u32 x = seed(0, page);
    for (u32 i = 0; i < PAGE / 4; i++) word[i] = x += 0x61c88647u;
}

// Lines that do not hold what `pass` wrote; pass 0 is the fill.
static u32 wrong(u32 page, u32 pass) {
    volatile u32 *word = page_at(page);
    u32 x = seed(pass, page), count = 0, step = pass ? 0x61c88647u : 0x61c88647u * LINE_WORDS;
    if (!pass) x += 0x61c88647u - step;
    for (u32 i = 0; i < PAGE / 4; i += LINE_WORDS) count += word[i] != (x += step);
    return count;
}

static void write(u32 page, u32 pass) {
    volatile u32 *word = page_at(page);
    u32 x = seed(pass, page);
    for (u32 i = 0; i < PAGE / 4; i += LINE_WORDS) word[i] = x += 0x61c88647u;
}

static u32 bad;

static void check(u32 page, u32 pass, u32 now) {
    u32 lines = wrong(page, pass);
    if (!lines || bad++ >= MOST_LINES) return;
    say_number("MEMBAD page=", page);
    say_number(" expected_pass=", pass);
    say_number(" in_pass=", now);
    say_number(" lines=", lines);
    say("\n");
}

// Fills all memory and returns how many pages it has.
static u32 fill_all(u32 mb) {
    for (u32 page = 0; page < mb * 256; page++) fill(page);
    say_number("FILLED mb=", mb);
    say("\n");
    return mb * 256;
}

static void make_pass(u32 pass, u32 hot, u32 pages) {
    for (u32 page = 0; page < hot; page++) {
        check(page, pass - 1, pass);
        write(page, pass);
    }
    for (u32 page = hot; pass % COLD_EVERY == 0 && page < pages; page++) check(page, 0, pass);
    say_number("OK pass=", pass);
    say_number(" bad=", bad);
    say("\n");
}
