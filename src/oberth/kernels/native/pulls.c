/* Plain pulls: frames of PULL_MESSAGE and LITE_PULL_MESSAGE in, messages with their heads out.

   Between the two steps the broker looks up what each group may read, once for all that ask the
   same, and which units and records there are. A pull is answered here where it finds messages
   that lie in one segment and reach no limit; all else is left to the general way. */
#include "checks.h"
#include "headers.h"
#include "kernels.h"

enum {
    SEEN_GROUP = SEEN_EXT, SEEN_TOPIC = SEEN_EXT << 1, SEEN_QUEUE = SEEN_EXT << 2,
    SEEN_OFFSET = SEEN_EXT << 3, SEEN_COUNT = SEEN_EXT << 4, SEEN_SYS_FLAG = SEEN_EXT << 5,
    SEEN_COMMIT = SEEN_EXT << 6, SEEN_SUSPEND = SEEN_EXT << 7, SEEN_VERSION_OF = SEEN_EXT << 8,
    SEEN_SUBSCRIPTION = SEEN_EXT << 9, SEEN_KIND = SEEN_EXT << 10, SEEN_BYTES = SEEN_EXT << 11,
    SEEN_SOURCE = SEEN_EXT << 12,
};
#define NEEDED                                                                          \
    (SEEN_GROUP | SEEN_TOPIC | SEEN_QUEUE | SEEN_OFFSET | SEEN_COUNT | SEEN_SYS_FLAG |  \
     SEEN_COMMIT | SEEN_SUSPEND | SEEN_VERSION_OF)

/* A pull that is being read. */
typedef struct {
    int64_t *row;
    Span group, topic, version, subscription, kind;
    int64_t queue_id;
} Pull;

static bool take_fields(Reader *in, void *to, int *seen) {
    Pull *pull = to;
    int64_t *row = pull->row;
    if (!take(in, '{')) return false;
    for (;;) {
        Span name, value;
        int64_t number;
        if (!take_string(in, &name) || !take(in, ':') || !take_string(in, &value)) return false;
        int bit = 0;
        bool ok = true;
        if (IS(in, name, "consumerGroup")) bit = SEEN_GROUP, pull->group = value;
        else if (IS(in, name, "topic")) bit = SEEN_TOPIC, pull->topic = value;
        else if (IS(in, name, "queueId")) {
            bit = SEEN_QUEUE;
            ok = int32_of(in, value, &pull->queue_id);
        } else if (IS(in, name, "queueOffset")) {
            bit = SEEN_OFFSET;
            ok = number_of(in, value, &row[PULL_OFFSET]);
        } else if (IS(in, name, "maxMsgNums")) {
            bit = SEEN_COUNT;
            ok = int32_of(in, value, &row[PULL_COUNT]);
        } else if (IS(in, name, "sysFlag")) {
            bit = SEEN_SYS_FLAG;
            ok = int32_of(in, value, &row[PULL_SYS_FLAG]);
        } else if (IS(in, name, "commitOffset")) {
            bit = SEEN_COMMIT;
            ok = number_of(in, value, &row[PULL_COMMIT]);
        } else if (IS(in, name, "suspendTimeoutMillis")) {
            bit = SEEN_SUSPEND;
            ok = number_of(in, value, &number);
        } else if (IS(in, name, "subVersion")) {
            bit = SEEN_VERSION_OF;
            pull->version = value;
            ok = number_of(in, value, &number);
        } else if (IS(in, name, "subscription")) bit = SEEN_SUBSCRIPTION, pull->subscription = value;
        else if (IS(in, name, "expressionType")) bit = SEEN_KIND, pull->kind = value;
        else if (IS(in, name, "maxMsgBytes")) {
            bit = SEEN_BYTES;
            ok = int32_of(in, value, &row[PULL_BYTES_MAX]);
        } else if (IS(in, name, "requestSource")) {
            bit = SEEN_SOURCE;
            ok = int32_of(in, value, &number);
        }
        if (!ok || (*seen & bit)) return false;
        *seen |= bit;
        int more = next_entry(in);
        if (more <= 0) return more == 0;
    }
}

