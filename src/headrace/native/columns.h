/* The structs that columns/native.py has, too, field by field. */

#ifndef HEADRACE_COLUMNS_H
#define HEADRACE_COLUMNS_H

#include "library.h"

/* --- decoding --- */

typedef struct {
    uint8_t *data;
    int64_t size, capacity;
} Bytes;

/* One column of bytes or text: where each row's bytes end, the bytes, and a bit for each row that is not null. */
typedef struct {
    Bytes ends, data, validity;
    int64_t rows, nulls;
} Parts;

typedef struct {
    int64_t rows, data_bytes;
    int32_t wanted, names_are_ascii;
    Parts key, value, name, content;
    Bytes header_ends, offsets, timestamps, timestamp_types;
} Rows;

/* One batch, as its header has it; `payload` is unpacked. Rows outside of [first, end) are left out. */
typedef struct {
    const uint8_t *payload;
    int64_t size, base_offset, base_timestamp, append_timestamp, first, end;
    int32_t count, last_delta, is_append_time;
} Batch;

/* --- encoding --- */

/* A column of Arrow's, read only: row n is at `offset` + n. `ends` is NULL where there is no such column. */
typedef struct {
    const int32_t *ends;
    const uint8_t *data;
    const uint8_t *validity;
    int64_t offset;
} Column;

typedef struct {
    Column key, value, headers, name, content;
    const int64_t *timestamps; /* microseconds */
    const uint8_t *timestamp_validity;
    int64_t timestamp_offset;
    int64_t now_ms;
    const int64_t *indexes;
} Source;

typedef struct {
    int64_t records, size, base_timestamp, max_timestamp;
    int64_t size_needed; /* of the next record, which did not fit */
} Encoded;

#endif
