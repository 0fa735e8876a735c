/* Whether the Python code accepts a produced batch. True is certain; false is not: anything unusual gives false too, and
 * Python then checks the batch and reports what is wrong.
 */

#include "batch.h"
#include "varints.h"

static inline const uint8_t *skip_part(const uint8_t *at, const uint8_t *end, _Bool is_required) {
    int64_t size;
    if (read_size(&at, end, &size) || (is_required && size < 0)) return NULL;
    return size > 0 ? at + size : at;
}

static const uint8_t *skip_headers(const uint8_t *at, const uint8_t *end) {
    int64_t count;
    if ((at = read_varint(at, end, &count)) == NULL || count < 0 || count > end - at) return NULL;
    while (count-- > 0)
        if ((at = skip_part(at, end, 1)) == NULL || (at = skip_part(at, end, 0)) == NULL) return NULL;
    return at;
}

/* The position after a varint of up to ten bytes, whatever its value; NULL if it does not end before `end`. */
static inline const uint8_t *skip_varint(const uint8_t *at, const uint8_t *end) {
    if (end - at > 10) end = at + 10;
    while (at < end)
        if (*at++ < 0x80) return at;
    return NULL;
}

/* The position after the record at `at`; NULL if it is not sound. */
static inline const uint8_t *skip_record(const uint8_t *at, const uint8_t *end, int64_t index, _Bool keys_required) {
    const uint8_t *start = at;
    int64_t size, delta;
    if ((at = read_varint(at, end, &size)) == NULL || at - start > 5) return NULL;
    if (size < 1 || size > end - at) return NULL;
    end = at + size;
    if ((at = skip_varint(at + 1, end)) == NULL) return NULL;
    if ((at = read_varint(at, end, &delta)) == NULL || delta != index) return NULL;
    if ((at = skip_part(at, end, keys_required)) == NULL || (at = skip_part(at, end, 0)) == NULL) return NULL;
    if (end - at == 1 && *at == 0) return end;
    return skip_headers(at, end) == end ? end : NULL;
}

EXPORT int headrace_is_sound(const uint8_t *batch, int64_t size, _Bool keys_required) {
    if (size <= 0 || batch_size(batch, size) != size || batch[22] & COMPRESSION) return 0;
    /* First, because the sequential pass brings the bytes into the cache for the scan of the records. */
    if (headrace_crc32c(batch + CRC_START, size - CRC_START) != big32(batch + 17)) return 0;
    const uint8_t *at = batch + BATCH_HEADER_BYTES, *end = batch + size;
    int64_t count = (int32_t)big32(batch + 57);
    for (int64_t index = 0; index < count; index++)
        if ((at = skip_record(at, end, index, keys_required)) == NULL) return 0;
    return count > 0 && at == end;
}
