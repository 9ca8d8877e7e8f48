// A disk for the guests without a kernel: virtio's legacy interface over ports ("Virtual I/O Device (VIRTIO)" 1.0, 2.4 and 4.1,
// the parts on legacy interfaces), looked at and never interrupted. Each buffer reads a slot, checks it against what was written there last, and may write the
// next generation. What came by DMA stays in the buffer until its next turn and is checked once more then, so that a page that a device
// wrote and a migration missed is seen too. The lines on the console are those of lab/guest/disk.c.
#include "../slot.h"

#define BUFFERS 16
#define MOST_SLOTS 4096
#define NO_SLOT ~0u
#define SECTORS (SLOT_BYTES / 512)
#define OPERATIONS_A_SECOND 11 // of a buffer that takes a step 18 times a second: three of five are an operation
#define STEPS_A_SECOND 18

#define PCI_ADDRESS 0xcf8
#define PCI_DATA 0xcfc
#define VIRTIO_BLOCK 0x10011af4u
// From the first address of the device's ports.
enum { FEATURES = 0, DRIVER_FEATURES = 4, QUEUE_ADDRESS = 8, QUEUE_SIZE = 12, QUEUE_SELECT = 14, NOTIFY = 16, STATUS = 18, SECTORS_LOW = 20 };
#define MOST_ENTRIES 256
#define FLUSHES (1u << 9) // without it QEMU puts each write on its disk before it is done
#define NEXT 1
#define DEVICE_WRITES 2

struct descriptor {
    uint64_t address;
    uint32_t bytes;
    uint16_t flags, next;
};

struct buffer {
    enum { IDLE, READS, WRITES } does;
    int done;
    u32 turn;            // which of its slots it comes to next
    u32 slot;            // NO_SLOT while nothing in the buffer is to be checked
    uint64_t generation;
    struct {
        uint32_t type, reserved;
        uint64_t sector;
    } header;
    volatile unsigned char status;
};

static uint64_t words[BUFFERS][SLOT_WORDS] __attribute__((aligned(4096)));
static unsigned char queue[3 * 4096] __attribute__((aligned(4096)));
static struct buffer buffers[BUFFERS];
static uint64_t generations[MOST_SLOTS], chances;
static u32 slots, used_buffers, entries, device, disk_operations, disk_bad;
static uint16_t asked, answered;

static void out16(u32 port, uint16_t value) { __asm__ volatile("outw %0, %1" ::"a"(value), "d"((uint16_t)port)); }
static void out32(u32 port, u32 value) { __asm__ volatile("outl %0, %1" ::"a"(value), "d"((uint16_t)port)); }
static uint16_t in16(u32 port) {
    uint16_t value;
    __asm__ volatile("inw %1, %0" : "=a"(value) : "d"((uint16_t)port));
    return value;
}
static u32 in32(u32 port) {
    u32 value;
    __asm__ volatile("inl %1, %0" : "=a"(value) : "d"((uint16_t)port));
    return value;
}

// Of the first bus.
static u32 pci(u32 slot, u32 at) {
    out32(PCI_ADDRESS, 0x80000000u | slot << 11 | at);
    return in32(PCI_DATA);
}

static uint16_t *available(void) { return (uint16_t *)(queue + entries * sizeof(struct descriptor)); }
static volatile uint16_t *used(void) {
    u32 end = entries * sizeof(struct descriptor) + (entries + 3) * 2;
    return (volatile uint16_t *)(queue + ((end + 4095) & ~4095u));
}

static void disk_harmed(const char *what, u32 slot, uint64_t expected, uint64_t found) {
    if (disk_bad++ >= MOST_LINES) return;
    say(what);
    say_number(" slot=", slot);
    say_number(" expected_generation=", (u32)expected);
    if (found == SLOT_UNKNOWN) say(" found_generation=-1\n");
    else say_number(" found_generation=", (u32)found), say("\n");
}

// Whether there is one; it has been made ready then.
static int find_disk(void) {
    u32 at = 0;
    while (at < 32 && pci(at, 0) != VIRTIO_BLOCK) at++;
    if (at == 32) return 0;
    device = pci(at, 0x10) & ~3u;
    u32 command = pci(at, 4);
    out32(PCI_DATA, command | 5); // its ports are on, and it may write memory
    out(device + STATUS, 0);
    out(device + STATUS, 3); // seen, and known how to drive
    out32(device + DRIVER_FEATURES, in32(device + FEATURES) & FLUSHES);
    out16(device + QUEUE_SELECT, 0);
    entries = in16(device + QUEUE_SIZE);
    if (entries < 3 * BUFFERS || entries > MOST_ENTRIES) return 0;
    out32(device + QUEUE_ADDRESS, (u32)((unsigned long)queue / 4096));
    out(device + STATUS, 7);
    slots = in32(device + SECTORS_LOW) / SECTORS;
    if (slots > MOST_SLOTS) slots = MOST_SLOTS;
    return slots >= BUFFERS;
}

