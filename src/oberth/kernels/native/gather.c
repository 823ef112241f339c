/* Values out of scanned records, laid out as Arrow wants them: offsets and one run of bytes. */
#include "checks.h"
#include "kernels.h"

/* Up to so many properties of one message are compared one by one, more by hash. */
#define FEW 32
/* Values up to this size are copied 16 bytes at a time. */
#define SHORT 64
/* The bytes of a row have long left the cache when its values are gathered. */
#define ROWS_AHEAD 8

/* Copies a value, short ones without the call that a copy of unknown size is. Up to 15 bytes behind
   both values are read and overwritten where there is room for that. */
INLINE void copy_value(uint8_t *out, int64_t out_at, const uint8_t *data, int64_t start,
                       int64_t size, int64_t out_max, int64_t limit) {
    if (size <= SHORT && limit - start >= SHORT && out_max - out_at >= SHORT)
        for (int64_t n = 0; n < size; n += 16) copy_16(out, out_at + n, data, start + n);
    else
        memcpy(out + out_at, data + start, (size_t)size);
}

/* Bytes of the UTF-8 sequence here, or minus the number that one U+FFFD stands for. */
static int64_t sequence_size(const uint8_t *data, int64_t position, int64_t end) {
    uint8_t first = data[position];
    if (first < 0x80) return 1;
    if (first < 0xC2 || first > 0xF4) return -1;
    if (first < 0xE0) return is_continuation(data, position + 1, end) ? 2 : -1;
    uint8_t low = 0x80;
    uint8_t high = 0xBF;
    if (first == 0xE0) low = 0xA0;
    else if (first == 0xED) high = 0x9F;
    else if (first == 0xF0) low = 0x90;
    else if (first == 0xF4) high = 0x8F;
    if (position + 1 >= end || data[position + 1] < low || data[position + 1] > high) return -1;
    if (!is_continuation(data, position + 2, end)) return -2;
    if (first < 0xF0) return 3;
    return is_continuation(data, position + 3, end) ? 4 : -3;
}

/* Where the first byte that is no UTF-8 lies, or end. */
static int64_t first_broken(const uint8_t *data, int64_t start, int64_t end) {
    int64_t position = start;
    while (position < end) {
        if (end - position >= 8 && (load_le64(data, position) & HIGH_BITS) == 0) {
            position += 8;
            continue;
        }
        if (end - start >= 8 && end - position < 8 && (load_le64(data, end - 8) & HIGH_BITS) == 0)
            return end;
        int64_t size = sequence_size(data, position, end);
        if (size < 0) return position;
        position += size;
    }
    return end;
}

/* Copies text with U+FFFD for what is broken; where it ends, -1 when there is no room. */
static int64_t mend(const uint8_t *data, int64_t start, int64_t end, uint8_t *out, int64_t out_at,
                    int64_t out_max) {
    int64_t position = start;
    while (position < end) {
        int64_t size = sequence_size(data, position, end);
        if (size > 0) {
            if (out_at + size > out_max) return -1;
            memcpy(out + out_at, data + position, (size_t)size);
            out_at += size;
            position += size;
        } else {
            if (out_at + 3 > out_max) return -1;
            memcpy(out + out_at, "\xEF\xBF\xBD", 3);
            out_at += 3;
            position -= size;
        }
    }
    return out_at;
}

/* The sum of a column of sizes, without the negative ones. */
int64_t kernel_total_size(int64_t *args) {
    const int32_t *sizes = int32_at(args[TOTAL_SIZES]);
    int64_t total = 0;
    for (int64_t row = 0; row < args[TOTAL_ROWS]; row++) total += sizes[row] > 0 ? sizes[row] : 0;
    return total;
}

/* Replaces each number of a column by its entry in a table. */
int64_t kernel_renumber(int64_t *args) {
    int32_t *column = int32_at(args[RENUMBER_COLUMN]);
    const int64_t *numbers = int64_at(args[RENUMBER_NUMBERS]);
    for (int64_t row = 0; row < args[RENUMBER_ROWS]; row++)
        column[row] = (int32_t)numbers[column[row]];
    return args[RENUMBER_ROWS];
}

