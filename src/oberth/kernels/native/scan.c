/* Scanning records into columns. */
#include "kernels.h"
#include "records.h"

/* Of records larger than this only both ends are read, which the processor does not foresee. */
#define LARGE 384

/* Where a property's value lies; a property that a record does not have is at 0 with size -1. */
typedef struct {
    int64_t at;
    int64_t size;
} Value;

typedef struct {
    Value tags;
    Value keys;
    Value uniq_key;
    Value multi_dispatch;
    Value multi_queue_offset;
    int64_t delay_level;
    int64_t inner_num;
    int64_t inner_base;
} Properties;

#define IS_NAME(text) (memcmp(data + name_at, text, sizeof text - 1) == 0)

static void read_properties(const uint8_t *data, int64_t start, int64_t end, int64_t limit,
                            Properties *found) {
    const Value none = {0, -1};
    *found = (Properties){none, none, none, none, none, 0, -1, -1};
    int64_t name_at = start;
    while (name_at < end) {
        int64_t value_at = seek_byte(data, name_at, end, limit, 1) + 1;
        if (value_at > end) break;
        int64_t value_end = seek_byte(data, value_at, end, limit, 2);
        /* Pieces without a name-value separator may lie before this one's name. */
        int64_t piece_at = seek_byte(data, name_at, value_at, limit, 2) + 1;
        while (piece_at < value_at) {
            name_at = piece_at;
            piece_at = seek_byte(data, name_at, value_at, limit, 2) + 1;
        }
        Value value = {value_at, value_end - value_at};
        if (value.size > 0) {
            switch (value_at - 1 - name_at) {
            case 4:
                if (IS_NAME("TAGS")) found->tags = value;
                else if (IS_NAME("KEYS")) found->keys = value;
                break;
            case 5:
                if (IS_NAME("DELAY")) found->delay_level = decimal(data, value.at, value.size);
                break;
            case 8:
                if (IS_NAME("UNIQ_KEY")) found->uniq_key = value;
                break;
            case 9:
                if (IS_NAME("INNER_NUM")) found->inner_num = decimal(data, value.at, value.size);
                break;
            case 10:
                if (IS_NAME("INNER_BASE")) found->inner_base = decimal(data, value.at, value.size);
                break;
            case 20:
                if (IS_NAME("INNER_MULTI_DISPATCH")) found->multi_dispatch = value;
                break;
            case 24:
                if (IS_NAME("INNER_MULTI_QUEUE_OFFSET")) found->multi_queue_offset = value;
                break;
            }
        }
        name_at = value_end + 1;
    }
}

