/* Events become rows: the keys that a plan knows, the record of their values, and the column buffers of each kind.
 *
 * Included by one file for each set of instructions, which defines SCAN_EVENTS, the name of the function made here. */

#include "event_template.h"

/* Read the value at p as the action says. */
INLINE place read_value(struct run *run, place p, int64_t action, int64_t slot) {
    struct reader *reader = &run->reader;
    int64_t *value = &run->scan.record[slot];
    switch (action) {
    case PERFDOCTOR_TIME:
        return read_time(reader, p, value);
    case PERFDOCTOR_SKIP:
        return skip_unwanted(reader, p);
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

/* Read the event at p into the record; returns its last step, and the place past the comma, or at the closing bracket. */
INLINE struct step *read_event(struct run *run, struct step *before, place *p) {
    memcpy(run->scan.record, run->scan.blank, PERFDOCTOR_SLOTS * sizeof(int64_t));
    for (struct step *step = before;;) {
        step = read_next_step(run, step, p);
        if (UNLIKELY(step == NULL) || step->action == STEP_END) return step;
        if (step->action == STEP_WITHOUT_VALUE) continue;
        *p = read_value(run, skip_spaces(*p), step->action, step->slot);
        if (UNLIKELY(*p == NULL)) return NULL;
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

/* The number of the process and thread of the record, mostly that of the event that ended like this one before it. */
INLINE int64_t intern_pair(struct run *run, struct step *end) {
    int64_t pid = run->scan.record[PERFDOCTOR_PID], tid = run->scan.record[PERFDOCTOR_TID];
    if (LIKELY(end->pid == pid && end->tid == tid && end->pair >= 0)) return end->pair;
    end->pid = pid;
    end->tid = tid;
    return end->pair = intern((place)&run->scan.record[PERFDOCTOR_PID], 2 * sizeof(int64_t), run->scan.pairs);
}

/* Write the record as a row of its kind if it is wanted; 0, or why not. */
INLINE int64_t commit_event(struct run *run, struct step *end) {
    struct perfdoctor_scan *scan = &run->scan;
    int64_t *record = scan->record;
    int64_t verdict = end->phase >= 0 ? scan->verdicts[end->phase].phase : PERFDOCTOR_PASSED;
    int64_t kind = end->category >= 0 ? scan->verdicts[end->category].kind : PERFDOCTOR_NONE;
    int64_t wanted = kind == scan->instants ? PERFDOCTOR_INSTANT : PERFDOCTOR_COMPLETE;
    if (verdict != wanted || kind < 0) return verdict == PERFDOCTOR_HALF ? PERFDOCTOR_IRREGULAR : 0;
    if (wanted == PERFDOCTOR_INSTANT) record[PERFDOCTOR_DURATION] = 0;
    int64_t start = record[PERFDOCTOR_START], duration = record[PERFDOCTOR_DURATION];
    if (start == PERFDOCTOR_NOTHING || duration == PERFDOCTOR_NOTHING || start + duration >= PERFDOCTOR_LIMIT_NS)
        return PERFDOCTOR_IRREGULAR;
    int64_t pair = intern_pair(run, end);
    if (pair < 0) return pair;
    record[PERFDOCTOR_PHASE] = end->phase;
    record[PERFDOCTOR_CATEGORY] = end->category;
    record[PERFDOCTOR_PAIR] = pair;
    record[PERFDOCTOR_ORDER] = scan->seen;
    record[PERFDOCTOR_MARK] = scan->verdicts[end->category].mark;
    /* An event that finds no room for one of its rows is read again: then the other must not stand there already. */
    if (scan->filled[kind] >= scan->batch) return PERFDOCTOR_FULL;
    int has_more = end->slots_seen >> scan->common && record[scan->common] != PERFDOCTOR_NONE;
    if (has_more && !write_row(scan, scan->aside)) return PERFDOCTOR_FULL;
    write_row(scan, kind);
    return 0;
}

int64_t SCAN_EVENTS(struct perfdoctor_scan *scan) {
    struct run run = {.reader = {.end = scan->text + scan->end}, .scan = *scan, .steps = (struct step *)scan->steps};
    /* Behind the text where all of it is asked for: nothing ends there. */
    int64_t stop = scan->last <= scan->end ? scan->last : scan->end + PERFDOCTOR_PAD;
    place p = scan->text + scan->begin, last = scan->text + stop;
    int64_t stopped = PERFDOCTOR_REACHED;
    struct step *end = forget_steps(&run);
    while (p < last) {
        place next = p;
        struct step *read = read_event(&run, end, &next);
        int64_t code = LIKELY(read != NULL) ? commit_event(&run, read) : run.reader.code;
        if (UNLIKELY(read == NULL || code != 0)) {
            stopped = code;
            if (code == 0) stopped = is_near_end(&run.reader) ? PERFDOCTOR_MORE : PERFDOCTOR_IRREGULAR;
            break;
        }
        p = next;
        end = read;
        run.scan.seen++;
        run.scan.phases += end->phase >= 0;
        if (UNLIKELY(run.scan.learned > PERFDOCTOR_STEPS - PERFDOCTOR_SLOTS)) end = forget_steps(&run);
    }
    scan->position = (stopped == PERFDOCTOR_REACHED ? p : skip_spaces(p)) - scan->text;
    scan->seen = run.scan.seen;
    scan->phases = run.scan.phases;
    scan->learned = run.scan.learned;
    return stopped;
}