/* Enters names into empty slots: one more than a name's number in the slot of its hash. */
int64_t kernel_place_topics(int64_t *args) {
    const int64_t *starts = int64_at(args[PLACE_STARTS]);
    const int32_t *sizes = int32_at(args[PLACE_SIZES]);
    const uint8_t *text = bytes_at(args[PLACE_TEXT]);
    int32_t *slots = int32_at(args[PLACE_SLOTS]);
    const int64_t mask = args[PLACE_SLOT_MASK];
    for (int64_t n = 0; n < args[PLACE_COUNT]; n++) {
        int64_t slot = spread_hash(text, starts[n], sizes[n]) & mask;
        while (slots[slot] != 0) slot = (slot + 1) & mask;
        slots[slot] = (int32_t)(n + 1);
    }
    return args[PLACE_COUNT];
}

/* The records of units, one behind the other; how many bytes, or -1 where a unit is not that of a
   record behind the record of the unit before, in this segment, of the size that it states. */
int64_t kernel_copy_records(int64_t *args) {
    const uint8_t *units = bytes_at(args[COPY_UNITS]);
    const uint8_t *data = bytes_at(args[COPY_DATA]);
    uint8_t *out = bytes_at(args[COPY_OUT]);
    int64_t end = 0;
    int64_t used = 0;
    for (int64_t unit = 0; unit < args[COPY_COUNT]; unit++) {
        const int64_t offset = load_be64(units, unit * UNIT_SIZE);
        const int64_t size = load_be32(units, unit * UNIT_SIZE + 8);
        if (offset < args[COPY_START]) return -1;
        const int64_t position = offset - args[COPY_START];
        if (position < end || size < 4 || position > args[COPY_LIMIT] ||
            size > args[COPY_LIMIT] - position || size > args[COPY_OUT_MAX] - used ||
            load_be32(data, position) != size)
            return -1;
        memcpy(out + used, data + position, (size_t)size);
        used += size;
        end = position + size;
    }
    return used;
}

/* One value of each row; 1, 0 when there is no room, or -1 when one does not lie in the data. */
int64_t kernel_gather(int64_t *args) {
    const uint8_t *data = bytes_at(args[GATHER_DATA]);
    const int64_t limit = args[GATHER_LIMIT];
    const int64_t rows = args[GATHER_ROWS];
    const int32_t *starts = int32_at(args[GATHER_AT]);
    const int32_t *sizes = int32_at(args[GATHER_SIZE]);
    const bool is_text = args[GATHER_TEXT];
    uint8_t *out = bytes_at(args[GATHER_OUT]);
    const int64_t room = args[GATHER_OUT_MAX];
    int32_t *offsets = int32_at(args[GATHER_OFFSETS]);
    uint8_t *validity = bytes_at(args[GATHER_VALIDITY]);
    int64_t used = 0;
    int64_t nulls = 0;
    uint8_t bits = 0;
    for (int64_t row = 0; row < rows; row++) {
        offsets[row] = (int32_t)used;
        if (row + ROWS_AHEAD < rows) prefetch_read(data, starts[row + ROWS_AHEAD]);
        int64_t size = sizes[row];
        if (size >= 0) {
            bits |= (uint8_t)(1 << (row & 7));
            int64_t start = starts[row];
            int64_t end = start + size;
            if (start < 0 || end > limit) return -1;
            if (is_text && first_broken(data, start, end) < end) {
                used = mend(data, start, end, out, used, room);
                if (used < 0) return 0;
            } else {
                if (used + size > room) return 0;
                copy_value(out, used, data, start, size, room, limit);
                used += size;
            }
        } else {
            nulls++;
        }
        if ((row & 7) == 7) {
            if (validity) validity[row >> 3] = bits;
            bits = 0;
        }
    }
    if (validity && (rows & 7) != 0) validity[rows >> 3] = bits;
    offsets[rows] = (int32_t)used;
    args[GATHER_NULLS] = nulls;
    return 1;
}

/* Where a property of a row lies, and its slot where there are many. */
typedef struct {
    int64_t name_at;
    int64_t name_size;
    int64_t value_at;
    int64_t value_size;
    int64_t slot;
} Place;
_Static_assert(sizeof(Place) == 8 * MAP_PLACE_FIELDS, "a place is so many int64");

