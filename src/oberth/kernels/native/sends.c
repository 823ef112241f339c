/* Plain sends: frames of SEND_MESSAGE_V2 in, records and answers out.

   What is taken for plain is less than what the general way takes: a compact or spaced JSON header
   of ASCII without escapes but those of the two separators, known fields once each, a known topic,
   no property that means anything to the broker. All else is left where it is, for the general
   way, which decides. */
#include "checks.h"
#include "headers.h"
#include "kernels.h"
#include "records.h"

enum { NAME_END = 1, VALUE_END = 2 };
/* A record without body, topic, and properties; both hosts IPv4. */
enum { BARE_SIZE = FIXED_SIZE_V1 };
enum { HOST_PAIR = 2 * HOST_V4_SIZE };

/* Property names that are looked at one by one. */
typedef struct {
    const uint8_t *text;
    const int64_t *starts; /* by length */
    bool waits;            /* whether WAIT=false is one of them */
} Names;

static bool is_among(const Names *names, const uint8_t *name, int64_t size) {
    if (size > SEND_NAME_MAX) return false;
    for (int64_t at = names->starts[size]; at < names->starts[size + 1]; at += size)
        if (memcmp(names->text + at, name, (size_t)size) == 0) return true;
    return false;
}

INLINE bool ends_with(const uint8_t *text, int64_t size, const char *wanted, int64_t wanted_size) {
    return size >= wanted_size &&
           memcmp(text + size - wanted_size, wanted, (size_t)wanted_size) == 0;
}
#define ENDS(text, size, wanted) ends_with(text, size, wanted, (int64_t)sizeof wanted - 1)

/* The properties, with their separators in place of escapes; false where one is not plain. */
static bool take_properties(Reader *in, uint8_t *text, int64_t room, const Names *names,
                            int64_t *size, Span *key) {
    if (in->at >= in->end || in->data[in->at] != '"') return false;
    in->at++;
    int64_t used = 0, entry = 0, value = -1;
    *key = (Span){-1, 0};
    for (;;) {
        if (in->at >= in->end || used + 1 >= room) return false;
        uint8_t byte = in->data[in->at];
        if (is_plain_byte(byte)) {
            text[used++] = byte;
            in->at++;
            /* Words that the log looks for anywhere in the text. */
            if (byte == '_' && (ENDS(text, used, "INNER_") || ENDS(text, used, "TIMER_")))
                return false;
            if (byte == 'Y' && ENDS(text, used, "DELAY")) return false;
            continue;
        }
        bool ends = byte == '"';
        if (!ends && (in->end - in->at < 6 || memcmp(in->data + in->at, "\\u000", 5) != 0))
            return false;
        uint8_t separator = ends ? VALUE_END : (uint8_t)(in->data[in->at + 5] - '0');
        in->at += ends ? 1 : 6;
        if (separator == NAME_END) {
            int64_t name_size = used - entry;
            const uint8_t *name = text + entry;
            if (value >= 0 || name_size == 0 || is_among(names, name, name_size)) return false;
            if (name_size >= (int64_t)sizeof TRANSIENT_PREFIX - 1 &&
                memcmp(name, TRANSIENT_PREFIX, sizeof TRANSIENT_PREFIX - 1) == 0)
                return false;
            text[used++] = NAME_END;
            value = used;
            if (ENDS(name, name_size, "UNIQ_KEY")) {
                if (key->at >= 0 || name_size != 8) return false;
                key->at = used;
            }
        } else if (separator == VALUE_END) {
            if (value < 0) {
                if (ends && used == entry) break; /* behind the last separator */
                return false;
            }
            if (key->at == value) key->size = used - value;
            /* The general way looks for these bytes anywhere. */
            if (names->waits && ENDS(text + entry, value - entry, "WAIT\1") && used - value >= 5 &&
                memcmp(text + value, "false", 5) == 0)
                return false;
            text[used++] = VALUE_END;
            entry = used;
            value = -1;
            if (ends) break;
        } else {
            return false;
        }
    }
    *size = used;
    return key->at >= 0;
}

