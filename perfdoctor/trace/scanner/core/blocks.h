/* 64 bytes of text at once: which of them are a certain character, as the bits of a number.
 *
 * A file that includes this defines VARIANT_AVX512, VARIANT_AVX2 or VARIANT_NEON before, or nothing for plain C. */

#ifndef BLOCKS_H
#define BLOCKS_H

#include "text.h"

#if defined(VARIANT_AVX512) || defined(VARIANT_AVX2)
#include <immintrin.h>
/* The functions from here to END_OF_VARIANT may use these instructions, whatever the file is compiled for. */
#if defined(VARIANT_AVX512)
#define INSTRUCTIONS "avx512f,avx512bw,avx512vl,avx512dq,avx2,bmi,bmi2,lzcnt,popcnt,pclmul"
#else
#define INSTRUCTIONS "avx2,bmi,bmi2,lzcnt,popcnt,pclmul"
#endif
#define PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define ALLOW(names) PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define END_OF_VARIANT _Pragma("clang attribute pop")
#else
#define ALLOW(names) _Pragma("GCC push_options") PRAGMA(GCC target(names))
#define END_OF_VARIANT _Pragma("GCC pop_options")
#endif
ALLOW(INSTRUCTIONS)
#else
#define END_OF_VARIANT
#endif

#if defined(VARIANT_AVX512)

typedef __m512i block;

INLINE block load_block(place p) { return _mm512_loadu_si512(p); }

INLINE block fold_case(block text) { return _mm512_or_si512(text, _mm512_set1_epi8(32)); }

INLINE uint64_t find_byte(block text, char byte) { return _mm512_cmpeq_epi8_mask(text, _mm512_set1_epi8(byte)); }

INLINE uint64_t find_same(block text, block other) { return _mm512_cmpeq_epi8_mask(text, other); }

#elif defined(VARIANT_AVX2)

typedef struct {
    __m256i low, high;
} block;

INLINE block load_block(place p) {
    return (block){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 32))};
}

INLINE block fold_case(block text) {
    __m256i bit = _mm256_set1_epi8(32);
    return (block){_mm256_or_si256(text.low, bit), _mm256_or_si256(text.high, bit)};
}

INLINE uint64_t find_same(block text, block other) {
    uint64_t low = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(text.low, other.low));
    uint64_t high = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(text.high, other.high));
    return low | high << 32;
}

INLINE uint64_t find_byte(block text, char byte) {
    __m256i all = _mm256_set1_epi8(byte);
    return find_same(text, (block){all, all});
}

#elif defined(VARIANT_NEON)

#include <arm_neon.h>

typedef uint8x16x4_t block;

INLINE block load_block(place p) {
    return (block){{vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)}};
}

INLINE block fold_case(block text) {
    for (int part = 0; part < 4; part++) text.val[part] = vorrq_u8(text.val[part], vdupq_n_u8(32));
    return text;
}

/* One bit of each byte, which are all ones or all zeros: bits by place in eight bytes, added up in pairs. */
INLINE uint64_t collect_bits(uint8x16_t a, uint8x16_t b, uint8x16_t c, uint8x16_t d) {
    static const uint8_t powers[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t bits = vld1q_u8(powers);
    uint8x16_t low = vpaddq_u8(vandq_u8(a, bits), vandq_u8(b, bits));
    uint8x16_t high = vpaddq_u8(vandq_u8(c, bits), vandq_u8(d, bits));
    low = vpaddq_u8(low, high);
    low = vpaddq_u8(low, low);
    return vgetq_lane_u64(vreinterpretq_u64_u8(low), 0);
}

INLINE uint64_t find_same(block text, block other) {
    return collect_bits(vceqq_u8(text.val[0], other.val[0]), vceqq_u8(text.val[1], other.val[1]),
                        vceqq_u8(text.val[2], other.val[2]), vceqq_u8(text.val[3], other.val[3]));
}

INLINE uint64_t find_byte(block text, char byte) {
    uint8x16_t all = vdupq_n_u8((uint8_t)byte);
    return find_same(text, (block){{all, all, all, all}});
}

#else

typedef struct {
    uint64_t words[8];
} block;

INLINE block load_block(place p) {
    block text;
    for (int part = 0; part < 8; part++) text.words[part] = load_eight(p + 8 * part);
    return text;
}

INLINE block fold_case(block text) {
    for (int part = 0; part < 8; part++) text.words[part] |= 0x2020202020202020;
    return text;
}

INLINE uint64_t find_same(block text, block other) {
    const uint64_t low = 0x7F7F7F7F7F7F7F7F;
    uint64_t bits = 0;
    for (int part = 0; part < 8; part++) {
        uint64_t differ = text.words[part] ^ other.words[part];
        uint64_t same = ~(((differ & low) + low) | differ | low); /* the top bit of each byte that is zero */
        bits |= ((same >> 7) * 0x0102040810204080 >> 56) << 8 * part;
    }
    return bits;
}

INLINE uint64_t find_byte(block text, char byte) {
    block all;
    for (int part = 0; part < 8; part++) all.words[part] = 0x0101010101010101 * (uint8_t)byte;
    return find_same(text, all);
}

#endif

INLINE uint64_t find_spaces(block text) {
    return find_byte(text, ' ') | find_byte(text, '\n') | find_byte(text, '\r') | find_byte(text, '\t');
}

/* Whether `length` bytes at two places are the same; 64 beyond them can be read. */
INLINE int is_same(place one, place other, int64_t length) {
    for (; length > 64; length -= 64, one += 64, other += 64)
        if (~find_same(load_block(one), load_block(other))) return 0;
    uint64_t differ = ~find_same(load_block(one), load_block(other));
    return length == 0 || differ << (64 - length) == 0;
}

#endif