INLINE bool has_name(const uint8_t *text, const Place *place, int64_t name_at, int64_t name_size) {
    return place->name_size == name_size &&
           same_bytes(text, place->name_at, text, name_at, name_size);
}

/* Which of the row's names equals this one, -1 for none. */
static int64_t find_name(const uint8_t *text, const Place *places, int64_t count,
                         const int32_t *slots, int64_t name_at, int64_t name_size) {
    if (count <= FEW) {
        for (int64_t n = 0; n < count; n++)
            if (has_name(text, places + n, name_at, name_size)) return n;
        return -1;
    }
    int64_t slot = spread_hash(text, name_at, name_size) & (MAP_SLOT_COUNT - 1);
    for (; slots[slot] != 0; slot = (slot + 1) & (MAP_SLOT_COUNT - 1))
        if (has_name(text, places + slots[slot] - 1, name_at, name_size)) return slots[slot] - 1;
    return -1;
}

/* Enters a name into the slots. */
static void keep_slot(const uint8_t *text, Place *places, int32_t *slots, int64_t n) {
    int64_t slot =
        spread_hash(text, places[n].name_at, places[n].name_size) & (MAP_SLOT_COUNT - 1);
    while (slots[slot] != 0) slot = (slot + 1) & (MAP_SLOT_COUNT - 1);
    slots[slot] = (int32_t)(n + 1);
    places[n].slot = slot;
}

/* Places of a row's properties; how many there are. */
static int64_t parse_properties(const uint8_t *text, int64_t start, int64_t size, int64_t limit,
                                Place *places, int32_t *slots) {
    int64_t end = start + size;
    int64_t count = 0;
    int64_t name_at = start;
    while (name_at < end) {
        int64_t piece_end = seek_byte(text, name_at, end, limit, 2);
        int64_t separator = seek_byte(text, name_at, piece_end, limit, 1);
        int64_t name_size = separator - name_at;
        int64_t value_size = piece_end - separator - 1;
        if (name_size > 0 && value_size > 0) {
            int64_t known = find_name(text, places, count, slots, name_at, name_size);
            if (known < 0) {
                known = count++;
                places[known].name_at = name_at;
                places[known].name_size = name_size;
                if (count > FEW) {
                    if (count == FEW + 1)
                        for (int64_t n = 0; n < FEW; n++) keep_slot(text, places, slots, n);
                    keep_slot(text, places, slots, known);
                }
            }
            places[known].value_at = separator + 1;
            places[known].value_size = value_size;
        }
        name_at = piece_end + 1;
    }
    if (count > FEW)
        for (int64_t n = 0; n < count; n++) slots[places[n].slot] = 0;
    return count;
}

/* What a map's kernel writes. */
typedef struct {
    uint8_t *keys;
    int32_t *key_offsets;
    int64_t keys_max;
    uint8_t *values;
    int32_t *value_offsets;
    int64_t values_max;
} Maps;

/* Copies the values of properties with the same names as a row before them, in that order: such a
   row needs no search for its names, nor a look whether one comes twice. `known` is the first name
   of the row before and `count` how many it has; `entry` is the first one's number here. Returns
   the bytes of values, -1 where names differ, a value is empty or there is no room. */
static int64_t take_values(const uint8_t *text, int64_t start, int64_t size, int64_t limit,
                           const Maps *maps, int64_t known, int64_t count, int64_t entry,
                           int64_t used) {
    int64_t end = start + size;
    int64_t position = start;
    for (int64_t n = 0; n < count; n++) {
        int64_t name_at = maps->key_offsets[known + n];
        int64_t name_size = maps->key_offsets[known + n + 1] - name_at;
        if (position + name_size >= end || text[position + name_size] != 1) return -1;
        if (!same_bytes(text, position, maps->keys, name_at, name_size)) return -1;
        position += name_size + 1;
        int64_t value_end = seek_byte(text, position, end, limit, 2);
        int64_t value_size = value_end - position;
        if (value_size <= 0 || used + value_size > maps->values_max) return -1;
        maps->value_offsets[entry + n] = (int32_t)used;
        copy_value(maps->values, used, text, position, value_size, maps->values_max, limit);
        used += value_size;
        position = value_end + 1;
    }
    return position >= end ? used : -1;
}

