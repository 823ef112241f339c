/* Raw loads and stores. Numbers in a store are big-endian; every position is an int64.

   Nothing here checks a bound: a kernel checks positions against the lengths in its arguments
   before it reads, because the bytes are whatever a disk or a peer made of them. */
#ifndef OBERTH_BYTES_H
#define OBERTH_BYTES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the kernels put numbers together for little-endian processors; plain Python serves others"
#endif

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

INLINE int64_t load_u8(const uint8_t *data, int64_t at) { return data[at]; }

INLINE int64_t load_be16(const uint8_t *data, int64_t at) {
    uint16_t value;
    memcpy(&value, data + at, sizeof value);
    return __builtin_bswap16(value);
}

INLINE int64_t load_be32(const uint8_t *data, int64_t at) {
    uint32_t value;
    memcpy(&value, data + at, sizeof value);
    return (int32_t)__builtin_bswap32(value);
}

INLINE int64_t load_be64(const uint8_t *data, int64_t at) {
    uint64_t value;
    memcpy(&value, data + at, sizeof value);
    return (int64_t)__builtin_bswap64(value);
}

INLINE uint64_t load_le32(const uint8_t *data, int64_t at) {
    uint32_t value;
    memcpy(&value, data + at, sizeof value);
    return value;
}

INLINE uint64_t load_le64(const uint8_t *data, int64_t at) {
    uint64_t value;
    memcpy(&value, data + at, sizeof value);
    return value;
}

INLINE void store_u8(uint8_t *data, int64_t at, int64_t number) { data[at] = (uint8_t)number; }

INLINE void store_be16(uint8_t *data, int64_t at, int64_t number) {
    uint16_t value = __builtin_bswap16((uint16_t)number);
    memcpy(data + at, &value, sizeof value);
}

INLINE void store_be32(uint8_t *data, int64_t at, int64_t number) {
    uint32_t value = __builtin_bswap32((uint32_t)number);
    memcpy(data + at, &value, sizeof value);
}

INLINE void store_be64(uint8_t *data, int64_t at, int64_t number) {
    uint64_t value = __builtin_bswap64((uint64_t)number);
    memcpy(data + at, &value, sizeof value);
}

/* Ask for the cache line of a place that is going to be read, or written, soon. Any address will
   do: the processor passes over one that is not there. */
INLINE void prefetch_read(const uint8_t *data, int64_t at) {
    __builtin_prefetch((const void *)((uintptr_t)data + (uintptr_t)at), 0, 3);
}

INLINE void prefetch_write(const uint8_t *data, int64_t at) {
    __builtin_prefetch((const void *)((uintptr_t)data + (uintptr_t)at), 1, 3);
}

/* A bit for each of 16 bytes that equals the wanted one, the lowest for the first byte. */
INLINE uint64_t match_16(const uint8_t *data, int64_t at, uint8_t wanted) {
#if defined(__SSE2__)
    __m128i bytes = _mm_loadu_si128((const __m128i *)(data + at));
    return (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8((char)wanted)));
#else
    uint64_t bits = 0;
    for (int n = 0; n < 16; n++) bits |= (uint64_t)(data[at + n] == wanted) << n;
    return bits;
#endif
}

INLINE uint64_t match_64(const uint8_t *data, int64_t at, uint8_t wanted) {
    return match_16(data, at, wanted) | match_16(data, at + 16, wanted) << 16 |
           match_16(data, at + 32, wanted) << 32 | match_16(data, at + 48, wanted) << 48;
}

INLINE void copy_16(uint8_t *target, int64_t target_at, const uint8_t *source, int64_t source_at) {
    uint8_t block[16];
    memcpy(block, source + source_at, sizeof block);
    memcpy(target + target_at, block, sizeof block);
}

INLINE int64_t min64(int64_t left, int64_t right) { return left < right ? left : right; }
INLINE int64_t max64(int64_t left, int64_t right) { return left > right ? left : right; }

/* Addresses travel as int64 in a kernel's arguments. */
INLINE uint8_t *bytes_at(int64_t address) { return (uint8_t *)(uintptr_t)address; }
INLINE int32_t *int32_at(int64_t address) { return (int32_t *)(uintptr_t)address; }
INLINE int64_t *int64_at(int64_t address) { return (int64_t *)(uintptr_t)address; }

/* Whether two stretches of memory are equal; short ones without a call. */
INLINE bool same_bytes(const uint8_t *left, int64_t left_at, const uint8_t *right,
                       int64_t right_at, int64_t size) {
    int64_t n = 0;
    for (; size - n >= 8; n += 8)
        if (load_le64(left, left_at + n) != load_le64(right, right_at + n)) return false;
    for (; n < size; n++)
        if (left[left_at + n] != right[right_at + n]) return false;
    return true;
}

/* The first place of a byte in [start, end), or end; up to limit may be read. */
INLINE int64_t seek_byte(const uint8_t *data, int64_t start, int64_t end, int64_t limit,
                         uint8_t wanted) {
    int64_t position = start;
    while (position < end) {
        if (limit - position >= 16) {
            uint64_t matches = match_16(data, position, wanted);
            if (matches != 0) return min64(position + __builtin_ctzll(matches), end);
            position += 16;
        } else {
            if (data[position] == wanted) return position;
            position++;
        }
    }
    return end;
}

#endif