static uint8_t *put_line(uint8_t *out, const Reader *in, Span text, bool is_there) {
    if (is_there) out = put_bytes(out, in->data + text.at, text.size);
    *out++ = '\n';
    return out;
}

/* What the right of a pull depends on, as text; its size, or -1 where there is no room. A line each:
   code, whether it brings its subscription, version, group, topic, kind of expression, expression.
   What is not there is without the mark that stands before what is. */
static int64_t put_key(uint8_t *out, int64_t room, const Reader *in, const Pull *pull, Head *head) {
    int64_t size = pull->group.size + pull->topic.size + pull->version.size;
    bool has_kind = head->seen & SEEN_KIND, has_text = head->seen & SEEN_SUBSCRIPTION;
    if (has_kind) size += pull->kind.size;
    if (has_text) size += pull->subscription.size;
    if (size > PULL_KEY_MAX - PULL_KEY_SPARE || size > room - PULL_KEY_SPARE) return -1;
    uint8_t *at = put_decimal(out, head->code);
    *at++ = '\n';
    *at++ = pull->row[PULL_SYS_FLAG] & PULL_BRINGS_SUBSCRIPTION ? '1' : '0';
    *at++ = '\n';
    at = put_line(at, in, pull->version, true);
    at = put_line(at, in, pull->group, true);
    at = put_line(at, in, pull->topic, true);
    if (has_kind) *at++ = '=';
    at = put_line(at, in, pull->kind, has_kind);
    if (has_text) *at++ = '=';
    at = put_line(at, in, pull->subscription, has_text);
    return at - out;
}

/* The number of a key, which is at the end of the keys' text; a new one is kept there. */
static int64_t find_right(int64_t *args, int64_t size) {
    int64_t *rights = int64_at(args[PULLS_RIGHTS]);
    int32_t *slots = int32_at(args[PULLS_RIGHT_SLOTS]);
    const uint8_t *text = bytes_at(args[PULLS_TEXT]);
    const int64_t key = args[PULLS_TEXT_USED];
    int64_t slot = spread_hash(text, key, size) & (PULLS_SLOTS - 1);
    for (; slots[slot] != 0; slot = (slot + 1) & (PULLS_SLOTS - 1)) {
        const int64_t *known = rights + (slots[slot] - 1) * RIGHT_FIELDS;
        if (known[RIGHT_KEY_SIZE] == size && same_bytes(text, known[RIGHT_KEY], text, key, size))
            return slots[slot] - 1;
    }
    int64_t number = args[PULLS_RIGHT_COUNT]++;
    slots[slot] = (int32_t)(number + 1);
    rights[number * RIGHT_FIELDS + RIGHT_KEY] = key;
    rights[number * RIGHT_FIELDS + RIGHT_KEY_SIZE] = size;
    args[PULLS_TEXT_USED] += size;
    return number;
}

/* The number of a place: a stretch of a queue, for those who have the same right. */
static int64_t find_place(int64_t *args, int64_t right, int64_t queue_id, int64_t offset,
                          int64_t count) {
    int64_t *places = int64_at(args[PULLS_PLACES]);
    int32_t *slots = int32_at(args[PULLS_PLACE_SLOTS]);
    const int64_t numbers[] = {right, queue_id, offset / PULL_STRETCH};
    int64_t slot = spread_hash((const uint8_t *)numbers, 0, sizeof numbers) & (PULLS_SLOTS - 1);
    for (; slots[slot] != 0; slot = (slot + 1) & (PULLS_SLOTS - 1)) {
        int64_t *known = places + (slots[slot] - 1) * PLACE_FIELDS;
        if (known[PLACE_RIGHT] == right && known[PLACE_QUEUE_ID] == queue_id &&
            known[PLACE_LOW] / PULL_STRETCH == numbers[2]) {
            known[PLACE_LOW] = min64(known[PLACE_LOW], offset);
            known[PLACE_HIGH] = max64(known[PLACE_HIGH], offset + count);
            return slots[slot] - 1;
        }
    }
    int64_t number = args[PULLS_PLACE_COUNT]++;
    slots[slot] = (int32_t)(number + 1);
    int64_t *place = places + number * PLACE_FIELDS;
    memset(place, 0, 8 * PLACE_FIELDS);
    place[PLACE_RIGHT] = right;
    place[PLACE_QUEUE_ID] = queue_id;
    place[PLACE_LOW] = offset;
    place[PLACE_HIGH] = offset + count;
    return number;
}