static void disk_start(const char *line) {
    u32 rate = parameter(line, "disk_mbps", ~0u), generation = parameter(line, "disk_gen", ~0u);
    if (rate == ~0u) return;
    if (!find_disk()) {
        say("GUESTERR no usable virtio disk\n");
        return;
    }
    for (u32 i = 0; i < slots; i++) generations[i] = generation == ~0u ? SLOT_UNKNOWN : generation;
    // Of 16 slots that a MiB has.
    used_buffers = (rate * 16 + OPERATIONS_A_SECOND - 1) / OPERATIONS_A_SECOND;
    if (!used_buffers || used_buffers > BUFFERS) used_buffers = BUFFERS;
    // Each begins elsewhere, so that the whole disk is written at any time.
    for (u32 i = 0; i < used_buffers; i++) buffers[i] = (struct buffer){.slot = NO_SLOT, .turn = i * slots / used_buffers / used_buffers};
}

static void disk_ask(u32 i, u32 writes) {
    struct buffer *buffer = &buffers[i];
    struct descriptor *chain = (struct descriptor *)queue + 3 * i;
    uint16_t flags = writes ? NEXT : NEXT | DEVICE_WRITES;
    buffer->does = writes ? WRITES : READS;
    buffer->done = 0;
    buffer->status = 0xff;
    buffer->header.type = writes;
    buffer->header.sector = (uint64_t)buffer->slot * SECTORS;
    chain[0] = (struct descriptor){(unsigned long)&buffer->header, sizeof buffer->header, NEXT, (uint16_t)(3 * i + 1)};
    chain[1] = (struct descriptor){(unsigned long)words[i], SLOT_BYTES, flags, (uint16_t)(3 * i + 2)};
    chain[2] = (struct descriptor){(unsigned long)&buffer->status, 1, DEVICE_WRITES, 0};
    available()[2 + asked++ % entries] = (uint16_t)(3 * i);
    __asm__ volatile("mfence" ::: "memory");
    *(volatile uint16_t *)(available() + 1) = asked;
    __asm__ volatile("mfence" ::: "memory");
    out16(device + NOTIFY, 0);
}

static void disk_answers(void) {
    for (; answered != used()[1]; answered++) {
        __asm__ volatile("" ::: "memory");
        // Each entry is a chain's first descriptor and how much was written, four bytes each.
        buffers[used()[2 + answered % entries * 4] / 3 % BUFFERS].done = 1;
        disk_operations++;
    }
    __asm__ volatile("" ::: "memory");
}

static void disk_read(u32 i) {
    struct buffer *buffer = &buffers[i];
    u32 slot = buffer->slot;
    uint64_t found = buffer->status ? SLOT_UNKNOWN : slot_read(words[i], slot);
    buffer->does = IDLE;
    if (buffer->status) {
        disk_harmed("DISKERR read", slot, generations[slot], buffer->status);
    } else if (found == SLOT_UNKNOWN || (found != generations[slot] && generations[slot] != SLOT_UNKNOWN)) {
        disk_harmed("DISKBAD on disk", slot, generations[slot], found);
    }
    // From here on the slot is what it is: one report for one loss.
    generations[slot] = buffer->generation = found;
    if (found == SLOT_UNKNOWN) {
        buffer->slot = NO_SLOT;
    } else if (mix(chances++) & 1) {
        slot_write(words[i], slot, ++buffer->generation);
        disk_ask(i, 1);
    }
}

static void disk_written(u32 i) {
    struct buffer *buffer = &buffers[i];
    buffer->does = IDLE;
    generations[buffer->slot] = buffer->generation;
    if (buffer->status) {
        disk_harmed("DISKERR write", buffer->slot, buffer->generation, buffer->status);
        generations[buffer->slot] = SLOT_UNKNOWN;
    }
}

// What is still in the buffer, before another slot comes into it. Each buffer has slots of its own, and goes over all of them.
static void disk_next(u32 i) {
    struct buffer *buffer = &buffers[i];
    uint64_t found = buffer->slot == NO_SLOT ? SLOT_UNKNOWN : slot_read(words[i], buffer->slot);
    if (buffer->slot != NO_SLOT && found != buffer->generation)
        disk_harmed("DISKBAD in memory", buffer->slot, buffer->generation, found);
    buffer->slot = buffer->turn++ % (slots / used_buffers) * used_buffers + i;
    disk_ask(i, 0);
}

// One step of each buffer whose answer has come.
static void disk_step(void) {
    if (!used_buffers) return;
    disk_answers();
    for (u32 i = 0; i < used_buffers; i++) {
        if (buffers[i].does == IDLE) disk_next(i);
        else if (buffers[i].done && buffers[i].does == READS) disk_read(i);
        else if (buffers[i].done) disk_written(i);
    }
}

// At each step: it says once a second what became of the disk.
static void disk_report(u32 step) {
    if (!used_buffers || step % STEPS_A_SECOND) return;
    say_number("DISK ops=", disk_operations);
    say_number(" bad=", disk_bad);
    say("\n");
}
