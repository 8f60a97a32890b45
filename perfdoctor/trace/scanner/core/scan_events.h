/* Events become rows: the keys that a plan knows, the record of their values, and the column buffers of each kind.
 *
 * Included by one file for each set of instructions, which defines SCAN_EVENTS, the name of the function made here. */

#include "values.h"

/* One run: a copy of what the caller gave, so that the compiler knows that no store changes it, and the event so far. */
struct run {
    struct reader reader;
    struct perfdoctor_scan scan;
    uint64_t seen;  /* a bit for each slot whose key has come up in this event */
    int64_t before; /* the number of the last key, PERFDOCTOR_KEYS before the first */
    int inside;     /* 1 among the arguments */
};

/* Write down how a numbered key stands in the text, with quotation marks and colon, to compare it at once from now on. */
COLD void write_pattern(struct perfdoctor_key *key, place text, int64_t length) {
    if (length + 3 > PERFDOCTOR_PATTERN || key->length) return;
    key->pattern[0] = '"';
    memcpy(key->pattern + 1, text, (size_t)length);
    key->pattern[length + 1] = '"';
    key->pattern[length + 2] = ':';
    key->length = length + 3;
}

/* The number of the key at p, looked up, and the place of its value; PERFDOCTOR_KEYS where there is no number for it. */
COLD place look_up_key(struct run *run, place p, int64_t *number) {
    struct perfdoctor_table *table = run->scan.keys;
    place quote = find_key_end(&run->reader, p);
    if (quote == NULL) return NULL;
    int64_t length = quote - p - 1;
    *number = PERFDOCTOR_KEYS;
    if (length <= PERFDOCTOR_LONGEST) {
        uint64_t hash = hash_bytes(p + 1, length, table->secrets);
        int64_t found = find_string(p + 1, length, hash, table);
        if (found < 0 && table->count < PERFDOCTOR_KEYS) found = add_string(p + 1, length, hash, -found - 1, table);
        if (found >= 0) {
            *number = found;
            write_pattern(&run->scan.key[found], p + 1, length);
        }
    }
    return find_value(&run->reader, quote);
}

/* Whether a key with quotation marks and colon is at p. */
INLINE int is_key_at(place p, const struct perfdoctor_key *key) {
    uint64_t differ = ~find_same(load_block(p), load_block(key->pattern));
    return key->length && differ << (PERFDOCTOR_PATTERN - key->length) == 0;
}

/* The number of the key at p, and the place of its value. Events are alike: what followed the key before the last time
 * is what follows it now, nearly always. */
INLINE place read_key(struct run *run, place p, int64_t *number) {
    uint16_t *follows = run->scan.key[run->before].follows[run->inside];
    for (int guess = 0; guess < 2; guess++) {
        const struct perfdoctor_key *key = &run->scan.key[follows[guess]];
        if (LIKELY(is_key_at(p, key))) {
            *number = follows[guess];
            if (guess) follows[1] = follows[0], follows[0] = (uint16_t)*number;
            return skip_spaces(p + key->length);
        }
    }
    p = look_up_key(run, p, number);
    if (p) follows[1] = follows[0], follows[0] = (uint16_t)*number;
    return p;
}

/* Step into the arguments whose brace is at p: to the first key, or behind them where they are empty. */
INLINE place open_arguments(struct run *run, place p) {
    p = skip_spaces(p + 1);
    if (*p == '}') return p + 1;
    run->inside = 1;
    return p;
}

/* Read the value at p as the action says. */
INLINE place read_value(struct run *run, place p, int64_t action, int64_t slot) {
    struct reader *reader = &run->reader;
    int64_t *value = &run->scan.record[slot];
    switch (action) {
    case PERFDOCTOR_TIME:
        return read_time(reader, p, value);
    case PERFDOCTOR_INSIDE:
        return *p == '{' ? open_arguments(run, p) : skip_unwanted(reader, p);
    case PERFDOCTOR_TAG:
        return *p == '"' ? read_word(reader, p, 0, run->scan.tags, value) : fail(reader, p);
    case PERFDOCTOR_WORD:
        return *p == '"' ? read_word(reader, p, 0, run->scan.words, value) : fail(reader, p);
    case PERFDOCTOR_NUMBER:
        if (*p == '"') return read_word(reader, p, PERFDOCTOR_STRING, run->scan.words, value);
        return load_four(p) == TEXT_NULL ? p + 4 : read_integer(reader, p, value);
    case PERFDOCTOR_PRODUCT:
        if (*p == '[') return read_product(reader, p, value);
        return load_four(p) == TEXT_NULL ? p + 4 : fail(reader, p);
    default:
        return load_four(p) == TEXT_NULL ? p + 4 : read_text(reader, p, run->scan.words, value);
    }
}

/* Read the member whose key is at p. An event with the same known key twice is irregular. */
INLINE place read_member(struct run *run, place p) {
    int64_t number, inside = run->inside;
    place value = read_key(run, p, &number);
    if (UNLIKELY(value == NULL)) return NULL;
    run->before = number;
    const struct perfdoctor_key *key = &run->scan.key[number];
    int64_t action = key->of[inside].action, slot = key->of[inside].slot;
    if (action == PERFDOCTOR_SKIP) return skip_unwanted(&run->reader, value);
    uint64_t bit = (uint64_t)1 << slot;
    if (UNLIKELY(run->seen & bit)) return fail(&run->reader, p);
    run->seen |= bit;
    return read_value(run, value, action, slot);
}

