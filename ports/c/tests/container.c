/* Containers: writing, reading, sources, errors. */
#define _POSIX_C_SOURCE 200809L
#include "tests.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const names[] = {"b", "a/x", "long name with ümlaut"};

static shard_code write_three(const char *path, shard_writer_options *options, shard_error *error) {
    char text[5000];
    shard_writer *w;
    shard_entry_options typed = {0};
    shard_code code;
    memset(text, 'q', sizeof text);
    typed.content_type = SHARD_CONTENT_TEXT;
    typed.tag_bits = 3;
    options->no_sync = 1;
    code = shard_writer_create(path, options, &w, error);
    if (code == SHARD_OK) code = shard_writer_add(w, names[0], "hello", 5, NULL, error);
    if (code == SHARD_OK) code = shard_writer_add(w, names[1], text, sizeof text, &typed, error);
    if (code == SHARD_OK) code = shard_writer_add(w, names[2], NULL, 0, NULL, error);
    if (code == SHARD_OK) code = shard_writer_finish(w, error);
    shard_writer_close(w);
    return code;
}

static int same_files(const char *a, const char *b) {
    size_t x, y;
    uint8_t *one = load(a, &x), *other = load(b, &y);
    int is_same = x == y && memcmp(one, other, x) == 0;
    free(one);
    free(other);
    return is_same;
}

static void layouts_give_the_same_entries(void) {
    shard_writer_options options;
    shard_error error;
    shard_reader *r;
    shard_bytes content;
    int version;
    memset(&options, 0, sizeof options);
    options.alignment = 64;
    options.identity = 1;
    options.schema = "{\"tags\":[\"x\"],  \"extra\":{\"n\":30.0}}";
    options.schema_size = strlen(options.schema);
    CHECK(write_three(in_folder("moved"), &options, &error) == SHARD_OK);
    options.names = names;
    options.name_count = 3;
    CHECK(write_three(in_folder("declared"), &options, &error) == SHARD_OK);
    CHECK(same_files(in_folder("moved"), in_folder("declared")));
    options.names = NULL;
    options.max_entries = 5;
    CHECK(write_three(in_folder("reserved"), &options, &error) == SHARD_OK);
    CHECK(shard_reader_open(in_folder("reserved"), NULL, &r, &error) == SHARD_OK);
    CHECK(shard_reader_count(r) == 4 && shard_reader_verify_identity(r, &version, &error) == SHARD_OK && version == 2);
    CHECK(shard_reader_verify(r, &error) == SHARD_OK);
    CHECK(shard_reader_read(r, shard_reader_find(r, "b"), &content, &error) == SHARD_OK && content.size == 5 && !memcmp(content.data, "hello", 5));
    shard_bytes_free(&content);
    shard_bytes_free(&content);
    shard_reader_close(r);
}

static void compression_is_kept_only_if_it_helps(void) {
    int codec;
    for (codec = 0; codec <= SHARD_LZ4; codec++) {
        shard_writer_options options;
        shard_error error;
        shard_reader *r;
        shard_codec found;
        uint8_t noise[2000];
        size_t i;
        shard_writer *w;
        shard_code code;
        memset(&options, 0, sizeof options);
        options.compression = (shard_codec)codec;
        code = write_three(in_folder("packed"), &options, &error);
        if (code == SHARD_MISSING_EXTRA) continue;
        CHECK(code == SHARD_OK);
        CHECK(shard_reader_open(in_folder("packed"), NULL, &r, &error) == SHARD_OK);
        CHECK(shard_reader_codec(r, 0, &found, &error) == SHARD_OK && found == SHARD_NONE);
        CHECK(shard_reader_codec(r, 1, &found, &error) == SHARD_OK && (int)found == codec);
        CHECK(shard_reader_verify(r, &error) == SHARD_OK && shard_reader_header(r)->compression_default == codec);
        shard_reader_close(r);
        for (i = 0; i < sizeof noise; i++) noise[i] = (uint8_t)(shard_xxh64(&i, sizeof i, 1) & 0xFF);
        CHECK(shard_writer_create(in_folder("noise"), &options, &w, &error) == SHARD_OK);
        CHECK(shard_writer_add(w, "noise", noise, sizeof noise, NULL, &error) == SHARD_OK && shard_writer_finish(w, &error) == SHARD_OK);
        shard_writer_close(w);
        CHECK(shard_reader_open(in_folder("noise"), NULL, &r, &error) == SHARD_OK);
        CHECK(shard_reader_codec(r, 0, &found, &error) == SHARD_OK && found == SHARD_NONE);
        shard_reader_close(r);
    }
}

