#include "checks.h"
#include "kernels.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define HAVE_CARRYLESS_MULTIPLY 1
#include <immintrin.h>
#endif

/* Entry b of table n is the CRC state after byte b and n zero bytes. */
static uint32_t tables[16][256];
static bool folds;

uint64_t hash_seed;

void crc_prepare(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int n = 0; n < 8; n++) crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0xEDB88320) : 0);
        tables[0][byte] = crc;
    }
    for (int n = 1; n < 16; n++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = tables[n - 1][byte];
            tables[n][byte] = tables[0][crc & 0xFF] ^ crc >> 8;
        }
#ifdef HAVE_CARRYLESS_MULTIPLY
    folds = __builtin_cpu_supports("pclmul");
#endif
}

/* The CRC of 16 bytes, given as two little-endian numbers, from the state 0. */
INLINE uint32_t crc_16(uint64_t low, uint64_t high) {
    uint32_t crc = 0;
    for (int n = 0; n < 8; n++) {
        crc ^= tables[15 - n][low >> (8 * n) & 0xFF];
        crc ^= tables[7 - n][high >> (8 * n) & 0xFF];
    }
    return crc;
}

#ifdef HAVE_CARRYLESS_MULTIPLY
#define FOLDED __attribute__((target("pclmul,sse4.1")))

FOLDED static inline __m128i fold(__m128i value, __m128i constants, __m128i data) {
    __m128i lower = _mm_clmulepi64_si128(value, constants, 0x00);
    __m128i upper = _mm_clmulepi64_si128(value, constants, 0x11);
    return _mm_xor_si128(_mm_xor_si128(lower, upper), data);
}

FOLDED static inline __m128i load_128(const uint8_t *data) {
    return _mm_loadu_si128((const __m128i *)data);
}

/* Folds bytes (64 or more, a multiple of 16) into 16 with the same remainder. The constants are
   x**n mod P in the reflected domain for folding over 64 and over 16 bytes (V. Gopal et al., "Fast
   CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009). */
FOLDED static uint32_t crc_folded(const uint8_t *data, int64_t size, uint32_t crc) {
    const __m128i over_64 = _mm_set_epi64x(0x1C6E41596, 0x154442BD4);
    const __m128i over_16 = _mm_set_epi64x(0x0CCAA009E, 0x1751997D0);
    __m128i lane0 = _mm_xor_si128(load_128(data), _mm_cvtsi64_si128((int64_t)(uint64_t)crc));
    __m128i lane1 = load_128(data + 16);
    __m128i lane2 = load_128(data + 32);
    __m128i lane3 = load_128(data + 48);
    data += 64;
    for (size -= 64; size >= 64; size -= 64, data += 64) {
        lane0 = fold(lane0, over_64, load_128(data));
        lane1 = fold(lane1, over_64, load_128(data + 16));
        lane2 = fold(lane2, over_64, load_128(data + 32));
        lane3 = fold(lane3, over_64, load_128(data + 48));
    }
    lane0 = fold(lane0, over_16, lane1);
    lane0 = fold(lane0, over_16, lane2);
    lane0 = fold(lane0, over_16, lane3);
    for (; size >= 16; size -= 16, data += 16) lane0 = fold(lane0, over_16, load_128(data));
    return crc_16((uint64_t)_mm_cvtsi128_si64(lane0), (uint64_t)_mm_extract_epi64(lane0, 1));
}
#endif

uint32_t crc_32_from(uint32_t before, const uint8_t *data, int64_t start, int64_t size) {
    uint32_t crc = before ^ 0xFFFFFFFF;
    int64_t position = start;
    int64_t end = start + size;
#ifdef HAVE_CARRYLESS_MULTIPLY
    if (folds && size >= 64) {
        int64_t whole = size & ~INT64_C(15);
        crc = crc_folded(data + position, whole, crc);
        position += whole;
    }
#endif
    for (; end - position >= 16; position += 16)
        crc = crc_16(load_le64(data, position) ^ crc, load_le64(data, position + 8));
    if (end - position >= 8) {
        uint64_t low = load_le64(data, position) ^ crc;
        crc = 0;
        for (int n = 0; n < 8; n++) crc ^= tables[7 - n][low >> (8 * n) & 0xFF];
        position += 8;
    }
    if (end - position >= 4) {
        uint64_t low = load_le32(data, position) ^ crc;
        crc = 0;
        for (int n = 0; n < 4; n++) crc ^= tables[3 - n][low >> (8 * n) & 0xFF];
        position += 4;
    }
    for (; position < end; position++) crc = tables[0][(crc ^ data[position]) & 0xFF] ^ crc >> 8;
    return crc ^ 0xFFFFFFFF;
}

