// Layout of a disk slot; lab/src/disk.rs writes the same (a test boots this guest on its image).
// Little-endian words: magic, slot, generation, checksum, then the body, a xorshift sequence from the seed.
// The checksum is the wrapping sum of the body's words. A slot of zeros only is generation 0.
#ifndef LAB_SLOT_H
#define LAB_SLOT_H

#include "sequence.h"

#define SLOT_BYTES 65536
#define SLOT_WORDS (SLOT_BYTES / 8)
#define SLOT_UNKNOWN (~0ull)
#define SLOT_MAGIC 0x30544f4c534c4c52ull // "RLLSLOT0"
enum { SLOT_AT_MAGIC, SLOT_AT_NUMBER, SLOT_AT_GENERATION, SLOT_AT_CHECKSUM, SLOT_AT_BODY };

static inline uint64_t slot_seed(uint64_t slot, uint64_t generation) {
    return mix(slot * 0x9e3779b97f4a7c15ull + generation) | 1;
}

static inline void slot_write(uint64_t *words, uint64_t slot, uint64_t generation) {
    uint64_t x = slot_seed(slot, generation), sum = 0;
    for (int i = SLOT_AT_BODY; i < SLOT_WORDS; i++) sum += words[i] = x = xorshift(x);
    words[SLOT_AT_MAGIC] = SLOT_MAGIC;
    words[SLOT_AT_NUMBER] = slot;
    words[SLOT_AT_GENERATION] = generation;
    words[SLOT_AT_CHECKSUM] = sum;
}

// The generation that a valid slot says, or SLOT_UNKNOWN.
static inline uint64_t slot_read(const uint64_t *words, uint64_t slot) {
    uint64_t generation = words[SLOT_AT_GENERATION], sum = 0;
    if (words[SLOT_AT_MAGIC] == 0) {
        for (int i = 0; i < SLOT_WORDS; i++) if (words[i]) return SLOT_UNKNOWN;
        return 0;
    }
    if (words[SLOT_AT_MAGIC] != SLOT_MAGIC || words[SLOT_AT_NUMBER] != slot) return SLOT_UNKNOWN;
    uint64_t x = slot_seed(slot, generation);
    for (int i = SLOT_AT_BODY; i < SLOT_WORDS; i++) {
        x = xorshift(x);
        if (words[i] != x) return SLOT_UNKNOWN;
        sum += x;
    }
    return sum == words[SLOT_AT_CHECKSUM] ? generation : SLOT_UNKNOWN;
}

#endif
