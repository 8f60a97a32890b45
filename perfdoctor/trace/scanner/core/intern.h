/* Byte strings become numbers: a hash table that is at most half full. */

#ifndef INTERN_H
#define INTERN_H

#include "blocks.h"

#define SPARE 128 /* bytes that stay free at the end of an arena: strings are written and compared 64 bytes at a time */

/* A hash of bytes, eight at a time; what follows them is readable but does not count. */
INLINE uint64_t hash_bytes(place p, int64_t length) {
    static const uint64_t odd[] = {0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93};
    uint64_t mixed = (uint64_t)length * odd[0];
    /* Four independent products: one after the other they would wait for each other. */
    for (; length >= 32; length -= 32, p += 32) {
        uint64_t sum = 0;
        for (int part = 0; part < 4; part++) sum += (load_eight(p + 8 * part) ^ odd[3 - part]) * odd[part];
        mixed = (mixed ^ mixed >> 29) * odd[0] + (sum ^ sum >> 32);
    }
    for (; length > 0; length -= 8, p += 8) {
        uint64_t word = load_eight(p);
        if (length < 8) word &= bits_below(8 * (int)length);
        mixed = (mixed ^ mixed >> 29 ^ word) * odd[0];
    }
    mixed ^= mixed >> 32;
    mixed *= odd[1];
    return mixed ^ mixed >> 29;
}

/* The id of bytes in a table, or the free place for them, less one and negative. */
INLINE int64_t find_string(place bytes, int64_t length, uint64_t hash, const struct perfdoctor_table *table) {
    int64_t at = (int64_t)(hash & (uint64_t)table->mask);
    for (;; at = (at + 1) & table->mask) {
        const struct perfdoctor_place *found = &table->places[at];
        if (found->id == 0) return -at - 1;
        if (found->hash == hash) {
            int64_t begin = table->offsets[found->id - 1];
            if (table->offsets[found->id] - begin == length && is_same(bytes, table->arena + begin, length))
                return found->id - 1;
        }
    }
}

/* A new id for bytes at a free place; PERFDOCTOR_GROW where the table has no room. */
static int64_t add_string(place bytes, int64_t length, uint64_t hash, int64_t at, struct perfdoctor_table *table) {
    int64_t begin = table->offsets[table->count];
    if (begin + length + SPARE > table->room || 2 * (table->count + 1) > table->mask) return PERFDOCTOR_GROW;
    memcpy(table->arena + begin, bytes, (size_t)length);
    table->places[at] = (struct perfdoctor_place){hash, ++table->count};
    table->offsets[table->count] = begin + length;
    return table->count - 1;
}

/* The id of bytes, a new one if need be; PERFDOCTOR_GROW where there is no room for one. */
INLINE int64_t intern(place bytes, int64_t length, struct perfdoctor_table *table) {
    uint64_t hash = hash_bytes(bytes, length);
    int64_t id = find_string(bytes, length, hash, table);
    return LIKELY(id >= 0) ? id : add_string(bytes, length, hash, -id - 1, table);
}

#endif
