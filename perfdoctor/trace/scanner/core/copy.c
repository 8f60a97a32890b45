/* Copies the events of a list from one place in memory to another, with other process ids, times and ids of arrows.
 *
 * Only plain numbers are changed here; anything else stops the copying before its event, and is left to Python. */

#include "json.h"

enum {
    MAX_PID = 100000000,
    MAX_DIGITS = 16, /* of microseconds */
};

#define MAX_ID ((int64_t)1 << 52)
#define MAX_MICROSECONDS (INT64_MAX / 2000) /* in nanoseconds, and with an offset as large, they fit into int64 */

struct copier {
    struct reader reader;
    const struct perfdoctor_copy *changes;
    place copied; /* the text before it is copied */
    uint8_t *out;
};

/* Copy what has not been copied of the text before p. */
static void copy_until(struct copier *copier, place p) {
    size_t length = (size_t)(p - copier->copied);
    memcpy(copier->out, copier->copied, length);
    copier->out += length;
    copier->copied = p;
}

/* Write a number that is not negative, with leading zeros up to `least` digits. */
static void print_number(struct copier *copier, int64_t number, int least) {
    uint8_t digits[20];
    int count = 0;
    do {
        digits[count++] = (uint8_t)('0' + number % 10);
        number /= 10;
    } while (number || count < least);
    while (count) *copier->out++ = digits[--count];
}

/* The number whose digits are all that is between two places; -1 where that is something else. */
static int64_t whole_number(place p, place end) {
    if (p == end || end - p > DIGITS) return -1;
    int64_t number = 0;
    for (; p < end; p++) {
        if (*p < '0' || *p > '9') return -1;
        number = 10 * number + (*p - '0');
    }
    return number;
}

/* Write the number at p plus `by`; 0 where it is no plain one below the limit. */
static int shift_number(struct copier *copier, place p, place end, int64_t by, int64_t limit) {
    int64_t number = whole_number(p, end);
    if (number < 0 || number >= limit) return 0;
    copy_until(copier, p);
    print_number(copier, number + by, 1);
    copier->copied = end;
    return 1;
}

/* Write the microseconds at p plus the offset; digits below a nanosecond stay. */
static int shift_time(struct copier *copier, place p, place end) {
    place at = skip_digits(p);
    if (at == p || at - p > MAX_DIGITS) return 0;
    int64_t microseconds = whole_number(p, at);
    if (microseconds > MAX_MICROSECONDS) return 0;
    int64_t ns = 1000 * microseconds;
    if (*at == '.') {
        at++;
        for (int unit = 100; unit && *at >= '0' && *at <= '9'; unit /= 10) ns += unit * (*at++ - '0');
    }
    ns += copier->changes->offset_ns;
    if (skip_digits(at) != end || ns < 0) return 0;
    copy_until(copier, p);
    print_number(copier, ns / 1000, 1);
    *copier->out++ = '.';
    print_number(copier, ns % 1000, 3);
    copier->copied = at;
    return 1;
}

static int is_key(place key, int64_t length, const char *name) {
    return length == (int64_t)strlen(name) && memcmp(key, name, (size_t)length) == 0;
}

static int begins_with(place key, int64_t length, const char *name) {
    int64_t least = (int64_t)strlen(name);
    return length >= least && memcmp(key, name, (size_t)least) == 0;
}

/* Write the value at p as it is to be, if it is one that changes; 0 where that is for Python. */
static int change_value(struct copier *copier, place key, int64_t length, place p, place end) {
    const struct perfdoctor_copy *changes = copier->changes;
    if (is_key(key, length, "ts")) return shift_time(copier, p, end);
    if (is_key(key, length, "id")) return shift_number(copier, p, end, changes->id_shift, MAX_ID);
    if (is_key(key, length, "pid")) return shift_number(copier, p, end, changes->pid_shift, MAX_PID);
    if (is_key(key, length, "ph")) return !(*p == '"' && p[1] == 'M');
    return !(begins_with(key, length, "id2") || begins_with(key, length, "bind"));
}

/* Copy the event whose brace is at p, or leave that for later where nothing in it changes. */
static place copy_event(struct copier *copier, place p) {
    struct reader *reader = &copier->reader;
    p = skip_spaces(p + 1);
    if (*p == '}') return p + 1;
    for (;;) {
        place quote = find_key_end(reader, p);
        place value = quote ? find_value(reader, quote) : NULL;
        place end = value ? skip_unwanted(reader, value) : NULL;
        if (end == NULL) return NULL;
        if (copier->changes->changes && !change_value(copier, p + 1, quote - p - 1, value, end))
            return give_up(reader, PERFDOCTOR_IRREGULAR);
        p = skip_spaces(end);
        if (*p == '}') return p + 1;
        if (*p != ',') return fail(reader, p);
        p = skip_spaces(p + 1);
    }
}

int64_t perfdoctor_copy_events(struct perfdoctor_copy *copy) {
    struct copier copier = {.reader = {.end = copy->stop}, .changes = copy, .copied = copy->text, .out = copy->out};
    place p = copy->text, stop = copy->stop;
    int64_t stopped;
    for (;;) {
        p = skip_spaces(p);
        if (*p == ',') {
            p++;
            continue;
        }
        stopped = *p == ']' ? PERFDOCTOR_CLOSED : PERFDOCTOR_IRREGULAR;
        if (*p != '{' || copy->next == *copy->moved) break;
        struct copier before = copier;
        place end = copy_event(&copier, p);
        /* What follows the number at the end of the text is not known, and neither is what follows an event. */
        if (end == NULL || end >= stop) {
            stopped = end || is_near_end(&copier.reader) ? PERFDOCTOR_MORE : PERFDOCTOR_IRREGULAR;
            copier = before;
            break;
        }
        p = end;
        copy->next++;
    }
    if (p >= stop) {
        p = stop;
        stopped = PERFDOCTOR_MORE;
    }
    copy_until(&copier, p);
    copy->text = p;
    copy->out = copier.out;
    return stopped;
}
