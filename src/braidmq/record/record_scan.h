/* Whole, intact records end to end, three at a time where the processor has the CRC instruction: it
 * takes three cycles and can begin one in each, so three bodies go side by side. Whatever is not a
 * whole, intact record is left to record.pyx, which owns the format and says what is wrong.
 */
#ifndef BRAID_RECORD_SCAN_H
#define BRAID_RECORD_SCAN_H

#include "crc32c.h"

typedef struct {
    const unsigned char *data;
    size_t size;
    size_t at;             /* where the next record begins */
    uint32_t *positions;   /* of each record; there is room for `capacity` */
    size_t count, capacity;
    int64_t max_timestamp_ms;
    int64_t value_bytes;
    uint32_t value_bytes_max;
    int time_ordered;
    uint8_t summary;
} BraidScan;

#ifdef BRAID_CRC32C_X86
#define BRAID_SCAN_MAGIC_AND_VERSION 0x01b4u
#define BRAID_SCAN_TIMED 8u

typedef struct {
    const unsigned char *body;
    size_t length;         /* of the body */
    size_t start, end;     /* of the record */
    uint64_t traits;       /* bytes 8 to 16 of the header */
    int64_t timestamp_ms;
    uint32_t value_length;
    uint32_t body_crc;
} BraidScanned;

/* Whether a record begins at `at` whose header is intact and which ends within the data. */
__attribute__((target("sse4.2"))) static inline int braid_scan_header(
    const BraidScan *scan, size_t at, BraidScanned *record) {
    const unsigned char *p = scan->data + at;
    size_t left = scan->size - at, header = 40;
    uint64_t crc, checksums, traits, lengths;
    if (left < header) return 0;
    checksums = BRAID_LOAD64(p);
    traits = BRAID_LOAD64(p + 8);
    lengths = BRAID_LOAD64(p + 32);
    if ((traits & 0xffff) != BRAID_SCAN_MAGIC_AND_VERSION) return 0;
    crc = _mm_crc32_u32(~0u, (uint32_t)(checksums >> 32));
    crc = _mm_crc32_u64(crc, traits);
    crc = _mm_crc32_u64(crc, BRAID_LOAD64(p + 16));
    crc = _mm_crc32_u64(crc, BRAID_LOAD64(p + 24));
    crc = _mm_crc32_u64(crc, lengths);
    if (traits >> 16 & BRAID_SCAN_TIMED) {
        header = 56;
        if (left < header) return 0;
        crc = _mm_crc32_u64(crc, BRAID_LOAD64(p + 40));
        crc = _mm_crc32_u64(crc, BRAID_LOAD64(p + 48));
    }
    if (~(uint32_t)crc != (uint32_t)checksums) return 0;
    record->body = p + header;
    record->length = (traits >> 48) + (uint32_t)lengths + (lengths >> 32);
    record->start = at;
    record->end = at + ((header + record->length + 7) & ~(size_t)7);
    record->traits = traits;
    record->timestamp_ms = (int64_t)BRAID_LOAD64(p + 24);
    record->value_length = (uint32_t)(lengths >> 32);
    record->body_crc = (uint32_t)(checksums >> 32);
    return record->end <= scan->size;
}

__attribute__((target("sse4.2"))) static inline int braid_scan_body(
    const BraidScanned *record, uint64_t crc, size_t done) {
    if (done < record->length)
        crc = braid_crc32c_x86((uint32_t)crc, record->body + done, record->length - done);
    return ~(uint32_t)crc == record->body_crc;
}

/* Whether the bodies of three records are intact: together as far as the shortest goes. */
__attribute__((target("sse4.2"))) static inline int braid_scan_bodies(const BraidScanned *records) {
    const BraidScanned *x = records, *y = records + 1, *z = records + 2;
    size_t shared = x->length < y->length ? x->length : y->length;
    uint64_t a = ~0u, b = ~0u, c = ~0u;
    shared = (shared < z->length ? shared : z->length) & ~(size_t)7;
    for (size_t i = 0; i < shared; i += 8) {
        a = _mm_crc32_u64(a, BRAID_LOAD64(x->body + i));
        b = _mm_crc32_u64(b, BRAID_LOAD64(y->body + i));
        c = _mm_crc32_u64(c, BRAID_LOAD64(z->body + i));
    }
    return braid_scan_body(x, a, shared) & braid_scan_body(y, b, shared) &
           braid_scan_body(z, c, shared);
}

static inline void braid_scan_note(BraidScan *scan, const BraidScanned *record) {
    scan->positions[scan->count++] = (uint32_t)record->start;
    scan->summary |= (uint8_t)(record->traits >> 16);
    if (record->timestamp_ms < scan->max_timestamp_ms)
        scan->time_ordered = 0;
    else
        scan->max_timestamp_ms = record->timestamp_ms;
    scan->value_bytes += record->value_length;
    if (record->value_length > scan->value_bytes_max) scan->value_bytes_max = record->value_length;
    scan->at = record->end;
}

/* Takes records for as long as three that follow one another are whole and intact. */
__attribute__((target("sse4.2"))) static void braid_scan_intact(BraidScan *given) {
    BraidScan scan = *given; /* the compiler keeps what nobody else can reach in registers */
    BraidScanned records[3];
    while (scan.capacity - scan.count >= 3) {
        if (!braid_scan_header(&scan, scan.at, &records[0]) ||
            !braid_scan_header(&scan, records[0].end, &records[1]) ||
            !braid_scan_header(&scan, records[1].end, &records[2]) ||
            !braid_scan_bodies(records))
            break;
        braid_scan_note(&scan, &records[0]);
        braid_scan_note(&scan, &records[1]);
        braid_scan_note(&scan, &records[2]);
    }
    *given = scan;
}
#else
static void braid_scan_intact(BraidScan *scan) {
    (void)scan; /* never called: only processors with the instruction scan records together */
}
#endif

#endif