static bool take_pull(Reader *in, int64_t *args, int64_t *row) {
    Pull pull = {.row = row};
    Head head = {.code = PULL_CODE, .other_code = PULL_LITE_CODE};
    row[PULL_BYTES_MAX] = 0;
    if (!take_header(in, &head, take_fields, &pull) || (head.seen & NEEDED) != NEEDED) return false;
    row[PULL_OPAQUE] = head.opaque;
    row[PULL_COUNT] = min64(max64(row[PULL_COUNT], 1), args[PULLS_COUNT_MAX]);
    if (head.flag != 0 || row[PULL_OFFSET] < 0 || row[PULL_COUNT] > PULL_COUNT_LIMIT) return false;
    uint8_t *text = bytes_at(args[PULLS_TEXT]) + args[PULLS_TEXT_USED];
    int64_t size = put_key(text, args[PULLS_TEXT_MAX] - args[PULLS_TEXT_USED], in, &pull, &head);
    if (size < 0) return false;
    int64_t right = find_right(args, size);
    /* And the unit behind what is wanted: where it is a filler, it is passed over. */
    row[PULL_PLACE] =
        find_place(args, right, pull.queue_id, row[PULL_OFFSET], row[PULL_COUNT] + 1);
    row[PULL_NEXT] = -1;
    return true;
}

/* The plain pulls that chunks begin with, as rows; what they ask for, once each. */
int64_t kernel_pull_rows(int64_t *args) {
    int64_t *rows = int64_at(args[PULLS_ROWS]);
    int64_t count = 0;
    args[PULLS_RIGHT_COUNT] = args[PULLS_PLACE_COUNT] = args[PULLS_TEXT_USED] = 0;
    memset(int32_at(args[PULLS_RIGHT_SLOTS]), 0, 4 * PULLS_SLOTS);
    memset(int32_at(args[PULLS_PLACE_SLOTS]), 0, 4 * PULLS_SLOTS);
    for (int64_t n = 0; n < args[PULLS_CHUNK_COUNT]; n++) {
        int64_t *chunk = int64_at(args[PULLS_CHUNKS]) + n * CHUNK_FIELDS;
        const uint8_t *data = bytes_at(chunk[CHUNK_DATA]);
        int64_t at = 0, end;
        Reader in;
        while (count < PULLS_ROW_MAX &&
               take_frame(data, chunk[CHUNK_SIZE], at, args[PULLS_FRAME_MAX], &in, &end)) {
            int64_t *row = rows + count * PULL_FIELDS;
            /* A body has no meaning here. */
            if (in.end != end || !take_pull(&in, args, row)) break;
            row[PULL_END] = at = end;
            count++;
        }
        chunk[CHUNK_ROWS] = count;
    }
    return count;
}

