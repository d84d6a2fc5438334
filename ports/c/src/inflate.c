/* gzip members (RFC 1951, RFC 1952), which entries of ShardPack may be. Small rather than fast: writers use zstd. */
#include "internal.h"

enum { GZIP_CHECK = 0x02, GZIP_EXTRA = 0x04, GZIP_NAME = 0x08, GZIP_COMMENT = 0x10, GZIP_RESERVED = 0xE0, MOST_BITS = 15, MOST_SYMBOLS = 288 };

typedef struct inflater {
    const uint8_t *data;
    size_t size, at;
    uint32_t bits;
    int bit_count;
    uint8_t *out;
    size_t room, done;
    int is_longer; /* it holds more than there is room for */
} inflater;

/* Canonical codes: how many have each length, and the symbols in the order of their codes. */
typedef struct huffman {
    uint16_t counts[MOST_BITS + 1], symbols[MOST_SYMBOLS];
} huffman;

/* -1 at the end of the data. */
static int take_bits(inflater *z, int count) {
    int value;
    while (z->bit_count < count) {
        if (z->at >= z->size) return -1;
        z->bits |= (uint32_t)z->data[z->at++] << z->bit_count;
        z->bit_count += 8;
    }
    value = (int)(z->bits & ((1u << count) - 1));
    z->bits >>= count;
    z->bit_count -= count;
    return value;
}

/* 0 if the lengths are no code. A code may be incomplete only if it has at most one symbol. */
static int make_huffman(huffman *h, const uint8_t *lengths, int count) {
    uint16_t starts[MOST_BITS + 2];
    int i, left = 1;
    memset(h, 0, sizeof *h);
    for (i = 0; i < count; i++) h->counts[lengths[i]]++;
    for (i = 1; i <= MOST_BITS; i++) {
        left = left * 2 - h->counts[i];
        if (left < 0) return 0;
    }
    if (left > 0 && count - h->counts[0] > 1) return 0;
    starts[1] = 0;
    for (i = 1; i <= MOST_BITS; i++) starts[i + 1] = (uint16_t)(starts[i] + h->counts[i]);
    for (i = 0; i < count; i++) {
        if (lengths[i]) h->symbols[starts[lengths[i]]++] = (uint16_t)i;
    }
    h->counts[0] = 0;
    return 1;
}

static int take_symbol(inflater *z, const huffman *h) {
    int code = 0, first = 0, index = 0, length;
    for (length = 1; length <= MOST_BITS; length++) {
        int bit = take_bits(z, 1), count = h->counts[length];
        if (bit < 0) return -1;
        code |= bit;
        if (code - first < count) return h->symbols[index + code - first];
        index += count;
        first = (first + count) * 2;
        code *= 2;
    }
    return -1;
}

static int copy_match(inflater *z, size_t length, size_t distance) {
    if (distance > z->done) return 0;
    if (length > z->room - z->done) {
        z->is_longer = 1;
        return 0;
    }
    for (; length; length--, z->done++) z->out[z->done] = z->out[z->done - distance];
    return 1;
}

