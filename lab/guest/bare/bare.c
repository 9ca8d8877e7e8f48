// The smallest guest that checks itself: no kernel, no memory management, one program that the loader puts at 1 MiB. For hosts that
// are emulated themselves, where booting Linux would take minutes. It fills `mem_mb` MiB with a pattern, then in pass p checks
// and writes one word in each 64-byte line of the first `dirty_ws_mb` MiB, and checks all the rest once in eight passes; with `idle=1` it
// only fills, and stops its CPU.
// Between two passes it sleeps until the timer's next tick, 18.2 times a second. The console's lines are those of the other guest.
typedef unsigned int u32;

#define BASE 0x400000u // above the program; what firmware and loader use lies below
#define PAGE 4096u
#define LINE_WORDS 16u
#define COLD_EVERY 8u
#define MOST_LINES 50u
#define COM1 0x3f8

__asm__(".section .multiboot, \"a\"\n"
        ".align 4\n"
        ".long 0x1BADB002, 0, -0x1BADB002\n" // magic, no wishes, checksum
        ".text\n"
        ".globl _start\n"
        "_start:\n"
        "  mov $stack_top, %esp\n"
        "  lgdt gdt_pointer\n" // the loader's own may be gone by now
        "  ljmp $8, $1f\n"
        "1: mov $16, %ax\n"
        "  mov %ax, %ds\n"
        "  mov %ax, %es\n"
        "  mov %ax, %ss\n"
        "  push %ebx\n" // the loader's facts
        "  call run\n"
        "tick:\n" // the timer's interrupt, 18.2 times a second as the firmware left it: it only ends a hlt
        "  push %eax\n"
        "  mov $0x20, %al\n"
        "  out %al, $0x20\n"
        "  pop %eax\n"
        "  iret\n"
        ".section .rodata\n"
        ".align 8\n"
        "gdt: .quad 0, 0x00cf9b000000ffff, 0x00cf93000000ffff\n" // flat code, flat data
        "gdt_pointer: .word 23\n"
        "  .long gdt\n"
        ".bss\n"
        ".align 16\n"
        "  .skip 16384\n"
        "stack_top:\n"
        ".text\n");

extern const char tick[];
static u32 interrupts[9][2]; // the table; only entry 8, the timer behind an unprogrammed controller, is ever used

struct facts {
    u32 flags, memory[2], boot_device;
    const char *command_line;
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

static u32 mix(u32 x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

static volatile u32 *page_at(u32 page) { return (volatile u32 *)(BASE + page * PAGE); }
static u32 seed(u32 pass, u32 page) { return mix(pass * 0x9e3779b9u ^ mix(page + 1)); }

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

static void start_timer(void) {
    u32 address = (u32)tick;
    interrupts[8][0] = 8u << 16 | (address & 0xffff);
    interrupts[8][1] = (address & 0xffff0000u) | 0x8e00; // present, 32-bit interrupt gate
    struct {
        unsigned short limit;
        u32 base;
    } __attribute__((packed)) pointer = {sizeof interrupts - 1, (u32)interrupts};
    out(0x21, 0xfe); // all lines but the timer's are masked
    out(0xa1, 0xff);
    __asm__ volatile("lidt %0; sti" ::"m"(pointer));
}

__attribute__((used)) void run(const struct facts *facts) {
    const char *line = facts->flags & 4 ? facts->command_line : "";
    u32 mb = parameter(line, "mem_mb", 16), hot = parameter(line, "dirty_ws_mb", mb) * 256, pages = mb * 256;
    say("BOOTED bare=1\n");
    for (u32 page = 0; page < pages; page++) fill(page);
    say_number("FILLED mb=", mb);
    say("\n");
    while (parameter(line, "idle", 0)) __asm__ volatile("cli; hlt");
    start_timer();
    for (u32 pass = 1;; pass++) {
        for (u32 page = 0; page < hot; page++) {
            check(page, pass - 1, pass);
            write(page, pass);
        }
        for (u32 page = hot; pass % COLD_EVERY == 0 && page < pages; page++) check(page, 0, pass);
        say_number("OK pass=", pass);
        say_number(" bad=", bad);
        say("\n");
        __asm__ volatile("hlt");
    }
}
