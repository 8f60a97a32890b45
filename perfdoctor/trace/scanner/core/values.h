/* Values in the forms that columns have: a number or a text is read at one place and written at another. */

#ifndef VALUES_H
#define VALUES_H

#include "intern.h"
#include "json.h"

/* Read the microseconds at p as nanoseconds. Digits below are rounded half up, for negative times too: a shift by whole
 * nanoseconds shifts every time alike. */
INLINE place read_time(struct reader *reader, place p, int64_t *value) {
    int is_negative = *p == '-';
    p += is_negative;
    uint64_t whole;
    place q = read_digits(p, &whole);
    /* More digits may not fit into the number, so they are counted before it is looked at. */
    if (q == p || q - p > 16 || whole >= (uint64_t)PERFDOCTOR_LIMIT_NS / 1000 || (q - p > 1 && *p == '0'))
        return fail(reader, p);
    int64_t ns = (int64_t)whole * 1000;
    if (*q == '.') {
        place fraction = q + 1;
        uint64_t bytes = load_eight(fraction);
        int count = count_digits(bytes);
        q = fraction + count;
        if (UNLIKELY(count == 8)) q = skip_digits(q);
        if (count == 0 || (is_negative && count > 3)) return fail(reader, count ? p : q);
        static const int64_t units[] = {0, 100, 10, 1};
        int kept = count < 3 ? count : 3;
        ns += (int64_t)join_digits(bytes, kept) * units[kept];
        ns += count > 3 && fraction[3] >= '5';
    }
    *value = is_negative ? -ns : ns;
    return q;
}

/* Read the integer at p. */
INLINE place read_integer(struct reader *reader, place p, int64_t *value) {
    int is_negative = *p == '-';
    p += is_negative;
    uint64_t number;
    place q = read_digits(p, &number);
    if (q == p || q - p > DIGITS || ((is_negative || q - p > 1) && *p == '0')) return fail(reader, p);
    *value = is_negative ? -(int64_t)number : (int64_t)number;
    return q;
}

/* Read the product of the list of positive integers whose bracket is at p. */
INLINE place read_product(struct reader *reader, place p, int64_t *value) {
    const int64_t most = (int64_t)1 << 31; /* the largest of two numbers whose product surely fits */
    int64_t product = 1;
    do {
        int64_t factor = 0;
        place number = skip_spaces(p + 1);
        p = read_integer(reader, number, &factor);
        if (p == NULL) return NULL;
        if (product >= most || factor <= 0 || factor >= most) return fail(reader, number);
        product *= factor;
        p = skip_spaces(p);
    } while (*p == ',');
    *value = product;
    return *p == ']' ? p + 1 : fail(reader, p);
}

/* Intern the string whose opening quotation mark is at p; its id is counted from `base`. */
INLINE place read_word(
    struct reader *reader, place p, int64_t base, struct perfdoctor_table *table, int64_t *value) {
    place quote = find_quote(reader, p + 1);
    if (UNLIKELY(quote == NULL)) return NULL;
    int64_t id = intern(p + 1, quote - p - 1, table);
    if (UNLIKELY(id < 0)) return give_up(reader, id);
    *value = base + id;
    return quote + 1;
}

/* Intern the JSON text at p. Only new texts are checked byte for byte. */
INLINE place read_text(struct reader *reader, place p, struct perfdoctor_table *table, int64_t *value) {
    place q = *p == '[' || *p == '{' ? find_bracket(reader, p) : skip_scalar(reader, p);
    if (UNLIKELY(q == NULL)) return NULL;
    uint64_t hash = hash_bytes(p, q - p, table->secrets);
    int64_t id = find_string(p, q - p, hash, table);
    if (UNLIKELY(id < 0)) {
        place checked = skip_value(reader, p);
        if (checked != q) return checked ? fail(reader, p) : NULL;
        id = add_string(p, q - p, hash, -id - 1, table);
        if (id < 0) return give_up(reader, id);
    }
    *value = id;
    return q;
}

#endif
