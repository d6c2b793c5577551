/* CRC32C (Castagnoli): the SSE 4.2 instruction where the processor has it, slicing-by-8 elsewhere.
 *
 * The instruction has a latency of three cycles and a throughput of one, so a single chain over a
 * long buffer uses a third of it. Long buffers therefore run as three chains over adjacent blocks,
 * joined by a table that advances a CRC over a block of zeros. Short buffers stay one chain: the
 * chains of neighbouring records overlap in the processor anyway.
 *
 * Every extension that includes this has its own tables; call braid_crc32c_init() at import.
 */
#ifndef BRAID_CRC32C_H
#define BRAID_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define BRAID_CRC32C_X86 1
#include <nmmintrin.h>
#endif

#define BRAID_CRC32C_POLYNOMIAL 0x82f63b78u /* reflected */
#define BRAID_CRC32C_LONG 2048u             /* bytes per chain */
#define BRAID_CRC32C_SHORT 168u             /* three of these: worth it from about 512 bytes */

static uint32_t braid_crc32c_table[8][256];
static uint32_t braid_crc32c_skip_long[4][256];
static uint32_t braid_crc32c_skip_short[4][256];
static int braid_crc32c_hardware = 0;

/* Tables that advance a raw CRC over `length` zero bytes: the operation is linear, so the image of
 * each of the 32 bits is enough. */
static void braid_crc32c_fill_skip(uint32_t skip[4][256], size_t length) {
    uint32_t image[32];
    for (int bit = 0; bit < 32; bit++) {
        uint32_t crc = 1u << bit;
        for (size_t i = 0; i < length; i++)
            crc = braid_crc32c_table[0][crc & 0xff] ^ (crc >> 8);
        image[bit] = crc;
    }
    for (int byte = 0; byte < 4; byte++)
        for (int value = 0; value < 256; value++) {
            uint32_t crc = 0;
            for (int bit = 0; bit < 8; bit++)
                if (value >> bit & 1) crc ^= image[8 * byte + bit];
            skip[byte][value] = crc;
        }
}

static void braid_crc32c_init(void) {
    for (uint32_t value = 0; value < 256; value++) {
        uint32_t crc = value;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? (crc >> 1) ^ BRAID_CRC32C_POLYNOMIAL : crc >> 1;
        braid_crc32c_table[0][value] = crc;
    }
    for (int slice = 1; slice < 8; slice++)
        for (int value = 0; value < 256; value++) {
            uint32_t crc = braid_crc32c_table[slice - 1][value];
            braid_crc32c_table[slice][value] = braid_crc32c_table[0][crc & 0xff] ^ (crc >> 8);
        }
    braid_crc32c_fill_skip(braid_crc32c_skip_long, BRAID_CRC32C_LONG);
    braid_crc32c_fill_skip(braid_crc32c_skip_short, BRAID_CRC32C_SHORT);
#ifdef BRAID_CRC32C_X86
    __builtin_cpu_init();
    braid_crc32c_hardware = __builtin_cpu_supports("sse4.2") != 0;
#endif
}

static uint32_t braid_crc32c_portable(uint32_t crc, const unsigned char *p, size_t n) {
    while (n >= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        word ^= crc;
        crc = braid_crc32c_table[7][word & 0xff] ^ braid_crc32c_table[6][word >> 8 & 0xff] ^
              braid_crc32c_table[5][word >> 16 & 0xff] ^ braid_crc32c_table[4][word >> 24 & 0xff] ^
              braid_crc32c_table[3][word >> 32 & 0xff] ^ braid_crc32c_table[2][word >> 40 & 0xff] ^
              braid_crc32c_table[1][word >> 48 & 0xff] ^ braid_crc32c_table[0][word >> 56];
        p += 8;
        n -= 8;
    }
    while (n--) crc = braid_crc32c_table[0][(crc ^ *p++) & 0xff] ^ (crc >> 8);
    return crc;
}

#ifdef BRAID_CRC32C_X86
static inline uint32_t braid_crc32c_skip(uint32_t skip[4][256], uint32_t crc) {
    return skip[0][crc & 0xff] ^ skip[1][crc >> 8 & 0xff] ^ skip[2][crc >> 16 & 0xff] ^
           skip[3][crc >> 24];
}

#define BRAID_LOAD64(p) ({ uint64_t word_; memcpy(&word_, (p), 8); word_; })

__attribute__((target("sse4.2"))) static inline uint64_t braid_crc32c_three(
    uint64_t a, const unsigned char *p, size_t block, uint32_t skip[4][256]) {
    uint64_t b = 0, c = 0;
    for (size_t i = 0; i < block; i += 8) {
        a = _mm_crc32_u64(a, BRAID_LOAD64(p + i));
        b = _mm_crc32_u64(b, BRAID_LOAD64(p + block + i));
        c = _mm_crc32_u64(c, BRAID_LOAD64(p + 2 * block + i));
    }
    a = braid_crc32c_skip(skip, (uint32_t)a) ^ b;
    return braid_crc32c_skip(skip, (uint32_t)a) ^ c;
}

