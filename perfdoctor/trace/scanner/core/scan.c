/* The scanner, with the instructions that this processor has, and the tables of strings that it fills. */

#include "scan.h"

#include "intern.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* The state that the system saves for each thread; a processor's registers are of use only where they are saved. */
static uint64_t read_saved_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Intel, Architecture Instruction Set Extensions Programming Reference, chapter 1.5: bits of leaf 1 and of leaf 7. */
static int has_avx2_and_more(int avx512) {
    uint32_t a, b, c, d;
    uint32_t first = bit_OSXSAVE | bit_PCLMUL | bit_POPCNT;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & first) != first) return 0;
    uint64_t registers = avx512 ? 0xE6 : 0x06; /* XMM and YMM; masks and ZMM too */
    if ((read_saved_state() & registers) != registers) return 0;
    uint32_t wanted = bit_AVX2 | bit_BMI | bit_BMI2;
    if (avx512) wanted |= bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & wanted) == wanted;
}

static int has_avx2(void) { return has_avx2_and_more(0); }

static int has_avx512(void) { return has_avx2_and_more(1); }
#endif

static int has_plain(void) { return 1; }

struct choice {
    const char *name;
    int (*is_there)(void);
    scan_function *scan;
};

/* The best first. */
static const struct choice choices[] = {
#if defined(__x86_64__)
    {"avx512", has_avx512, perfdoctor_scan_avx512},
    {"avx2", has_avx2, perfdoctor_scan_avx2},
#endif
#if defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    {"neon", has_plain, perfdoctor_scan_neon},
#endif
    {"plain", has_plain, perfdoctor_scan_plain},
};

static const struct choice *chosen;

static const struct choice *choose(void) {
    if (chosen == NULL) {
        const struct choice *found = choices;
        while (!found->is_there()) found++;
        chosen = found; /* threads that come here at once find the same */
    }
    return chosen;
}

const char *perfdoctor_instructions(void) { return choose()->name; }

int64_t perfdoctor_restrict(const char *instructions) {
    for (size_t number = 0; number < sizeof choices / sizeof *choices; number++) {
        if (strcmp(choices[number].name, instructions) == 0 && choices[number].is_there()) {
            chosen = &choices[number];
            return 1;
        }
    }
    return 0;
}

/* Whether the text lies within its buffer, with zeros behind it, and the record within its slots. */
static int is_sound(const struct perfdoctor_scan *scan) {
    if (scan->begin < 0 || scan->begin > scan->end || scan->end > scan->size - PERFDOCTOR_PAD) return 0;
    if (scan->common < PERFDOCTOR_FIRST_FREE || scan->common >= scan->slots || scan->slots >= PERFDOCTOR_SLOTS) return 0;
    uint64_t behind = 0;
    for (int at = 0; at < PERFDOCTOR_PAD; at += 8) behind |= load_eight(scan->text + scan->end + at);
    return behind == 0;
}

int64_t perfdoctor_run(struct perfdoctor_scan *scan) { return is_sound(scan) ? choose()->scan(scan) : PERFDOCTOR_FAULT; }

int64_t perfdoctor_intern(const uint8_t *bytes, int64_t length, struct perfdoctor_table *table) {
    return intern(bytes, length, table);
}

void perfdoctor_rehash(
    const struct perfdoctor_place *places, int64_t size, struct perfdoctor_place *larger, int64_t mask) {
    for (int64_t at = 0; at < size; at++) {
        if (places[at].id == 0) continue;
        int64_t to = (int64_t)(places[at].hash & (uint64_t)mask);
        while (larger[to].id) to = (to + 1) & mask;
        larger[to] = places[at];
    }
}
