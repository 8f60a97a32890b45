/* The functions that Python calls through ctypes. No Python headers: one file a platform serves every Python.
 *
 * Memory belongs to the caller. Text is read at most PERFDOCTOR_PAD bytes beyond its end, where zeros stand, with which
 * no value, white space or name begins. Tables and rows are written only after a look at their room. */

#ifndef PERFDOCTOR_H
#define PERFDOCTOR_H

#include <stdint.h>

#if defined(_WIN32)
#define PERFDOCTOR_API __declspec(dllexport)
#else
#define PERFDOCTOR_API __attribute__((visibility("default")))
#endif

enum {
    PERFDOCTOR_PAD = 128,    /* zero bytes that follow a text, so that it can be read 64 bytes at a time */
    PERFDOCTOR_SLOTS = 64,   /* most values of an event */
    PERFDOCTOR_STEPS = 2048, /* steps of templates of events */
    PERFDOCTOR_STEP_BYTES = 128,
};

/* Why scanning or copying stopped. */
enum perfdoctor_stop {
    PERFDOCTOR_MORE = -1,      /* at the end of the text */
    PERFDOCTOR_CLOSED = -2,    /* at the bracket that closes the list */
    PERFDOCTOR_REACHED = -3,   /* at or behind the last place that is asked for */
    PERFDOCTOR_IRREGULAR = -4, /* at an event that is for Python */
    PERFDOCTOR_GROW = -5,      /* a table has no room */
    PERFDOCTOR_CLASSIFY = -6,  /* a tag has no verdict yet */
    PERFDOCTOR_FULL = -7,      /* a kind has no room for another row */
    PERFDOCTOR_FAULT = -8,     /* what the caller gave is not sound, and nothing was done */
};

/* What to do with the value of a key. */
enum perfdoctor_action {
    PERFDOCTOR_SKIP,    /* nothing */
    PERFDOCTOR_TAG,     /* intern as a tag: phase and category */
    PERFDOCTOR_WORD,    /* intern a string */
    PERFDOCTOR_NUMBER,  /* an integer, or PERFDOCTOR_STRING plus the id of an interned string */
    PERFDOCTOR_TIME,    /* microseconds, as nanoseconds */
    PERFDOCTOR_TEXT,    /* intern the JSON text of any value */
    PERFDOCTOR_PRODUCT, /* the product of a list of positive integers */
    PERFDOCTOR_INSIDE,  /* go on with the keys inside */
};

/* Slots of the record that an event is read into. Those of arguments come after them. */
enum perfdoctor_slot {
    PERFDOCTOR_PHASE,
    PERFDOCTOR_CATEGORY,
    PERFDOCTOR_ORDER, /* the number of the event in its text */
    PERFDOCTOR_MARK,  /* the third verdict on its category */
    PERFDOCTOR_START,
    PERFDOCTOR_DURATION,
    PERFDOCTOR_NAME,
    PERFDOCTOR_PID,
    PERFDOCTOR_TID,  /* must follow PERFDOCTOR_PID: both together are interned */
    PERFDOCTOR_PAIR, /* the id of both */
    PERFDOCTOR_ARGUMENTS,
    PERFDOCTOR_FIRST_FREE,
};

/* Verdicts on a phase: not looked at yet, passed over, complete, half of an event, an instant. */
enum { PERFDOCTOR_UNKNOWN = -2, PERFDOCTOR_PASSED = 0, PERFDOCTOR_COMPLETE, PERFDOCTOR_HALF, PERFDOCTOR_INSTANT };

#define PERFDOCTOR_NONE ((int64_t)-1)
#define PERFDOCTOR_STRING (-((int64_t)1 << 62))  /* what stands for an interned string among numbers: its id is added */
#define PERFDOCTOR_NOTHING (PERFDOCTOR_STRING - 1) /* no value, where numbers of any size may stand */
#define PERFDOCTOR_LIMIT_NS ((int64_t)1 << 62)   /* starts, durations and ends lie below it */

/* A place of a hash table: the hash of a string and its id plus one; 0 where the place is free. */
struct perfdoctor_place {
    uint64_t hash;
    int64_t id;
};

/* A table of byte strings with their ids, counted up as they are first seen. */
struct perfdoctor_table {
    struct perfdoctor_place *places;
    int64_t mask;     /* places less one, a power of two less one */
    int64_t *offsets; /* where each string begins in the arena; one more than there are strings */
    uint8_t *arena;
    int64_t room; /* bytes of the arena */
    int64_t count;
    const uint64_t *secrets; /* eight random numbers, on which the hashes depend */
};

