/* Included by every file here. Plain C without Python's headers, called through ctypes.
 *
 * Input is never trusted: every length is checked against the end of the given bytes before anything after it is read.
 * Raise the version when a function or a struct changes: `library.py` accepts only its own.
 */

#ifndef HEADRACE_LIBRARY_H
#define HEADRACE_LIBRARY_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define VERSION 4

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

#endif
