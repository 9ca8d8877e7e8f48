// The same guest for KVM, as a program that runs in user mode. Where KVM itself runs inside of a virtual machine, hardware may run
// the guest's user mode only, and what a kernel does is emulated instruction by instruction, if at all. So this one goes straight
// from the loader to 64-bit user mode, with all memory mapped as it is and port access allowed, and stays there: no interrupt, no fault,
// no system call. All that it writes, it writes through the second-level page tables that KVM makes of the hypervisor's own.
// A program in user mode cannot stop its CPU: between two passes it waits until the timer has wrapped, 18.2 times a second.
#include "pages.h"
#include "disk.h"

#define TIMER 0x40
#define TIMER_MODE 0x43
#define PAUSES 5000 // between two looks at the timer: a look leaves the guest

__asm__(".section .multiboot, \"a\"\n"
        ".align 4\n"
        ".long 0x1BADB002, 0, -0x1BADB002\n" // magic, no wishes, checksum
        ".text\n"
        ".code32\n"
        ".globl _start\n"
        "_start:\n"
        "  cli\n"
        "  mov $level3, %eax\n" // one entry of the first level, four of the second, 2048 pages of 2 MiB
        "  or $7, %eax\n" // present, writable, for user mode
        "  mov %eax, level4\n"
        "  mov $level2, %eax\n"
        "  or $7, %eax\n"
        "  mov $level3, %edi\n"
        "  mov $4, %ecx\n"
        "1: mov %eax, (%edi)\n"
        "  add $4096, %eax\n"
        "  add $8, %edi\n"
        "  loop 1b\n"
        "  mov $0x87, %eax\n" // the same, and a large page
        "  mov $level2, %edi\n"
        "  mov $2048, %ecx\n"
        "2: mov %eax, (%edi)\n"
        "  add $0x200000, %eax\n"
        "  add $8, %edi\n"
        "  loop 2b\n"
        "  mov $level4, %eax\n"
        "  mov %eax, %cr3\n"
        "  mov %cr4, %eax\n"
        "  or $0x20, %eax\n" // entries of 64 bits
        "  mov %eax, %cr4\n"
        "  mov $0xC0000080, %ecx\n"
        "  rdmsr\n"
        "  or $0x100, %eax\n" // long mode
        "  wrmsr\n"
        "  mov $task, %eax\n" // where it is, in the pieces that its entry has
        "  mov %ax, gdt+42\n"
        "  shr $16, %eax\n"
        "  mov %al, gdt+44\n"
        "  mov %ah, gdt+47\n"
        "  lgdt gdt_pointer\n"
        "  mov %cr0, %eax\n"
        "  or $0x80000001, %eax\n" // paging, protection
        "  mov %eax, %cr0\n"
        "  ljmp $8, $3f\n"
        ".code64\n"
        "3: mov $0x23, %eax\n" // data for user mode
        "  mov %ax, %ds\n"
        "  mov %ax, %es\n"
        "  mov $0x28, %eax\n"
        "  ltr %ax\n"
        "  mov %ebx, %edi\n" // the loader's facts
        "  pushq $0x23\n"
        "  pushq $stack_top\n"
        "  pushq $0x3002\n" // ports allowed, interrupts off
        "  pushq $0x1b\n"
        "  pushq $4f\n"
        "  iretq\n"
        "4: call run\n"
        ".data\n"
        ".align 8\n"
        // Nothing; 64-bit code and data for the kernel's mode; the same for user mode; the task.
        "gdt: .quad 0, 0x00af9b000000ffff, 0x00cf93000000ffff, 0x00affb000000ffff, 0x00cff3000000ffff\n"
        "  .quad 0x0000890000002068, 0\n"
        "gdt_pointer: .word 55\n"
        "  .long gdt\n"
        // A processor lets user mode have ports by the flags too, but an emulation of one may look only here: every port's bit is 0.
        "task: .skip 102\n"
        "  .word 104\n" // where the bits begin
        "  .skip 8192\n"
        "  .byte 0xff\n" // and end
        ".bss\n"
        ".align 4096\n"
        "level4: .skip 4096\n"
        "level3: .skip 4096\n"
        "level2: .skip 16384\n"
        "  .skip 16384\n"
        "stack_top:\n"
        ".text\n");

static u32 timer(void) {
    out(TIMER_MODE, 0); // hold the first counter's value
    u32 low = in(TIMER);
    return (u32)in(TIMER) << 8 | low;
}

// The counter counts down from 65535.
static void wait_for_wrap(int disk) {
    for (u32 before = timer(), now;; before = now) {
        for (u32 i = 0; i < PAUSES; i++) __asm__ volatile("pause");
        if (disk) disk_step();
        if ((now = timer()) > before) return;
    }
}

__attribute__((used)) void run(const struct facts *facts) {
    const char *line = command_line(facts);
    say("BOOTED user=1\n");
    u32 pages = fill_all(parameter(line, "mem_mb", 16)), hot = parameter(line, "dirty_ws_mb", pages / 256) * 256;
    disk_start(line);
    int always = !parameter(line, "disk_mbps", 1);
    for (u32 pass = 1;; pass++) {
        disk_step();
        make_pass(pass, hot, pages);
        disk_report(pass);
        wait_for_wrap(always);
    }
}
