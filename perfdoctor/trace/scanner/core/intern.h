/* Byte strings become numbers: a hash table that is at most half full. */

#ifndef INTERN_H
#define INTERN_H

#include "blocks.h"

#define SPARE 128 /* bytes that stay free at the end of an arena: strings are written and compared 64 bytes at a time */

/* A number for up to 64 bytes: words in pairs, each hidden by a secret of its own, and both halves of their products.
 * Who writes a trace does not know the secrets, and so no strings that collide: of sums of words times known numbers
 * two top bits cancel. Independent products, none of which waits for another, and no branch that depends on the length,
 * which is hard to foresee. */
INLINE uint64_t multiply_words(place p, int64_t length, const uint64_t *secrets) {
    uint64_t words[8], sum = 0;
#if defined(VARIANT_AVX512)
    __m512i kept = _mm512_maskz_loadu_epi8(~(uint64_t)0 >> (64 - length), p);
    _mm512_storeu_si512(words, _mm512_xor_si512(kept, _mm512_loadu_si512(secrets)));
#else
    for (int part = 0; part < 8; part++) {
        int64_t rest = length - 8 * part;
        uint64_t kept = rest >= 8 ? ~(uint64_t)0 : bits_below(rest > 0 ? 8 * (int)rest : 0);
        words[part] = (load_eight(p + 8 * part) & kept) ^ secrets[part];
    }
#endif
    for (int part = 0; part < 8; part += 2) {
        unsigned __int128 product = (unsigned __int128)words[part] * words[part + 1];
        sum += (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    return sum;
}

/* A hash of bytes; what follows them is readable but does not count. */
INLINE uint64_t hash_bytes(place p, int64_t length, const uint64_t *secrets) {
    const uint64_t odd = 0x9E3779B97F4A7C15;
    uint64_t mixed = (uint64_t)length * odd;
    for (; UNLIKELY(length > 64); length -= 64, p += 64)
        mixed = (mixed ^ mixed >> 29) * odd + multiply_words(p, 64, secrets);
    if (LIKELY(length > 0)) mixed ^= multiply_words(p, length, secrets);
    mixed = (mixed ^ mixed >> 32) * odd;
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
    uint64_t hash = hash_bytes(bytes, length, table->secrets);
    int64_t id = find_string(bytes, length, hash, table);
    return LIKELY(id >= 0) ? id : add_string(bytes, length, hash, -id - 1, table);
}

#endif
