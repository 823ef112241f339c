/* ConsumeQueue and BatchConsumeQueue units from scanned columns. */
#include "kernels.h"
#include "records.h"

#define STATE(queue) (states + (queue) * QUEUE_FIELDS)
#define SIZE_OF(text) ((int64_t)sizeof text - 1)

/* Keeps what is odd about a record, as far as there is room, and counts it. */
static void note(int64_t *args, int64_t offset, int64_t code) {
    int64_t count = args[QUEUES_ANOMALY_COUNT];
    if (count < args[QUEUES_ANOMALY_MAX]) {
        int64_t *anomalies = int64_at(args[QUEUES_ANOMALIES]);
        anomalies[2 * count] = offset;
        anomalies[2 * count + 1] = code;
    }
    args[QUEUES_ANOMALY_COUNT] = count + 1;
}

/* The number of a queue, which is added if it is new; -1 when there is no room. */
static int64_t find_queue(int64_t *args, int64_t topic, int64_t queue_id, int64_t kind) {
    int64_t *states = int64_at(args[QUEUES_STATES]);
    int32_t *slots = int32_at(args[QUEUES_SLOTS]);
    int64_t mask = args[QUEUES_SLOT_MASK];
    int64_t h = (int64_t)(((uint64_t)topic * 1000003u + (uint64_t)queue_id) *
                          UINT64_C(0x9E3779B97F4A7C15));
    int64_t slot = (h ^ h >> 31) & mask;
    for (; slots[slot] != 0; slot = (slot + 1) & mask) {
        int64_t known = slots[slot] - 1;
        if (STATE(known)[QUEUE_TOPIC] == topic && STATE(known)[QUEUE_ID] == queue_id) return known;
    }
    int64_t count = args[QUEUES_COUNT];
    if (count >= args[QUEUES_MAX]) return -1;
    int64_t *state = STATE(count);
    state[QUEUE_TOPIC] = topic;
    state[QUEUE_ID] = queue_id;
    state[QUEUE_KIND] = kind;
    state[QUEUE_NEXT] = -1;
    state[QUEUE_MAX] = -1;
    state[QUEUE_CHUNK_COUNT] = 0;
    state[QUEUE_RUN] = -1;
    slots[slot] = (int32_t)(count + 1);
    args[QUEUES_COUNT] = count + 1;
    return count;
}

/* Plans one unit; the caller made sure that there is room. */
static void add_unit(int64_t *args, int64_t queue, int64_t row, int64_t ordinal, int64_t skipped,
                     int64_t restarts) {
    int64_t *states = int64_at(args[QUEUES_STATES]);
    int64_t *state = STATE(queue);
    int64_t *runs = int64_at(args[QUEUES_RUNS]);
    int64_t unit = args[QUEUES_UNIT_COUNT];
    int64_t count = state[QUEUE_CHUNK_COUNT];
    if (count == 0) {
        int64_t touched = args[QUEUES_OUT_USED];
        int32_at(args[QUEUES_TOUCHED])[touched] = (int32_t)queue;
        args[QUEUES_OUT_USED] = touched + 1;
    }
    if (count == 0 || skipped != 0 || restarts != 0) {
        int64_t number = args[QUEUES_RUN_COUNT];
        args[QUEUES_RUN_COUNT] = number + 1;
        state[QUEUE_RUN] = number;
        int64_t *run = runs + number * RUN_FIELDS;
        run[RUN_QUEUE] = queue;
        run[RUN_FIRST] = ordinal;
        run[RUN_COUNT] = 0;
        run[RUN_SKIPPED] = skipped;
        run[RUN_RESTARTS] = restarts;
        run[RUN_START] = count;
        run[RUN_TOPIC] = state[QUEUE_TOPIC];
        run[RUN_QUEUE_ID] = state[QUEUE_ID];
        run[RUN_KIND] = state[QUEUE_KIND];
    }
    runs[state[QUEUE_RUN] * RUN_FIELDS + RUN_COUNT]++;
    int32_at(args[QUEUES_UNIT_QUEUE])[unit] = (int32_t)queue;
    int32_at(args[QUEUES_UNIT_ROW])[unit] = (int32_t)row;
    int32_at(args[QUEUES_UNIT_INDEX])[unit] = (int32_t)count;
    state[QUEUE_CHUNK_COUNT] = count + 1;
    state[QUEUE_NEXT] = ordinal + 1;
    args[QUEUES_UNIT_COUNT] = unit + 1;
}

