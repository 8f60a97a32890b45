/* The scanner in plain C. */

#define SCAN_EVENTS perfdoctor_scan_plain
#include "scan.h"
#include "scan_events.h"
