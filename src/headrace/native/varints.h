/* Lengths, counts and deltas of records, and what may be wrong with them. */

#ifndef HEADRACE_VARINTS_H
#define HEADRACE_VARINTS_H

#include "library.h"

/* The timestamp of a malicious record may need more than 64 bits; compilers without such a type build no library. */
__extension__ typedef __int128 wide;
__extension__ typedef unsigned __int128 unsigned_wide;

enum { OK = 0, NO_MEMORY = 1, TOO_SHORT = 2, BAD_SIZE = 3, BAD_PART = 4, BAD_HEADERS = 5, BAD_OFFSET = 6, LEFT_OVER = 7 };

#define RECORD_BYTES_MIN 7

/* Up to ten bytes, zigzag. Returns the position after it, NULL if it does not end before `end`. */
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

/* A value that does not fit is returned as INT64_MAX, which no length, count or delta may have. */
static inline const uint8_t *read_varint(const uint8_t *at, const uint8_t *end, int64_t *value) {
    if (end - at >= 3) {
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
        if (at[2] < 0x80) {
            number = (number & 0x7f) | (at[1] & 0x7fu) << 7 | (uint32_t)at[2] << 14;
            *value = (int64_t)(number >> 1) ^ -(int64_t)(number & 1);
            return at + 3;
        }
    }
    wide number;
    at = long_varint(at, end, &number);
    if (at != NULL) *value = number < INT64_MIN || number > INT64_MAX ? INT64_MAX : (int64_t)number;
    return at;
}

/* The length of a field and its start; -1 is null. */
static inline int read_size(const uint8_t **at, const uint8_t *end, int64_t *size) {
    const uint8_t *from = read_varint(*at, end, size);
    if (from == NULL) return TOO_SHORT;
    if (*size < -1 || *size > end - from) return BAD_PART;
    *at = from;
    return OK;
}

#endif
