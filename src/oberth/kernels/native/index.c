/* Index entries from scanned columns, index files from entries. */
#include "checks.h"
#include "kernels.h"

/* Positions in an index file's header, see formats/index_file.py. */
enum { END_TIMESTAMP = 8, BEGIN_OFFSET = 16, END_OFFSET = 24, SLOT_COUNT = 32, INDEX_COUNT = 36 };
/* A slot is read this many entries ahead: the table is far larger than a cache. */
#define AHEAD 12
/* The bytes of a row have long left the cache when its keys are hashed. */
#define ROWS_AHEAD 8

/* What an entry holds of a key, given the hash of `topic#`. */
static int32_t key_hash(const uint8_t *data, int64_t start, int64_t size, int64_t prefix) {
    int32_t value = (int32_t)text_hash(data, start, size, (uint32_t)prefix);
    if (value >= 0) return value;
    /* abs(-2**31) stays negative in Java, and RocketMQ then takes 0. */
    return value == INT32_MIN ? 0 : -value;
}

/* How many non-empty tokens blanks separate. */
static int64_t count_tokens(const uint8_t *data, int64_t start, int64_t size) {
    int64_t tokens = 0;
    uint8_t before = ' ';
    for (int64_t position = start; position < start + size; position++) {
        tokens += data[position] != ' ' && before == ' ';
        before = data[position];
    }
    return tokens;
}

/* The entries of the rows; whether all rows were done. */
int64_t kernel_index_keys(int64_t *args) {
    const uint8_t *data = bytes_at(args[KEYS_DATA]);
    const int64_t rows = args[KEYS_ROWS];
    const int64_t *offsets = int64_at(args[KEYS_COMMIT_LOG_OFFSET]);
    const int64_t *timestamps = int64_at(args[KEYS_STORE_TIMESTAMP]);
    const int32_t *flags = int32_at(args[KEYS_SYS_FLAG]);
    const int32_t *topics = int32_at(args[KEYS_TOPIC_ID]);
    const int32_t *uniq_at = int32_at(args[KEYS_UNIQ_AT]);
    const int32_t *uniq_size = int32_at(args[KEYS_UNIQ_SIZE]);
    const int32_t *keys_at = int32_at(args[KEYS_KEYS_AT]);
    const int32_t *keys_size = int32_at(args[KEYS_KEYS_SIZE]);
    const int32_t *tags_at = int32_at(args[KEYS_TAGS_AT]);
    const int32_t *tags_size = int32_at(args[KEYS_TAGS_SIZE]);
    const int64_t *prefixes = int64_at(args[KEYS_HASH_PREFIXES]);
    int32_t *out_hashes = int32_at(args[KEYS_HASHES]);
    int64_t *out_offsets = int64_at(args[KEYS_OFFSETS]);
    int64_t *out_timestamps = int64_at(args[KEYS_TIMESTAMPS]);
    const int64_t room = args[KEYS_MAX];
    int64_t count = args[KEYS_COUNT];
    int64_t row = args[KEYS_ROW];
    for (; row < rows; row++) {
        if (row + ROWS_AHEAD < rows) {
            prefetch_read(data, uniq_at[row + ROWS_AHEAD]);
            prefetch_read(data, keys_at[row + ROWS_AHEAD]);
        }
        if ((flags[row] & TRANSACTION_MASK) == TRANSACTION_ROLLBACK) continue;
        int64_t keys = max64(keys_size[row], 0);
        /* Two entries and one for every other byte of KEYS are never exceeded. */
        if (count + 2 + (keys + 1) / 2 > room &&
            count + 2 + count_tokens(data, keys_at[row], keys) > room)
            break;
        int64_t prefix = prefixes[topics[row]];
        int64_t first = count;
        if (uniq_size[row] >= 0)
            out_hashes[count++] = key_hash(data, uniq_at[row], uniq_size[row], prefix);
        if (keys > 0) {
            int64_t start = keys_at[row];
            int64_t end = start + keys;
            for (int64_t position = start; position <= end; position++)
                if (position == end || data[position] == ' ') {
                    if (position > start)
                        out_hashes[count++] = key_hash(data, start, position - start, prefix);
                    start = position + 1;
                }
        }
        if (args[KEYS_INDEX_TAGS] != 0 && tags_size[row] > 0) {
            uint32_t seed = ((uint32_t)prefix * 31 + 'T') * 31 + '#';
            out_hashes[count++] = key_hash(data, tags_at[row], tags_size[row], seed);
        }
        for (int64_t entry = first; entry < count; entry++) {
            out_offsets[entry] = offsets[row];
            out_timestamps[entry] = timestamps[row];
        }
    }
    args[KEYS_ROW] = row;
    args[KEYS_COUNT] = count;
    return row == rows;
}

