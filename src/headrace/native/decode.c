/* Decode records to Arrow buffers. Memory grows with the decoded records, never with what a header claims. */

#include "batch.h"
#include "columns.h"
#include "varints.h"

enum { KEY = 1, VALUE = 2, OFFSET = 4, TIMESTAMP = 8, TIMESTAMP_TYPE = 16, HEADERS = 32 };

#define CAPACITY_MIN 4096
#define HEADER_BYTES 8 /* overhead of a header beside its name and value; empty headers take memory too */
#define MILLISECONDS_MAX (INT64_MAX / 1000)

/* --- columns that grow --- */

static int reserve(Bytes *bytes, int64_t size) {
    if (size <= bytes->capacity) return OK;
    int64_t capacity = bytes->capacity * 2;
    if (capacity < size) capacity = size;
    if (capacity < CAPACITY_MIN) capacity = CAPACITY_MIN;
    uint8_t *data = realloc(bytes->data, (size_t)capacity);
    if (data == NULL) return NO_MEMORY;
    bytes->data = data;
    bytes->capacity = capacity;
    return OK;
}

/* Reserve room for more rows and bytes; the new validity bits are 0 (null). */
static int reserve_parts(Parts *parts, int64_t rows, int64_t size) {
    int64_t total = parts->rows + rows, bits = (total + 7) / 8;
    if (reserve(&parts->ends, (total + 1) * 4) || reserve(&parts->data, parts->data.size + size) ||
        reserve(&parts->validity, bits))
        return NO_MEMORY;
    if (parts->ends.size == 0) {
        memset(parts->ends.data, 0, 4);
        parts->ends.size = 4;
    }
    if (bits > parts->validity.size) {
        memset(parts->validity.data + parts->validity.size, 0, (size_t)(bits - parts->validity.size));
        parts->validity.size = bits;
    }
    return OK;
}

/* Append to reserved room. A size of -1 is null. */
static inline void add_part(Parts *parts, const uint8_t *from, int64_t size) {
    int64_t row = parts->rows++;
    if (size < 0) {
        parts->nulls++;
    } else {
        memcpy(parts->data.data + parts->data.size, from, (size_t)size);
        parts->data.size += size;
        parts->validity.data[row >> 3] |= (uint8_t)(1u << (row & 7));
    }
    ((int32_t *)parts->ends.data)[row + 1] = (int32_t)parts->data.size;
    parts->ends.size += 4;
}

static inline void add_number(Bytes *bytes, int64_t number) {
    memcpy(bytes->data + bytes->size, &number, 8);
    bytes->size += 8;
}

/* --- decoding --- */

static int add_headers(Rows *rows, const uint8_t *at, const uint8_t *end, int is_wanted) {
    int64_t count;
    if ((at = read_varint(at, end, &count)) == NULL) return TOO_SHORT;
    if (count < 0 || count > end - at) return BAD_HEADERS;
    if (is_wanted && count > 0) {
        int64_t size = end - at;
        if (reserve_parts(&rows->name, count, size) || reserve_parts(&rows->content, count, size)) return NO_MEMORY;
    }
    uint8_t bits = 0;
    for (int64_t header = 0; header < count; header++) {
        int64_t name_size, size;
        int status = read_size(&at, end, &name_size);
        if (status) return status;
        if (name_size < 0) return BAD_HEADERS;
        const uint8_t *name = at;
        at += name_size;
        if ((status = read_size(&at, end, &size))) return status;
        if (is_wanted) {
            for (int64_t index = 0; index < name_size; index++) bits |= name[index];
            add_part(&rows->name, name, name_size);
            add_part(&rows->content, at, size);
        }
        if (size > 0) at += size;
    }
    if (at != end) return BAD_SIZE;
    if (bits & 0x80) rows->names_are_ascii = 0;
    if (is_wanted) {
        int32_t total = (int32_t)rows->name.rows;
        memcpy(rows->header_ends.data + rows->header_ends.size, &total, 4);
        rows->header_ends.size += 4;
    }
    return OK;
}

static int64_t microseconds(const Batch *batch, wide delta) {
    wide milliseconds = batch->is_append_time ? batch->append_timestamp : batch->base_timestamp + delta;
    if (milliseconds > MILLISECONDS_MAX) milliseconds = MILLISECONDS_MAX;
    if (milliseconds < -MILLISECONDS_MAX) milliseconds = -MILLISECONDS_MAX;
    return (int64_t)milliseconds * 1000;
}

