// The smallest guest that checks itself: no kernel, no memory management, one program that the loader puts at 1 MiB. For hosts that
// are emulated themselves, where booting Linux would take minutes. It fills `mem_mb` MiB with a pattern and makes passes over
// them, the first `dirty_ws_mb` of which are hot (pages.h); with `idle=1` it only fills, and stops its CPU.
// Between two passes it sleeps until the timer's next tick, 18.2 times a second, or for so many ticks that it writes about
// `dirty_mbps` MiB in a second. Its disk, if it has one, takes a step at each tick (disk.h). The console's lines are those of the other
// guest.
#include "pages.h"
#include "disk.h"

#define TICKS_HZ 18u

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
    const char *line = command_line(facts);
    say("BOOTED bare=1\n");
    u32 pages = fill_all(parameter(line, "mem_mb", 16)), hot = parameter(line, "dirty_ws_mb", pages / 256) * 256;
    while (parameter(line, "idle", 0)) __asm__ volatile("cli; hlt");
    u32 rate = parameter(line, "dirty_mbps", 0), ticks = rate ? hot / 256 * TICKS_HZ / rate : 1;
    disk_start(line);
    start_timer();
    for (u32 pass = 1, tick = 1;; pass++) {
        make_pass(pass, hot, pages);
        u32 slept = 0;
        do {
            disk_step();
            disk_report(tick++);
            __asm__ volatile("hlt");
        } while (++slept < ticks);
    }
}
