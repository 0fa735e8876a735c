/* CRC-32C with the processor's instruction. It has a latency of three cycles and can start in every cycle, so three lanes
 * of bytes are computed in parallel and then combined.
 */

#include "library.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>

#define POLYNOMIAL 0x82f63b78 /* bit-reflected: the highest bit is 1, the next x */
#define LANE_POWER 11 /* log2 of the bytes of a lane */
#define LANE (1 << LANE_POWER)
#define CACHE_LINE 64

static uint32_t after_lanes[2][4][256]; /* by byte: the CRC after one or two more lanes of zeros */

static uint32_t times(uint32_t first, uint32_t second) {
    uint32_t product = 0;
    for (int bit = 31; bit >= 0; bit--) {
        if (first >> bit & 1) product ^= second;
        second = second & 1 ? second >> 1 ^ POLYNOMIAL : second >> 1;
    }
    return product;
}

/* A zero bit multiplies the CRC by x, so a lane of zeros multiplies it by x to the power of its bits. Runs when the
 * library is loaded, so in one thread only. */
__attribute__((constructor)) static void make_tables(void) {
    uint32_t factor = (uint32_t)1 << 30;
    for (int squared = 0; squared < LANE_POWER + 3; squared++) factor = times(factor, factor);
    for (int lanes = 0; lanes < 2; lanes++, factor = times(factor, factor))
        for (int bit = 0; bit < 32; bit++) {
            uint32_t sum = times((uint32_t)1 << bit, factor), *table = after_lanes[lanes][bit / 8];
            for (int byte = 0; byte < 1 << bit % 8; byte++) table[byte | 1 << bit % 8] = table[byte] ^ sum;
        }
}

EXPORT int headrace_has_crc32c(void) { return __builtin_cpu_supports("sse4.2") != 0; }

static inline uint32_t shifted(uint32_t table[4][256], uint32_t crc) {
    return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^ table[3][crc >> 24];
}

__attribute__((target("sse4.2"))) EXPORT uint32_t headrace_crc32c(const uint8_t *at, int64_t size) {
    uint64_t crc = 0xffffffff, word;
    for (; size >= 3 * LANE; size -= 3 * LANE, at += 3 * LANE) {
        uint64_t second = 0, third = 0;
        for (int64_t place = 0; place < LANE; place += 8) {
            if (place % CACHE_LINE == 0) /* the hardware prefetcher does not follow three lanes */
                for (int lane = 3; lane < 6; lane++) __builtin_prefetch(at + place + lane * LANE);
            memcpy(&word, at + place, 8);
            crc = _mm_crc32_u64(crc, word);
            memcpy(&word, at + place + LANE, 8);
            second = _mm_crc32_u64(second, word);
            memcpy(&word, at + place + 2 * LANE, 8);
            third = _mm_crc32_u64(third, word);
        }
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
EXPORT int headrace_has_crc32c(void) { return 0; }

EXPORT uint32_t headrace_crc32c(const uint8_t *at, int64_t size) { return (void)at, (void)size, 0; }
#endif
