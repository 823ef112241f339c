/* A client's batch: its items without what they cannot choose, and as CommitLog records. */
#include "checks.h"
#include "kernels.h"

/* The bytes that end a property's name and its value. */
enum { NAME_END = 1, VALUE_END = 2, CRC_DIGITS = 10 };
enum { CRC_NAME_SIZE = sizeof CRC_PROPERTY - 1 };

typedef struct {
    int64_t flag;
    int64_t body_at;
    int64_t body_size;
    int64_t properties_at;
    int64_t properties_size;
} Item;

/* Whether an item starts at the position and its sizes add up. */
INLINE bool read_item(const uint8_t *data, int64_t limit, int64_t position, Item *item) {
    if (limit - position < ITEM_FIXED_SIZE) return false;
    int64_t size = load_be32(data, position);
    item->flag = load_be32(data, position + ITEM_FLAG_POSITION);
    item->body_at = position + ITEM_BODY_POSITION;
    item->body_size = load_be32(data, item->body_at - 4);
    if (item->body_size < 0 || size < ITEM_FIXED_SIZE + item->body_size ||
        size > limit - position)
        return false;
    item->properties_at = item->body_at + item->body_size + 2;
    item->properties_size = (int16_t)load_be16(data, item->properties_at - 2);
    return item->properties_size == size - ITEM_FIXED_SIZE - item->body_size;
}

/* Whether a property, [start, end) without the byte that ends it, is one that is left out. */
INLINE bool is_left_out(const int64_t *args, const uint8_t *data, int64_t start, int64_t end) {
    const int64_t longest = args[CLEAN_NAME_LONGEST];
    int64_t stop = min64(end, start + longest + 1);
    int64_t size = 0;
    while (start + size < stop && data[start + size] != NAME_END) size++;
    if (start + size < stop) {
        const uint8_t *names = bytes_at(args[CLEAN_NAMES]);
        const int32_t *begins = int32_at(args[CLEAN_NAME_ENDS]);
        const int32_t *of_length = int32_at(args[CLEAN_NAME_LENGTHS]);
        for (int64_t n = of_length[size]; n < of_length[size + 1]; n++)
            if (same_bytes(data, start, names, begins[n], size)) return true;
    }
    const int64_t prefix_size = args[CLEAN_PREFIX_SIZE];
    if (end - start <= prefix_size ||
        !same_bytes(data, start, bytes_at(args[CLEAN_PREFIX]), 0, prefix_size))
        return false;
    return seek_byte(data, start + prefix_size, end, args[CLEAN_SIZE], NAME_END) < end;
}

/* Whether a property has the wanted name: 1 with a value, 0 with an empty one or with none, -1 with
   a blank one. */
INLINE int64_t is_key(const int64_t *args, const uint8_t *data, int64_t start, int64_t end) {
    const int64_t size = args[CLEAN_KEY_SIZE];
    if (end - start <= size + 1 || data[start + size] != NAME_END ||
        !same_bytes(data, start, bytes_at(args[CLEAN_KEY]), 0, size))
        return 0;
    for (int64_t n = start + size + 1; n < end; n++)
        if (data[n] != ' ' && (data[n] < '\t' || data[n] > '\r')) return 1;
    return -1;
}

/* Properties that are kept, and how many of them are written. */
typedef struct {
    uint8_t *out; /* or NULL */
    int64_t to;
    bool any;
} Kept;

/* Adds [start, end), in which each is followed by a byte; the last one's is not copied. */
INLINE void keep(Kept *kept, const uint8_t *data, int64_t start, int64_t end) {
    int64_t size = end - 1 - start;
    if (size < 0) return;
    if (kept->any) {
        if (kept->out != NULL) kept->out[kept->to] = VALUE_END;
        kept->to++;
    }
    if (kept->out != NULL) memcpy(kept->out + kept->to, data + start, (size_t)size);
    kept->to += size;
    kept->any = true;
}

/* The batch with magics and checksums of 0 and without properties that are left out; a BatchEnd.
   Without an output it is only looked at. */
int64_t kernel_clean_batch(int64_t *args) {
    const uint8_t *data = bytes_at(args[CLEAN_DATA]);
    const int64_t limit = args[CLEAN_SIZE];
    uint8_t *out = bytes_at(args[CLEAN_OUT]);
    int64_t position = 0;
    int64_t used = 0;
    int64_t count = 0;
    int64_t without_key = 0;
    int64_t changed = 0;
    int64_t ended = BatchEnd_DONE;
    Item item;
    while (position < limit) {
        if (count == args[CLEAN_COUNT_MAX]) ended = BatchEnd_COUNT;
        else if (!read_item(data, limit, position, &item)) ended = BatchEnd_ITEM;
        if (ended != BatchEnd_DONE) break;
        const int64_t first = used + ITEM_FIXED_SIZE + item.body_size;
        const int64_t end = item.properties_at + item.properties_size;
        Kept kept = {out, first, false};
        int64_t behind = item.properties_at; /* the last property that was left out */
        int64_t keyed = 0;
        for (int64_t start = item.properties_at; start < end;) {
            int64_t stop = start;
            while (stop < end && stop - start < 8 && data[stop] != VALUE_END) stop++;
            if (stop - start == 8) stop = seek_byte(data, stop, end, limit, VALUE_END);
            if (stop - start > args[CLEAN_SIZE_MIN]) {
                int64_t found = is_key(args, data, start, stop);
                if (found != 0) {
                    keyed = found;
                } else if (is_left_out(args, data, start, stop)) {
                    changed = 1;
                    keep(&kept, data, behind, start);
                    behind = stop + 1;
                }
            }
            start = stop + 1;
        }
        keep(&kept, data, behind, end + 1);
        const int64_t to = kept.to;
        without_key += keyed <= 0;
        changed |= load_be64(data, position + 4) != 0; /* magic and checksum */
        if (out != NULL) {
            memset(out + used, 0, ITEM_FLAG_POSITION);
            store_be32(out, used, to - used);
            store_be32(out, used + ITEM_FLAG_POSITION, item.flag);
            store_be32(out, used + ITEM_BODY_POSITION - 4, item.body_size);
            memcpy(out + used + ITEM_BODY_POSITION, data + item.body_at, (size_t)item.body_size);
            store_be16(out, first - 2, to - first);
        }
        used = to;
        position = end;
        count++;
    }
    args[CLEAN_COUNT] = count;
    args[CLEAN_POSITION] = position;
    args[CLEAN_WITHOUT_KEY] = without_key;
    args[CLEAN_CHANGED] = changed;
    args[CLEAN_OUT_USED] = used;
    return ended;
}