enum {
    SEEN_TOPIC = SEEN_EXT, SEEN_QUEUE = SEEN_EXT << 1, SEEN_SYS_FLAG = SEEN_EXT << 2,
    SEEN_BORN = SEEN_EXT << 3, SEEN_USER_FLAG = SEEN_EXT << 4, SEEN_PROPERTIES = SEEN_EXT << 5,
    SEEN_BATCH = SEEN_EXT << 6,
};
#define NEEDED                                                                              \
    (SEEN_TOPIC | SEEN_QUEUE | SEEN_SYS_FLAG | SEEN_BORN | SEEN_USER_FLAG | SEEN_PROPERTIES)

/* A send that is being read. */
typedef struct {
    int64_t *args, *row;
    const Names *names;
} Send;

static bool take_fields(Reader *in, void *to, int *seen) {
    const Send *send = to;
    int64_t *args = send->args, *row = send->row;
    if (!take(in, '{')) return false;
    for (;;) {
        Span name, value;
        if (!take_string(in, &name) || !take(in, ':')) return false;
        uint8_t letter = name.size == 1 ? in->data[name.at] : 0;
        int bit = 0;
        switch (letter) {
            case 'b': bit = SEEN_TOPIC; break;
            case 'e': bit = SEEN_QUEUE; break;
            case 'f': bit = SEEN_SYS_FLAG; break;
            case 'g': bit = SEEN_BORN; break;
            case 'h': bit = SEEN_USER_FLAG; break;
            case 'i': bit = SEEN_PROPERTIES; break;
            case 'm': bit = SEEN_BATCH; break;
            default: break;
        }
        if (*seen & bit) return false;
        *seen |= bit;
        if (bit == SEEN_PROPERTIES) {
            uint8_t *text = bytes_at(args[SENDS_TEXT]) + args[SENDS_TEXT_USED];
            Span key;
            if (!take_properties(in, text, args[SENDS_TEXT_MAX] - args[SENDS_TEXT_USED],
                                 send->names, &row[SEND_TEXT_SIZE], &key))
                return false;
            row[SEND_TEXT_AT] = (int64_t)(uintptr_t)text;
            row[SEND_KEY_AT] = (int64_t)(uintptr_t)(text + key.at);
            row[SEND_KEY_SIZE] = key.size;
        } else {
            if (!take_string(in, &value)) return false;
            switch (bit) {
                case SEEN_TOPIC:
                    row[SEND_TOPIC_AT] = (int64_t)(uintptr_t)(in->data + value.at);
                    row[SEND_TOPIC_SIZE] = value.size;
                    break;
                case SEEN_QUEUE:
                    if (!number_of(in, value, &row[SEND_QUEUE_ID])) return false;
                    break;
                case SEEN_SYS_FLAG:
                    if (!number_of(in, value, &row[SEND_SYS_FLAG])) return false;
                    break;
                case SEEN_BORN:
                    if (!number_of(in, value, &row[SEND_BORN_TIMESTAMP])) return false;
                    break;
                case SEEN_USER_FLAG:
                    if (!number_of(in, value, &row[SEND_FLAG])) return false;
                    break;
                case SEEN_BATCH:
                    if (!IS(in, value, "false")) return false;
                    break;
                default: break;
            }
        }
        int more = next_entry(in);
        if (more <= 0) return more == 0;
    }
}

static bool take_send(Reader *in, Send *send) {
    Head head = {.code = SEND_CODE, .other_code = SEND_CODE};
    if (!take_header(in, &head, take_fields, send) || (head.seen & NEEDED) != NEEDED) return false;
    if (head.flag != 0 && head.flag != SEND_ONEWAY_FLAG) return false;
    send->row[SEND_OPAQUE] = head.opaque;
    send->row[SEND_ONEWAY] = head.flag != 0;
    return true;
}

/* The number of a topic that the table has, or -1. */
static int64_t find_topic(const int64_t *table, const uint8_t *name, int64_t size) {
    const int64_t *starts = int64_at(table[TABLE_STARTS]);
    const int32_t *sizes = int32_at(table[TABLE_SIZES]);
    const uint8_t *text = bytes_at(table[TABLE_TEXT]);
    const int32_t *slots = int32_at(table[TABLE_SLOTS]);
    const int64_t mask = table[TABLE_SLOT_MASK];
    int64_t slot = spread_hash(name, 0, size) & mask;
    for (; slots[slot] != 0; slot = (slot + 1) & mask) {
        int64_t known = slots[slot] - 1;
        if (sizes[known] == size && same_bytes(text, starts[known], name, 0, size)) return known;
    }
    return -1;
}

