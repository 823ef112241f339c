/* Rows as CommitLog records. */
#include "checks.h"
#include "kernels.h"

/* The bytes that end a property's name and its value. */
enum { NAME_END = 1, VALUE_END = 2 };
/* A record without body, topic and its length, properties and the hosts. */
enum { BARE_SIZE = FIXED_SIZE_V1 - 1 - 2 * HOST_V4_SIZE };

/* A row's number in a column: an address and a step. */
#define NUMBER(name, row) \
    (int64_at(args[ENCODE_COLUMN_##name])[(row) * args[ENCODE_COLUMN_##name + 1]])

typedef struct {
    const uint8_t *data;
    int64_t size;
} Value;

/* A row's value; 0 bytes where it has none. */
INLINE Value value_of(const int64_t *column, int64_t row) {
    const uint8_t *data = bytes_at(column[VALUES_DATA]);
    if (column[VALUES_VALIDITY] != 0) {
        int64_t bit = column[VALUES_BIT] + row;
        if ((bytes_at(column[VALUES_VALIDITY])[bit >> 3] >> (bit & 7) & 1) == 0)
            return (Value){data, 0};
    }
    const int32_t *offsets = int32_at(column[VALUES_OFFSETS]);
    return (Value){data + offsets[row], (int64_t)offsets[row + 1] - offsets[row]};
}

/* Whether a byte of a value would end it, or a name. */
static bool has_separator(Value value) {
    bool found = false;
    for (int64_t n = 0; n < value.size; n++)
        found |= (value.data[n] == NAME_END) | (value.data[n] == VALUE_END);
    return found;
}

/* Copies a value; where it ends. */
INLINE int64_t put_value(uint8_t *out, int64_t position, Value value) {
    if (value.size > 0) memcpy(out + position, value.data, (size_t)value.size);
    return position + value.size;
}

/* Records of the rows, back to back; an EncodeEnd. */
int64_t kernel_encode(int64_t *args) {
    int64_t row = args[ENCODE_ROW];
    const int64_t log_offset = args[ENCODE_LOG_OFFSET];
    uint8_t *out = bytes_at(args[ENCODE_OUT]);
    const int64_t room = args[ENCODE_OUT_MAX];
    int64_t *sizes = int64_at(args[ENCODE_SIZES]);
    const int64_t *topics = int64_at(args[ENCODE_TOPICS]);
    const int64_t *magics = int64_at(args[ENCODE_MAGICS]);
    const int64_t *hosts = int64_at(args[ENCODE_HOSTS]);
    const int64_t *bodies = int64_at(args[ENCODE_BODIES]);
    const int64_t *stored = int64_at(args[ENCODE_STORED]);
    /* Two columns a property: its name, one value, and its values. */
    const int64_t *named = int64_at(args[ENCODE_PROPERTIES]);
    const int64_t named_count = args[ENCODE_PROPERTY_COUNT];
    int64_t used = 0;
    int64_t ended = EncodeEnd_DONE;
    for (; row < args[ENCODE_ROWS]; row++) {
        Value body = value_of(bodies, row);
        if (body.size > args[ENCODE_BODY_MAX]) {
            args[ENCODE_NEEDED] = body.size;
            ended = EncodeEnd_BODY;
            break;
        }
        prefetch_read(body.data, body.size);
        int64_t topic = NUMBER(topic, row);
        Value stored_properties = value_of(stored, row);
        int64_t properties_size = stored_properties.size;
        for (int64_t n = 0; n < named_count && ended == EncodeEnd_DONE; n++) {
            const int64_t *name = named + 2 * n * VALUES_FIELDS;
            Value value = value_of(name + VALUES_FIELDS, row);
            if (value.size == 0) continue;
            if (has_separator(value)) {
                args[ENCODE_BAD_PROPERTY] = n;
                ended = EncodeEnd_SEPARATOR;
            }
            properties_size += value_of(name, 0).size + value.size + 1;
        }
        if (ended != EncodeEnd_DONE) break;
        if (properties_size > PROPERTIES_SIZE_MAX) {
            args[ENCODE_NEEDED] = properties_size;
            ended = EncodeEnd_PROPERTIES;
            break;
        }
        Value topic_text = value_of(topics, topic);
        Value born_host = value_of(hosts, NUMBER(born_host, row));
        Value store_host = value_of(hosts, NUMBER(store_host, row));
        int64_t record_size = BARE_SIZE + body.size + topic_text.size + properties_size +
                              born_host.size + store_host.size;
        args[ENCODE_NEEDED] = record_size;
        if (record_size > args[ENCODE_RECORD_MAX]) {
            ended = EncodeEnd_RECORD;
            break;
        }
        if (used + record_size > room) {
            ended = EncodeEnd_FULL;
            break;
        }
        store_be32(out, used, record_size);
        store_be32(out, used + MAGIC_POSITION, magics[topic]);
        store_be32(out, used + BODY_CRC_POSITION, crc_32(body.data, 0, body.size) & CRC_MASK);
        store_be32(out, used + QUEUE_ID_POSITION, NUMBER(queue_id, row));
        store_be32(out, used + FLAG_POSITION, NUMBER(flag, row));
        store_be64(out, used + QUEUE_OFFSET_POSITION, 0);
        store_be64(out, used + COMMIT_LOG_OFFSET_POSITION, log_offset + used);
        store_be32(out, used + SYS_FLAG_POSITION, NUMBER(sys_flag, row));
        store_be64(out, used + BORN_TIMESTAMP_POSITION, NUMBER(born_timestamp, row));
        int64_t position = put_value(out, used + BORN_HOST_POSITION, born_host);
        store_be64(out, position, NUMBER(store_timestamp, row));
        position = put_value(out, position + 8, store_host) + RECONSUME_TIMES_BEFORE_BODY;
        store_be32(out, position - RECONSUME_TIMES_BEFORE_BODY, NUMBER(reconsume_times, row));
        store_be64(out, position - PREPARED_OFFSET_BEFORE_BODY,
                   NUMBER(prepared_transaction_offset, row));
        store_be32(out, position - BODY_LENGTH_BEFORE_BODY, body.size);
        position = put_value(out, position, body);
        position = put_value(out, position, topic_text);
        store_be16(out, position, properties_size);
        position += 2;
        for (int64_t n = 0; n < named_count; n++) {
            const int64_t *name = named + 2 * n * VALUES_FIELDS;
            Value value = value_of(name + VALUES_FIELDS, row);
            if (value.size == 0) continue;
            position = put_value(out, position, value_of(name, 0));
            position = put_value(out, position, value);
            store_u8(out, position++, VALUE_END);
        }
        put_value(out, position, stored_properties);
        sizes[row] = record_size;
        used += record_size;
    }
    args[ENCODE_ROW] = row;
    args[ENCODE_OUT_USED] = used;
    return ended;
}
