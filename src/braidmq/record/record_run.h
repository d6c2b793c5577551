/* A run of records that share all but the value, encoded in one loop where the processor has the CRC
 * instruction. Nothing is stored that is read back, and the loop is short: the checksums of
 * neighbouring records overlap. record.pyx owns the format and encodes single records of any kind.
 */
#ifndef BRAID_RECORD_RUN_H
#define BRAID_RECORD_RUN_H

#include <Python.h>

#include "crc32c.h"

#define BRAID_RECORD_HEADER 40u

typedef struct {
    unsigned char *to;     /* where the first record goes; there is room for all */
    uint32_t *positions;   /* of each record, from `position` on */
    uint32_t position;
    uint64_t traits;       /* bytes 8 to 16 of each header */
    uint64_t offset;       /* of the first record */
    uint64_t timestamp_ms;
    const unsigned char *envelope;
    size_t envelope_length;
    PyObject **values;     /* bytes */
    size_t count;
} BraidRun;

static inline PyObject **braid_list_items(PyObject *values) {
    return ((PyListObject *)values)->ob_item;
}

#ifdef BRAID_CRC32C_X86
__attribute__((target("sse4.2"))) static inline uint64_t braid_run_piece(
    uint64_t crc, unsigned char *to, const unsigned char *from, size_t n) {
    if (n >= 3 * BRAID_CRC32C_SHORT)
        return braid_crc32c_copy_x86((uint32_t)crc, to, from, n);
    for (; n >= 64; from += 64, to += 64, n -= 64) {
        for (int i = 0; i < 64; i += 16)
            _mm_storeu_si128(
                (__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
        for (int i = 0; i < 64; i += 8) crc = _mm_crc32_u64(crc, BRAID_LOAD64(from + i));
    }
    if (n) crc = braid_crc32c_copy_x86((uint32_t)crc, to, from, n);
    return crc;
}

/* Returns the bytes written. */
__attribute__((target("sse4.2"))) static size_t braid_encode_run(const BraidRun *run) {
    unsigned char *to = run->to;
    for (size_t i = 0; i < run->count; i++) {
        const unsigned char *value = (const unsigned char *)PyBytes_AS_STRING(run->values[i]);
        size_t value_length = (size_t)PyBytes_GET_SIZE(run->values[i]);
        size_t end = BRAID_RECORD_HEADER + run->envelope_length + value_length;
        size_t total = (end + 7) & ~(size_t)7;
        unsigned char *body = to + BRAID_RECORD_HEADER;
        uint64_t words[4] = {
            run->traits, run->offset + i, run->timestamp_ms,
            (uint64_t)run->envelope_length | (uint64_t)value_length << 32};
        uint64_t crc = 0xffffffffu;
        uint32_t checksums[2];
        memset(to + total - 8, 0, 8); /* the value may end within this word */
        if (run->envelope_length)
            crc = braid_run_piece(crc, body, run->envelope, run->envelope_length);
        crc = braid_run_piece(crc, body + run->envelope_length, value, value_length);
        checksums[1] = ~(uint32_t)crc;
        crc = _mm_crc32_u32(0xffffffffu, checksums[1]);
        for (int word = 0; word < 4; word++) crc = _mm_crc32_u64(crc, words[word]);
        checksums[0] = ~(uint32_t)crc;
        memcpy(to, checksums, 8);
        memcpy(to + 8, words, 32);
        run->positions[i] = run->position + (uint32_t)(to - run->to);
        to += total;
    }
    return (size_t)(to - run->to);
}
#else
static size_t braid_encode_run(const BraidRun *run) {
    (void)run;
    return 0; /* never called: only processors with the instruction encode runs */
}
#endif

#endif