static void a_writer_that_is_not_finished_leaves_what_was_there(void) {
    shard_writer_options options;
    shard_error error;
    shard_writer *w;
    struct stat before, after;
    int files;
    memset(&options, 0, sizeof options);
    CHECK(write_three(in_folder("kept"), &options, &error) == SHARD_OK);
    CHECK(chmod(in_folder("kept"), 0600) == 0 && stat(in_folder("kept"), &before) == 0);
    files = files_in_folder();
    CHECK(shard_writer_create(in_folder("kept"), &options, &w, &error) == SHARD_OK);
    CHECK(shard_writer_add(w, "other", "x", 1, NULL, &error) == SHARD_OK);
    shard_writer_close(w);
    shard_writer_close(NULL);
    CHECK(files_in_folder() == files && stat(in_folder("kept"), &after) == 0 && after.st_ino == before.st_ino);
    options.no_sync = 0;
    CHECK(shard_writer_create(in_folder("kept"), &options, &w, &error) == SHARD_OK);
    CHECK(shard_writer_finish(w, &error) == SHARD_OK);
    CHECK(shard_writer_finish(w, &error) == SHARD_CLOSED && shard_writer_add(w, "a", "", 0, NULL, NULL) == SHARD_CLOSED);
    shard_writer_close(w);
    CHECK(files_in_folder() == files && stat(in_folder("kept"), &after) == 0 && (after.st_mode & 0777) == 0600 && after.st_ino != before.st_ino);
}

