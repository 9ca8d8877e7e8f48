// Layout of a disk slot; lab/src/disk.rs writes the same (a test boots this guest on its image).
// Little-endian words: magic, slot, generation, checksum, then the body, a xorshift sequence from the seed.
// The checksum is the wrapping sum of the body's words. A slot of zeros only is generation 0.
#ifndef LAB_SLOT_H
#define LAB_SLOT_H

#include "guest.h"

#define SLOT_BYTES 65536
#define SLOT_WORDS (SLOT_BYTES / 8)
#define SLOT_MAGIC 0x30544f4c534c4c52ull // "RLLSLOT0"
enum { SLOT_AT_MAGIC, SLOT_AT_NUMBER, SLOT_AT_GENERATION, SLOT_AT_CHECKSUM, SLOT_AT_BODY };

static inline uint64_t slot_seed(uint64_t slot, uint64_t generation) {
    return mix(slot * 0x9e3779b97f4a7c15ull + generation) | 1;
}

#endif
