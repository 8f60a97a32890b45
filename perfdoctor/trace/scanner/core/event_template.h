/* Templates of events: the profiler writes the events of a kind alike, so the text between two values is nearly always
 * what it was in an earlier event. A template is a path of steps; each has such a text, and what is done with the value
 * behind it:
 *
 *     {"ph":"X","cat":"kernel","name":"gemm","dur":12,"args":{"stream":7}},
 *     '------------ 1 ---------------'      '-- 2 --' '------ 3 ------' '4'
 *
 * Tags, the phase and the category, belong to the text: it is they that make the kind. Templates that begin alike share
 * their steps, so that all of them are one tree. A text is compared in full; where none of the steps that may follow
 * has the text that is there, it is read as JSON, and a step is learned of it. */

#ifndef EVENT_TEMPLATE_H
#define EVENT_TEMPLATE_H

#include "values.h"

/* Beside the actions of values: the step has none, or is the end of its event. */
enum { STEP_WITHOUT_VALUE = PERFDOCTOR_INSIDE + 1, STEP_END };

enum { BETWEEN_EVENTS, IN_EVENT, IN_ARGUMENTS };

enum {
    STEP_TEXT = 64,         /* most bytes of the text of a step, which are compared at once */
    MOST_ALTERNATIVES = 24, /* steps that may follow one step, so that no text makes the search long */
};

struct step {
    uint8_t text[STEP_TEXT];
    int64_t length;
    uint64_t slots_seen;     /* a bit for each slot whose key has come up in the event so far */
    int64_t pid, tid, pair;  /* of the last event that ended here; `pair` is PERFDOCTOR_NONE before there was one */
    int32_t phase, category; /* the tags so far, PERFDOCTOR_NONE where there is none */
    int16_t action, slot;    /* of the value behind the text */
    int16_t level;           /* where the text ends: between events, in one, or in its arguments */
    uint16_t guess;          /* the step that followed last time; 0 before there was one */
    uint16_t first;          /* of the steps that may follow, 0 where there are none; the end of an event has none */
    uint16_t next;           /* of the steps that may follow the same one as this, 0 behind the last */
    uint16_t alternatives;   /* how many steps may follow */
    uint8_t unused[PERFDOCTOR_STEP_BYTES - STEP_TEXT - 62];
};
_Static_assert(sizeof(struct step) == PERFDOCTOR_STEP_BYTES, "layout.py has the size of a step");

/* One run: a copy of what the caller gave, so that the compiler knows that no store changes it. */
struct run {
    struct reader reader;
    struct perfdoctor_scan scan;
    struct step *steps;
    struct step unlearned; /* the last step that is not kept among them */
};

/* Forget what was learned, if there is little room for more; returns the step that stands before all events. */
static struct step *forget_steps(struct run *run) {
    if (run->scan.learned == 0 || run->scan.learned > PERFDOCTOR_STEPS - PERFDOCTOR_SLOTS) {
        *run->steps = (struct step){.phase = PERFDOCTOR_NONE, .category = PERFDOCTOR_NONE};
        run->scan.learned = 1;
    }
    return run->steps;
}

/* Whether the text of a step is at p. */
INLINE int is_step_at(place p, const struct step *step) {
    uint64_t differ = ~find_same(load_block(p), load_block(step->text));
    return step->length && differ << (STEP_TEXT - step->length) == 0;
}

/* What is done with the value of the key between the quotation marks: PERFDOCTOR_SKIP for a key that is not known. */
static struct perfdoctor_use find_use(const struct run *run, place key, place quote, int level) {
    const struct perfdoctor_table *keys = run->scan.keys;
    int64_t length = quote - key;
    int64_t number = find_string(key, length, hash_bytes(key, length, keys->secrets), keys);
    return number < 0 ? (struct perfdoctor_use){PERFDOCTOR_SKIP, 0} : run->scan.uses[2 * number + (level == IN_ARGUMENTS)];
}

/* Read the tag at p into the step. Tags that are not classified yet are for Python first. */
static place read_tag(struct run *run, place p, int64_t slot, struct step *step) {
    int64_t tag = 0;
    if (*p != '"') return fail(&run->reader, p);
    place q = read_word(&run->reader, p, 0, run->scan.tags, &tag);
    if (q == NULL) return NULL;
    if (run->scan.verdicts[tag].phase == PERFDOCTOR_UNKNOWN) return give_up(&run->reader, PERFDOCTOR_CLASSIFY);
    *(slot == PERFDOCTOR_PHASE ? &step->phase : &step->category) = (int32_t)tag;
    return q;
}

/* Whether the tags so far say that the event makes no row, whatever its values are. */
static int is_passed(const struct perfdoctor_scan *scan, const struct step *step) {
    if (step->phase >= 0 && scan->verdicts[step->phase].phase == PERFDOCTOR_PASSED) return 1;
    return step->category >= 0 && scan->verdicts[step->category].kind == PERFDOCTOR_NONE;
}

/* Read what stands at p, behind a value or between two events, up to the next key; or past the end of the event, which
 * is noted in the step, as are the braces on the way. */