/* Whether a record is for consumers: in no transaction, or in a committed one. */
INLINE bool gets_unit(int64_t sys_flag) {
    int64_t transaction = sys_flag & TRANSACTION_MASK;
    return transaction != TRANSACTION_PREPARED && transaction != TRANSACTION_ROLLBACK;
}

/* The ordinal of the next record of the queue behind a row, -1 when none is near. */
static int64_t next_in_queue(int64_t *args, int64_t row, int64_t topic, int64_t queue_id) {
    const int32_t *topics = int32_at(args[QUEUES_TOPIC_ID]);
    const int32_t *queue_ids = int32_at(args[QUEUES_QUEUE_ID]);
    const int32_t *flags = int32_at(args[QUEUES_SYS_FLAG]);
    int64_t last = min64(args[QUEUES_ROWS], row + 1 + LOOK_AHEAD_ROWS);
    for (int64_t other = row + 1; other < last; other++)
        if (topics[other] == topic && queue_ids[other] == queue_id && gets_unit(flags[other]))
            return int64_at(args[QUEUES_QUEUE_OFFSET])[other];
    return args[QUEUES_ASKED_ROW] == row ? args[QUEUES_ANSWER] : -1;
}

/* Whether only the records behind the rows can tell what is wrong with a row's number. */
static bool asks(int64_t *args, int64_t queue, int64_t row, int64_t ordinal) {
    if (args[QUEUES_MAY_ASK] == 0 || args[QUEUES_ASKED_ROW] == row) return false;
    if (row + 1 + LOOK_AHEAD_ROWS <= args[QUEUES_ROWS]) return false;
    int64_t *states = int64_at(args[QUEUES_STATES]);
    int64_t *state = STATE(queue);
    if (state[QUEUE_NEXT] < 0 || state[QUEUE_NEXT] == ordinal) return false;
    return next_in_queue(args, row, state[QUEUE_TOPIC], state[QUEUE_ID]) < 0;
}

/* The most messages that can be missing before a record. */
static int64_t gap_max(const int64_t *args, int64_t offset) {
    if (args[QUEUES_LOG_START] < 0) return args[QUEUES_GAP_MAX];
    return (offset - args[QUEUES_LOG_START]) / FIXED_SIZE_V1 + 1;
}

/* Plans the unit of one record by the rules of ConsumeQueue, if it gets one. */
static void put_simple(int64_t *args, int64_t queue, int64_t row, int64_t ordinal,
                       bool look_ahead) {
    int64_t offset = int64_at(args[QUEUES_COMMIT_LOG_OFFSET])[row];
    int64_t size = int32_at(args[QUEUES_RECORD_SIZE])[row];
    int64_t *states = int64_at(args[QUEUES_STATES]);
    int64_t *state = STATE(queue);
    if (offset + size <= state[QUEUE_MAX]) return;
    int64_t following = state[QUEUE_NEXT];
    int64_t skipped = 0;
    int64_t restarts = 0;
    if (ordinal < 0 || ordinal == INT64_MAX) {
        note(args, offset, QueueAnomaly_NEGATIVE);
        return;
    }
    if (following >= 0 && ordinal != following) {
        int64_t after =
            look_ahead ? next_in_queue(args, row, state[QUEUE_TOPIC], state[QUEUE_ID]) : -1;
        if (after == following + 1) {
            note(args, offset, QueueAnomaly_MISNUMBERED);
            ordinal = following;
        } else if (after == following &&
                   !(args[QUEUES_RESTART] != 0 && ordinal == 0 && after == 1)) {
            /* Behind a queue of one message 0, 1 is a queue that begins anew. */
            note(args, offset, QueueAnomaly_INTRUDER);
            return;
        } else if (ordinal < following) {
            if (args[QUEUES_RESTART] == 0) {
                note(args, offset, QueueAnomaly_STEP_BACK);
                return;
            }
            note(args, offset, QueueAnomaly_RESTART);
            restarts = 1;
        } else if (ordinal - following > gap_max(args, offset)) {
            note(args, offset, QueueAnomaly_GAP_TOO_LARGE);
            return;
        } else {
            note(args, offset, QueueAnomaly_GAP);
            skipped = ordinal - following;
        }
    }
    add_unit(args, queue, row, ordinal, skipped, restarts);
    state[QUEUE_MAX] = offset + size;
}

