/* zstd frames and lz4 blocks (spec/shard.md, section 6). */
#include "internal.h"

#if defined(SHARD_WITH_ZSTD)
#include <zstd.h>
#include <zstd_errors.h>
#endif
#if defined(SHARD_WITH_LZ4)
#include <lz4.h>
#endif

#define SKIPPABLE_MAGIC 0x184D2A50u
#define SKIPPABLE_MASK 0xFFFFFFF0u
#define USUAL_LEVEL 3

int shardi_is_reachable(uint64_t content, uint64_t stored, uint64_t expansion, uint64_t slack) {
    /* Divided, because a product could wrap. */
    return content <= slack || (content - slack + expansion - 1) / expansion <= stored;
}

static shard_code bad_compression(shard_error *error, const char *rule, const char *problem) {
    return shardi_fail(error, SHARD_BAD_COMPRESSION, rule, "%s", problem);
}

static shard_code other_size(shard_error *error, const char *problem, uint64_t expected, uint64_t found) {
    return shardi_fail(error, SHARD_SIZE_MISMATCH, "S-CMP-3", "%s: expected %llu bytes, found %llu", problem,
                       (unsigned long long)expected, (unsigned long long)found);
}

/* ---- zstd ---- */

shard_code shardi_walk_frame(const uint8_t *data, size_t size, uint64_t max_window, shardi_frame *frame, shard_error *error) {
    static const uint8_t dictionary_bytes[4] = {0, 1, 2, 4}, size_bytes[4] = {0, 2, 4, 8};
    static const char incomplete[] = "a zstd frame is incomplete";
    uint8_t descriptor;
    uint64_t window = 0;
    size_t at = 5, width, i;
    int is_single, is_last = 0;
    memset(frame, 0, sizeof *frame);
    if (size < 5) return bad_compression(error, "S-CMP-4", incomplete);
    descriptor = data[4];
    if (descriptor & 0x08) return bad_compression(error, "S-CMP-4", "a reserved bit of a zstd frame header is set");
    is_single = (descriptor & 0x20) != 0;
    width = size_bytes[descriptor >> 6];
    if (!width && is_single) width = 1;
    if (size - at < (is_single ? 0u : 1u) + dictionary_bytes[descriptor & 3] + width) return bad_compression(error, "S-CMP-4", incomplete);
    if (!is_single) {
        uint64_t base = UINT64_C(1) << (10 + (data[at] >> 3));
        window = base + (base >> 3) * (data[at] & 7u);
        at++;
    }
    for (i = dictionary_bytes[descriptor & 3]; i; i--) {
        if (data[at++]) return bad_compression(error, "S-CMP-6", "a zstd frame needs a dictionary");
    }
    for (i = 0; i < width; i++) frame->content_size |= (uint64_t)data[at++] << (8 * i);
    if (width == 2) frame->content_size += 256;
    frame->has_size = width > 0;
    if (is_single) window = frame->content_size;
    if (window > max_window) {
        return shardi_fail(error, SHARD_LIMIT_EXCEEDED, "S-CMP-7", "a zstd frame needs a window that is too large: expected at most %llu bytes, found %llu",
                           (unsigned long long)max_window, (unsigned long long)window);
    }
    while (!is_last) {
        uint32_t block;
        size_t stored;
        if (size - at < 3) return bad_compression(error, "S-CMP-4", incomplete);
        block = (uint32_t)data[at] | (uint32_t)data[at + 1] << 8 | (uint32_t)data[at + 2] << 16;
        is_last = (block & 1) != 0;
        stored = block >> 3;
        if ((block >> 1 & 3) == 3) return bad_compression(error, "S-CMP-4", "a zstd block has the reserved type");
        if ((block >> 1 & 3) == 1) stored = 1; /* a run of one byte */
        at += 3;
        if (size - at < stored) return bad_compression(error, "S-CMP-4", incomplete);
        at += stored;
    }
    frame->has_checksum = (descriptor & 0x04) != 0;
    if (frame->has_checksum) {
        if (size - at < 4) return bad_compression(error, "S-CMP-4", incomplete);
        at += 4;
    }
    frame->end = at;
    return SHARD_OK;
}

#if defined(SHARD_WITH_ZSTD)

void shardi_decoder_end(shardi_decoder *decoder) {
    ZSTD_freeDCtx((ZSTD_DCtx *)decoder->zstd);
    decoder->zstd = NULL;
}

