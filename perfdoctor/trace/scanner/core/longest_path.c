/* The pass over the nodes of a graph that finds its longest paths. */

#include "perfdoctor.h"

enum { PREDECESSORS = 3 };

int64_t perfdoctor_longest_path(int64_t nodes, const int32_t *predecessor, const int64_t *lag_ns, int64_t *time_ns) {
    for (int64_t node = 0; node < nodes; node++) {
        int64_t latest = time_ns[node];
        for (int64_t slot = PREDECESSORS * node; slot < PREDECESSORS * (node + 1); slot++) {
            int64_t other = predecessor[slot];
            if (other < 0) continue;
            if (other >= node) return node;
            /* As numpy does it: what is beyond int64 wraps around. */
            int64_t after = (int64_t)((uint64_t)time_ns[other] + (uint64_t)lag_ns[slot]);
            if (after > latest) latest = after;
        }
        time_ns[node] = latest;
    }
    return -1;
}
