/* The scanner for aarch64, all of which have NEON. */

#if defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define VARIANT_NEON
#define SCAN_EVENTS perfdoctor_scan_neon
#include "scan.h"
#include "scan_events.h"
END_OF_VARIANT
#endif