static void a_writer_refuses_what_cannot_be_stored(void) {
    static char too_long[70000];
    static const char *const announced[] = {"one", "two"};
    shard_writer_options options;
    shard_entry_options how;
    shard_error error;
    shard_writer *w;
    char name[256];
    memset(&options, 0, sizeof options);
    memset(&how, 0, sizeof how);
    options.no_sync = 1;
    memset(too_long, 'n', sizeof too_long - 1);
    CHECK(shard_writer_create(in_folder("w"), &options, &w, &error) == SHARD_OK);
    CHECK(shard_writer_add(w, "", "x", 1, NULL, &error) == SHARD_INVALID_ARGUMENT && !strcmp(error.rule, "S-NAM-6"));
    CHECK(shard_writer_add(w, too_long, "x", 1, NULL, &error) == SHARD_INVALID_ARGUMENT);
    CHECK(shard_writer_add(w, "\xff", "x", 1, NULL, &error) == SHARD_INVALID_ARGUMENT);
    CHECK(shard_writer_add(w, "a", "x", 1, NULL, &error) == SHARD_OK);
    CHECK(shard_writer_add(w, "a", "x", 1, NULL, &error) == SHARD_DUPLICATE_NAME && !strcmp(error.entry, "a"));
    how.has_codec = 1;
    how.codec = (shard_codec)7;
    CHECK(shard_writer_add(w, "b", "x", 1, &how, &error) == SHARD_INVALID_ARGUMENT);
    shard_writer_close(w);
    options.identity = 1;
    CHECK(shard_writer_create(in_folder("w"), &options, &w, &error) == SHARD_OK);
    CHECK(shard_writer_add(w, "meta/identity", "x", 1, NULL, &error) == SHARD_INVALID_ARGUMENT);
    shard_writer_close(w);
    options.identity = 0;
    options.names = announced;
    options.name_count = 2;
    CHECK(shard_writer_create(in_folder("w"), &options, &w, &error) == SHARD_OK);
    CHECK(shard_writer_add(w, "two", "x", 1, NULL, &error) == SHARD_INVALID_ARGUMENT);
    CHECK(shard_writer_add(w, "one", "x", 1, NULL, &error) == SHARD_OK);
    CHECK(shard_writer_finish(w, &error) == SHARD_INVALID_ARGUMENT);
    shard_writer_close(w);
    options.max_entries = 1;
    CHECK(shard_writer_create(in_folder("w"), &options, &w, &error) == SHARD_INVALID_ARGUMENT && !w);
    options.names = NULL;
    CHECK(shard_writer_create(in_folder("w"), &options, &w, &error) == SHARD_OK);
    memset(name, 'r', 255);
    name[255] = 0;
    CHECK(shard_writer_add(w, name, "x", 1, NULL, &error) == SHARD_OK);
    CHECK(shard_writer_add(w, "more", "x", 1, NULL, &error) == SHARD_LIMIT_EXCEEDED);
    CHECK(shard_writer_finish(w, &error) == SHARD_LIMIT_EXCEEDED);
    shard_writer_close(w);
    options.max_entries = 1638401;
    CHECK(shard_writer_create(in_folder("w"), &options, &w, &error) == SHARD_OK);
    CHECK(shard_writer_finish(w, &error) == SHARD_LIMIT_EXCEEDED && !strcmp(error.rule, "S-HDR-12"));
    shard_writer_close(w);
    options.max_entries = 20000000;
    CHECK(shard_writer_create(in_folder("w"), &options, &w, &error) == SHARD_INVALID_ARGUMENT);
    options.max_entries = 0;
    options.alignment = 5;
    CHECK(shard_writer_create(in_folder("w"), &options, &w, &error) == SHARD_INVALID_ARGUMENT);
    options.alignment = 0;
    options.compression = (shard_codec)3;
    CHECK(shard_writer_create(in_folder("w"), &options, &w, &error) == SHARD_INVALID_ARGUMENT);
    options.compression = SHARD_NONE;
    options.schema = "[]";
    options.schema_size = 2;
    CHECK(shard_writer_create(in_folder("w"), &options, &w, &error) == SHARD_BAD_METADATA);
    options.schema = "{\"tags\":1}";
    options.schema_size = 10;
    CHECK(shard_writer_create(in_folder("w"), &options, &w, &error) == SHARD_BAD_METADATA);
    options.schema = NULL;
    CHECK(shard_writer_create("/no/such/folder/x", &options, &w, &error) == SHARD_IO_ERROR && strstr(error.message, "/no/such/folder/x"));
    CHECK(shard_writer_create("/no/such/folder/x", NULL, &w, NULL) == SHARD_IO_ERROR);
}

static void many_names_are_found(void) {
    shard_writer_options options;
    shard_reader *r;
    shard_writer *w;
    char name[32];
    uint32_t i;
    memset(&options, 0, sizeof options);
    options.no_sync = 1;
    CHECK(shard_writer_create(in_folder("many"), &options, &w, NULL) == SHARD_OK);
    for (i = 0; i < 3000; i++) {
        snprintf(name, sizeof name, "%u", (i * 7919u) % 3000u);
        CHECK(shard_writer_add(w, name, name, strlen(name), NULL, NULL) == SHARD_OK);
    }
    CHECK(shard_writer_finish(w, NULL) == SHARD_OK);
    shard_writer_close(w);
    CHECK(shard_reader_open(in_folder("many"), NULL, &r, NULL) == SHARD_OK);
    for (i = 0; i < 3000; i++) {
        snprintf(name, sizeof name, "%u", (i * 7919u) % 3000u);
        CHECK(shard_reader_find(r, name) == i);
    }
    CHECK(shard_reader_find(r, "3000") == SHARD_NOT_FOUND);
    shard_reader_close(r);
}

