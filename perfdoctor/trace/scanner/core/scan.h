/* The scanner for each set of instructions; scan.c chooses. */

#ifndef SCAN_H
#define SCAN_H

#include "perfdoctor.h"

typedef int64_t scan_function(struct perfdoctor_scan *scan);

scan_function perfdoctor_scan_plain, perfdoctor_scan_avx2, perfdoctor_scan_avx512, perfdoctor_scan_neon;

#endif