/* Whether a row may be stored; gives it its slot. */
static bool check_row(int64_t *args, int64_t *row) {
    int64_t topic = find_topic(args + SENDS_TOPICS, bytes_at(row[SEND_TOPIC_AT]),
                               row[SEND_TOPIC_SIZE]);
    if (topic < 0) return false;
    int64_t queue_id = row[SEND_QUEUE_ID];
    if (queue_id < 0 || queue_id >= int64_at(args[SENDS_QUEUES])[topic]) return false;
    if (!is_int32(row[SEND_SYS_FLAG]) || !is_int32(row[SEND_FLAG])) return false;
    if (row[SEND_SYS_FLAG] & args[SENDS_FLAGS_REFUSED]) return false;
    int64_t properties = row[SEND_TEXT_SIZE] + args[SENDS_ADDED_SIZE];
    if (properties > PROPERTIES_SIZE_MAX || row[SEND_BODY_SIZE] > args[SENDS_BODY_MAX])
        return false;
    int64_t size = BARE_SIZE + row[SEND_TOPIC_SIZE] + row[SEND_BODY_SIZE] + properties;
    if (size > args[SENDS_RECORD_MAX]) return false;
    int64_t slot = int64_at(args[SENDS_SLOTS_FROM])[topic] + queue_id;
    row[SEND_SLOT] = slot;
    int64_t *counts = int64_at(args[SENDS_SLOTS]) + slot * TALLY_FIELDS;
    if (counts[TALLY_COUNT]++ == 0) {
        counts[TALLY_BYTES] = 0;
        int64_at(args[SENDS_TOUCHED])[args[SENDS_TOUCHED_COUNT]++] = slot;
    }
    args[SENDS_BYTES] += size;
    return true;
}

/* The plain sends that chunks begin with, as rows; nothing is stored yet. */
int64_t kernel_send_rows(int64_t *args) {
    const Names names = {bytes_at(args[SENDS_NAMES]), int64_at(args[SENDS_NAMES_STARTS]),
                         args[SENDS_WAITS] != 0};
    int64_t *rows = int64_at(args[SENDS_ROWS]);
    int64_t count = 0;
    args[SENDS_TEXT_USED] = args[SENDS_TOUCHED_COUNT] = args[SENDS_BYTES] = 0;
    for (int64_t n = 0; n < args[SENDS_CHUNK_COUNT]; n++) {
        int64_t *chunk = int64_at(args[SENDS_CHUNKS]) + n * CHUNK_FIELDS;
        const uint8_t *data = bytes_at(chunk[CHUNK_DATA]);
        const int64_t size = chunk[CHUNK_SIZE];
        int64_t at = 0;
        Reader in;
        int64_t end;
        while (count < args[SENDS_ROW_MAX] &&
               take_frame(data, size, at, args[SENDS_FRAME_MAX], &in, &end)) {
            int64_t *row = rows + count * SEND_FIELDS;
            Send send = {args, row, &names};
            row[SEND_CHUNK] = n;
            row[SEND_BODY_AT] = (int64_t)(uintptr_t)(data + in.end);
            row[SEND_BODY_SIZE] = end - in.end;
            if (!take_send(&in, &send) || !check_row(args, row)) break;
            args[SENDS_TEXT_USED] += row[SEND_TEXT_SIZE];
            at = end;
            count++;
        }
        chunk[CHUNK_USED] = at;
        chunk[CHUNK_ROWS] = count;
    }
    args[SENDS_ROW_COUNT] = count;
    return count;
}

INLINE uint8_t *put_hex(uint8_t *out, const uint8_t *data, int64_t size) {
    static const uint8_t digits[] = "0123456789ABCDEF";
    for (int64_t n = 0; n < size; n++) {
        *out++ = digits[data[n] >> 4];
        *out++ = digits[data[n] & 15];
    }
    return out;
}

