/* Units and index entries compared with what the log says. */
#include "bytes.h"
#include "kernels.h"
#include "layout.h"

/* Position of the tags code in a unit. */
#define TAGS_CODE 12

/* A UnitKind for each unit; how many are records. */
int64_t kernel_unit_kinds(int64_t *args) {
    const uint8_t *units = bytes_at(args[KINDS_UNITS]);
    const int64_t size = args[KINDS_UNIT_SIZE];
    const int64_t log_start = args[KINDS_LOG_START];
    const int64_t log_end = args[KINDS_LOG_END];
    uint8_t *out = bytes_at(args[KINDS_OUT]);
    int64_t records = 0;
    for (int64_t n = 0; n < args[KINDS_COUNT]; n++) {
        int64_t offset = load_be64(units, n * size);
        int64_t record_size = load_be32(units, n * size + 8);
        int64_t kind = UnitKind_RECORD;
        if (offset == 0 && record_size == PRE_BLANK_SIZE) kind = UnitKind_PRE_BLANK;
        else if (offset == 0 && record_size == 0 && load_be64(units, n * size + TAGS_CODE) == 0)
            kind = UnitKind_EMPTY;
        else if (offset < 0 || record_size <= 0) kind = UnitKind_INVALID;
        else if (offset < log_start) kind = UnitKind_EXPIRED;
        else if (offset > log_end - record_size) kind = UnitKind_BEYOND;
        records += kind == UnitKind_RECORD;
        store_u8(out, n, kind);
    }
    return records;
}

/* Numbers of the units that differ; how many there are. */
int64_t kernel_compare_units(int64_t *args) {
    const uint8_t *actual = bytes_at(args[COMPARE_ACTUAL]);
    const uint8_t *expected = bytes_at(args[COMPARE_EXPECTED]);
    const int64_t size = args[COMPARE_UNIT_SIZE];
    int32_t *out = int32_at(args[COMPARE_OUT]);
    int64_t found = 0;
    for (int64_t n = 0; n < args[COMPARE_COUNT]; n++) {
        int64_t place = n * size;
        if (same_bytes(actual, place, expected, place, size)) continue;
        if (args[COMPARE_EXT] != 0 && load_be64(actual, place + TAGS_CODE) <= EXT_ADDRESS_MAX &&
            same_bytes(actual, place, expected, place, TAGS_CODE))
            continue;
        if (found < args[COMPARE_OUT_MAX]) out[found] = (int32_t)n;
        found++;
    }
    return found;
}

/* The first of the sorted offsets that is not below one. */
static int64_t first_at(const int64_t *offsets, int64_t count, int64_t offset) {
    int64_t low = 0;
    int64_t high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (offsets[middle] < offset) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Findings for each entry and slot; how many slots are wrong. */
int64_t kernel_check_index(int64_t *args) {
    const uint8_t *file = bytes_at(args[CHECK_FILE]);
    const int64_t slots = args[CHECK_SLOTS];
    const int64_t log_start = args[CHECK_LOG_START];
    const int32_t *hashes = int32_at(args[CHECK_HASHES]);
    const int64_t *offsets = int64_at(args[CHECK_OFFSETS]);
    const int64_t *timestamps = int64_at(args[CHECK_TIMESTAMPS]);
    const int64_t expected = args[CHECK_EXPECTED];
    uint8_t *seen = bytes_at(args[CHECK_SEEN]);
    int32_t *newest = int32_at(args[CHECK_NEWEST]);
    uint8_t *findings = bytes_at(args[CHECK_FINDINGS]);
    int32_t *slot_out = int32_at(args[CHECK_SLOT_FINDINGS]);
    const int64_t begin_timestamp = load_be64(file, 0);
    const int64_t entries_at = HEADER_SIZE + slots * SLOT_SIZE;
    int64_t hint = 0;
    for (int64_t number = 1; number < args[CHECK_COUNT]; number++) {
        int64_t place = entries_at + number * ENTRY_SIZE;
        int64_t key_hash = load_be32(file, place);
        int64_t offset = load_be64(file, place + 4);
        int64_t difference = load_be32(file, place + 12);
        int64_t previous = load_be32(file, place + 16);
        int64_t finding;
        bool linked = false;
        if (key_hash >= 0) {
            int64_t slot = key_hash % slots;
            linked = previous == newest[slot];
            newest[slot] = (int32_t)number;
        }
        if (offset < log_start) {
            finding = EntryFinding_EXPIRED;
        } else {
            if (hint >= expected || offsets[hint] != offset)
                hint = first_at(offsets, expected, offset);
            if (hint >= expected || offsets[hint] != offset) {
                finding = EntryFinding_NO_RECORD;
            } else {
                finding = EntryFinding_WRONG_KEY;
                /* Keys of one message with the same hash are taken one after the other. */
                for (int64_t entry = hint; entry < expected && offsets[entry] == offset; entry++)
                    if (hashes[entry] == key_hash) {
                        finding = EntryFinding_REPEATED;
                        if (seen[entry] == 0) {
                            finding = EntryFinding_OK;
                            seen[entry] = 1;
                            break;
                        }
                    }
                if (finding != EntryFinding_WRONG_KEY && number > 1) {
                    int64_t right = 0;
                    if (begin_timestamp > 0 && timestamps[hint] > begin_timestamp)
                        right =
                            min64((timestamps[hint] - begin_timestamp) / 1000, TIME_DIFF_MAX);
                    if (right != difference) finding = EntryFinding_WRONG_TIME;
                }
            }
        }
        if (!linked && finding <= EntryFinding_EXPIRED) finding = EntryFinding_WRONG_CHAIN;
        store_u8(findings, number, finding);
    }
    int64_t wrong = 0;
    for (int64_t slot = 0; slot < slots; slot++)
        if (load_be32(file, HEADER_SIZE + slot * SLOT_SIZE) != newest[slot]) {
            if (wrong < args[CHECK_SLOT_FINDINGS_MAX]) slot_out[wrong] = (int32_t)slot;
            wrong++;
        }
    return wrong;
}