shard_code shardi_decode_frame(shardi_decoder *decoder, const uint8_t *data, const shardi_frame *frame, uint8_t *out, size_t room, size_t *count, shard_error *error) {
    size_t found;
    *count = 0;
    if (frame->has_size && frame->content_size > room) {
        return other_size(error, "a zstd frame declares more than the index says", room, frame->content_size);
    }
    if (!decoder->zstd) decoder->zstd = ZSTD_createDCtx();
    if (!decoder->zstd) return shardi_no_memory(error, 1 << 17);
    found = ZSTD_decompressDCtx((ZSTD_DCtx *)decoder->zstd, out, room, data, frame->end);
    if (ZSTD_isError(found)) {
        switch (ZSTD_getErrorCode(found)) {
            case ZSTD_error_dstSize_tooSmall: return other_size(error, "a zstd frame holds more than the index says", room, (uint64_t)room + 1);
            case ZSTD_error_checksum_wrong:
                return shardi_fail(error, SHARD_CHECKSUM_MISMATCH, "S-CMP-4", "the checksum of a zstd frame does not fit");
            default: return shardi_fail(error, SHARD_BAD_COMPRESSION, "S-CMP-4", "zstd cannot decode it: %s", ZSTD_getErrorName(found));
        }
    }
    if (frame->has_size && found != frame->content_size) return other_size(error, "a zstd frame is shorter than it declares", frame->content_size, found);
    *count = found;
    return SHARD_OK;
}

#else

void shardi_decoder_end(shardi_decoder *decoder) { (void)decoder; }

shard_code shardi_decode_frame(shardi_decoder *decoder, const uint8_t *data, const shardi_frame *frame, uint8_t *out, size_t room, size_t *count, shard_error *error) {
    (void)decoder;
    (void)data;
    (void)frame;
    (void)out;
    (void)room;
    *count = 0;
    return shardi_fail(error, SHARD_MISSING_EXTRA, "", "this build has no zstd");
}

#endif

/* Walks all frames before it decodes the first, so that nothing is decoded of an entry that ends badly. */
static shard_code next_frame(const uint8_t *data, size_t size, uint64_t max_window, size_t *at, shardi_frame *frame, int *is_data, shard_error *error) {
    uint32_t magic;
    *is_data = 0;
    if (size - *at < 4) return bad_compression(error, "S-CMP-4", "a frame is incomplete");
    magic = shardi_u32(data + *at);
    if (magic == SHARDI_FRAME_MAGIC) {
        *is_data = 1;
        return shardi_walk_frame(data + *at, size - *at, max_window, frame, error);
    }
    if ((magic & SKIPPABLE_MASK) != SKIPPABLE_MAGIC) return bad_compression(error, "S-CMP-5", "no zstd frame where one must start");
    if (size - *at < 8 || shardi_u32(data + *at + 4) > size - *at - 8) return bad_compression(error, "S-CMP-4", "a skippable frame is incomplete");
    frame->end = 8 + (size_t)shardi_u32(data + *at + 4);
    return SHARD_OK;
}

shard_code shardi_decode_zstd(const uint8_t *data, size_t size, uint64_t max_window, uint8_t *out, size_t room, shard_error *error) {
    shardi_decoder decoder = {NULL};
    shardi_frame frame;
    size_t at, done = 0, frames = 0;
    int is_data;
    shard_code code = SHARD_OK;
    for (at = 0; at < size; at += frame.end) {
        code = next_frame(data, size, max_window, &at, &frame, &is_data, error);
        if (code != SHARD_OK) return code;
        frames += (size_t)is_data;
    }
    if (!frames) return bad_compression(error, "S-CMP-4", "the entry has no zstd frame");
    for (at = 0; at < size && code == SHARD_OK; at += frame.end) {
        size_t count = 0;
        code = next_frame(data, size, max_window, &at, &frame, &is_data, error);
        if (code == SHARD_OK && is_data) code = shardi_decode_frame(&decoder, data + at, &frame, out + done, room - done, &count, error);
        done += count;
    }
    shardi_decoder_end(&decoder);
    if (code == SHARD_OK && done != room) return other_size(error, "the entry decodes to another size", room, done);
    return code;
}

/* ---- lz4 ---- */

/* A length that goes on in further bytes; 0 if they do not end. It stops at what cannot be true, so nothing overflows. */
static int lz4_length(const uint8_t *data, size_t size, size_t *at, size_t most, size_t *length) {
    uint8_t more;
    if (*length < 15) return 1;
    do {
        if (*at >= size) return 0;
        more = data[(*at)++];
        *length += more;
    } while (more == 255 && *length <= most);
    return 1;
}

