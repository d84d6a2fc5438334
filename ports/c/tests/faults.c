/* Memory that runs out, sources that fail, and damaged files: always an error, never a crash or a leak. */
#include "exercise.h"
#include "tests.h"

/* Runs everything with less and less memory missing, until it is enough. */
typedef void (*try_with)(const uint8_t *data, size_t size, const shard_options *options);

static void try_container(const uint8_t *data, size_t size, const shard_options *options) {
    shard_reader *r;
    if (shard_reader_open_memory(data, size, options, &r, NULL) == SHARD_OK) (void)exercise_reader(r);
}

static void try_pack(const uint8_t *data, size_t size, const shard_options *options) {
    shard_pack *pack;
    if (shard_pack_open_memory(data, size, options, &pack, NULL) == SHARD_OK) exercise_pack(pack);
}

static void try_stream(const uint8_t *data, size_t size, const shard_options *options) { (void)exercise_stream(data, size, options); }

static void without_memory(const uint8_t *data, size_t size, try_with use) {
    failing_memory memory;
    shard_options options;
    long left = 0;
    do {
        memset(&options, 0, sizeof options);
        failing_start(&memory, left);
        options.allocator = &memory.allocator;
        use(data, size, &options);
        CHECK(memory.live == 0);
        left += 1 + left / 6;
    } while (memory.left == 0 && left < 20000);
}

static void starve_container(const char *path, const uint8_t *data, size_t size) {
    now_testing = path;
    if (size < 60000) without_memory(data, size, try_container);
}

static void starve_pack(const char *path, const uint8_t *data, size_t size) {
    now_testing = path;
    if (size > 60000) return;
    without_memory(data, size, try_pack);
    without_memory(data, size, try_stream);
}

static void starve_json(const char *path, const uint8_t *data, size_t size) {
    now_testing = path;
    if (size < 60000) without_memory(data, size, exercise_json);
}

static void missing_memory_is_an_error_everywhere(void) {
    each_vector("canonical", ".json", starve_json);
    each_vector("valid", ".shard", starve_container);
    each_vector("valid", ".wshard", starve_container);
    each_vector("valid_packs", ".shardpack", starve_pack);
}

static void missing_memory_is_an_error_to_writers(void) {
    static const char *const announced[] = {"a", "b"};
    failing_memory memory;
    shard_writer_options options;
    char text[3000];
    long left = 0;
    int files = files_in_folder(), layout;
    memset(text, 't', sizeof text);
    for (layout = 0; layout < 2; layout++) {
        left = 0;
        do {
            shard_writer *w;
            memset(&options, 0, sizeof options);
            failing_start(&memory, left);
            options.allocator = &memory.allocator;
            options.identity = 1;
            options.schema = "{\"tags\":[]}";
            options.schema_size = 11;
            options.no_sync = left % 2 == 0;
            if (layout) {
                options.names = announced;
                options.name_count = 2;
            }
            if (shard_writer_create(in_folder("starved"), &options, &w, NULL) == SHARD_OK) {
                shard_entry_options how;
                memset(&how, 0, sizeof how);
                how.has_codec = 1;
                how.codec = SHARD_ZSTD;
                (void)shard_writer_add(w, "a", text, sizeof text, &how, NULL);
                (void)shard_writer_add(w, "b", text, sizeof text, NULL, NULL);
                (void)shard_writer_finish(w, NULL);
            }
            shard_writer_close(w);
            CHECK(memory.live == 0 && files_in_folder() <= files + 1);
            left++;
        } while (memory.left == 0);
    }
}

/* ---- sources ---- */

typedef struct failing_source {
    const uint8_t *data;
    long left;
} failing_source;

static int read_source(void *context, uint64_t offset, void *into, size_t length) {
    failing_source *source = (failing_source *)context;
    if (source->left == 0) return 1;
    if (source->left > 0) source->left--;
    memcpy(into, source->data + offset, length);
    return 0;
}

