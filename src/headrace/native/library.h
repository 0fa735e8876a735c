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

/* CRC-32C, if the processor supports it: check `headrace_has_crc32c` first. */
EXPORT int headrace_has_crc32c(void);
EXPORT uint32_t headrace_crc32c(const uint8_t *data, int64_t size);

#endif