__attribute__((target("sse4.2"))) static uint32_t braid_crc32c_x86(
    uint32_t start, const unsigned char *p, size_t n) {
    uint64_t crc = start;
    while (n >= 3 * BRAID_CRC32C_LONG) {
        crc = braid_crc32c_three(crc, p, BRAID_CRC32C_LONG, braid_crc32c_skip_long);
        p += 3 * BRAID_CRC32C_LONG;
        n -= 3 * BRAID_CRC32C_LONG;
    }
    while (n >= 3 * BRAID_CRC32C_SHORT) {
        crc = braid_crc32c_three(crc, p, BRAID_CRC32C_SHORT, braid_crc32c_skip_short);
        p += 3 * BRAID_CRC32C_SHORT;
        n -= 3 * BRAID_CRC32C_SHORT;
    }
    for (; n >= 8; p += 8, n -= 8) crc = _mm_crc32_u64(crc, BRAID_LOAD64(p));
    if (n >= 4) {
        uint32_t word;
        memcpy(&word, p, 4);
        crc = _mm_crc32_u32((uint32_t)crc, word);
        p += 4;
        n -= 4;
    }
    while (n--) crc = _mm_crc32_u8((uint32_t)crc, *p++);
    return (uint32_t)crc;
}

/* Copies while it checks: short pieces are loaded once for both. */
__attribute__((target("sse4.2"))) static uint32_t braid_crc32c_copy_x86(
    uint32_t start, unsigned char *to, const unsigned char *p, size_t n) {
    uint64_t crc = start;
    while (n >= 3 * BRAID_CRC32C_SHORT) {
        size_t piece = n < 3 * BRAID_CRC32C_LONG ? n : 3 * BRAID_CRC32C_LONG;
        memcpy(to, p, piece);
        crc = braid_crc32c_x86((uint32_t)crc, p, piece);
        to += piece;
        p += piece;
        n -= piece;
    }
    for (; n >= 32; p += 32, to += 32, n -= 32) {
        uint64_t a = BRAID_LOAD64(p), b = BRAID_LOAD64(p + 8);
        uint64_t c = BRAID_LOAD64(p + 16), d = BRAID_LOAD64(p + 24);
        memcpy(to, &a, 8);
        memcpy(to + 8, &b, 8);
        memcpy(to + 16, &c, 8);
        memcpy(to + 24, &d, 8);
        crc = _mm_crc32_u64(_mm_crc32_u64(crc, a), b);
        crc = _mm_crc32_u64(_mm_crc32_u64(crc, c), d);
    }
    for (; n >= 8; p += 8, to += 8, n -= 8) {
        uint64_t word = BRAID_LOAD64(p);
        memcpy(to, &word, 8);
        crc = _mm_crc32_u64(crc, word);
    }
    for (; n; n--) crc = _mm_crc32_u8((uint32_t)crc, *to++ = *p++);
    return (uint32_t)crc;
}

/* Half a word and then whole ones: what stands behind the checksum in a record's header. */
__attribute__((target("sse4.2"))) static uint32_t braid_crc32c_header_x86(
    uint32_t start, const unsigned char *p, size_t n) {
    uint32_t half;
    memcpy(&half, p, 4);
    uint64_t crc = _mm_crc32_u32(start, half);
    for (size_t i = 4; i < n; i += 8) crc = _mm_crc32_u64(crc, BRAID_LOAD64(p + i));
    return (uint32_t)crc;
}
#endif

/* The CRC of `n` bytes continuing from `crc` (0 to start). */
static inline uint32_t braid_crc32c(uint32_t crc, const void *data, size_t n) {
#ifdef BRAID_CRC32C_X86
    if (braid_crc32c_hardware)
        return ~braid_crc32c_x86(~crc, (const unsigned char *)data, n);
#endif
    return ~braid_crc32c_portable(~crc, (const unsigned char *)data, n);
}

/* The CRC of `n` bytes, 4 more than a multiple of 8. */
static inline uint32_t braid_crc32c_header(const void *data, size_t n) {
#ifdef BRAID_CRC32C_X86
    if (braid_crc32c_hardware)
        return ~braid_crc32c_header_x86(~0u, (const unsigned char *)data, n);
#endif
    return ~braid_crc32c_portable(~0u, (const unsigned char *)data, n);
}

/* Copies `n` bytes and returns their CRC continuing from `crc`. */
static inline uint32_t braid_crc32c_copy(uint32_t crc, void *target, const void *source, size_t n) {
#ifdef BRAID_CRC32C_X86
    if (braid_crc32c_hardware)
        return ~braid_crc32c_copy_x86(
            ~crc, (unsigned char *)target, (const unsigned char *)source, n);
#endif
    memcpy(target, source, n);
    return braid_crc32c(crc, target, n);
}

/* One copy-and-check pass: the physical limit that benchmarks compare with. */
static uint32_t braid_copy_and_crc32c(void *target, const void *source, size_t n, size_t piece) {
    uint32_t crc = 0;
    for (size_t done = 0; done < n; done += piece) {
        size_t size = n - done < piece ? n - done : piece;
        memcpy((char *)target + done, (const char *)source + done, size);
        crc = braid_crc32c(crc, (const char *)target + done, size);
    }
    return crc;
}

#endif
