/* Kafka's hash of a key, which decides its partition: MurmurHash2, 32 bits. `headrace.client.produce.partitioner` has it in
 * Python, too. */

#include "library.h"

#define MIX 0x5bd1e995u
#define SEED 0x9747b28cu

EXPORT uint32_t headrace_murmur2(const uint8_t *data, int64_t size) {
    uint32_t state = SEED ^ (uint32_t)size;
    int64_t whole = size & ~(int64_t)3;
    for (int64_t at = 0; at < whole; at += 4) {
        uint32_t word = (uint32_t)data[at] | (uint32_t)data[at + 1] << 8 | (uint32_t)data[at + 2] << 16 |
                        (uint32_t)data[at + 3] << 24;
        word *= MIX;
        word ^= word >> 24;
        state = state * MIX ^ word * MIX;
    }
    if (whole < size) {
        uint32_t rest = 0;
        for (int64_t at = size - 1; at >= whole; at--) rest = rest << 8 | data[at];
        state = (state ^ rest) * MIX;
    }
    state = (state ^ state >> 13) * MIX;
    return state ^ state >> 15;
}