/* Puts entries into an index file until it is full; how many of them were taken. */
int64_t kernel_index_put(int64_t *args) {
    uint8_t *file = bytes_at(args[PUT_FILE]);
    const int64_t slots = args[PUT_SLOTS];
    const int64_t entries_max = args[PUT_ENTRIES];
    const int32_t *hashes = int32_at(args[PUT_HASHES]);
    const int64_t *offsets = int64_at(args[PUT_OFFSETS]);
    const int64_t *timestamps = int64_at(args[PUT_TIMESTAMPS]);
    int64_t entry = args[PUT_START];
    const int64_t stop = args[PUT_STOP];
    int64_t begin_timestamp = load_be64(file, 0);
    int64_t end_offset = load_be64(file, END_OFFSET);
    int64_t slot_count = load_be32(file, SLOT_COUNT);
    int64_t number = max64(load_be32(file, INDEX_COUNT), 1);
    const int64_t entries_at = HEADER_SIZE + slots * SLOT_SIZE;
    int64_t last = -1;
    for (; entry < stop; entry++) {
        if (offsets[entry] < end_offset) continue;
        if (number >= entries_max) break;
        if (entry + AHEAD < stop)
            prefetch_write(file, HEADER_SIZE + hashes[entry + AHEAD] % slots * SLOT_SIZE);
        int64_t slot_at = HEADER_SIZE + hashes[entry] % slots * SLOT_SIZE;
        int64_t previous = load_be32(file, slot_at);
        if (previous <= 0 || previous > number) previous = 0;
        int64_t difference = 0;
        if (begin_timestamp > 0 && timestamps[entry] > begin_timestamp)
            difference = min64((timestamps[entry] - begin_timestamp) / 1000, TIME_DIFF_MAX);
        int64_t place = entries_at + number * ENTRY_SIZE;
        store_be32(file, place, hashes[entry]);
        store_be64(file, place + 4, offsets[entry]);
        store_be32(file, place + 12, difference);
        store_be32(file, place + 16, previous);
        store_be32(file, slot_at, number);
        if (number <= 1) {
            begin_timestamp = timestamps[entry];
            store_be64(file, 0, begin_timestamp);
            store_be64(file, BEGIN_OFFSET, offsets[entry]);
        }
        if (previous == 0 && slot_count < INT32_MAX) slot_count++;
        number++;
        end_offset = offsets[entry];
        last = entry;
    }
    if (last >= 0) {
        store_be64(file, END_TIMESTAMP, timestamps[last]);
        store_be64(file, END_OFFSET, end_offset);
        store_be32(file, SLOT_COUNT, slot_count);
        store_be32(file, INDEX_COUNT, number);
    }
    return entry - args[PUT_START];
}

/* Makes slots and chains anew from the entries' hashes; how many slots are used. */
int64_t kernel_index_relink(int64_t *args) {
    uint8_t *file = bytes_at(args[RELINK_FILE]);
    const int64_t slots = args[RELINK_SLOTS];
    const int64_t count = min64(args[RELINK_COUNT], args[RELINK_ENTRIES]);
    const int64_t entries_at = HEADER_SIZE + slots * SLOT_SIZE;
    memset(file + HEADER_SIZE, 0, (size_t)(slots * SLOT_SIZE));
    int64_t used = 0;
    for (int64_t number = 1; number < count; number++) {
        int64_t place = entries_at + number * ENTRY_SIZE;
        int64_t value = load_be32(file, place);
        if (value < 0) continue;
        int64_t slot_at = HEADER_SIZE + value % slots * SLOT_SIZE;
        int64_t previous = load_be32(file, slot_at);
        used += previous == 0;
        store_be32(file, place + 16, previous);
        store_be32(file, slot_at, number);
    }
    return used;
}
