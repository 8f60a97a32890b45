/* The functions that Python calls through ctypes. No Python headers: one file a platform serves every Python. */

#ifndef PERFDOCTOR_H
#define PERFDOCTOR_H

#if defined(_WIN32)
#define PERFDOCTOR_API __declspec(dllexport)
#else
#define PERFDOCTOR_API __attribute__((visibility("default")))
#endif

/* The hash of the sources that the library was built from, as the build gave it. */
PERFDOCTOR_API const char *perfdoctor_sources(void);

#endif
