/* Records to Arrow's buffers and back, and CRC-32C: what must not be done record by record in Python.
 *
 * Plain C without Python's headers, called through ctypes by native.py, which holds the same structs. Nothing here
 * trusts its input: every length is held against the end of the bytes given before anything behind it is read, and what
 * does not add up ends with a status. Memory grows with what was decoded, never with what a header claims.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* The timestamp of a hostile record may need more than 64 bits; compilers without such a type build no library. */
__extension__ typedef __int128 wide;
__extension__ typedef unsigned __int128 unsigned_wide;

enum { OK = 0, NO_MEMORY = 1, TOO_SHORT = 2, BAD_SIZE = 3, BAD_PART = 4, BAD_HEADERS = 5, BAD_OFFSET = 6, LEFT_OVER = 7 };

enum { KEY = 1, VALUE = 2, OFFSET = 4, TIMESTAMP = 8, TIMESTAMP_TYPE = 16, HEADERS = 32 };

#define RECORD_BYTES_MIN 7
#define CAPACITY_MIN 4096
#define HEADER_BYTES 8 /* that each header counts for beside its name and value: empty ones take memory, too */
#define MILLISECONDS_MAX (INT64_MAX / 1000)

/* --- columns that grow --- */

typedef struct {
    uint8_t *data;
    int64_t size;
    int64_t capacity;
} Bytes;

/* One column of bytes or text: where each row's bytes end, the bytes, and a bit for each row that is not null. */
typedef struct {
    Bytes ends;
    Bytes data;
    Bytes validity;
    int64_t rows;
    int64_t nulls;
} Parts;

typedef struct {
    int64_t rows;
    int64_t data_bytes;
    int32_t wanted;
    int32_t names_are_ascii;
    Parts key;
    Parts value;
    Parts name;
    Parts content;
    Bytes header_ends;
    Bytes offsets;
    Bytes timestamps;
    Bytes timestamp_types;
} Rows;

/* One batch, as its header has it; `payload` is unpacked. Rows outside of [first, end) are left out. */
typedef struct {
    const uint8_t *payload;
    int64_t size;
    int64_t base_offset;
    int64_t base_timestamp;
    int64_t append_timestamp;
    int64_t first;
    int64_t end;
    int32_t count;
    int32_t last_delta;
    int32_t is_append_time;
} Batch;

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

/* Room for so many more rows with so many more bytes; the new bits are 0: null. */
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

/* Into room that was reserved. A size of -1 is null. */
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

/* --- varints --- */

/* Up to ten bytes, zigzag. Returns the position behind it, NULL when it has no end before `end`. */
static const uint8_t *long_varint(const uint8_t *at, const uint8_t *end, wide *value) {
    unsigned_wide number = 0;
    for (int shift = 0; shift <= 63; shift += 7) {
        if (at >= end) return NULL;
        uint8_t byte = *at++;
        number |= (unsigned_wide)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *value = (wide)(number >> 1) ^ -(wide)(number & 1);
            return at;
        }
    }
    return NULL;
}

static inline const uint8_t *wide_varint(const uint8_t *at, const uint8_t *end, wide *value) {
    if (at < end && *at < 0x80) {
        *value = (*at >> 1) ^ -(*at & 1);
        return at + 1;
    }
    return long_varint(at, end, value);
}

/* What does not fit comes as INT64_MAX, which no length, count or delta may be. */
static inline const uint8_t *read_varint(const uint8_t *at, const uint8_t *end, int64_t *value) {
    if (end - at >= 2) {
        uint32_t number = at[0];
        if (number < 0x80) {
            *value = (int64_t)(number >> 1) ^ -(int64_t)(number & 1);
            return at + 1;
        }
        if (at[1] < 0x80) {
            number = (number & 0x7f) | (uint32_t)at[1] << 7;
            *value = (int64_t)(number >> 1) ^ -(int64_t)(number & 1);
            return at + 2;
        }
    }
    wide number;
    at = long_varint(at, end, &number);
    if (at != NULL) *value = number < INT64_MIN || number > INT64_MAX ? INT64_MAX : (int64_t)number;
    return at;
}

