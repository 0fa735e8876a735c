/* CRC-32C, if the processor supports it: check `headrace_has_crc32c` first. */

#ifndef HEADRACE_CRC32C_H
#define HEADRACE_CRC32C_H

#include "library.h"

EXPORT int headrace_has_crc32c(void);
EXPORT uint32_t headrace_crc32c(const uint8_t *data, int64_t size);

#endif