uint32_t text_hash(const uint8_t *data, int64_t start, int64_t size, uint32_t seed) {
    static const uint32_t powers[9] = {1u,           31u,          961u,        29791u,
                                       923521u,      28629151u,    887503681u,  1742810335u,
                                       2487512833u};
    uint32_t h = seed;
    int64_t position = start;
    int64_t end = start + size;
    while (position < end) {
        /* Eight ASCII characters at once: eight products that do not wait for each other. */
        while (end - position >= 8) {
            uint64_t eight = load_le64(data, position);
            if (eight & HIGH_BITS) break;
            h *= powers[8];
            for (int n = 0; n < 8; n++) h += (uint32_t)(eight >> (8 * n) & 0xFF) * powers[7 - n];
            position += 8;
        }
        if (position == end) break;
        uint32_t first = data[position++];
        if (first < 0x80) {
            h = h * 31 + first;
            continue;
        }
        uint32_t unit = 0xFFFD;
        if (0xC2 <= first && first <= 0xDF) {
            if (is_continuation(data, position, end))
                unit = (first & 0x1F) << 6 | (data[position++] & 0x3F);
        } else if (0xE0 <= first && first <= 0xEF) {
            uint32_t low = first == 0xE0 ? 0xA0 : 0x80;
            uint32_t high = first == 0xED ? 0x9F : 0xBF;
            if (position < end && low <= data[position] && data[position] <= high) {
                uint32_t second = data[position++];
                if (is_continuation(data, position, end))
                    unit = (first & 0x0F) << 12 | (second & 0x3F) << 6 | (data[position++] & 0x3F);
            }
        } else if (0xF0 <= first && first <= 0xF4) {
            uint32_t low = first == 0xF0 ? 0x90 : 0x80;
            uint32_t high = first == 0xF4 ? 0x8F : 0xBF;
            if (position < end && low <= data[position] && data[position] <= high) {
                uint32_t second = data[position++];
                if (is_continuation(data, position, end)) {
                    uint32_t third = data[position++];
                    if (is_continuation(data, position, end)) {
                        uint32_t point = ((first & 0x07) << 18 | (second & 0x3F) << 12 |
                                          (third & 0x3F) << 6 | (data[position++] & 0x3F)) -
                                         0x10000;
                        h = h * 31 + 0xD800 + (point >> 10);
                        unit = 0xDC00 + (point & 0x3FF);
                    }
                }
            }
        }
        h = h * 31 + unit;
    }
    return h;
}

int64_t kernel_crc(int64_t *args) {
    return crc_32_from((uint32_t)args[CRC_BEFORE], bytes_at(args[CRC_DATA]), args[CRC_START],
                       args[CRC_SIZE]);
}

int64_t kernel_java_hash(int64_t *args) {
    return text_hash(bytes_at(args[HASH_DATA]), args[HASH_START], args[HASH_SIZE],
                     (uint32_t)args[HASH_SEED]);
}

/* CRCs are polynomials over GF(2), the term x**0 in the topmost bit: the product of two. */
static uint32_t crc_times(uint32_t one, uint32_t other) {
    uint32_t product = 0;
    for (uint32_t bit = UINT32_C(1) << 31; bit != 0; bit >>= 1) {
        if (one & bit) product ^= other;
        other = other >> 1 ^ (other & 1 ? UINT32_C(0xEDB88320) : 0);
    }
    return product;
}

/* What the CRC of some bytes adds to that of these and so many more: it times x**(8 * size). */
static uint32_t crc_before(uint32_t crc, int64_t size) {
    uint32_t power = UINT32_C(1) << 31;
    uint32_t square = UINT32_C(1) << 23;
    for (; size != 0; size >>= 1) {
        if (size & 1) power = crc_times(power, square);
        square = crc_times(square, square);
    }
    return crc_times(power, crc);
}

enum { MARKS = 4096, MARK_DISTANCE = 4096, SINGLY_SUMMED_MAX = 8 << 20 };

/* Sums of the bytes from a place up to marks at equal distances. */
typedef struct {
    int64_t origin;
    int64_t distance;
    int64_t count; /* marks known so far; the first lies at the origin */
    int64_t allowed; /* bytes that may still be summed up one body after the other */
    int64_t summed;
    uint32_t at[MARKS + 1];
} Sums;

/* Moves the marks so that a body lies between them. Bodies come in the order of their records: the
   marks move once for half of their span. */
