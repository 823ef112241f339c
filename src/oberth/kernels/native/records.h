/* What both scanning and queues need of a record's text: numbers, topic names, the topic table. */
#ifndef OBERTH_RECORDS_H
#define OBERTH_RECORDS_H

#include "checks.h"

/* A non-negative decimal number, -1 for anything else (and for what exceeds an int64). */
INLINE int64_t decimal(const uint8_t *data, int64_t start, int64_t size) {
    if (size <= 0) return -1;
    int64_t value = 0;
    for (int64_t n = 0; n < size; n++) {
        int64_t digit = load_u8(data, start + n) - '0';
        if (digit < 0 || digit > 9 || value > (INT64_MAX - digit) / 10) return -1;
        value = value * 10 + digit;
    }
    return value;
}

/* Whether text begins with another. */
INLINE bool starts_with(const uint8_t *data, int64_t start, int64_t size, const char *prefix,
                        int64_t prefix_size) {
    return size >= prefix_size && memcmp(data + start, prefix, (size_t)prefix_size) == 0;
}

/* Whether the topic is the one of delayed messages. */
INLINE bool is_schedule_topic(const uint8_t *data, int64_t start, int64_t size) {
    return size == (int64_t)sizeof SCHEDULE_TOPIC - 1 &&
           starts_with(data, start, size, SCHEDULE_TOPIC, size);
}

/* The topic table's places in the arguments, relative to its first. */
enum {
    TABLE_COUNT = 0,
    TABLE_MAX = SCAN_TOPIC_MAX - SCAN_TOPIC_COUNT,
    TABLE_STARTS = SCAN_TOPIC_STARTS - SCAN_TOPIC_COUNT,
    TABLE_SIZES = SCAN_TOPIC_SIZES - SCAN_TOPIC_COUNT,
    TABLE_TEXT = SCAN_TOPIC_TEXT - SCAN_TOPIC_COUNT,
    TABLE_TEXT_USED = SCAN_TOPIC_TEXT_USED - SCAN_TOPIC_COUNT,
    TABLE_TEXT_MAX = SCAN_TOPIC_TEXT_MAX - SCAN_TOPIC_COUNT,
    TABLE_SLOTS = SCAN_TOPIC_SLOTS - SCAN_TOPIC_COUNT,
    TABLE_SLOT_MASK = SCAN_TOPIC_SLOT_MASK - SCAN_TOPIC_COUNT,
};
_Static_assert(TABLE_SLOT_MASK == QUEUES_TOPIC_SLOT_MASK - QUEUES_TOPIC_COUNT,
               "the topic table has one layout");

/* The topic's number; a new one is added to the table. -1 when the table is full.
   `table` is the part of the arguments where the topic table begins. */
INLINE int64_t intern_topic(int64_t *table, const uint8_t *data, int64_t topic_at,
                            int64_t topic_size) {
    int64_t *starts = int64_at(table[TABLE_STARTS]);
    int32_t *sizes = int32_at(table[TABLE_SIZES]);
    uint8_t *text = bytes_at(table[TABLE_TEXT]);
    int32_t *slots = int32_at(table[TABLE_SLOTS]);
    int64_t mask = table[TABLE_SLOT_MASK];
    int64_t slot = spread_hash(data, topic_at, topic_size) & mask;
    for (; slots[slot] != 0; slot = (slot + 1) & mask) {
        int64_t known = slots[slot] - 1;
        if (sizes[known] == topic_size &&
            same_bytes(text, starts[known], data, topic_at, topic_size))
            return known;
    }
    int64_t count = table[TABLE_COUNT];
    int64_t used = table[TABLE_TEXT_USED];
    if (count >= table[TABLE_MAX] || topic_size > table[TABLE_TEXT_MAX] - used) return -1;
    memcpy(text + used, data + topic_at, (size_t)topic_size);
    starts[count] = used;
    sizes[count] = (int32_t)topic_size;
    slots[slot] = (int32_t)(count + 1);
    table[TABLE_COUNT] = count + 1;
    table[TABLE_TEXT_USED] = used + topic_size;
    return count;
}

#endif