static void fail_source(const char *path, const uint8_t *data, size_t size) {
    failing_source failing;
    shard_source source;
    shard_reader *r;
    shard_pack *pack;
    long left = 0;
    now_testing = path;
    if (size > 20000) return;
    do {
        failing.data = data;
        failing.left = left;
        source.read = read_source;
        source.context = &failing;
        source.size = size;
        source.name = left % 2 ? "source" : NULL;
        if (shard_reader_open_source(&source, NULL, &r, NULL) == SHARD_OK) (void)exercise_reader(r);
        else if (shard_pack_open_source(&source, NULL, &pack, NULL) == SHARD_OK) exercise_pack(pack);
        left += 1 + left / 6;
    } while (failing.left == 0);
}

static void sources_that_fail_are_an_error_everywhere(void) {
    each_vector("valid", ".shard", fail_source);
    each_vector("valid", ".wshard", fail_source);
    each_vector("valid_packs", ".shardpack", fail_source);
}

/* ---- damage ---- */

static shard_code verify_memory(const uint8_t *data, size_t size) {
    shard_reader *r;
    shard_code code = shard_reader_open_memory(data, size, NULL, &r, NULL);
    return code == SHARD_OK ? exercise_reader(r) : code;
}

/* The same through functions must end with the same code. */
static void both_ways_agree(const char *path, const uint8_t *data, size_t size) {
    failing_source source_data;
    shard_source source;
    shard_reader *r;
    shard_code code;
    now_testing = path;
    if (size > 200000) return;
    source_data.data = data;
    source_data.left = -1;
    source.read = read_source;
    source.context = &source_data;
    source.size = size;
    source.name = "source";
    code = shard_reader_open_source(&source, NULL, &r, NULL);
    if (code == SHARD_OK) code = exercise_reader(r);
    CHECK(code == verify_memory(data, size));
}

static void refuse_pack(const char *path, const uint8_t *data, size_t size) {
    shard_options options;
    now_testing = path;
    memset(&options, 0, sizeof options);
    try_pack(data, size, &options);
    try_stream(data, size, &options);
}

static void every_vector_ends_the_same_way_through_every_source(void) {
    each_vector("valid", ".shard", both_ways_agree);
    each_vector("invalid", ".shard", both_ways_agree);
    each_vector("invalid_episodes", ".wshard", both_ways_agree);
    each_vector("invalid_packs", ".shardpack", refuse_pack);
}

static void cut_and_change(const char *path, const uint8_t *data, size_t size) {
    uint8_t *copy;
    size_t cut, i;
    shard_options options;
    now_testing = path;
    if (size > 4000) return;
    memset(&options, 0, sizeof options);
    for (cut = 0; cut < size; cut += 1 + size / 24) {
        copy = (uint8_t *)malloc(cut + 1); /* of exactly this size, so that a sanitizer sees what is read after it */
        CHECK(copy);
        memcpy(copy, data, cut);
        try_container(copy, cut, &options);
        try_pack(copy, cut, &options);
        try_stream(copy, cut, &options);
        free(copy);
    }
    copy = (uint8_t *)malloc(size + 1);
    CHECK(copy);
    for (i = 0; i < size; i += 1 + size / 60) {
        memcpy(copy, data, size);
        copy[i] ^= (uint8_t)(1u << (i % 8));
        options.skip_checks = i % 2;
        try_container(copy, size, &options);
        try_pack(copy, size, &options);
        try_stream(copy, size, &options);
    }
    free(copy);
}

static void cut_and_changed_files_are_no_danger(void) {
    each_vector("valid", ".shard", cut_and_change);
    each_vector("valid", ".wshard", cut_and_change);
    each_vector("valid_packs", ".shardpack", cut_and_change);
}

void test_faults(void) {
    RUN(missing_memory_is_an_error_everywhere);
    RUN(missing_memory_is_an_error_to_writers);
    RUN(sources_that_fail_are_an_error_everywhere);
    RUN(every_vector_ends_the_same_way_through_every_source);
    RUN(cut_and_changed_files_are_no_danger);
}
