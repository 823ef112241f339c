/* JSON headers of plain requests: what compiled kernels read of a frame, and write of an answer.

   A plain header is a compact or spaced JSON object of ASCII without escapes (but where a kernel
   looks for some itself), known fields once each. All else is left to the general way. */
#ifndef OBERTH_HEADERS_H
#define OBERTH_HEADERS_H

#include "bytes.h"
#include "layout.h"

enum { HEAD_SIZE = 8 };

typedef struct {
    const uint8_t *data;
    int64_t at, end;
} Reader;

typedef struct {
    int64_t at, size;
} Span;

INLINE void skip_blanks(Reader *in) {
    while (in->at < in->end) {
        uint8_t byte = in->data[in->at];
        if (byte != ' ' && byte != '\t' && byte != '\n' && byte != '\r') return;
        in->at++;
    }
}

/* Passes one byte with blanks around it. */
INLINE bool take(Reader *in, uint8_t wanted) {
    skip_blanks(in);
    if (in->at >= in->end || in->data[in->at] != wanted) return false;
    in->at++;
    skip_blanks(in);
    return true;
}

INLINE bool is_plain_byte(uint8_t byte) {
    return byte >= 0x20 && byte < 0x7F && byte != '"' && byte != '\\';
}

/* A string without escapes. */
INLINE bool take_string(Reader *in, Span *found) {
    if (in->at >= in->end || in->data[in->at] != '"') return false;
    int64_t start = ++in->at;
    while (in->at < in->end && is_plain_byte(in->data[in->at])) in->at++;
    if (in->at >= in->end || in->data[in->at] != '"') return false;
    *found = (Span){start, in->at - start};
    in->at++;
    return true;
}

INLINE bool is_text(const Reader *in, Span span, const char *text, int64_t size) {
    return span.size == size && memcmp(in->data + span.at, text, (size_t)size) == 0;
}
#define IS(in, span, text) is_text(in, span, text, (int64_t)sizeof text - 1)

/* A decimal number of at most 18 digits; `end` is where it must end. */
INLINE bool number_in(const uint8_t *data, int64_t start, int64_t end, int64_t *found) {
    bool negative = start < end && data[start] == '-';
    start += negative;
    if (start >= end || end - start > 18) return false;
    int64_t value = 0;
    for (; start < end; start++) {
        int64_t digit = data[start] - '0';
        if (digit < 0 || digit > 9) return false;
        value = value * 10 + digit;
    }
    *found = negative ? -value : value;
    return true;
}

INLINE bool number_of(const Reader *in, Span span, int64_t *found) {
    return number_in(in->data, span.at, span.at + span.size, found);
}

INLINE bool is_int32(int64_t value) { return value >= INT32_MIN && value <= INT32_MAX; }

INLINE bool int32_of(const Reader *in, Span span, int64_t *found) {
    return number_of(in, span, found) && is_int32(*found);
}

/* A JSON number that is an int32: no leading zero, fraction or exponent. */
INLINE bool take_int32(Reader *in, int64_t *found) {
    int64_t start = in->at;
    if (in->at < in->end && in->data[in->at] == '-') in->at++;
    int64_t first = in->at;
    while (in->at < in->end && in->data[in->at] >= '0' && in->data[in->at] <= '9') in->at++;
    if (in->at - first > 1 && in->data[first] == '0') return false;
    return number_in(in->data, start, in->at, found) && is_int32(*found);
}

/* Goes on behind an entry of an object: 1 to the next one, 0 at its end, -1 where there is neither.
 */
INLINE int next_entry(Reader *in) {
    skip_blanks(in);
    if (in->at < in->end && in->data[in->at] == ',') {
        take(in, ',');
        return 1;
    }
    return take(in, '}') ? 0 : -1;
}

/* Fields seen, so that none counts twice; those of extFields are above. */
enum {
    SEEN_CODE = 1, SEEN_FIELDS = 2, SEEN_FLAG = 4, SEEN_LANGUAGE = 8, SEEN_OPAQUE = 16,
    SEEN_TYPE = 32, SEEN_VERSION = 64, SEEN_REMARK = 128, SEEN_EXT = 256,
};
#define HEADER_NEEDS (SEEN_CODE | SEEN_FIELDS | SEEN_FLAG | SEEN_OPAQUE)