/* Whether [start, end) ends in what reads as a record's CRC. */
static bool ends_in_crc(const uint8_t *data, int64_t start, int64_t end) {
    int64_t at = end - TAIL_SIZE;
    if (at < start || data[end - 1] != VALUE_END || data[at + CRC_NAME_SIZE] != NAME_END ||
        !same_bytes(data, at, (const uint8_t *)CRC_PROPERTY, 0, CRC_NAME_SIZE))
        return false;
    for (int64_t n = end - 1 - CRC_DIGITS; n < end - 1; n++)
        if (data[n] < '0' || data[n] > '9') return false;
    return true;
}

/* Writes the CRC of [start, end) behind it. */
static void put_crc(uint8_t *out, int64_t start, int64_t end) {
    uint32_t crc = crc_32(out, start, end - start) & (uint32_t)CRC_MASK;
    memcpy(out + end, CRC_PROPERTY, CRC_NAME_SIZE);
    end += CRC_NAME_SIZE;
    out[end++] = NAME_END;
    for (int n = 0; n < CRC_DIGITS; n++, crc /= 10) out[end++] = (uint8_t)('0' + crc % 10);
    out[end] = VALUE_END;
}

/* Records of a clean batch's items, back to back; a BatchEnd. */
int64_t kernel_batch_records(int64_t *args) {
    const uint8_t *data = bytes_at(args[RECORDS_DATA]);
    const int64_t limit = args[RECORDS_SIZE];
    const int64_t head_size = args[RECORDS_HEAD_SIZE];
    const int64_t topic_size = args[RECORDS_TOPIC_SIZE];
    const int64_t outer_size = args[RECORDS_OUTER_SIZE];
    const int64_t tail = args[RECORDS_CRC] ? TAIL_SIZE : 0;
    uint8_t *out = bytes_at(args[RECORDS_OUT]);
    int64_t *offsets = int64_at(args[RECORDS_OFFSETS]);
    int64_t used = 0;
    int64_t count = 0;
    Item item;
    for (int64_t position = 0; read_item(data, limit, position, &item); count++) {
        memcpy(out + used, bytes_at(args[RECORDS_HEAD]), (size_t)head_size);
        int64_t to = used + head_size;
        memcpy(out + to, data + item.body_at, (size_t)item.body_size);
        to += item.body_size;
        memcpy(out + to, bytes_at(args[RECORDS_TOPIC]), (size_t)topic_size);
        to += topic_size + 2;
        const int64_t first = to;
        memcpy(out + to, data + item.properties_at, (size_t)item.properties_size);
        to += item.properties_size;
        if (outer_size > 0) {
            if (to > first && out[to - 1] != VALUE_END) out[to++] = VALUE_END;
            memcpy(out + to, bytes_at(args[RECORDS_OUTER]), (size_t)outer_size);
            to += outer_size;
        }
        /* A record that ends in a zero looks like a torn one. */
        if (to > first && out[to - 1] == 0) out[to++] = VALUE_END;
        if (ends_in_crc(out, first, to)) return BatchEnd_CRC_TAIL;
        if (to - first + tail > PROPERTIES_SIZE_MAX) return BatchEnd_PROPERTIES;
        if (to - used + tail > args[RECORDS_RECORD_MAX]) return BatchEnd_RECORD;
        store_be32(out, used, to - used + tail);
        store_be32(out, used + BODY_CRC_POSITION,
                   crc_32(data, item.body_at, item.body_size) & CRC_MASK);
        store_be32(out, used + FLAG_POSITION, item.flag);
        store_be64(out, used + QUEUE_OFFSET_POSITION, args[RECORDS_QUEUE_OFFSET] + count);
        store_be64(out, used + COMMIT_LOG_OFFSET_POSITION, args[RECORDS_LOG_OFFSET] + used);
        store_be32(out, used + head_size - BODY_LENGTH_BEFORE_BODY, item.body_size);
        store_be16(out, first - 2, to - first + tail);
        if (tail > 0) put_crc(out, used, to);
        offsets[count] = args[RECORDS_LOG_OFFSET] + used;
        used = to + tail;
        position = item.properties_at + item.properties_size;
    }
    args[RECORDS_OUT_USED] = used;
    return BatchEnd_DONE;
}