/* The length of a part and where it begins; -1 is null. */
static inline int read_size(const uint8_t **at, const uint8_t *end, int64_t *size) {
    const uint8_t *from = read_varint(*at, end, size);
    if (from == NULL) return TOO_SHORT;
    if (*size < -1 || *size > end - from) return BAD_PART;
    *at = from;
    return OK;
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
    at++; /* attributes, which mean nothing */
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

/* Add the records of one batch. After a status other than OK the rows are good for nothing but to be freed. */
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

/* --- encoding --- */

/* A column of Arrow's, read only: row n is at `offset` + n. `ends` is NULL where there is no such column. */
typedef struct {
    const int32_t *ends;
    const uint8_t *data;
    const uint8_t *validity;
    int64_t offset;
} Column;

typedef struct {
    Column key;
    Column value;
    Column headers;
    Column name;
    Column content;
    const int64_t *timestamps; /* microseconds */
    const uint8_t *timestamp_validity;
    int64_t timestamp_offset;
    int64_t now_ms;
    const int64_t *indexes;
} Source;

typedef struct {
    int64_t records;
    int64_t size;
    int64_t base_timestamp;
    int64_t max_timestamp;
    int64_t size_needed; /* of the next record, which had no room */
} Encoded;

static inline int is_valid(const uint8_t *validity, int64_t row) {
    return validity == NULL || validity[row >> 3] >> (row & 7) & 1;
}

/* The bytes of a row; -1 for null and where there is no column. */
static inline int64_t part_of(const Column *column, int64_t row, const uint8_t **data) {
    row += column->offset;
    if (column->ends == NULL || !is_valid(column->validity, row)) return -1;
    *data = column->data + column->ends[row];
    return column->ends[row + 1] - column->ends[row];
}

static inline int varint_size(int64_t value) {
    uint64_t number = (uint64_t)value << 1 ^ (uint64_t)(value >> 63);
    int size = 1;
    while (number >= 0x80) {
        number >>= 7;
        size++;
    }
    return size;
}

static inline uint8_t *put_varint(uint8_t *at, int64_t value) {
    uint64_t number = (uint64_t)value << 1 ^ (uint64_t)(value >> 63);
    while (number >= 0x80) {
        *at++ = (uint8_t)(number | 0x80);
        number >>= 7;
    }
    *at++ = (uint8_t)number;
    return at;
}

static inline int64_t part_size(int64_t size) { return varint_size(size) + (size > 0 ? size : 0); }

static inline uint8_t *put_part(uint8_t *at, const uint8_t *data, int64_t size) {
    at = put_varint(at, size);
    if (size <= 0) return at;
    memcpy(at, data, (size_t)size);
    return at + size;
}

static inline void header_range(const Source *source, int64_t row, int64_t *from, int64_t *to) {
    const Column *headers = &source->headers;
    *from = *to = 0;
    row += headers->offset;
    if (headers->ends == NULL || !is_valid(headers->validity, row)) return;
    *from = headers->ends[row];
    *to = headers->ends[row + 1];
}

static inline int64_t timestamp_of(const Source *source, int64_t row) {
    row += source->timestamp_offset;
    if (source->timestamps == NULL || !is_valid(source->timestamp_validity, row)) return source->now_ms;
    int64_t us = source->timestamps[row], ms = us / 1000;
    return ms - (us % 1000 < 0);
}

/* Write rows `first` to `count` of the source as records, as many as fit into `capacity`. */
EXPORT void headrace_encode(const Source *source, int64_t first, int64_t count, uint8_t *out, int64_t capacity,
                            Encoded *done) {
    uint8_t *at = out;
    memset(done, 0, sizeof *done);
    for (int64_t index = first; index < count; index++) {
        int64_t row = source->indexes == NULL ? index : source->indexes[index];
        int64_t timestamp = timestamp_of(source, row), from, to;
        const uint8_t *key = NULL, *value = NULL, *part = NULL;
        int64_t key_size = part_of(&source->key, row, &key), value_size = part_of(&source->value, row, &value);
        if (done->records == 0) done->base_timestamp = done->max_timestamp = timestamp;
        int64_t delta = (int64_t)((uint64_t)timestamp - (uint64_t)done->base_timestamp);
        header_range(source, row, &from, &to);
        int64_t size = 1 + varint_size(delta) + varint_size(done->records) + part_size(key_size) +
                       part_size(value_size) + varint_size(to - from);
        for (int64_t header = from; header < to; header++)
            size += part_size(part_of(&source->name, header, &part)) + part_size(part_of(&source->content, header, &part));
        done->size_needed = size + varint_size(size);
        if (done->size_needed > out + capacity - at) break;
        at = put_varint(at, size);
        *at++ = 0;
        at = put_varint(at, delta);
        at = put_varint(at, done->records);
        at = put_part(at, key, key_size);
        at = put_part(at, value, value_size);
        at = put_varint(at, to - from);
        for (int64_t header = from; header < to; header++) {
            int64_t part_bytes = part_of(&source->name, header, &part);
            at = put_part(at, part, part_bytes);
            part_bytes = part_of(&source->content, header, &part);
            at = put_part(at, part, part_bytes);
        }
        if (timestamp > done->max_timestamp) done->max_timestamp = timestamp;
        done->records++;
    }
    done->size = at - out;
}

/* --- where keys go --- */

static uint32_t murmur2(const uint8_t *data, int64_t size) {
    const uint32_t mix = 0x5bd1e995;
    uint32_t state = 0x9747b28c ^ (uint32_t)size;
    for (; size >= 4; size -= 4, data += 4) {
        uint32_t word = data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        word *= mix;
        word = (word ^ word >> 24) * mix;
        state = state * mix ^ word;
    }
    if (size > 0) {
        for (int64_t index = 0; index < size; index++) state ^= (uint32_t)data[index] << (8 * index);
        state *= mix;
    }
    state = (state ^ state >> 13) * mix;
    return state ^ state >> 15;
}

EXPORT void headrace_partitions(const Column *keys, int64_t rows, int32_t count, int32_t keyless, int32_t *out) {
    for (int64_t row = 0; row < rows; row++) {
        const uint8_t *key = NULL;
        int64_t size = part_of(keys, row, &key);
        out[row] = size < 0 ? keyless : (int32_t)((murmur2(key, size) & 0x7fffffff) % (uint32_t)count);
    }
}

/* --- CRC-32C, where the processor has it --- */

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>

/* The processor takes three cycles for a sum and can begin one with each: so three lanes of this many bytes at once. */
#define LANE 2048

static uint32_t after_lanes[2][4][256]; /* what a sum becomes, byte by byte, when one or two lanes of zeros follow */

static uint32_t after_zero_bits(uint32_t crc, int64_t count) {
    while (count-- > 0) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
    return crc;
}

static inline uint32_t shifted(uint32_t table[4][256], uint32_t crc) {
    return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^ table[3][crc >> 24];
}

/* Makes the tables; call it once, before the sums. Returns whether there are any. */
EXPORT int headrace_prepare_crc32c(void) {
    for (int bit = 0; bit < 32; bit++) {
        uint32_t sum = (uint32_t)1 << bit;
        for (int lanes = 0; lanes < 2; lanes++) {
            sum = after_zero_bits(sum, 8 * LANE);
            for (int byte = 0; byte < 256; byte++)
                if (byte >> bit % 8 & 1) after_lanes[lanes][bit / 8][byte] ^= sum;
        }
    }
    return __builtin_cpu_supports("sse4.2");
}

__attribute__((target("sse4.2"))) EXPORT uint32_t headrace_crc32c(const uint8_t *at, int64_t size) {
    uint64_t crc = 0xffffffff, word;
    for (; size >= 3 * LANE; size -= 3 * LANE, at += 3 * LANE) {
        uint64_t second = 0, third = 0;
        for (const uint8_t *lane_end = at + LANE; at < lane_end; at += 8) {
            memcpy(&word, at, 8);
            crc = _mm_crc32_u64(crc, word);
            memcpy(&word, at + LANE, 8);
            second = _mm_crc32_u64(second, word);
            memcpy(&word, at + 2 * LANE, 8);
            third = _mm_crc32_u64(third, word);
        }
        at -= LANE;
        crc = shifted(after_lanes[1], (uint32_t)crc) ^ shifted(after_lanes[0], (uint32_t)second) ^ third;
    }
    for (; size >= 8; size -= 8, at += 8) {
        memcpy(&word, at, 8);
        crc = _mm_crc32_u64(crc, word);
    }
    while (size-- > 0) crc = _mm_crc32_u8((uint32_t)crc, *at++);
    return ~(uint32_t)crc;
}
#else
EXPORT int headrace_prepare_crc32c(void) { return 0; }

EXPORT uint32_t headrace_crc32c(const uint8_t *at, int64_t size) { return (void)at, (void)size, 0; }
#endif

/* --- whole answers --- */

enum { BATCH_HEADER_BYTES = 61, LENGTH_END = 12, CRC_START = 21, MAGIC = 2 };
enum { NOT_PLAIN = 0x37 }; /* the bits of the attributes for compression, transactions and control batches */

static inline uint32_t big32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline int64_t big64(const uint8_t *at) { return (int64_t)((uint64_t)big32(at) << 32 | big32(at + 4)); }

/* The size of the batch at `data`; 0 if it is not all there, -1 if its header makes no sense. */
static int64_t batch_size(const uint8_t *data, int64_t left) {
    if (left < BATCH_HEADER_BYTES) return 0;
    int64_t size = (int64_t)(int32_t)big32(data + 8) + LENGTH_END, base_offset = big64(data);
    int32_t last_delta = (int32_t)big32(data + 23);
    if (size < BATCH_HEADER_BYTES || data[16] != MAGIC || last_delta < 0) return -1;
    if (base_offset < 0 || base_offset >= INT64_MAX - last_delta) return -1;
    return size <= left ? size : 0;
}

/* How many of the bytes are whole batches, and the offset behind the last; -1 if somebody else must look at them. */
EXPORT int64_t headrace_whole(const uint8_t *data, int64_t size, int64_t *next_offset) {
    int64_t at = 0, length;
    while ((length = batch_size(data + at, size - at)) > 0) {
        *next_offset = big64(data + at) + (int32_t)big32(data + at + 23) + 1;
        at += length;
    }
    return length < 0 ? -1 : at;
}

/* Add batch after batch, from `at` on, until a bound is reached or one comes that is not plain and sound: that one is
 * left to the caller, and `at` stands before it. */
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

/* --- is it of one piece with its caller? --- */

/* Raise the first figure when a function changes; the others tell of changed structs. */
EXPORT int64_t headrace_layout(void) {
    return (int64_t)2 << 48 | (int64_t)sizeof(Rows) << 32 | (int64_t)sizeof(Batch) << 16 | (int64_t)sizeof(Source);
}