static void reach(Sums *sums, int64_t start, int64_t size) {
    int64_t origin = sums->origin;
    if (origin >= 0 && start >= origin && start + size - origin < MARKS * sums->distance) return;
    while (size > MARKS / 2 * sums->distance) sums->distance *= 2;
    /* The body of a record behind this one may begin some bytes before this one's. */
    sums->origin = max64(start - 64, 0);
    sums->count = 0;
}

/* The CRC of a body, from the sums up to two marks and what lies before and behind them. */
static uint32_t crc_between(Sums *sums, const uint8_t *data, int64_t start, int64_t size) {
    reach(sums, start, size);
    int64_t first = (start - sums->origin + sums->distance - 1) / sums->distance;
    int64_t last = (start + size - sums->origin) / sums->distance;
    if (last <= first) {
        sums->summed += size;
        return crc_32(data, start, size);
    }
    for (; sums->count <= last; sums->count++) {
        int64_t n = sums->count;
        sums->at[n] = n == 0 ? 0
                             : crc_32_from(sums->at[n - 1], data,
                                           sums->origin + (n - 1) * sums->distance, sums->distance);
        if (n > 0) sums->summed += sums->distance;
    }
    int64_t from = sums->origin + first * sums->distance;
    int64_t upto = sums->origin + last * sums->distance;
    int64_t rest = start + size - upto;
    sums->summed += from - start + rest;
    uint32_t between = sums->at[last] ^ crc_before(sums->at[first], upto - from);
    uint32_t head = crc_32(data, start, from - start);
    return crc_before(crc_before(head, upto - from) ^ between, rest) ^ crc_32(data, upto, rest);
}

/* As `body_crc_ok`, for one candidate of many. A body may be full of heads that look like records,
   each with a body up to its end: once as much was summed up as a few large bodies have, each
   costs what lies between its ends and the next marks. */
static bool candidate_crc_ok(Sums *sums, const uint8_t *data, int64_t position, int64_t body_at) {
    int64_t size = load_be32(data, body_at - BODY_LENGTH_BEFORE_BODY);
    if (size <= sums->allowed) {
        sums->allowed -= size;
        sums->summed += size;
        return body_crc_ok(data, position, body_at);
    }
    return (int64_t)(crc_between(sums, data, body_at, size) & CRC_MASK) ==
           load_be32(data, position + BODY_CRC_POSITION);
}

static int64_t found_at(int64_t *args, const Sums *sums, int64_t position) {
    args[FIND_SUMMED] = sums->summed;
    return position;
}

/* Position of the first valid record at or after a position, -1 for none. */
int64_t kernel_find(int64_t *args) {
    const uint8_t *data = bytes_at(args[FIND_DATA]);
    int64_t limit = args[FIND_LIMIT];
    int64_t base = args[FIND_BASE];
    bool own_position = args[FIND_OWN_POSITION];
    int64_t size_max = args[FIND_SIZE_MAX];
    bool check_crc = args[FIND_CHECK_CRC];
    Sums sums = {.origin = -1, .distance = MARK_DISTANCE, .allowed = SINGLY_SUMMED_MAX};
    const uint8_t first = MAGIC_V1 >> 24 & 0xFF;
    /* From here on positions are those of the magic. */
    int64_t position = args[FIND_START] + MAGIC_POSITION;
    int64_t stop = min64(args[FIND_STOP] + MAGIC_POSITION, limit - 4);
    while (position < stop) {
        uint64_t matches = 0;
        int64_t block_end;
        if (limit - position >= 64) {
            matches = match_64(data, position, first);
            block_end = position + 64;
        } else {
            for (int64_t n = 0; n < limit - position; n++)
                matches |= (uint64_t)(data[position + n] == first) << n;
            block_end = limit;
        }
        for (; matches != 0; matches &= matches - 1) {
            int64_t candidate = position + __builtin_ctzll(matches);
            if (candidate >= stop) return found_at(args, &sums, -1);
            if (data[candidate + 1] != (MAGIC_V1 >> 16 & 0xFF) ||
                data[candidate + 2] != (MAGIC_V1 >> 8 & 0xFF))
                continue;
            Record record;
            int64_t start = candidate - MAGIC_POSITION;
            if (inspect_record(data, limit, base, start, own_position, size_max, &record) ==
                    ScanEnd_STOP &&
                (!check_crc || candidate_crc_ok(&sums, data, start, record.body_at)))
                return found_at(args, &sums, start);
        }
        position = block_end;
    }
    return found_at(args, &sums, -1);
}
