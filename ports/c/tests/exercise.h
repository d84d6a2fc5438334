/* Touches everything that a file offers, whatever is wrong with it. Tests and fuzz targets share this. */
#ifndef EXERCISE_H
#define EXERCISE_H

#include "shard.h"

#include <stdlib.h>
#include <string.h>

static void exercise_channel(const shard_episode *ep, const shard_channel *c) {
    shard_bytes bytes;
    shard_document *label;
    const uint8_t *view;
    size_t size;
    shard_error error;
    if (shard_channel_read(ep, c, &bytes, &error) == SHARD_OK) shard_bytes_free(&bytes);
    (void)shard_channel_view(ep, c, &view, &size, &error);
    if (shard_channel_steps(ep, c, 0, c->length > 2 ? 2 : c->length, &bytes, &error) == SHARD_OK) shard_bytes_free(&bytes);
    if (shard_channel_offsets(ep, c, &bytes, &error) == SHARD_OK) shard_bytes_free(&bytes);
    if (c->length < 1 << 20 && shard_channel_times(ep, c, &bytes, &error) == SHARD_OK) shard_bytes_free(&bytes);
    if (c->lane == SHARD_LANE_LABEL && shard_episode_label(ep, c, &label, &error) == SHARD_OK) shard_document_free(label);
}

static void exercise_episode(const shard_reader *r) {
    shard_episode *ep;
    shard_error error;
    size_t i;
    if (shard_episode_from_reader(r, &ep, &error) != SHARD_OK) return;
    for (i = 0; i < shard_episode_count(ep); i++) exercise_channel(ep, shard_episode_channel(ep, i));
    (void)shard_episode_find(ep, SHARD_LANE_SIGNAL, "state", NULL, NULL);
    (void)shard_episode_check(ep, &error);
    shard_episode_close(ep);
}

static void exercise_entry(const shard_reader *r, uint32_t row) {
    shard_entry entry = shard_reader_entry(r, row);
    shard_bytes whole, part, frames;
    shard_filters filters;
    shard_error error;
    shard_codec codec;
    const uint8_t *view;
    size_t size, count;
    int is_filtered;
    if (shard_reader_find_bytes(r, entry.name, entry.name_size) != row) abort();
    (void)shard_reader_codec(r, row, &codec, &error);
    if (shard_reader_read(r, row, &whole, &error) == SHARD_OK) {
        if (shard_reader_range(r, row, whole.size / 3, whole.size / 2, &part, &error) == SHARD_OK) {
            if (part.size && memcmp(part.data, whole.data + whole.size / 3, part.size) != 0) abort();
            shard_bytes_free(&part);
        }
        shard_bytes_free(&whole);
    }
    (void)shard_reader_view(r, row, &view, &size, &error);
    if (shard_reader_frames(r, row, &frames, &count, &error) == SHARD_OK) shard_bytes_free(&frames);
    (void)shard_reader_filters(r, row, &filters, &is_filtered, &error);
}

static shard_code exercise_reader(shard_reader *r) {
    shard_document *document;
    const shard_json *rows;
    shard_error error;
    shard_code code;
    char hex[65];
    unsigned warnings;
    int version;
    uint32_t i;
    for (i = 0; i < shard_reader_count(r); i++) exercise_entry(r, i);
    if (shard_reader_schema(r, &document, &error) == SHARD_OK) shard_document_free(document);
    if (shard_reader_manifest(r, &document, &rows, &error) == SHARD_OK) shard_document_free(document);
    (void)shard_reader_identity(r, 2, hex, &error);
    (void)shard_reader_verify_identity(r, &version, &error);
    (void)shard_reader_warnings(r, &warnings, &error);
    exercise_episode(r);
    code = shard_reader_verify(r, &error);
    shard_reader_close(r);
    return code;
}

static void exercise_record(shard_record *record) {
    shard_document *document;
    shard_bytes bytes;
    shard_error error;
    size_t size;
    uint32_t i;
    (void)shard_record_key(record, &size);
    for (i = 0; i < shard_record_count(record); i++) {
        shard_record_entry entry = shard_record_entry_at(record, i);
        if (shard_record_find(record, entry.name, entry.name_size) != i) abort();
        if (shard_record_read(record, i, &bytes, &error) == SHARD_OK) shard_bytes_free(&bytes);
    }
    if (shard_record_metadata(record, &document, &error) == SHARD_OK) shard_document_free(document);
    if (shard_record_messagepack(record, &bytes, &error) == SHARD_OK) shard_bytes_free(&bytes);
    shard_record_free(record);
}

static void exercise_pack(shard_pack *pack) {
    shard_document *document;
    shard_record *record;
    shard_error error;
    uint64_t i;
    if (shard_pack_metadata(pack, &document, &error) == SHARD_OK) shard_document_free(document);
    (void)shard_pack_check_lookup(pack, &error);
    for (i = 0; i <= shard_pack_count(pack) && i < 1000; i++) {
        if (shard_pack_record(pack, i, &record, &error) == SHARD_OK) exercise_record(record);
    }
    if (shard_pack_record_by_key(pack, "first", 5, &record, &error) == SHARD_OK) exercise_record(record);
    shard_pack_close(pack);
}

/* Memory that is read forwards. */
typedef struct forwards {
    const uint8_t *data;
    size_t size;
} forwards;

static size_t read_forwards(void *context, void *into, size_t size) {
    forwards *f = (forwards *)context;
    if (size > f->size) size = f->size;
    if (size) memcpy(into, f->data, size);
    f->data += size;
    f->size -= size;
    return size;
}

static shard_code exercise_stream(const uint8_t *data, size_t size, const shard_options *options) {
    forwards from;
    shard_stream *stream;
    shard_record *record;
    shard_error error;
    shard_code code;
    from.data = data;
    from.size = size;
    code = shard_stream_open(read_forwards, &from, options, &stream, &error);
    if (code != SHARD_OK) return code;
    while ((code = shard_stream_next(stream, &record, &error)) == SHARD_OK && record) exercise_record(record);
    shard_stream_close(stream);
    return code;
}

/* What canonical JSON says is read back as the same. */
static void exercise_json(const uint8_t *data, size_t size, const shard_options *options) {
    shard_document *first, *second;
    shard_bytes once, twice;
    shard_error error;
    memset(&once, 0, sizeof once);
    memset(&twice, 0, sizeof twice);
    if (shard_json_parse(data, size, options, &first, &error) != SHARD_OK) return;
    if (shard_json_canonical(shard_document_root(first), options->allocator, &once, &error) == SHARD_OK) {
        if (shard_json_parse(once.data, once.size, options, &second, &error) == SHARD_OK) {
            if (shard_json_canonical(shard_document_root(second), options->allocator, &twice, &error) == SHARD_OK) {
                if (once.size != twice.size || memcmp(once.data, twice.data, once.size) != 0) abort();
            }
            shard_document_free(second);
        }
    }
    shard_bytes_free(&once);
    shard_bytes_free(&twice);
    shard_document_free(first);
}

#endif