/* The records of all rows, back to back, and their answers. */
int64_t kernel_send_records(int64_t *args) {
    const int64_t *rows = int64_at(args[STORE_ROWS]);
    int64_t *slots = int64_at(args[STORE_SLOTS]);
    uint8_t *out = bytes_at(args[STORE_OUT]);
    uint8_t *const answers = bytes_at(args[STORE_ANSWERS]);
    uint8_t *answer = answers;
    const uint8_t *added = bytes_at(args[STORE_ADDED]);
    const int64_t added_size = args[STORE_ADDED_SIZE];
    const int64_t *pieces = int64_at(args[STORE_PIECES]);
    int64_t log_offset = args[STORE_LOG_OFFSET];
    int64_t number = 0;
    for (int64_t n = 0; n < args[STORE_CHUNK_COUNT]; n++) {
        int64_t *chunk = int64_at(args[STORE_CHUNKS]) + n * CHUNK_FIELDS;
        const uint8_t *hosts = bytes_at(chunk[CHUNK_HOSTS]);
        for (; number < chunk[CHUNK_ROWS]; number++) {
            const int64_t *row = rows + number * SEND_FIELDS;
            int64_t *slot = slots + row[SEND_SLOT] * TALLY_FIELDS;
            const uint8_t *body = bytes_at(row[SEND_BODY_AT]);
            const int64_t body_size = row[SEND_BODY_SIZE];
            const int64_t topic_size = row[SEND_TOPIC_SIZE];
            const int64_t text_size = row[SEND_TEXT_SIZE];
            const int64_t size = BARE_SIZE + topic_size + body_size + text_size + added_size;
            const int64_t queue_offset = slot[TALLY_OFFSET]++;
            slot[TALLY_BYTES] += size;
            /* A process may be killed at any byte. The head comes first: a body without one could
               hold what looks like a record. */
            uint8_t head[BODY_POSITION_V4];
            store_be32(head, 0, size);
            store_be32(head, MAGIC_POSITION, args[STORE_MAGIC]);
            store_be32(head, BODY_CRC_POSITION, crc_32(body, 0, body_size) & CRC_MASK);
            store_be32(head, QUEUE_ID_POSITION, row[SEND_QUEUE_ID]);
            store_be32(head, FLAG_POSITION, row[SEND_FLAG]);
            store_be64(head, QUEUE_OFFSET_POSITION, queue_offset);
            store_be64(head, COMMIT_LOG_OFFSET_POSITION, log_offset);
            store_be32(head, SYS_FLAG_POSITION, row[SEND_SYS_FLAG]);
            store_be64(head, BORN_TIMESTAMP_POSITION, row[SEND_BORN_TIMESTAMP]);
            uint8_t *at = put_bytes(head + BORN_HOST_POSITION, hosts, HOST_V4_SIZE);
            store_be64(at, 0, args[STORE_TIMESTAMP]);
            at = put_bytes(at + 8, hosts + HOST_V4_SIZE, HOST_V4_SIZE);
            memset(at, 0, 12); /* times consumed again, offset of the half message */
            store_be32(at, 12, body_size);
            memcpy(out, head, sizeof head);
            __atomic_signal_fence(__ATOMIC_SEQ_CST);
            at = put_bytes(out + sizeof head, body, body_size);
            store_u8(at++, 0, topic_size);
            at = put_bytes(at, bytes_at(row[SEND_TOPIC_AT]), topic_size);
            store_be16(at, 0, text_size + added_size);
            at = put_bytes(at + 2, bytes_at(row[SEND_TEXT_AT]), text_size);
            out = put_bytes(at, added, added_size);
            if (!row[SEND_ONEWAY]) {
                uint8_t *start = answer;
                uint8_t place[8];
                answer = put_piece(answer + HEAD_SIZE, pieces, 0);
                answer = put_decimal(answer, row[SEND_QUEUE_ID]);
                answer = put_piece(answer, pieces, 1);
                answer = put_hex(answer, hosts + HOST_V4_SIZE, HOST_V4_SIZE);
                store_be64(place, 0, log_offset);
                answer = put_hex(answer, place, sizeof place);
                answer = put_piece(answer, pieces, 2);
                answer = put_decimal(answer, queue_offset);
                answer = put_piece(answer, pieces, 3);
                answer = put_bytes(answer, bytes_at(row[SEND_KEY_AT]), row[SEND_KEY_SIZE]);
                answer = put_piece(answer, pieces, 4);
                answer = put_decimal(answer, row[SEND_OPAQUE]);
                answer = put_piece(answer, pieces, 5);
                int64_t header = answer - start - HEAD_SIZE;
                store_be32(start, 0, 4 + header);
                store_be32(start, 4, header);
            }
            log_offset += size;
        }
        chunk[CHUNK_ANSWERS] = answer - answers;
    }
    return number;
}
