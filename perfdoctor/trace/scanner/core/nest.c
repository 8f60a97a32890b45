/* Which event lies in which, by a stack for each lane: one pass over events in the order of time.
 *
 * The column of parents is the stacks, too: below an event lies its parent, and an event that has ended never comes
 * back. So there is no other memory, and nothing is looked at twice. */

#include "perfdoctor.h"

/* The first row from this one down the stack that has not ended; `min_ns` is the shortest length that counts. */
static int32_t find_open(const struct perfdoctor_nest *nest, int32_t row, int64_t now, int64_t min_ns) {
    while (row >= 0) {
        int64_t end = nest->end[row], shortest = nest->start[row] + min_ns;
        if ((end > shortest ? end : shortest) > now) break;
        row = nest->parent[row];
    }
    return row;
}

/* Put an event on the stack of its lane. One without length still lies in its parent, and so does what begins with it. */
static void begin_event(struct perfdoctor_nest *nest, int64_t row) {
    int32_t *top = &nest->top[nest->lane[row]];
    nest->parent[row] = find_open(nest, *top, nest->start[row], 1);
    *top = (int32_t)row;
}

void perfdoctor_nest_events(struct perfdoctor_nest *nest) {
    int64_t row = 0;
    for (int64_t question = 0; question < nest->questions; question++) {
        int64_t now = nest->asked[question];
        while (row < nest->count && nest->start[row] <= now) begin_event(nest, row++);
        int32_t *top = &nest->top[nest->asked_lane[question]];
        *top = nest->found[question] = find_open(nest, *top, now, 0);
    }
    while (row < nest->count) begin_event(nest, row++);
}
