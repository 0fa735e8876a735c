/* Encode Arrow columns to records, and compute the partitions of their keys. */

#include "columns.h"

static inline int is_valid(const uint8_t *validity, int64_t row) {
    return validity == NULL || validity[row >> 3] >> (row & 7) & 1;
}

/* The bytes of a row; size -1 for null and for a missing column. */
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

/* --- partitions of keys --- */

/* Kafka's hash of a key: MurmurHash2, 32 bits, as in `headrace.client.produce.partitioner`. */
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

EXPORT uint32_t headrace_murmur2(const uint8_t *data, int64_t size) { return murmur2(data, size); }

EXPORT void headrace_partitions(const Column *keys, int64_t rows, int32_t count, int32_t keyless, int32_t *out) {
    for (int64_t row = 0; row < rows; row++) {
        const uint8_t *key = NULL;
        int64_t size = part_of(keys, row, &key);
        out[row] = size < 0 ? keyless : (int32_t)((murmur2(key, size) & 0x7fffffff) % (uint32_t)count);
    }
}