/* Stores a value in a column, if the caller wants the column. */
#define PUT_32(name, value) \
    if (args[COLUMN_##name]) int32_at(args[COLUMN_##name])[row] = (int32_t)(value)
#define PUT_64(name, value) \
    if (args[COLUMN_##name]) int64_at(args[COLUMN_##name])[row] = (value)

static void put_properties(int64_t *args, int64_t row, const uint8_t *data, const Record *record,
                           int64_t end, int64_t limit, int64_t store_timestamp) {
    Properties found;
    read_properties(data, record->properties_at, end, limit, &found);
    if (args[COLUMN_tags_code]) {
        int64_t tags_code = 0;
        if (found.tags.size > 0)
            tags_code = (int32_t)text_hash(data, found.tags.at, found.tags.size, 0);
        if (found.delay_level > 0 &&
            is_schedule_topic(data, record->topic_at, record->topic_size)) {
            int64_t level = min64(found.delay_level, args[SCAN_DELAY_COUNT] - 1);
            tags_code = store_timestamp +
                        (level < 1 ? UNKNOWN_LEVEL_DELAY_MS : int64_at(args[SCAN_DELAYS])[level]);
        }
        int64_at(args[COLUMN_tags_code])[row] = tags_code;
    }
    PUT_32(tags_at, found.tags.at);
    PUT_32(tags_size, found.tags.size);
    PUT_32(keys_at, found.keys.at);
    PUT_32(keys_size, found.keys.size);
    PUT_32(uniq_key_at, found.uniq_key.at);
    PUT_32(uniq_key_size, found.uniq_key.size);
    PUT_32(multi_dispatch_at, found.multi_dispatch.at);
    PUT_32(multi_dispatch_size, found.multi_dispatch.size);
    PUT_32(multi_queue_offset_at, found.multi_queue_offset.at);
    PUT_32(multi_queue_offset_size, found.multi_queue_offset.size);
    PUT_32(inner_num, found.inner_num <= INT32_MAX ? found.inner_num : -1);
    PUT_64(inner_base, found.inner_base);
}

/* Whether the whole-record CRC property is there, at the end, and right. */
static bool record_crc_ok(const uint8_t *data, int64_t position, int64_t properties_at) {
    static const char name[] = "__CRC32#\x01";
    int64_t end = position + load_be32(data, position);
    int64_t tail = end - 20; /* the name, ten digits, both separators */
    if (tail < properties_at || memcmp(data + tail, name, sizeof name - 1) != 0) return false;
    if (data[end - 1] != 2) return false;
    int64_t value = 0;
    for (int n = 0; n < 10; n++) { /* the last digit comes first */
        int64_t digit = load_u8(data, end - 2 - n) - '0';
        if (digit < 0 || digit > 9) return false;
        value = value * 10 + digit;
    }
    return value == (int64_t)(crc_32(data, position, tail - position) & CRC_MASK);
}

/* Records into columns; a ScanEnd. */
int64_t kernel_scan(int64_t *args) {
    const uint8_t *data = bytes_at(args[SCAN_DATA]);
    const int64_t limit = args[SCAN_LIMIT];
    const int64_t base = args[SCAN_BASE];
    int64_t position = args[SCAN_START];
    const int64_t stop = args[SCAN_STOP];
    const int64_t capacity = args[SCAN_CAPACITY];
    int64_t row = args[SCAN_COUNT];
    const int64_t crc_mode = args[SCAN_CRC_MODE];
    const bool record_crc = args[SCAN_RECORD_CRC];
    const bool own_position = args[SCAN_OWN_POSITION];
    const int64_t size_max = args[SCAN_SIZE_MAX];
    const bool wants_properties = args[SCAN_READ_PROPERTIES];
    int64_t *table = args + SCAN_TOPIC_COUNT;
    const int64_t *starts = int64_at(args[SCAN_TOPIC_STARTS]);
    const int32_t *sizes = int32_at(args[SCAN_TOPIC_SIZES]);
    const uint8_t *text = bytes_at(args[SCAN_TOPIC_TEXT]);
    int64_t last_topic = -1;
    int64_t ended = ScanEnd_STOP;
    while (position < stop) {
        if (row >= capacity) {
            ended = ScanEnd_FULL;
            break;
        }
        Record record;
        int64_t found =
            inspect_record(data, limit, base, position, own_position, size_max, &record);
        if (found != ScanEnd_STOP) {
            ended = found;
            break;
        }
        int64_t crc_ok = -1;
        if (record_crc) {
            crc_ok = record_crc_ok(data, position, record.properties_at);
            if (!crc_ok && crc_mode == CrcMode_STOP) {
                ended = ScanEnd_RECORD_CRC;
                break;
            }
        } else if (crc_mode != CrcMode_NONE) {
            crc_ok = body_crc_ok(data, position, record.body_at);
            if (!crc_ok && crc_mode == CrcMode_STOP) {
                ended = ScanEnd_BODY_CRC;
                break;
            }
        }
        int64_t size = load_be32(data, position);
        if (size > LARGE) {
            /* Ask for the end of the next but one, as far as it is about as large as this one. */
            int64_t ahead = position + 3 * size - 256;
            for (int line = 0; line < 6; line++) prefetch_read(data, ahead + 64 * line);
        }
        int64_t born_host_at = position + BORN_HOST_POSITION;
        int64_t store_time_at =
            born_host_at + (record.sys_flag & BORN_HOST_V6 ? HOST_V6_SIZE : HOST_V4_SIZE);
        int64_t store_timestamp = load_be64(data, store_time_at);
        if (args[COLUMN_topic_id]) {
            if (last_topic < 0 || sizes[last_topic] != record.topic_size ||
                !same_bytes(text, starts[last_topic], data, record.topic_at, record.topic_size)) {
                last_topic = intern_topic(table, data, record.topic_at, record.topic_size);
                if (last_topic < 0) {
                    ended = ScanEnd_TOPICS_FULL;
                    break;
                }
            }
            int32_at(args[COLUMN_topic_id])[row] = (int32_t)last_topic;
        }
        if (wants_properties)
            put_properties(args, row, data, &record, position + size, limit, store_timestamp);
        PUT_64(commit_log_offset, base + position);
        PUT_64(queue_offset, load_be64(data, position + QUEUE_OFFSET_POSITION));
        PUT_64(stored_offset, load_be64(data, position + COMMIT_LOG_OFFSET_POSITION));
        PUT_64(born_timestamp, load_be64(data, position + BORN_TIMESTAMP_POSITION));
        PUT_64(store_timestamp, store_timestamp);
        PUT_64(prepared_transaction_offset,
               load_be64(data, record.body_at - PREPARED_OFFSET_BEFORE_BODY));
        PUT_32(record_size, size);
        PUT_32(magic, load_be32(data, position + MAGIC_POSITION));
        PUT_32(body_crc, load_be32(data, position + BODY_CRC_POSITION));
        PUT_32(queue_id, load_be32(data, position + QUEUE_ID_POSITION));
        PUT_32(flag, load_be32(data, position + FLAG_POSITION));
        PUT_32(sys_flag, record.sys_flag);
        PUT_32(born_host_at, born_host_at);
        PUT_32(store_host_at, store_time_at + 8);
        PUT_32(reconsume_times, load_be32(data, record.body_at - RECONSUME_TIMES_BEFORE_BODY));
        PUT_32(body_at, record.body_at);
        PUT_32(body_size, load_be32(data, record.body_at - BODY_LENGTH_BEFORE_BODY));
        PUT_32(topic_at, record.topic_at);
        PUT_32(topic_size, record.topic_size);
        PUT_32(properties_at, record.properties_at);
        PUT_32(properties_size, position + size - record.properties_at);
        PUT_32(crc_ok, crc_ok);
        row++;
        position += size;
    }
    args[SCAN_COUNT] = row;
    args[SCAN_NEXT] = position;
    return ended;
}
