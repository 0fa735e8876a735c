/* The header of a record batch, as in wire/batches/batch.py. */

#ifndef HEADRACE_BATCH_H
#define HEADRACE_BATCH_H

#include "library.h"

enum { BATCH_HEADER_BYTES = 61, LENGTH_END = 12, CRC_START = 21, MAGIC = 2 };
enum { COMPRESSION = 0x07, NOT_PLAIN = 0x37 }; /* not plain: compressed, transactional or of control */

static inline uint32_t big32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline int64_t big64(const uint8_t *at) { return (int64_t)((uint64_t)big32(at) << 32 | big32(at + 4)); }

/* The size of the batch at `data`; 0 if it is incomplete, -1 if its header is invalid. */
static int64_t batch_size(const uint8_t *data, int64_t left) {
    if (left < BATCH_HEADER_BYTES) return 0;
    int64_t size = (int64_t)(int32_t)big32(data + 8) + LENGTH_END, base_offset = big64(data);
    int32_t last_delta = (int32_t)big32(data + 23);
    if (size < BATCH_HEADER_BYTES || data[16] != MAGIC || last_delta < 0) return -1;
    if (base_offset < 0 || base_offset >= INT64_MAX - last_delta) return -1;
    return size <= left ? size : 0;
}

#endif