static void views_and_ranges_of_every_source(void) {
    shard_options options;
    shard_error error;
    shard_reader *r;
    shard_bytes part;
    const uint8_t *view;
    size_t size;
    char small[3];
    memset(&options, 0, sizeof options);
    options.map = 1;
    CHECK(shard_reader_open(in_folder("moved"), &options, &r, &error) == SHARD_OK);
    CHECK(shard_reader_view(r, shard_reader_find(r, "b"), &view, &size, &error) == SHARD_OK && size == 5 && !memcmp(view, "hello", 5));
    CHECK(((uintptr_t)view & 63) == 0);
    CHECK(shard_reader_range(r, shard_reader_find(r, "b"), 1, 3, &part, &error) == SHARD_OK && !memcmp(part.data, "ell", 3));
    shard_bytes_free(&part);
    CHECK(shard_reader_range(r, 0, 4, 2, &part, &error) == SHARD_INVALID_ARGUMENT);
    CHECK(shard_reader_read_into(r, 0, small, sizeof small, &error) == SHARD_INVALID_ARGUMENT);
    CHECK(shard_reader_identity(r, 3, (char[65]){0}, &error) == SHARD_INVALID_ARGUMENT);
    shard_reader_close(r);
    CHECK(shard_reader_open(in_folder("moved"), NULL, &r, &error) == SHARD_OK);
    CHECK(shard_reader_view(r, 0, &view, &size, &error) == SHARD_NOT_VIEWABLE && !view);
    shard_reader_close(r);
    CHECK(shard_reader_open("/no/such/file", NULL, &r, &error) == SHARD_IO_ERROR && !r);
    CHECK(shard_reader_open("/tmp", NULL, &r, &error) == SHARD_INVALID_ARGUMENT);
    CHECK(shard_reader_open_memory(NULL, 0, NULL, &r, &error) == SHARD_TRUNCATED);
    shard_reader_close(NULL);
}

static void damage_is_found_unless_checks_are_skipped(void) {
    shard_options options;
    shard_error error;
    shard_reader *r;
    shard_bytes content;
    const uint8_t *view;
    size_t size, got;
    uint8_t *file = load(in_folder("moved"), &size);
    uint32_t row;
    CHECK(shard_reader_open_memory(file, size, NULL, &r, &error) == SHARD_OK);
    row = shard_reader_find(r, "b");
    file[shard_reader_entry(r, row).data_offset] ^= 1;
    CHECK(shard_reader_read(r, row, &content, &error) == SHARD_CHECKSUM_MISMATCH && !content.data);
    CHECK(!strcmp(error.rule, "S-CRC-1") && !strcmp(error.entry, "b") && error.offset == shard_reader_entry(r, row).data_offset);
    CHECK(shard_reader_view(r, row, &view, &got, &error) == SHARD_CHECKSUM_MISMATCH);
    CHECK(shard_reader_read(r, 1, &content, &error) == SHARD_OK);
    shard_bytes_free(&content);
    shard_reader_close(r);
    memset(&options, 0, sizeof options);
    options.skip_checks = 1;
    CHECK(shard_reader_open_memory(file, size, &options, &r, &error) == SHARD_OK);
    CHECK(shard_reader_view(r, row, &view, &got, &error) == SHARD_OK);
    shard_reader_close(r);
    free(file);
}

/* ---- threads ---- */

static void *read_all(void *context) {
    const shard_reader *r = (const shard_reader *)context;
    int round;
    uint32_t i;
    for (round = 0; round < 20; round++) {
        for (i = 0; i < shard_reader_count(r); i++) {
            shard_bytes content;
            if (shard_reader_read(r, i, &content, NULL) != SHARD_OK) return context;
            shard_bytes_free(&content);
        }
    }
    return NULL;
}

static void threads_share_a_reader(void) {
    pthread_t threads[4];
    shard_reader *r;
    void *failed;
    int i;
#if defined(SHARD_WITH_ZSTD)
    CHECK(shard_reader_open(VECTORS "valid/seekable.shard", NULL, &r, NULL) == SHARD_OK);
#else
    CHECK(shard_reader_open(in_folder("moved"), NULL, &r, NULL) == SHARD_OK);
#endif
    for (i = 0; i < 4; i++) CHECK(pthread_create(threads + i, NULL, read_all, r) == 0);
    for (i = 0; i < 4; i++) CHECK(pthread_join(threads[i], &failed) == 0 && !failed);
    shard_reader_close(r);
}

void test_containers(void) {
    RUN(layouts_give_the_same_entries);
    RUN(compression_is_kept_only_if_it_helps);
    RUN(a_writer_that_is_not_finished_leaves_what_was_there);
    RUN(a_writer_refuses_what_cannot_be_stored);
    RUN(many_names_are_found);
    RUN(views_and_ranges_of_every_source);
    RUN(damage_is_found_unless_checks_are_skipped);
    RUN(threads_share_a_reader);
}