/* The properties of each row as a map; 1, or 0 when there is no room. */
int64_t kernel_property_maps(int64_t *args) {
    const uint8_t *data = bytes_at(args[MAP_DATA]);
    const int64_t rows = args[MAP_ROWS];
    const int32_t *starts = int32_at(args[MAP_AT]);
    const int32_t *sizes = int32_at(args[MAP_SIZE]);
    int32_t *offsets = int32_at(args[MAP_OFFSETS]);
    const Maps maps = {
        bytes_at(args[MAP_KEYS]),   int32_at(args[MAP_KEY_OFFSETS]),   args[MAP_KEYS_MAX],
        bytes_at(args[MAP_VALUES]), int32_at(args[MAP_VALUE_OFFSETS]), args[MAP_VALUES_MAX],
    };
    const int64_t entries_max = args[MAP_ENTRIES_MAX];
    uint8_t *scratch = bytes_at(args[MAP_SCRATCH]);
    Place *places = (Place *)int64_at(args[MAP_PLACES]);
    int32_t *slots = int32_at(args[MAP_SLOTS]);
    int64_t entry = 0;
    int64_t key_used = 0;
    int64_t value_used = 0;
    int64_t known = 0; /* the entries of the last row that has some */
    for (int64_t row = 0; row < rows; row++) {
        offsets[row] = (int32_t)entry;
        if (row + ROWS_AHEAD < rows) {
            prefetch_read(data, starts[row + ROWS_AHEAD]);
            prefetch_read(data, (int64_t)starts[row + ROWS_AHEAD] + 64);
        }
        int64_t size = sizes[row];
        if (size <= 0 || size > MAP_PROPERTIES_SIZE_MAX) continue;
        int64_t start = starts[row];
        const uint8_t *text = data;
        int64_t limit = args[MAP_LIMIT];
        if (first_broken(data, start, start + size) < start + size) {
            size = mend(data, start, start + size, scratch, 0, MAP_SCRATCH_SIZE);
            start = 0;
            text = scratch;
            limit = MAP_SCRATCH_SIZE;
        }
        /* Most messages have the properties of the one before, with other values. */
        int64_t count = entry - known;
        int64_t keys_at = count > 0 ? maps.key_offsets[known] : 0;
        int64_t keys_size = key_used - keys_at;
        if (0 < count && count <= entries_max - entry && keys_size <= maps.keys_max - key_used) {
            maps.key_offsets[entry] = (int32_t)key_used;
            int64_t taken =
                take_values(text, start, size, limit, &maps, known, count, entry, value_used);
            if (taken >= 0) {
                for (int64_t n = 0; n < count; n++)
                    maps.key_offsets[entry + n] =
                        (int32_t)(maps.key_offsets[known + n] + keys_size);
                copy_value(maps.keys, key_used, maps.keys, keys_at, keys_size, maps.keys_max,
                           maps.keys_max);
                key_used += keys_size;
                value_used = taken;
                known = entry;
                entry += count;
                continue;
            }
        }
        count = parse_properties(text, start, size, limit, places, slots);
        if (entry + count > entries_max) return 0;
        if (count > 0) known = entry;
        for (int64_t n = 0; n < count; n++, entry++) {
            const Place *place = places + n;
            if (key_used + place->name_size > maps.keys_max ||
                value_used + place->value_size > maps.values_max)
                return 0;
            maps.key_offsets[entry] = (int32_t)key_used;
            maps.value_offsets[entry] = (int32_t)value_used;
            copy_value(maps.keys, key_used, text, place->name_at, place->name_size, maps.keys_max,
                       limit);
            copy_value(maps.values, value_used, text, place->value_at, place->value_size,
                       maps.values_max, limit);
            key_used += place->name_size;
            value_used += place->value_size;
        }
    }
    offsets[rows] = (int32_t)entry;
    maps.key_offsets[entry] = (int32_t)key_used;
    maps.value_offsets[entry] = (int32_t)value_used;
    return 1;
}

/* Writes a decimal number; where it ends. */
static int64_t put_decimal(uint8_t *out, int64_t position, int64_t value) {
    if (value < 0) {
        out[position++] = '-';
        value = -value;
    }
    int64_t digits = 1;
    for (int64_t power = 10; value >= power; power *= 10) digits++;
    for (int64_t n = digits - 1; n >= 0; n--, value /= 10)
        out[position + n] = (uint8_t)('0' + value % 10);
    return position + digits;
}