/* Three numbers for each tag: what it means as a phase, the kind of this category, and the mark of its rows. */
struct perfdoctor_verdict {
    int64_t phase, kind, mark;
};

/* What is done with the values of a key, and the slot that they go to. */
struct perfdoctor_use {
    int16_t action, slot;
};

/* One run of the scanner. */
struct perfdoctor_scan {
    const uint8_t *text; /* `size` bytes, of which those from `begin` to `end` are text, and those behind are zeros */
    int64_t size, begin, end;
    int64_t last; /* place in the text at which to stop, between two events */
    struct perfdoctor_table *keys, *words, *tags, *pairs;
    const struct perfdoctor_use *uses; /* for each key two: among the keys of events, and among those of arguments */
    void *steps; /* PERFDOCTOR_STEPS of templates, PERFDOCTOR_STEP_BYTES each, zeros at first; see event_template.h */
    int64_t learned; /* of these; counted up */
    const int64_t *blank;       /* a record before an event is read, PERFDOCTOR_SLOTS */
    int64_t slots;
    int64_t common; /* slots from this one on are filled by few events; those that fill this one make a row aside */
    int64_t aside;  /* the kind of the rows aside */
    int64_t instants; /* the kind whose events are instants, or -1 */
    const struct perfdoctor_verdict *verdicts;
    const int64_t *sources; /* for each kind the slots of its columns, -1 behind the last */
    int64_t columns;        /* most columns of a kind */
    int64_t *rows;          /* for each kind and column `batch` numbers */
    int64_t batch;
    int64_t *filled;  /* rows of each kind */
    int64_t *record;  /* the values of the event that is read, PERFDOCTOR_SLOTS */
    int64_t position; /* results: how far it came, events, and events with a phase, so far */
    int64_t seen, phases;
};

/* One run of the copier; see copy.c. */
struct perfdoctor_copy {
    const uint8_t *text, *stop; /* text from here to there, followed by PERFDOCTOR_PAD zeros; moved */
    uint8_t *out;               /* eight times as many bytes as text, and a pad; moved */
    int64_t next;               /* the number of the next event; counted up */
    const int64_t *moved;       /* ascending numbers of events that are for Python, with a last one that none reaches */
    int64_t changes;            /* whether anything below is not zero */
    int64_t offset_ns, pid_shift, id_shift; /* what is added to times, to process ids, and to ids of arrows */
};

/* Events by start, longest first, and instants in their order; see nest.c. */
struct perfdoctor_nest {
    const int64_t *start, *end;
    const int32_t *lane;
    int64_t count;
    int32_t *parent; /* result: the row of the event around each event, or -1 */
    int32_t *top;    /* for each lane -1 */
    const int64_t *asked;
    const int32_t *asked_lane;
    int64_t questions;
    int32_t *found; /* result: the innermost event at each instant, or -1 */
};

/* The hash of the sources that the library was built from, as the build gave it. */
PERFDOCTOR_API const char *perfdoctor_sources(void);
/* The instructions that the scanner uses here: avx512, avx2, neon or plain. */
PERFDOCTOR_API const char *perfdoctor_instructions(void);
/* Use only instructions up to those named, for tests; returns whether the name is known. */
PERFDOCTOR_API int64_t perfdoctor_restrict(const char *instructions);

/* Read events until something stops it, which is returned: an enum perfdoctor_stop. */
PERFDOCTOR_API int64_t perfdoctor_run(struct perfdoctor_scan *scan);
/* The id of `length` bytes followed by 8 readable ones, a new one if need be; PERFDOCTOR_GROW where there is no room. */
PERFDOCTOR_API int64_t perfdoctor_intern(const uint8_t *bytes, int64_t length, struct perfdoctor_table *table);
/* Put the ids of `size` places into a larger table of `mask` + 1 free ones. */
PERFDOCTOR_API void perfdoctor_rehash(
    const struct perfdoctor_place *places, int64_t size, struct perfdoctor_place *larger, int64_t mask);
/* Copy events until something stops it: PERFDOCTOR_MORE, _CLOSED or _IRREGULAR. */
PERFDOCTOR_API int64_t perfdoctor_copy_events(struct perfdoctor_copy *copy);
/* Find the event around each event. */
PERFDOCTOR_API void perfdoctor_nest_events(struct perfdoctor_nest *nest);
/* Move each node to the latest of its time and the times of its three predecessors plus their lags; those of a node are
 * earlier nodes, or negative for none. Returns the first node for which that is not so, or -1. */
PERFDOCTOR_API int64_t perfdoctor_longest_path(
    int64_t nodes, const int32_t *predecessor, const int64_t *lag_ns, int64_t *time_ns);

#endif
