/* The names of the earlier library. */
#include "tests.h"

static void the_old_names_write_and_read(void) {
    char text[1000];
    shard_old_writer *w = shard_writer_new(ROLE_SAMPLE);
    shard_error error;
    shard_file *file;
    const uint8_t *data;
    size_t size, count;
    char **children;
    memset(text, 'x', sizeof text);
    CHECK(shard_writer_set_alignment(w, 7) == -1 && shard_writer_set_compression(w, 9) == -1);
    shard_writer_last_error(w, &error);
    CHECK(error.code == SHARD_INVALID_ARGUMENT);
    CHECK(shard_writer_set_alignment(w, ALIGN_32) == 0 && shard_writer_set_compression(w, COMPRESS_NONE) == 0);
    CHECK(shard_writer_add_entry(w, "a/b/c", "one", 3) == 0);
    CHECK(shard_writer_add_entry_typed(w, "a/d", "two", 3, SHARD_CONTENT_TEXT) == 0);
#if defined(SHARD_WITH_ZSTD)
    CHECK(shard_writer_add_entry_compressed(w, "a/b/e", text, sizeof text, COMPRESS_ZSTD) == 0);
#else
    CHECK(shard_writer_add_entry(w, "a/b/e", text, sizeof text) == 0);
#endif
    CHECK(shard_writer_write(w, in_folder("old.shard")) == 0);
    CHECK(shard_writer_write(w, "/no/such/folder/old.shard") == -1);
    shard_writer_free(w);
    file = shard_open_mmap(in_folder("old.shard"));
    CHECK(file && shard_entry_count(file) == 3 && shard_header(file)->role == ROLE_SAMPLE);
    CHECK(!strcmp(shard_entry_name(file, 0), "a/b/c") && !shard_entry_name(file, 3) && !shard_get_entry(file, 3));
    CHECK(shard_get_entry(file, 1)->orig_size == 3 && shard_content_type(file, 1) == SHARD_CONTENT_TEXT && shard_content_type(file, 9) == 0);
    CHECK(shard_lookup(file, "a/d") == 1 && shard_lookup(file, "nothing") == -1 && shard_has_entry(file, "a/d"));
    data = shard_read_entry_by_name(file, "a/b/e", &size);
    CHECK(data && size == sizeof text && memcmp(data, text, size) == 0);
    CHECK(shard_read_entry(file, 2, &size) == data || !shard_is_compressed(file, 2));
    data = shard_read_entry_prefix(file, 2, 10, &size);
    CHECK(data && size == 10 && memcmp(data, text, 10) == 0);
    CHECK(!shard_read_entry_by_name(file, "nothing", &size) && !shard_read_entry(file, 9, &size) && !shard_read_entry_prefix(file, 9, 1, &size));
    shard_last_error(file, &error);
    CHECK(error.code == SHARD_INVALID_ARGUMENT && !shard_is_compressed(file, 9));
    children = shard_list_children(file, "a/", &count);
    CHECK(count == 2 && !strcmp(children[0], "b") && !strcmp(children[1], "d"));
    shard_list_free(children, count);
    shard_close(file);
    shard_close(NULL);
    CHECK(!shard_open("/no/such/file"));
}

static void the_old_stream_writer_reserves_its_head(void) {
    shard_old_writer *w = shard_stream_writer_new(in_folder("stream.shard"), ROLE_MOSH, 2);
    shard_file *file;
    size_t size;
    uint8_t *content;
    CHECK(shard_stream_writer_set_alignment(w, ALIGN_16) == 0 && shard_stream_writer_set_compression(w, COMPRESS_NONE) == 0);
    CHECK(shard_stream_writer_begin_data(w) == 0);
    CHECK(shard_stream_writer_write_entry(w, "a", "1", 1) == 0);
    CHECK(shard_stream_writer_set_alignment(w, ALIGN_32) == -1);
    CHECK(shard_stream_writer_write_entry_typed(w, "b", "22", 2, SHARD_CONTENT_TEXT) == 0);
    CHECK(shard_stream_writer_write_entry(w, "c", "3", 1) == -1);
    CHECK(shard_stream_writer_finalize(w) == 0);
    shard_stream_writer_free(w);
    content = load(in_folder("stream.shard"), &size);
    file = shard_from_buffer(content, size);
    CHECK(file && shard_entry_count(file) == 2 && (shard_header(file)->flags & FLAG_STREAMING));
    CHECK(!memcmp(shard_read_entry_by_name(file, "b", &size), "22", 2) && size == 2);
    shard_close(file);
    free(content);
    file = shard_open(in_folder("stream.shard"));
    CHECK(file && shard_read_entry(file, 0, &size) && size == 1);
    shard_close(file);
    w = shard_stream_writer_new("/no/such/folder/x", ROLE_MOSH, 0);
    CHECK(shard_stream_writer_write_entry(w, "a", "1", 1) == -1 && shard_stream_writer_finalize(w) == -1);
    shard_stream_writer_free(w);
    CHECK(!shard_from_buffer("x", 1));
    CHECK(shard_xxhash64("", 0) == UINT64_C(0xef46db3751d8e999));
}

void test_compat(void) {
    RUN(the_old_names_write_and_read);
    RUN(the_old_stream_writer_reserves_its_head);
}
