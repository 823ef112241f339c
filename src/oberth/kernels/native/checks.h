/* CRC-32, Java hashes over UTF-8, and the test whether a record starts at a position. */
#ifndef OBERTH_CHECKS_H
#define OBERTH_CHECKS_H

#include "bytes.h"
#include "layout.h"

#define HIGH_BITS UINT64_C(0x8080808080808080)

/* The CRC-32 of bytes as zlib computes it, 0 ... 2**32-1, behind others whose CRC is given. */
uint32_t crc_32_from(uint32_t before, const uint8_t *data, int64_t start, int64_t size);

/* The same of bytes alone. */
INLINE uint32_t crc_32(const uint8_t *data, int64_t start, int64_t size) {
    return crc_32_from(0, data, start, size);
}

/* Makes the tables; once, before the first CRC. */
void crc_prepare(void);

/* Continues Java's String.hashCode (unsigned) over UTF-8; each broken sequence is one U+FFFD. */
uint32_t text_hash(const uint8_t *data, int64_t start, int64_t size, uint32_t seed);

/* Whether a UTF-8 continuation byte is at the position. */
INLINE bool is_continuation(const uint8_t *data, int64_t position, int64_t end) {
    return position < end && (data[position] & 0xC0) == 0x80;
}

/* Where the hash of names begins: another number in each process, see `spread_hash`. */
extern uint64_t hash_seed;

/* Both halves of a product of 128 bits in one. */
INLINE uint64_t fold_product(uint64_t one, uint64_t other) {
    uint64_t one_low = one & UINT32_MAX, one_high = one >> 32;
    uint64_t other_low = other & UINT32_MAX, other_high = other >> 32;
    uint64_t low = one_low * other_low;
    uint64_t cross = one_high * other_low + (low >> 32);
    uint64_t middle = one_low * other_high + (cross & UINT32_MAX);
    uint64_t high = one_high * other_high + (cross >> 32) + (middle >> 32);
    return high ^ (middle << 32 | (low & UINT32_MAX));
}

/* A hash of bytes for tables of names. Names are chosen by peers, who must not know which of them
   meet in one slot: it begins at a secret, which is a factor of each word's product, too. */
INLINE int64_t spread_hash(const uint8_t *data, int64_t start, int64_t size) {
    uint64_t h = hash_seed ^ (uint64_t)size;
    uint64_t factor = (hash_seed ^ UINT64_C(0x9E3779B97F4A7C15)) | 1;
    int64_t n = 0;
    for (; size - n >= 8; n += 8) h = fold_product(h ^ load_le64(data, start + n), factor);
    uint64_t rest = 0;
    for (int shift = 0; n < size; n++, shift += 8) rest |= (uint64_t)data[start + n] << shift;
    return (int64_t)(fold_product(h ^ rest, factor ^ UINT64_C(0xD6E8FEB86659FD92)) & INT64_MAX);
}

/* Where the parts of a record lie. The properties end the record. */
typedef struct {
    int64_t sys_flag;
    int64_t body_at;
    int64_t topic_at;
    int64_t topic_size;
    int64_t properties_at;
} Record;

/* Whether a record starts here, checksums aside: ScanEnd_STOP, or what is wrong. */
INLINE int64_t inspect_record(const uint8_t *data, int64_t limit, int64_t base, int64_t position,
                              bool own_position, int64_t size_max, Record *record) {
    int64_t rest = limit - position;
    if (rest < 8) return ScanEnd_TRUNCATED;
    int64_t size = load_be32(data, position);
    int64_t magic = load_be32(data, position + MAGIC_POSITION);
    if (magic == BLANK_MAGIC) return ScanEnd_BLANK;
    if (magic != MAGIC_V1 && magic != MAGIC_V2)
        return size == 0 && magic == 0 ? ScanEnd_ZERO : ScanEnd_MAGIC;
    if (size < FIXED_SIZE_V1 || size > size_max) return ScanEnd_SIZE;
    if (size > rest) return ScanEnd_TRUNCATED;
    if (own_position &&
        load_be64(data, position + COMMIT_LOG_OFFSET_POSITION) != base + position)
        return ScanEnd_FOREIGN;
    int64_t sys_flag = load_be32(data, position + SYS_FLAG_POSITION);
    int64_t body_at = position + BODY_POSITION_V4;
    if (sys_flag & BORN_HOST_V6) body_at += HOST_V6_SIZE - HOST_V4_SIZE;
    if (sys_flag & STORE_HOST_V6) body_at += HOST_V6_SIZE - HOST_V4_SIZE;
    int64_t end = position + size;
    if (body_at + 3 > end) return ScanEnd_SIZE;
    int64_t body_size = load_be32(data, body_at - BODY_LENGTH_BEFORE_BODY);
    int64_t topic_at = body_at + body_size;
    if (body_size < 0 || topic_at + 3 > end) return ScanEnd_LENGTHS;
    int64_t topic_size;
    if (magic == MAGIC_V1) {
        topic_size = load_u8(data, topic_at);
        topic_at += 1;
    } else {
        topic_size = load_be16(data, topic_at);
        topic_at += 2;
    }
    int64_t properties_at = topic_at + topic_size + 2;
    if (properties_at > end) return ScanEnd_LENGTHS;
    if (properties_at + load_be16(data, properties_at - 2) != end) return ScanEnd_LENGTHS;
    record->sys_flag = sys_flag;
    record->body_at = body_at;
    record->topic_at = topic_at;
    record->topic_size = topic_size;
    record->properties_at = properties_at;
    return ScanEnd_STOP;
}

/* Whether the body passes the record's checksum; an empty one always does. */
INLINE bool body_crc_ok(const uint8_t *data, int64_t position, int64_t body_at) {
    int64_t size = load_be32(data, body_at - BODY_LENGTH_BEFORE_BODY);
    if (size == 0) return true;
    return (int64_t)(crc_32(data, body_at, size) & CRC_MASK) ==
           load_be32(data, position + BODY_CRC_POSITION);
}

#endif