/* Plans the unit of one record by the rules of BatchConsumeQueue, if it gets one. */
static void put_batch(int64_t *args, int64_t queue, int64_t row) {
    int64_t offset = int64_at(args[QUEUES_COMMIT_LOG_OFFSET])[row];
    int64_t *states = int64_at(args[QUEUES_STATES]);
    int64_t *state = STATE(queue);
    if (offset <= state[QUEUE_MAX]) return;
    if (int64_at(args[QUEUES_INNER_BASE])[row] < 0 || int32_at(args[QUEUES_INNER_NUM])[row] < 0) {
        if (int32_at(args[QUEUES_SYS_FLAG])[row] & INNER_BATCH) {
            note(args, offset, QueueAnomaly_NO_BATCH);
            return;
        }
        if (int64_at(args[QUEUES_QUEUE_OFFSET])[row] < 0) {
            note(args, offset, QueueAnomaly_NEGATIVE);
            return;
        }
    }
    add_unit(args, queue, row, max64(state[QUEUE_NEXT], 0), 0, 0);
    state[QUEUE_MAX] = offset;
}

/* How many items Java's split(",") makes of text: empty ones at its end do not count. */
static int64_t count_items(const uint8_t *data, int64_t start, int64_t size) {
    int64_t end = start + size;
    while (end > start && data[end - 1] == ',') end--;
    if (end == start) return 0;
    int64_t items = 1;
    for (int64_t position = start; position < end; position++) items += data[position] == ',';
    return items;
}

/* Whether a topic takes part in multi-dispatch: no retry, system or schedule topic. */
static bool may_multi_dispatch(const uint8_t *text, int64_t at, int64_t size) {
    return !(starts_with(text, at, size, RETRY_PREFIX, SIZE_OF(RETRY_PREFIX)) ||
             starts_with(text, at, size, SYSTEM_PREFIX, SIZE_OF(SYSTEM_PREFIX)) ||
             is_schedule_topic(text, at, size));
}

/* Plans the extra units of a multi-dispatch record; a QueueStop. With `only_meets` its queues get
   their numbers, and that is all. */
static int64_t put_multi(int64_t *args, int64_t row, bool only_meets) {
    int64_t names_size = int32_at(args[QUEUES_DISPATCH_SIZE])[row];
    int64_t offsets_size = int32_at(args[QUEUES_OFFSETS_SIZE])[row];
    if (names_size <= 0 || offsets_size <= 0) return QueueStop_DONE;
    int64_t topic = int32_at(args[QUEUES_TOPIC_ID])[row];
    if (!may_multi_dispatch(bytes_at(args[QUEUES_TOPIC_TEXT]),
                            int64_at(args[QUEUES_TOPIC_STARTS])[topic],
                            int32_at(args[QUEUES_TOPIC_SIZES])[topic]))
        return QueueStop_DONE;
    const uint8_t *data = bytes_at(args[QUEUES_DATA]);
    int64_t *states = int64_at(args[QUEUES_STATES]);
    int64_t offset = int64_at(args[QUEUES_COMMIT_LOG_OFFSET])[row];
    int64_t names_at = int32_at(args[QUEUES_DISPATCH_AT])[row];
    int64_t offsets_at = int32_at(args[QUEUES_OFFSETS_AT])[row];
    int64_t items = count_items(data, names_at, names_size);
    if (items != count_items(data, offsets_at, offsets_size)) {
        if (!only_meets) note(args, offset, QueueAnomaly_MULTI_DISPATCH);
        return QueueStop_DONE;
    }
    /* All numbers are read before the first unit is planned, so that nothing is half done. */
    int64_t end = offsets_at + offsets_size;
    int64_t position = offsets_at;
    for (int64_t n = 0; n < items; n++) {
        int64_t stop = seek_byte(data, position, end, end, ',');
        if (decimal(data, position, stop - position) < 0) {
            if (!only_meets) note(args, offset, QueueAnomaly_MULTI_DISPATCH);
            return QueueStop_DONE;
        }
        position = stop + 1;
    }
    if (!only_meets && args[QUEUES_UNIT_COUNT] + items >= args[QUEUES_UNIT_MAX])
        return QueueStop_UNITS_FULL;
    /* First every queue gets its number, then the units: what runs out of room can be done again. */
    for (int planning = 0; planning < (only_meets ? 1 : 2); planning++) {
        int64_t name_at = names_at;
        int64_t names_end = names_at + names_size;
        position = offsets_at;
        for (int64_t n = 0; n < items; n++) {
            int64_t name_end = seek_byte(data, name_at, names_end, names_end, ',');
            int64_t name_size = name_end - name_at;
            int64_t stop = seek_byte(data, position, end, end, ',');
            int64_t slash = seek_byte(data, name_at, name_end, name_end, '/');
            if (name_size > 0 && slash == name_end) {
                int64_t number = intern_topic(args + QUEUES_TOPIC_COUNT, data, name_at, name_size);
                if (number < 0) return QueueStop_TOPICS_FULL;
                int64_t queue_id = int32_at(args[QUEUES_QUEUE_ID])[row];
                if (starts_with(data, name_at, name_size, LMQ_PREFIX, SIZE_OF(LMQ_PREFIX)))
                    queue_id = 0;
                int64_t kind = KIND_SIMPLE;
                if (number < args[QUEUES_KIND_COUNT])
                    kind = bytes_at(args[QUEUES_TOPIC_KINDS])[number];
                int64_t queue = find_queue(args, number, queue_id, kind);
                if (queue < 0) return QueueStop_QUEUES_FULL;
                if (planning == 1 && STATE(queue)[QUEUE_KIND] == KIND_SIMPLE)
                    put_simple(args, queue, row, decimal(data, position, stop - position), false);
            }
            name_at = name_end + 1;
            position = stop + 1;
        }
    }
    return QueueStop_DONE;
}