typedef struct {
    int64_t code, other_code; /* which codes are taken; then `code` is the one that was found */
    int64_t opaque, flag;
    int seen;
} Head;

/* Takes the object `extFields`; what it saw is added to `seen`. */
typedef bool (*TakeFields)(Reader *in, void *to, int *seen);

/* Takes all of a header. */
INLINE bool take_header(Reader *in, Head *head, TakeFields take_fields, void *to) {
    int64_t number;
    Span name, value;
    head->seen = 0;
    if (!take(in, '{')) return false;
    for (;;) {
        if (!take_string(in, &name) || !take(in, ':')) return false;
        int bit;
        if (IS(in, name, "code")) bit = SEEN_CODE;
        else if (IS(in, name, "extFields")) bit = SEEN_FIELDS;
        else if (IS(in, name, "flag")) bit = SEEN_FLAG;
        else if (IS(in, name, "language")) bit = SEEN_LANGUAGE;
        else if (IS(in, name, "opaque")) bit = SEEN_OPAQUE;
        else if (IS(in, name, "serializeTypeCurrentRPC")) bit = SEEN_TYPE;
        else if (IS(in, name, "version")) bit = SEEN_VERSION;
        else if (IS(in, name, "remark")) bit = SEEN_REMARK;
        else return false;
        if (head->seen & bit) return false;
        head->seen |= bit;
        if (bit == SEEN_FIELDS) {
            if (!take_fields(in, to, &head->seen)) return false;
        } else if (bit & (SEEN_LANGUAGE | SEEN_TYPE | SEEN_REMARK)) {
            if (!take_string(in, &value)) return false;
        } else {
            if (!take_int32(in, &number)) return false;
            if (bit == SEEN_CODE) {
                if (number != head->code && number != head->other_code) return false;
                head->code = number;
            }
            if (bit == SEEN_OPAQUE) head->opaque = number;
            if (bit == SEEN_FLAG) head->flag = number;
        }
        int more = next_entry(in);
        if (more < 0) return false;
        if (more == 0) return in->at == in->end && (head->seen & HEADER_NEEDS) == HEADER_NEEDS;
    }
}

/* The frame at a position: where its header is, and where it ends. False: no whole frame, or none
   of JSON that is looked into. */
INLINE bool take_frame(const uint8_t *data, int64_t size, int64_t at, int64_t frame_max,
                       Reader *header, int64_t *end) {
    if (size - at < HEAD_SIZE) return false;
    int64_t length = load_be32(data, at);
    int64_t word = load_be32(data, at + 4);
    int64_t header_size = word & 0xFFFFFF;
    if (word >> 24 != 0 || header_size > PLAIN_HEADER_MAX || length < 4 + header_size ||
        length > frame_max - 4 || length > size - at - 4)
        return false;
    *header = (Reader){data, at + HEAD_SIZE, at + HEAD_SIZE + header_size};
    *end = at + 4 + length;
    return true;
}

INLINE uint8_t *put_bytes(uint8_t *out, const uint8_t *text, int64_t size) {
    memcpy(out, text, (size_t)size);
    return out + size;
}

INLINE uint8_t *put_decimal(uint8_t *out, int64_t value) {
    uint8_t digits[20];
    int count = 0;
    uint64_t rest = value < 0 ? (uint64_t)0 - (uint64_t)value : (uint64_t)value;
    if (value < 0) *out++ = '-';
    do {
        digits[count++] = (uint8_t)('0' + rest % 10);
        rest /= 10;
    } while (rest != 0);
    while (count > 0) *out++ = digits[--count];
    return out;
}

/* One of some texts, given by address and size each. */
INLINE uint8_t *put_piece(uint8_t *out, const int64_t *pieces, int number) {
    return put_bytes(out, bytes_at(pieces[2 * number]), pieces[2 * number + 1]);
}

#endif
