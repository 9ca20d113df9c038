/* The CRC-32 of zlib by carry-less multiplication (x86) or ARM's own instruction, a vector of norms in half a
 * microsecond. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009:
 * the constants are x^n mod P for the distances folded over, bit-reflected. */
#ifndef TRACKER_BRIDGE_CRC32_H
#define TRACKER_BRIDGE_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* By half bytes: one cache line, for what is shorter than a block and for what is left after the last one. */
static uint32_t crc32_few(uint32_t crc, const unsigned char *data, size_t size) {
    static const uint32_t table[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
        0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        crc = table[crc & 15] ^ (crc >> 4);
        crc = table[crc & 15] ^ (crc >> 4);
    }
    return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

static int crc32_is_fast(void) { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }

__attribute__((target("pclmul,sse4.1"))) static inline __m128i crc32_fold(__m128i x, __m128i by, __m128i next) {
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11)), next);
}

/* `size`: at least 64, a multiple of 16. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t crc32_blocks(uint32_t crc, const unsigned char *data,
                                                                      size_t size) {
    const __m128i by64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
    const __m128i by16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    const __m128i by4 = _mm_set_epi64x(0, 0x163cd6124);
    const __m128i polynomial = _mm_set_epi64x(0x1f7011641, 0x1db710641);
    const __m128i low = _mm_setr_epi32(~0, 0, ~0, 0);
    const __m128i *block = (const __m128i *) data;
    __m128i a = _mm_xor_si128(_mm_loadu_si128(block), _mm_cvtsi32_si128((int) crc));
    __m128i b = _mm_loadu_si128(block + 1), c = _mm_loadu_si128(block + 2), d = _mm_loadu_si128(block + 3);
    __m128i x;
    for (block += 4, size -= 64; size >= 64; block += 4, size -= 64) {
        a = crc32_fold(a, by64, _mm_loadu_si128(block));
        b = crc32_fold(b, by64, _mm_loadu_si128(block + 1));
        c = crc32_fold(c, by64, _mm_loadu_si128(block + 2));
        d = crc32_fold(d, by64, _mm_loadu_si128(block + 3));
    }
    a = crc32_fold(crc32_fold(crc32_fold(a, by16, b), by16, c), by16, d);
    for (; size >= 16; block++, size -= 16) a = crc32_fold(a, by16, _mm_loadu_si128(block));
    /* 128 bits to 64 to 32 */
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by16, 0x10));
    a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low), by4, 0x00));
    x = _mm_clmulepi64_si128(_mm_and_si128(a, low), polynomial, 0x10);
    x = _mm_clmulepi64_si128(_mm_and_si128(x, low), polynomial, 0x00);
    return (uint32_t) _mm_extract_epi32(_mm_xor_si128(a, x), 1);
}

#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>

static int crc32_is_fast(void) { return 1; }

static uint32_t crc32_blocks(uint32_t crc, const unsigned char *data, size_t size) {
    for (size_t i = 0; i < size; i += 8) {
        uint64_t word;
        memcpy(&word, data + i, 8);
        crc = __crc32d(crc, word);
    }
    return crc;
}

#else

static int crc32_is_fast(void) { return 0; }

static uint32_t crc32_blocks(uint32_t crc, const unsigned char *data, size_t size) {
    return crc32_few(crc, data, size);
}

#endif

/* As zlib's crc32(data). Only where `crc32_is_fast` if there is much of it. */
static uint32_t crc32_of(const unsigned char *data, size_t size) {
    size_t whole = size >= 64 ? size & ~(size_t) 15 : 0;
    uint32_t crc = 0xffffffff;
    if (whole) crc = crc32_blocks(crc, data, whole);
    return ~crc32_few(crc, data + whole, size - whole);
}

#endif