/* Writes all planned units, each queue's together. */
static void write_units(int64_t *args) {
    int64_t *states = int64_at(args[QUEUES_STATES]);
    const int32_t *touched = int32_at(args[QUEUES_TOUCHED]);
    int64_t used = 0;
    for (int64_t n = 0; n < args[QUEUES_OUT_USED]; n++) {
        int64_t *state = STATE((int64_t)touched[n]);
        state[QUEUE_CHUNK_BASE] = used;
        used += state[QUEUE_CHUNK_COUNT] *
                (state[QUEUE_KIND] == KIND_BATCH ? BATCH_UNIT_SIZE : UNIT_SIZE);
    }
    uint8_t *out = bytes_at(args[QUEUES_OUT]);
    const int64_t *offsets = int64_at(args[QUEUES_COMMIT_LOG_OFFSET]);
    const int32_t *sizes = int32_at(args[QUEUES_RECORD_SIZE]);
    const int64_t *codes = int64_at(args[QUEUES_TAGS_CODE]);
    const int64_t *timestamps = int64_at(args[QUEUES_STORE_TIMESTAMP]);
    const int64_t *ordinals = int64_at(args[QUEUES_QUEUE_OFFSET]);
    const int64_t *bases = int64_at(args[QUEUES_INNER_BASE]);
    const int32_t *numbers = int32_at(args[QUEUES_INNER_NUM]);
    const int32_t *unit_queues = int32_at(args[QUEUES_UNIT_QUEUE]);
    const int32_t *unit_rows = int32_at(args[QUEUES_UNIT_ROW]);
    const int32_t *unit_indexes = int32_at(args[QUEUES_UNIT_INDEX]);
    for (int64_t unit = 0; unit < args[QUEUES_UNIT_COUNT]; unit++) {
        int64_t row = unit_rows[unit];
        const int64_t *state = STATE((int64_t)unit_queues[unit]);
        int64_t place = state[QUEUE_CHUNK_BASE];
        if (state[QUEUE_KIND] == KIND_BATCH) {
            place += (int64_t)unit_indexes[unit] * BATCH_UNIT_SIZE;
            bool is_batch = bases[row] >= 0 && numbers[row] >= 0;
            store_be64(out, place + 20, timestamps[row]);
            store_be64(out, place + 28, is_batch ? bases[row] : ordinals[row]);
            store_be16(out, place + 36, is_batch ? numbers[row] : 1);
            store_be32(out, place + 38, NOT_COMPACTED);
            store_be32(out, place + 42, 0);
        } else {
            place += (int64_t)unit_indexes[unit] * UNIT_SIZE;
        }
        store_be64(out, place, offsets[row]);
        store_be32(out, place + 8, sizes[row]);
        store_be64(out, place + 12, codes[row]);
    }
    int64_t *runs = int64_at(args[QUEUES_RUNS]);
    for (int64_t n = 0; n < args[QUEUES_RUN_COUNT]; n++) {
        int64_t *run = runs + n * RUN_FIELDS;
        const int64_t *state = STATE(run[RUN_QUEUE]);
        int64_t size = state[QUEUE_KIND] == KIND_BATCH ? BATCH_UNIT_SIZE : UNIT_SIZE;
        run[RUN_START] = state[QUEUE_CHUNK_BASE] + run[RUN_START] * size;
    }
    for (int64_t n = 0; n < args[QUEUES_OUT_USED]; n++)
        STATE((int64_t)touched[n])[QUEUE_CHUNK_COUNT] = 0;
    args[QUEUES_OUT_USED] = used;
}