/* Writes the answer to a pull; where it ends, or NULL where the general way has to look. */
static uint8_t *put_answer(const int64_t *args, int64_t *row, int64_t *place, uint8_t *out) {
    const uint8_t *units = bytes_at(place[PLACE_UNITS]);
    const int64_t offset = row[PULL_OFFSET], wanted = row[PULL_COUNT];
    const int64_t first = offset - place[PLACE_UNITS_FROM];
    if (units == NULL || first < 0 || first >= place[PLACE_UNITS_COUNT]) return NULL;
    units += first * UNIT_SIZE;
    const int64_t file_end = place[PLACE_FILE_UNITS] - offset % place[PLACE_FILE_UNITS];
    int64_t count = min64(min64(place[PLACE_UNITS_COUNT] - first, file_end), wanted + 1);
    int64_t next_offset = -1;
    if (count > wanted) {
        next_offset = load_be64(units, wanted * UNIT_SIZE);
        if (next_offset == 0 || load_be32(units, wanted * UNIT_SIZE + 8) < 4) return NULL;
        count = wanted;
    }
    int64_t bytes_max = args[ANSWERS_BYTES_MAX];
    if (row[PULL_BYTES_MAX] > 0)
        bytes_max = min64(bytes_max, max64(row[PULL_BYTES_MAX], PULL_BYTES_MIN));
    const int64_t head_max = place[PLACE_START_SIZE] + place[PLACE_MIDDLE_SIZE] +
                             args[ANSWERS_END_SIZE] + PULL_HEAD_SPARE;
    uint8_t *const limit = bytes_at(args[ANSWERS_OUT]) + args[ANSWERS_OUT_MAX];
    if (limit - out < head_max) return NULL;
    bytes_max = min64(bytes_max, limit - out - head_max);

    uint8_t *head = out + HEAD_SIZE;
    uint8_t *at = put_bytes(head, bytes_at(place[PLACE_START]), place[PLACE_START_SIZE]);
    at = put_decimal(at, offset + count);
    at = put_bytes(at, bytes_at(place[PLACE_MIDDLE]), place[PLACE_MIDDLE_SIZE]);
    at = put_decimal(at, row[PULL_OPAQUE]);
    at = put_bytes(at, bytes_at(args[ANSWERS_END]), args[ANSWERS_END_SIZE]);
    const int64_t head_size = at - head;

    int64_t copy[COPY_ARGUMENTS];
    copy[COPY_UNITS] = (int64_t)(uintptr_t)units;
    copy[COPY_COUNT] = count;
    copy[COPY_DATA] = place[PLACE_DATA];
    copy[COPY_START] = place[PLACE_DATA_START];
    copy[COPY_LIMIT] = place[PLACE_DATA_SIZE];
    copy[COPY_OUT] = (int64_t)(uintptr_t)at;
    copy[COPY_OUT_MAX] = bytes_max;
    /* At 0 lies a filler, or the first message of all. */
    const int64_t oldest = load_be64(units, 0);
    if (oldest == 0 || oldest < args[ANSWERS_YOUNG_FROM]) return NULL;
    const int64_t total = kernel_copy_records(copy);
    if (total <= 0) return NULL;
    /* The records go up, so only one that is not behind the last can be named twice. */
    if (next_offset >= 0 && next_offset <= load_be64(units, (count - 1) * UNIT_SIZE)) return NULL;
    store_be32(out, 0, 4 + head_size + total);
    store_be32(out, 4, head_size);
    row[PULL_NEXT] = offset + count;
    place[PLACE_SERVED]++;
    place[PLACE_MESSAGES] += count;
    place[PLACE_BYTES] += total;
    return at + total;
}

/* The answers to the rows that chunks begin with, as far as they are plain; how many. */
int64_t kernel_pull_answers(int64_t *args) {
    int64_t *rows = int64_at(args[ANSWERS_ROWS]);
    int64_t *places = int64_at(args[ANSWERS_PLACES]);
    uint8_t *const answers = bytes_at(args[ANSWERS_OUT]);
    uint8_t *out = answers;
    int64_t number = 0, served = 0;
    for (int64_t n = 0; n < args[ANSWERS_CHUNK_COUNT]; n++) {
        int64_t *chunk = int64_at(args[ANSWERS_CHUNKS]) + n * CHUNK_FIELDS;
        chunk[CHUNK_USED] = 0;
        for (; number < chunk[CHUNK_ROWS]; number++) {
            int64_t *row = rows + number * PULL_FIELDS;
            uint8_t *end = put_answer(args, row, places + row[PULL_PLACE] * PLACE_FIELDS, out);
            if (end == NULL) break;
            out = end;
            chunk[CHUNK_USED] = row[PULL_END];
            served++;
        }
        number = chunk[CHUNK_ROWS];
        chunk[CHUNK_ANSWERS] = out - answers;
    }
    return served;
}
