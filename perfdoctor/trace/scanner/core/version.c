/* What the Python side checks before it calls anything else. */

#include "perfdoctor.h"

#ifndef PERFDOCTOR_SOURCES
#define PERFDOCTOR_SOURCES "unknown"
#endif

const char *perfdoctor_sources(void) { return PERFDOCTOR_SOURCES; }