/* Read the event whose brace is at p into the record. */
INLINE place read_event(struct run *run, place p) {
    p = skip_spaces(p + 1);
    if (*p == '}') return p + 1;
    for (;;) {
        int was_inside = run->inside;
        p = read_member(run, p);
        if (UNLIKELY(p == NULL)) return NULL;
        if (run->inside != was_inside) continue;
        p = skip_spaces(p);
        if (run->inside && *p == '}') {
            run->inside = 0;
            p = skip_spaces(p + 1);
        }
        if (*p == '}') return p + 1;
        if (*p != ',') return fail(&run->reader, p);
        p = skip_spaces(p + 1);
    }
}

/* Write the columns of a kind from the record, if there is room for another row. */
INLINE int write_row(struct perfdoctor_scan *scan, int64_t kind) {
    int64_t row = scan->filled[kind];
    if (row >= scan->batch) return 0;
    int64_t first = kind * scan->columns;
    int64_t *column = &scan->rows[first * scan->batch + row];
    const int64_t *source = &scan->sources[first];
    for (int64_t each = 0; each < scan->columns && source[each] >= 0; each++, column += scan->batch)
        *column = scan->record[source[each]];
    scan->filled[kind] = row + 1;
    return 1;
}

/* Write the record as a row of its kind if it is wanted; 0, or why not. */
INLINE int64_t commit_event(struct run *run) {
    struct perfdoctor_scan *scan = &run->scan;
    int64_t *record = scan->record;
    int64_t phase = record[PERFDOCTOR_PHASE], category = record[PERFDOCTOR_CATEGORY];
    int64_t verdict = phase >= 0 ? scan->verdicts[phase].phase : PERFDOCTOR_PASSED;
    int64_t kind = category >= 0 ? scan->verdicts[category].kind : PERFDOCTOR_NONE;
    if (verdict == PERFDOCTOR_UNKNOWN || kind == PERFDOCTOR_UNKNOWN) return PERFDOCTOR_CLASSIFY;
    int64_t wanted = kind == scan->instants ? PERFDOCTOR_INSTANT : PERFDOCTOR_COMPLETE;
    if (verdict != wanted || kind < 0) return verdict == PERFDOCTOR_HALF ? PERFDOCTOR_IRREGULAR : 0;
    if (wanted == PERFDOCTOR_INSTANT) record[PERFDOCTOR_DURATION] = 0;
    int64_t start = record[PERFDOCTOR_START], duration = record[PERFDOCTOR_DURATION];
    if (start == PERFDOCTOR_NOTHING || duration == PERFDOCTOR_NOTHING || start + duration >= PERFDOCTOR_LIMIT_NS)
        return PERFDOCTOR_IRREGULAR;
    int64_t pair = intern((place)&record[PERFDOCTOR_PID], 2 * sizeof(int64_t), scan->pairs);
    if (pair < 0) return pair;
    record[PERFDOCTOR_PAIR] = pair;
    record[PERFDOCTOR_ORDER] = scan->seen;
    record[PERFDOCTOR_MARK] = scan->verdicts[category].mark;
    /* An event that finds no room for one of its rows is read again: then the other must not stand there already. */
    if (scan->filled[kind] >= scan->batch) return PERFDOCTOR_FULL;
    int has_more = run->seen >> scan->common && record[scan->common] != PERFDOCTOR_NONE;
    if (has_more && !write_row(scan, scan->aside)) return PERFDOCTOR_FULL;
    write_row(scan, kind);
    return 0;
}

/* Read and commit the event at p; returns where the next may begin: past the comma, or at the closing bracket. */
INLINE place scan_event(struct run *run, place p) {
    if (UNLIKELY(*p != '{')) return *p == ']' ? give_up(&run->reader, PERFDOCTOR_CLOSED) : fail(&run->reader, p);
    memcpy(run->scan.record, run->scan.blank, PERFDOCTOR_SLOTS * sizeof(int64_t));
    run->seen = 0;
    run->before = PERFDOCTOR_KEYS;
    run->inside = 0;
    p = read_event(run, p);
    if (UNLIKELY(p == NULL)) return NULL;
    p = skip_spaces(p);
    if (*p == ',') p++;
    else if (*p != ']') return fail(&run->reader, p);
    int64_t code = commit_event(run);
    return LIKELY(code == 0) ? p : give_up(&run->reader, code);
}

int64_t SCAN_EVENTS(struct perfdoctor_scan *scan) {
    struct run run = {.reader = {.end = scan->text + scan->end}, .scan = *scan};
    /* Behind the text where all of it is asked for: nothing ends there. */
    int64_t stop = scan->last <= scan->end ? scan->last : scan->end + PERFDOCTOR_PAD;
    place p = scan->text + scan->begin, last = scan->text + stop;
    int64_t stopped = PERFDOCTOR_REACHED;
    while (p < last) {
        place next = scan_event(&run, skip_spaces(p));
        if (UNLIKELY(next == NULL)) {
            stopped = run.reader.code;
            if (stopped == 0) stopped = is_near_end(&run.reader) ? PERFDOCTOR_MORE : PERFDOCTOR_IRREGULAR;
            break;
        }
        p = next;
        run.scan.seen++;
        run.scan.phases += run.scan.record[PERFDOCTOR_PHASE] >= 0;
    }
    scan->position = (stopped == PERFDOCTOR_REACHED ? p : skip_spaces(p)) - scan->text;
    scan->seen = run.scan.seen;
    scan->phases = run.scan.phases;
    return stopped;
}
