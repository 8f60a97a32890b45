/* The scanner for x86-64 with AVX-512. */

#if defined(__x86_64__)
#define VARIANT_AVX512
#define SCAN_EVENTS perfdoctor_scan_avx512
#include "scan.h"
#include "scan_events.h"
END_OF_VARIANT
#endif