static int inflate_codes(inflater *z, const huffman *literals, const huffman *distances) {
    static const uint16_t bases[29] = {3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    for (;;) {
        int symbol = take_symbol(z, literals), extra, bits;
        size_t length, distance;
        if (symbol < 0 || symbol > 285) return 0;
        if (symbol == 256) return 1;
        if (symbol < 256) {
            if (z->done >= z->room) {
                z->is_longer = 1;
                return 0;
            }
            z->out[z->done++] = (uint8_t)symbol;
            continue;
        }
        symbol -= 257;
        bits = symbol < 8 || symbol == 28 ? 0 : symbol / 4 - 1;
        extra = take_bits(z, bits);
        if (extra < 0) return 0;
        length = bases[symbol] + (size_t)extra;
        symbol = take_symbol(z, distances);
        if (symbol < 0 || symbol > 29) return 0;
        bits = symbol < 4 ? 0 : symbol / 2 - 1;
        extra = take_bits(z, bits);
        if (extra < 0) return 0;
        distance = symbol < 4 ? (size_t)symbol + 1 : (((size_t)2 + (size_t)(symbol & 1)) << bits) + 1 + (size_t)extra;
        if (!copy_match(z, length, distance)) return 0;
    }
}

static int inflate_stored(inflater *z) {
    size_t length;
    z->bits = 0;
    z->bit_count = 0;
    if (z->size - z->at < 4) return 0;
    length = shardi_u16(z->data + z->at);
    if ((length ^ 0xFFFF) != shardi_u16(z->data + z->at + 2)) return 0;
    z->at += 4;
    if (length > z->size - z->at) return 0;
    if (length > z->room - z->done) {
        z->is_longer = 1;
        return 0;
    }
    if (length) memcpy(z->out + z->done, z->data + z->at, length);
    z->at += length;
    z->done += length;
    return 1;
}

static int inflate_fixed(inflater *z) {
    uint8_t lengths[MOST_SYMBOLS];
    huffman literals, distances;
    int i;
    for (i = 0; i < MOST_SYMBOLS; i++) lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
    (void)make_huffman(&literals, lengths, MOST_SYMBOLS);
    memset(lengths, 5, 32);
    (void)make_huffman(&distances, lengths, 32);
    return inflate_codes(z, &literals, &distances);
}

static int inflate_dynamic(inflater *z) {
    static const uint8_t order[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    uint8_t lengths[286 + 30 + 138] = {0};
    huffman codes, distances;
    int literal_count = take_bits(z, 5), distance_count = take_bits(z, 5), code_count = take_bits(z, 4), i = 0;
    if (literal_count < 0 || distance_count < 0 || code_count < 0) return 0;
    literal_count += 257;
    distance_count += 1;
    if (literal_count > 286 || distance_count > 30) return 0;
    for (i = 0; i < code_count + 4; i++) {
        int length = take_bits(z, 3);
        if (length < 0) return 0;
        lengths[order[i]] = (uint8_t)length;
    }
    if (!make_huffman(&codes, lengths, 19)) return 0;
    for (i = 0; i < literal_count + distance_count;) {
        int symbol = take_symbol(z, &codes), repeat = 1;
        uint8_t value = 0;
        if (symbol < 0 || (symbol == 16 && !i)) return 0;
        if (symbol < 16) value = (uint8_t)symbol;
        else if (symbol == 16) value = lengths[i - 1];
        if (symbol >= 16) {
            int extra = take_bits(z, symbol == 16 ? 2 : symbol == 17 ? 3 : 7);
            if (extra < 0) return 0;
            repeat = extra + (symbol == 18 ? 11 : 3);
        }
        if (repeat > literal_count + distance_count - i) return 0;
        for (; repeat; repeat--) lengths[i++] = value;
    }
    if (!lengths[256]) return 0; /* it could not end */
    if (!make_huffman(&distances, lengths + literal_count, distance_count) || !make_huffman(&codes, lengths, literal_count)) return 0;
    return inflate_codes(z, &codes, &distances);
}

static int inflate_all(inflater *z) {
    int is_last;
    do {
        int kind;
        is_last = take_bits(z, 1);
        kind = take_bits(z, 2);
        if (is_last < 0 || kind < 0 || kind == 3) return 0;
        if (!(kind == 0 ? inflate_stored(z) : kind == 1 ? inflate_fixed(z) : inflate_dynamic(z))) return 0;
    } while (!is_last);
    return 1;
}

static uint32_t crc32_ieee(const uint8_t *data, size_t size) {
    uint32_t nibble[16], crc = 0xFFFFFFFFu;
    uint32_t i, k;
    for (i = 0; i < 16; i++) {
        nibble[i] = i;
        for (k = 0; k < 4; k++) nibble[i] = nibble[i] >> 1 ^ (nibble[i] & 1 ? 0xEDB88320u : 0);
    }
    for (; size; data++, size--) {
        crc = crc >> 4 ^ nibble[(crc ^ *data) & 15];
        crc = crc >> 4 ^ nibble[(crc ^ (uint32_t)*data >> 4) & 15];
    }
    return ~crc;
}

static shard_code bad_gzip(shard_error *error, const char *problem) { return shardi_fail(error, SHARD_BAD_COMPRESSION, "P-ENC-5", "%s", problem); }

/* Where the compressed data of a member starts; 0 if the head is damaged. */
static size_t gzip_head(const uint8_t *data, size_t size) {
    size_t at = 10;
    int flag;
    if (size < at || data[0] != 0x1F || data[1] != 0x8B || data[2] != 8 || (data[3] & GZIP_RESERVED)) return 0;
    if (data[3] & GZIP_EXTRA) {
        if (size - at < 2 || size - at - 2 < shardi_u16(data + at)) return 0;
        at += 2u + shardi_u16(data + at);
    }
    for (flag = GZIP_NAME; flag <= GZIP_COMMENT; flag *= 2) {
        if (data[3] & flag) {
            const uint8_t *end = (const uint8_t *)memchr(data + at, 0, size - at);
            if (!end) return 0;
            at = (size_t)(end - data) + 1;
        }
    }
    if (data[3] & GZIP_CHECK) {
        if (size - at < 2 || (crc32_ieee(data, at) & 0xFFFF) != shardi_u16(data + at)) return 0;
        at += 2;
    }
    return at;
}

shard_code shardi_decode_gzip(const uint8_t *data, size_t size, uint8_t *out, size_t room, shard_error *error) {
    inflater z;
    memset(&z, 0, sizeof z);
    z.data = data;
    z.size = size;
    z.at = gzip_head(data, size);
    z.out = out;
    z.room = room;
    if (!z.at) return bad_gzip(error, "no complete gzip member starts here");
    if (!inflate_all(&z)) {
        if (z.is_longer) return shardi_fail(error, SHARD_SIZE_MISMATCH, "P-ENC-4", "the gzip member holds more than the entry: expected %llu bytes", (unsigned long long)room);
        return bad_gzip(error, "gzip cannot decode it");
    }
    if (size - z.at != 8) return bad_gzip(error, "not exactly one complete gzip member");
    if (shardi_u32(data + z.at) != crc32_ieee(out, z.done) || shardi_u32(data + z.at + 4) != (uint32_t)(z.done & 0xFFFFFFFFu)) {
        return bad_gzip(error, "the gzip member does not fit its checksum or its size");
    }
    if (z.done != room) return shardi_fail(error, SHARD_SIZE_MISMATCH, "P-ENC-4", "the gzip member holds less than the entry: expected %llu bytes, found %llu", (unsigned long long)room, (unsigned long long)z.done);
    return SHARD_OK;
}