/* Writes `address:port` as Java prints it; where it ends. */
static int64_t put_host(const uint8_t *data, int64_t start, bool is_v6, uint8_t *out,
                        int64_t position) {
    if (!is_v6) {
        for (int n = 0; n < 4; n++) {
            position = put_decimal(out, position, data[start + n]);
            out[position++] = n < 3 ? '.' : ':';
        }
        return put_decimal(out, position, load_be32(data, start + 4));
    }
    for (int n = 0; n < 8; n++) {
        int64_t group = load_be16(data, start + 2 * n);
        int shift = 12;
        while (shift > 0 && group >> shift == 0) shift -= 4;
        for (; shift >= 0; shift -= 4)
            out[position++] = (uint8_t)"0123456789abcdef"[group >> shift & 15];
        out[position++] = ':';
    }
    return put_decimal(out, position, load_be32(data, start + 16));
}

/* `address:port` of each row. */
int64_t kernel_hosts(int64_t *args) {
    const uint8_t *data = bytes_at(args[HOSTS_DATA]);
    const int32_t *starts = int32_at(args[HOSTS_AT]);
    const int32_t *flags = int32_at(args[HOSTS_SYS_FLAG]);
    const int64_t bit = args[HOSTS_V6_BIT];
    uint8_t *out = bytes_at(args[HOSTS_OUT]);
    int32_t *offsets = int32_at(args[HOSTS_OFFSETS]);
    int64_t used = 0;
    int64_t last = -1;
    int64_t last_at = 0;
    bool last_v6 = false;
    for (int64_t row = 0; row < args[HOSTS_ROWS]; row++) {
        offsets[row] = (int32_t)used;
        int64_t start = starts[row];
        bool is_v6 = (flags[row] & bit) != 0;
        /* Few hosts write a log: most rows have the one of the row before. */
        if (last >= 0 && is_v6 == last_v6 &&
            same_bytes(data, start, data, last, is_v6 ? HOST_V6_SIZE : HOST_V4_SIZE)) {
            int64_t size = used - last_at; /* the row before ends where this one begins */
            memcpy(out + used, out + last_at, (size_t)size);
            last_at = used;
            used += size;
        } else {
            last = start;
            last_v6 = is_v6;
            last_at = used;
            used = put_host(data, start, is_v6, out, used);
        }
    }
    offsets[args[HOSTS_ROWS]] = (int32_t)used;
    return used;
}

/* Writes a byte as two upper-case digits; where they end. */
INLINE int64_t put_hex(uint8_t *out, int64_t position, uint8_t byte) {
    out[position] = (uint8_t)"0123456789ABCDEF"[byte >> 4];
    out[position + 1] = (uint8_t)"0123456789ABCDEF"[byte & 15];
    return position + 2;
}

/* The broker's message id of each row. */
int64_t kernel_message_ids(int64_t *args) {
    const uint8_t *data = bytes_at(args[HOSTS_DATA]);
    const int32_t *starts = int32_at(args[HOSTS_AT]);
    const int32_t *flags = int32_at(args[HOSTS_SYS_FLAG]);
    const int64_t bit = args[HOSTS_V6_BIT];
    const int64_t *positions = int64_at(args[HOSTS_COMMIT_LOG_OFFSET]);
    uint8_t *out = bytes_at(args[HOSTS_OUT]);
    int32_t *offsets = int32_at(args[HOSTS_OFFSETS]);
    int64_t used = 0;
    for (int64_t row = 0; row < args[HOSTS_ROWS]; row++) {
        offsets[row] = (int32_t)used;
        int64_t size = (flags[row] & bit) != 0 ? HOST_V6_SIZE : HOST_V4_SIZE;
        for (int64_t n = 0; n < size; n++) used = put_hex(out, used, data[starts[row] + n]);
        for (int n = 0; n < 8; n++)
            used = put_hex(out, used, (uint8_t)(positions[row] >> (56 - 8 * n)));
    }
    offsets[args[HOSTS_ROWS]] = (int32_t)used;
    return used;
}