/* Gives the queues of all rows their numbers; NEW if any was not known, or what room lacks. */
static int64_t meet_queues(int64_t *args) {
    const int32_t *flags = int32_at(args[QUEUES_SYS_FLAG]);
    const int32_t *topics = int32_at(args[QUEUES_TOPIC_ID]);
    const int32_t *queue_ids = int32_at(args[QUEUES_QUEUE_ID]);
    const uint8_t *kinds = bytes_at(args[QUEUES_TOPIC_KINDS]);
    int64_t known = args[QUEUES_COUNT];
    for (int64_t row = args[QUEUES_ROW]; row < args[QUEUES_ROWS]; row++) {
        if (!gets_unit(flags[row])) continue;
        if (find_queue(args, topics[row], queue_ids[row], kinds[topics[row]]) < 0)
            return QueueStop_QUEUES_FULL;
        if (args[QUEUES_MULTI_DISPATCH] != 0) {
            int64_t stopped = put_multi(args, row, true);
            if (stopped != QueueStop_DONE) return stopped;
        }
    }
    return args[QUEUES_COUNT] > known ? QueueStop_NEW : QueueStop_DONE;
}

/* Units of the rows, as far as there is room; a QueueStop. */
int64_t kernel_queues(int64_t *args) {
    const int32_t *flags = int32_at(args[QUEUES_SYS_FLAG]);
    const int32_t *topics = int32_at(args[QUEUES_TOPIC_ID]);
    const int32_t *queue_ids = int32_at(args[QUEUES_QUEUE_ID]);
    const int64_t *ordinals = int64_at(args[QUEUES_QUEUE_OFFSET]);
    const uint8_t *kinds = bytes_at(args[QUEUES_TOPIC_KINDS]);
    args[QUEUES_UNIT_COUNT] = 0;
    args[QUEUES_RUN_COUNT] = 0;
    args[QUEUES_OUT_USED] = 0;
    int64_t row = args[QUEUES_ROW];
    int64_t stopped = QueueStop_DONE;
    const int64_t *states = int64_at(args[QUEUES_STATES]);
    if (args[QUEUES_STOPS_AT_NEW] != 0) {
        stopped = meet_queues(args);
        if (stopped != QueueStop_DONE) return stopped;
        args[QUEUES_STOPS_AT_NEW] = 0; /* when these rows are gone on with, all are known */
    }
    for (; row < args[QUEUES_ROWS]; row++) {
        if (!gets_unit(flags[row])) continue;
        if (args[QUEUES_UNIT_COUNT] >= args[QUEUES_UNIT_MAX]) {
            stopped = QueueStop_UNITS_FULL;
            break;
        }
        int64_t queue = find_queue(args, topics[row], queue_ids[row], kinds[topics[row]]);
        if (queue < 0) {
            stopped = QueueStop_QUEUES_FULL;
            break;
        }
        /* A queue that was there before its topic had this kind is of another one. */
        int64_t kind = STATE(queue)[QUEUE_KIND];
        if (kind == KIND_SIMPLE && asks(args, queue, row, ordinals[row])) {
            args[QUEUES_ASKED_ROW] = row;
            stopped = QueueStop_ASKS;
            break;
        }
        if (args[QUEUES_MULTI_DISPATCH] != 0) {
            /* Before the record's own unit, so that a row that lacks room has left no trace. */
            stopped = put_multi(args, row, false);
            if (stopped != QueueStop_DONE) break;
        }
        if (kind == KIND_BATCH) put_batch(args, queue, row);
        else put_simple(args, queue, row, ordinals[row], true);
    }
    args[QUEUES_ROW] = row;
    write_units(args);
    return stopped;
}