static place read_to_key(struct run *run, place p, struct step *step) {
    struct reader *reader = &run->reader;
    p = skip_spaces(p);
    if (step->level == BETWEEN_EVENTS) {
        if (*p != '{') return *p == ']' ? give_up(reader, PERFDOCTOR_CLOSED) : fail(reader, p);
        step->level = IN_EVENT;
        p = skip_spaces(p + 1);
        if (*p != '}') return p;
    } else {
        if (step->level == IN_ARGUMENTS && *p == '}') {
            step->level = IN_EVENT;
            p = skip_spaces(p + 1);
        }
        if (*p == ',') return skip_spaces(p + 1);
        if (*p != '}') return fail(reader, p);
    }
    step->level = BETWEEN_EVENTS;
    step->action = STEP_END;
    p = skip_spaces(p + 1);
    if (*p == ',') return p + 1;
    return *p == ']' ? p : fail(reader, p);
}

/* Read as JSON what stands at p up to the next value that is no tag, or past the end of the event. An event with the
 * same known key twice is irregular. A long text ends behind a tag. */
static place read_step(struct run *run, place p, struct step *step) {
    struct step at_tag = *step;
    place begin = p, behind_tag = NULL;
    p = read_to_key(run, p, step);
    while (p && step->action != STEP_END) {
        place quote = find_key_end(&run->reader, p);
        place value = quote ? find_value(&run->reader, quote) : NULL;
        if (value == NULL) return NULL;
        struct perfdoctor_use use = find_use(run, p + 1, quote, step->level);
        step->action = use.action;
        step->slot = use.slot;
        uint64_t bit = (uint64_t)(use.action != PERFDOCTOR_SKIP) << use.slot;
        if (step->slots_seen & bit) return fail(&run->reader, p);
        step->slots_seen |= bit;
        p = value;
        if (use.action == PERFDOCTOR_INSIDE && *value == '{') {
            p = skip_spaces(value + 1);
            step->level = IN_ARGUMENTS;
            if (*p == '}') p = read_to_key(run, p, step);
        } else if (use.action == PERFDOCTOR_TAG) {
            p = read_tag(run, value, use.slot, step);
            if (p == NULL) return NULL;
            step->action = STEP_WITHOUT_VALUE;
            if (behind_tag && p - begin > STEP_TEXT) break;
            at_tag = *step;
            behind_tag = p;
            p = read_to_key(run, p, step);
        } else {
            if (use.action != PERFDOCTOR_INSIDE && is_passed(&run->scan, step)) step->action = PERFDOCTOR_SKIP;
            break;
        }
    }
    if (p == NULL || behind_tag == NULL || p - begin <= STEP_TEXT) return p;
    *step = at_tag;
    return behind_tag;
}

/* The step at p, which was not learned yet, and the place behind its text. */
static struct step *learn_step(struct run *run, struct step *before, place *p) {
    struct perfdoctor_scan *scan = &run->scan;
    if (before->level == BETWEEN_EVENTS) before = run->steps;
    struct step step = {.slots_seen = before->slots_seen, .phase = before->phase, .category = before->category};
    step.level = before->level;
    step.pair = PERFDOCTOR_NONE;
    place q = read_step(run, *p, &step);
    if (q == NULL) return NULL;
    struct step *kept = &run->unlearned;
    step.length = q - *p;
    /* Arguments that are no object, and the bracket behind the last event, do not belong to the text of the step. */
    int is_odd = step.action == PERFDOCTOR_INSIDE || (step.action == STEP_END && *q == ']');
    if (step.action == PERFDOCTOR_INSIDE) step.action = PERFDOCTOR_SKIP;
    if (before != &run->unlearned && step.length <= STEP_TEXT && !is_odd && before->alternatives < MOST_ALTERNATIVES &&
        scan->learned < PERFDOCTOR_STEPS) {
        memcpy(step.text, *p, (size_t)step.length);
        step.next = before->first;
        before->first = (uint16_t)scan->learned;
        before->alternatives++;
        kept = &run->steps[scan->learned++];
    }
    *kept = step;
    *p = q;
    return kept;
}

/* The step at p that follows another one, which was not guessed, and the place behind its text. */
COLD struct step *find_step(struct run *run, struct step *before, place *p) {
    const struct step *parent = before->level == BETWEEN_EVENTS ? run->steps : before;
    struct step *found = NULL;
    for (uint16_t at = parent->first; at && found == NULL; at = run->steps[at].next) {
        if (!is_step_at(*p, &run->steps[at])) continue;
        found = &run->steps[at];
        *p += found->length;
    }
    if (found == NULL) found = learn_step(run, before, p);
    if (found && found != &run->unlearned) before->guess = (uint16_t)(found - run->steps);
    return found;
}

/* The step at p that follows another one, and the place behind its text; NULL where what stands there is not plain. */
INLINE struct step *read_next_step(struct run *run, struct step *before, place *p) {
    struct step *guess = &run->steps[before->guess];
    if (UNLIKELY(!is_step_at(*p, guess))) return find_step(run, before, p);
    *p += guess->length;
    return guess;
}

#endif
