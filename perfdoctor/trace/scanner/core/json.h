/* The grammar of JSON: where white space, strings, numbers and whole values end. */

#ifndef JSON_H
#define JSON_H

#include "blocks.h"

enum {
    DIGITS = 18,  /* that surely fit into int64 */
    DEEPEST = 60, /* levels of nesting that fit into the bits of one number */
};

#define ALL_ZEROS 0x3030303030303030 /* eight digits 0 */
#define TEXT_NULL 0x6C6C756E         /* four letters as a number */
#define TEXT_TRUE 0x65757274
#define TEXT_FALS 0x736C6166
#define TEXT_INFI 0x69666E49
#define TEXT_NITY 0x7974696E
#define TEXT_INF 0x666E69 /* three letters */
#define TEXT_NAN 0x4E614E
#define TEXT_C_NAN 0x6E616E

/* The end of the white space at p. Zeros are none, so it ends behind the text at the latest. */
INLINE place skip_spaces(place p) {
    if (LIKELY(*p > ' ')) return p;
    if (*p == ' ' && p[1] > ' ') return p + 1; /* one, as behind most colons and commas where there are any */
    uint64_t others = ~find_spaces(load_block(p));
    while (UNLIKELY(others == 0)) {
        p += 64;
        others = ~find_spaces(load_block(p));
    }
    return p + lowest_bit(others);
}

/* The end of the escape at p, which is a backslash. */
COLD place skip_escape(struct reader *reader, place p) {
    switch (p[1]) {
    case 'u':
        for (place at = p + 2; at < p + 6; at++) {
            uint8_t folded = *at | 32;
            if (!((*at >= '0' && *at <= '9') || (folded >= 'a' && folded <= 'f'))) return fail(reader, at);
        }
        return p + 6;
    case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't':
        return p + 2;
    default:
        return fail(reader, p + 1);
    }
}

/* The closing quotation mark of the string whose first byte is at p. */
INLINE place find_quote(struct reader *reader, place p) {
    while (LIKELY(p < reader->end)) {
        block text = load_block(p);
        uint64_t stops = find_byte(text, '"') | find_byte(text, '\\');
        if (stops == 0) {
            p += 64;
            continue;
        }
        p += lowest_bit(stops);
        if (LIKELY(*p == '"')) return p;
        p = skip_escape(reader, p);
        if (p == NULL) return NULL;
    }
    return fail(reader, p > reader->end ? p : reader->end);
}

/* The closing quotation mark of the key whose opening one is at p; it has no escapes. */
INLINE place find_key_end(struct reader *reader, place p) {
    if (*p != '"') return fail(reader, p);
    for (p++; p < reader->end; p += 64) {
        block text = load_block(p);
        uint64_t stops = find_byte(text, '"') | find_byte(text, '\\');
        if (stops == 0) continue;
        p += lowest_bit(stops);
        return *p == '"' ? p : fail(reader, p);
    }
    return fail(reader, p);
}

/* Where the value begins that belongs to the key with this closing quotation mark. */
INLINE place find_value(struct reader *reader, place quote) {
    place p = skip_spaces(quote + 1);
    return *p == ':' ? skip_spaces(p + 1) : fail(reader, p);
}

/* How many of eight bytes are digits, from the first on. */
INLINE int count_digits(uint64_t bytes) {
    uint64_t digits = bytes ^ ALL_ZEROS;
    /* Above nine, a byte gets its top bit. What that carries into the bytes behind the first such one is no matter. */
    uint64_t others = ((digits + 0x7676767676767676) | digits) & 0x8080808080808080;
    return others ? lowest_bit(others) >> 3 : 8;
}

/* The number that the first `count` of eight bytes are, which are digits; 0 for none. */
INLINE uint64_t join_digits(uint64_t bytes, int count) {
    if (count == 0) return 0;
    uint64_t digits = (bytes ^ ALL_ZEROS) << (64 - 8 * count); /* zeros come before them */
    digits = digits * 10 + (digits >> 8);                      /* pairs of digits in every second byte */
    uint64_t fours = (digits & 0x000000FF000000FF) * 0x000F424000000064;
    return (fours + ((digits >> 16) & 0x000000FF000000FF) * 0x0000271000000001) >> 32;
}

/* The end of the digits at p, of which there may be none. */
INLINE place skip_digits(place p) {
    int count = count_digits(load_eight(p));
    while (UNLIKELY(count == 8)) {
        p += 8;
        count = count_digits(load_eight(p));
    }
    return p + count;
}