static int add_record(Rows *rows, const Batch *batch, const uint8_t *at, const uint8_t *end) {
    int64_t delta, key_size, value_size;
    wide timestamp_delta;
    int status;
    at++; /* attributes, unused */
    if ((at = wide_varint(at, end, &timestamp_delta)) == NULL) return TOO_SHORT;
    if ((at = read_varint(at, end, &delta)) == NULL) return TOO_SHORT;
    if (delta < 0 || delta > batch->last_delta) return BAD_OFFSET;
    int64_t offset = batch->base_offset + delta;
    int is_wanted = offset >= batch->first && offset < batch->end;
    int32_t wanted = is_wanted ? rows->wanted : 0;
    if ((status = read_size(&at, end, &key_size))) return status;
    if (wanted & KEY) add_part(&rows->key, at, key_size);
    if (key_size > 0) at += key_size;
    if ((status = read_size(&at, end, &value_size))) return status;
    if (wanted & VALUE) add_part(&rows->value, at, value_size);
    if (value_size > 0) at += value_size;
    if ((status = add_headers(rows, at, end, (wanted & HEADERS) != 0))) return status;
    if (wanted & OFFSET) add_number(&rows->offsets, offset);
    if (wanted & TIMESTAMP) add_number(&rows->timestamps, microseconds(batch, timestamp_delta));
    if (wanted & TIMESTAMP_TYPE) {
        memcpy(rows->timestamp_types.data + rows->timestamp_types.size, &batch->is_append_time, 4);
        rows->timestamp_types.size += 4;
    }
    rows->rows += is_wanted;
    return OK;
}

static int reserve_rows(Rows *rows, int64_t count, int64_t size) {
    int32_t wanted = rows->wanted;
    if (wanted & KEY && reserve_parts(&rows->key, count, size)) return NO_MEMORY;
    if (wanted & VALUE && reserve_parts(&rows->value, count, size)) return NO_MEMORY;
    if (wanted & OFFSET && reserve(&rows->offsets, rows->offsets.size + count * 8)) return NO_MEMORY;
    if (wanted & TIMESTAMP && reserve(&rows->timestamps, rows->timestamps.size + count * 8)) return NO_MEMORY;
    if (wanted & TIMESTAMP_TYPE && reserve(&rows->timestamp_types, rows->timestamp_types.size + count * 4))
        return NO_MEMORY;
    if (wanted & HEADERS) {
        if (reserve(&rows->header_ends, rows->header_ends.size + (count + 1) * 4)) return NO_MEMORY;
        if (rows->header_ends.size == 0) {
            memset(rows->header_ends.data, 0, 4);
            rows->header_ends.size = 4;
        }
        if (reserve_parts(&rows->name, 0, 0) || reserve_parts(&rows->content, 0, 0)) return NO_MEMORY;
    }
    return OK;
}

/* Add the records of one batch. After a status other than OK the rows may only be freed. */
EXPORT int headrace_decode(Rows *rows, const Batch *batch) {
    const uint8_t *at = batch->payload, *end = batch->payload + batch->size;
    int64_t count = batch->count > 0 ? batch->count : 0;
    if (count > batch->size / RECORD_BYTES_MIN) return TOO_SHORT;
    if (reserve_rows(rows, count, batch->size)) return NO_MEMORY;
    for (int64_t record = 0; record < count; record++) {
        int64_t size;
        if ((at = read_varint(at, end, &size)) == NULL) return TOO_SHORT;
        if (size < 1 || size > end - at) return BAD_SIZE;
        int status = add_record(rows, batch, at, at + size);
        if (status) return status;
        at += size;
    }
    rows->data_bytes = rows->key.data.size + rows->value.data.size + rows->name.data.size + rows->content.data.size +
                       rows->name.rows * HEADER_BYTES;
    return at == end ? OK : LEFT_OVER;
}

EXPORT void headrace_free(void *data) { free(data); }

/* --- whole responses --- */

/* The size of the whole batches, and the offset after the last; -1 if the caller must parse them itself. */
EXPORT int64_t headrace_whole(const uint8_t *data, int64_t size, int64_t *next_offset) {
    int64_t at = 0, length;
    while ((length = batch_size(data + at, size - at)) > 0) {
        *next_offset = big64(data + at) + (int32_t)big32(data + at + 23) + 1;
        at += length;
    }
    return length < 0 ? -1 : at;
}

/* Add batches from `at` until a bound is reached, or up to a batch that is not plain and sound, which is left to the
 * caller. `at` is then its position. */
EXPORT int headrace_decode_plain(Rows *rows, const uint8_t *data, int64_t size, int64_t first, int64_t end,
                                 int64_t rows_max, int64_t bytes_max, int64_t *at) {
    int64_t length;
    while (rows->rows < rows_max && rows->data_bytes < bytes_max) {
        const uint8_t *start = data + *at;
        if ((length = batch_size(start, size - *at)) <= 0 || start[22] & NOT_PLAIN) return OK;
        Batch batch = {
            .payload = start + BATCH_HEADER_BYTES,
            .size = length - BATCH_HEADER_BYTES,
            .base_offset = big64(start),
            .base_timestamp = big64(start + 27),
            .append_timestamp = big64(start + 35),
            .first = first,
            .end = end,
            .count = (int32_t)big32(start + 57),
            .last_delta = (int32_t)big32(start + 23),
            .is_append_time = start[22] >> 3 & 1,
        };
        if (batch.base_offset + batch.last_delta >= first && batch.base_offset < end) {
            if (headrace_crc32c(start + CRC_START, length - CRC_START) != big32(start + 17)) return OK;
            int status = headrace_decode(rows, &batch);
            if (status) return status;
        }
        *at += length;
    }
    return OK;
}

/* --- does the library match its caller? --- */

EXPORT int headrace_version(void) { return VERSION; }

EXPORT int64_t headrace_layout(void) {
    return (int64_t)sizeof(Rows) << 32 | (int64_t)sizeof(Batch) << 16 | (int64_t)sizeof(Source);
}
