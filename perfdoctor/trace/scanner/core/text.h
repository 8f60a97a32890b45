/* Bytes of text, read where they stand, and what a reader of text remembers when it cannot go on. */

#ifndef TEXT_H
#define TEXT_H

#include <stdint.h>
#include <string.h>

#include "perfdoctor.h"

#define INLINE static inline __attribute__((always_inline))
#define COLD static __attribute__((noinline, cold, unused))
#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

typedef const uint8_t *place;

/* A function that reads text returns the place behind what it read, or NULL: then `failed` is where it could not go on,
 * or `code` says why, where it is not for the text. */
struct reader {
    place end;    /* the text ends here, and zeros follow */
    place failed;
    int64_t code;
};

enum { NEAR = 16 }; /* a word or number that ends this close to the end of the text may go on beyond it */

COLD place fail(struct reader *reader, place at) {
    reader->failed = at;
    return NULL;
}

COLD place give_up(struct reader *reader, int64_t code) {
    reader->code = code;
    return NULL;
}

/* Whether reading failed so close to the end of the text that more of it may help. */
INLINE int is_near_end(const struct reader *reader) { return reader->code == 0 && reader->failed + NEAR >= reader->end; }

INLINE uint64_t load_eight(place p) {
    uint64_t word;
    memcpy(&word, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

INLINE uint32_t load_four(place p) { return (uint32_t)(load_eight(p)); }

INLINE int lowest_bit(uint64_t bits) { return __builtin_ctzll(bits); }

/* The lowest bits of a number: all up to 63 of them. */
INLINE uint64_t bits_below(int count) { return ((uint64_t)1 << count) - 1; }

#endif