/* The end of the digits at p, and their number, which means something for up to 19 of them. */
INLINE place read_digits(place p, uint64_t *number) {
    uint64_t bytes = load_eight(p);
    int count = count_digits(bytes);
    *number = join_digits(bytes, count);
    while (count == 8) {
        static const uint64_t powers[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
        p += 8;
        bytes = load_eight(p);
        count = count_digits(bytes);
        *number = *number * powers[count] + join_digits(bytes, count);
    }
    return p + count;
}

/* The end of the number at p, whose integer has no more than 18 digits and no leading zero. */
INLINE place skip_number(struct reader *reader, place p) {
    p += *p == '-';
    place q = skip_digits(p);
    if (q == p || q - p > DIGITS || (q - p > 1 && *p == '0')) return fail(reader, p);
    if (*q == '.') {
        place fraction = q + 1;
        q = skip_digits(fraction);
        if (q == fraction) return fail(reader, q);
    }
    if ((*q | 32) == 'e') {
        place exponent = q + 1;
        exponent += *exponent == '-' || *exponent == '+';
        q = skip_digits(exponent);
        if (q == exponent) return fail(reader, q);
    }
    return q;
}

/* The end of the string, number, true, false or null at p. */
INLINE place skip_scalar(struct reader *reader, place p) {
    if (*p == '"') {
        place quote = find_quote(reader, p + 1);
        return quote ? quote + 1 : NULL;
    }
    uint32_t letters = load_four(p);
    if (letters == TEXT_NULL || letters == TEXT_TRUE) return p + 4;
    if (letters == TEXT_FALS && p[4] == 'e') return p + 5;
    return skip_number(reader, p);
}

/* The end of what C or Python prints for a number that is none, as a member's value: inf, nan, NaN, Infinity; NULL where
 * nothing of the kind is at p. */
COLD place skip_printed(place p) {
    place q = p + (*p == '-');
    uint32_t letters = load_four(q), three = letters & 0xFFFFFF;
    if (three == TEXT_NAN && q == p) return p + 3;
    if (letters == TEXT_INFI && load_four(q + 4) == TEXT_NITY) return q + 8;
    if (three == TEXT_INF || three == TEXT_C_NAN) {
        place after = skip_spaces(q + 3);
        if (*after == ',' || *after == '}') return q + 3;
    }
    return NULL;
}

/* From the bracket or the comma before it to the next value of a list or an object, past its key. */
static place step_to_value(struct reader *reader, place p, int in_object) {
    p = skip_spaces(p + 1);
    if (!in_object) return p;
    place quote = find_key_end(reader, p);
    return quote ? find_value(reader, quote) : NULL;
}

/* The end of the value at p, whatever is nested in it: strict JSON, byte for byte. */
COLD place skip_nested(struct reader *reader, place p) {
    int depth = 0;
    uint64_t objects = 0; /* a bit for each level: whether it is an object */
    while (p) {
        if (*p == '{' || *p == '[') {
            int in_object = *p == '{';
            if (depth == DEEPEST) return fail(reader, p);
            depth++;
            objects = 2 * objects + (uint64_t)in_object;
            place first = skip_spaces(p + 1);
            if (*first != (in_object ? '}' : ']')) {
                p = step_to_value(reader, p, in_object);
                continue;
            }
            p = first;
        } else {
            p = skip_scalar(reader, p);
        }
        while (p && depth) {
            p = skip_spaces(p);
            if (*p == ',') {
                p = step_to_value(reader, p, (int)(objects & 1));
                break;
            }
            if (*p != (objects & 1 ? '}' : ']')) return fail(reader, p);
            depth--;
            objects >>= 1;
            p++;
        }
        if (depth == 0) return p;
    }
    return NULL;
}

/* The end of the value at p. */
INLINE place skip_value(struct reader *reader, place p) {
    return *p == '[' || *p == '{' ? skip_nested(reader, p) : skip_scalar(reader, p);
}

/* The end of a member's value at p that is not wanted, also where it is a number that is none. */
INLINE place skip_unwanted(struct reader *reader, place p) {
    place q = skip_value(reader, p);
    if (LIKELY(q != NULL) || is_near_end(reader)) return q;
    return skip_printed(p);
}

/* Bits that are set from each odd one of these on to the next one, which is not. */
INLINE uint64_t fill_between(uint64_t bits) {
#if defined(VARIANT_AVX512) || defined(VARIANT_AVX2)
    /* A product without carries by ones alone is the sum, without carries, of all bits up to each. */
    __m128i product = _mm_clmulepi64_si128(_mm_set_epi64x(0, (int64_t)bits), _mm_set1_epi8(-1), 0);
    return (uint64_t)_mm_cvtsi128_si64(product);
#else
    for (int by = 1; by < 64; by *= 2) bits ^= bits << by;
    return bits;
#endif
}

/* Where the bracket at p is closed, if what lies between is well formed; `skip_nested` tells. */
COLD place find_bracket_slowly(struct reader *reader, place p) {
    int64_t depth = 0;
    while (p < reader->end) {
        block text = load_block(p), folded = fold_case(text); /* [ and { differ by one bit, as ] and } do */
        uint64_t stops = find_byte(folded, '{') | find_byte(folded, '}') | find_byte(text, '"');
        if (stops == 0) {
            p += 64;
            continue;
        }
        p += lowest_bit(stops);
        if (*p == '"') {
            p = find_quote(reader, p + 1);
            if (p == NULL) return NULL;
        } else {
            depth += (*p | 32) == '{' ? 1 : -1;
            if (depth == 0) return p + 1;
        }
        p++;
    }
    return fail(reader, reader->end);
}

/* The same, at once where it is in the first 64 bytes, without escapes, and lists lie in it no more than one deep. */
INLINE place find_bracket(struct reader *reader, place p) {
    block text = load_block(p), folded = fold_case(text);
    uint64_t in_string = fill_between(find_byte(text, '"'));
    uint64_t opening = find_byte(folded, '{') & ~in_string, closing = find_byte(folded, '}') & ~in_string;
    uint64_t none = ~(opening | closing);
    /* The brackets that come next after a closing one, or after the first: a carry runs there over all that is none. */
    uint64_t after = closing << 1 | 2;
    uint64_t next = ((none + (after & none)) | after) & ~none;
    uint64_t last = next & closing;
    if (LIKELY(last != 0)) {
        uint64_t up_to = last ^ (last - 1);
        int is_balanced = __builtin_popcountll(opening & up_to) == __builtin_popcountll(closing & up_to);
        if (LIKELY(is_balanced && (find_byte(text, '\\') & up_to) == 0)) return p + lowest_bit(last) + 1;
    }
    return find_bracket_slowly(reader, p);
}

#endif