static shard_code lz4_damaged(const uint8_t *data, size_t size, size_t room, shard_error *error) {
    if (size > 4 && shardi_u32(data) == room) return bad_compression(error, "S-CMP-9", "the lz4 block has its size in front");
    return bad_compression(error, "S-CMP-4", "the lz4 block is damaged or incomplete");
}

/* Decodes one raw block and tells what is wrong with a bad one, which liblz4 does not. */
static shard_code decode_lz4_strictly(const uint8_t *data, size_t size, uint8_t *out, size_t room, shard_error *error) {
    size_t at = 0, done = 0, match_end = 0, most = size + room;
    while (at < size) {
        uint8_t token = data[at++];
        size_t literals = token >> 4, match = token & 15u, distance;
        if (!lz4_length(data, size, &at, most, &literals) || literals > size - at) return lz4_damaged(data, size, room, error);
        if (literals > room - done) return other_size(error, "the lz4 block holds more than the index says", room, (uint64_t)done + literals);
        if (literals) memcpy(out + done, data + at, literals);
        done += literals;
        at += literals;
        if (at == size) {
            if ((token & 15) || (match_end && done - match_end < 5)) return bad_compression(error, "S-CMP-9", "the lz4 block does not end with five literals");
            if (done != room) return other_size(error, "the entry decodes to another size", room, done);
            return SHARD_OK;
        }
        if (size - at < 2) break;
        distance = shardi_u16(data + at);
        at += 2;
        if (!lz4_length(data, size, &at, most, &match) || !distance || distance > done) break;
        match += 4;
        if (match > room - done) return other_size(error, "the lz4 block holds more than the index says", room, (uint64_t)done + match);
        match_end = done + match;
        /* Source and target may overlap: what is copied doubles what can be copied next. */
        while (done < match_end) {
            size_t count = match_end - done < distance ? match_end - done : distance;
            memcpy(out + done, out + done - distance, count);
            done += count;
            distance += count;
        }
    }
    return lz4_damaged(data, size, room, error);
}

shard_code shardi_decode_lz4(const uint8_t *data, size_t size, uint8_t *out, size_t room, shard_error *error) {
#if defined(SHARD_WITH_LZ4)
    if (size && room && size <= LZ4_MAX_INPUT_SIZE && room <= LZ4_MAX_INPUT_SIZE &&
        LZ4_decompress_safe((const char *)data, (char *)out, (int)size, (int)room) == (int)room) {
        return SHARD_OK;
    }
#endif
    return decode_lz4_strictly(data, size, out, room, error);
}

/* ---- writing ---- */

#if defined(SHARD_WITH_ZSTD) || defined(SHARD_WITH_LZ4)
static uint8_t *room_for(shardi_buffer *out, size_t size) {
    uint8_t *made = (uint8_t *)shardi_allocate(out->allocator, size);
    shardi_release(out->allocator, out->data);
    out->data = made;
    out->capacity = made ? size : 0;
    out->size = 0;
    return made;
}
#endif

/* Replaces what is in the buffer with one zstd frame, with its size, or one lz4 block. */
shard_code shardi_compress(shardi_buffer *out, const void *data, size_t size, shard_codec codec, int level, shard_error *error) {
    (void)out;
    (void)data;
    (void)size;
    (void)level;
#if defined(SHARD_WITH_ZSTD)
    if (codec == SHARD_ZSTD) {
        size_t bound = ZSTD_compressBound(size), count;
        if (!room_for(out, bound)) return shardi_no_memory(error, bound);
        count = ZSTD_compress(out->data, bound, data, size, level ? level : USUAL_LEVEL);
        if (ZSTD_isError(count)) return shardi_fail(error, SHARD_INVALID_ARGUMENT, "", "zstd cannot compress it: %s", ZSTD_getErrorName(count));
        out->size = count;
        return SHARD_OK;
    }
#endif
#if defined(SHARD_WITH_LZ4)
    if (codec == SHARD_LZ4) {
        int bound = LZ4_compressBound((int)size), count;
        if (!room_for(out, (size_t)bound)) return shardi_no_memory(error, (uint64_t)bound);
        count = LZ4_compress_default((const char *)data, (char *)out->data, (int)size, bound);
        if (count <= 0) return shardi_fail(error, SHARD_INVALID_ARGUMENT, "", "lz4 cannot compress it");
        out->size = (size_t)count;
        return SHARD_OK;
    }
#endif
    return shardi_fail(error, SHARD_MISSING_EXTRA, "", "this build has no %s", codec == SHARD_ZSTD ? "zstd" : "lz4");
}
