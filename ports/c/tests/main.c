/* Runs all tests of the C library. */
#define _POSIX_C_SOURCE 200809L
#include "tests.h"

#include <dirent.h>
#include <unistd.h>

const char *now_testing = "";
int failures;

static char folder[] = "/tmp/shard-tests-XXXXXX";

const char *in_folder(const char *name) {
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

int files_in_folder(void) {
    DIR *opened = opendir(folder);
    struct dirent *one;
    int count = 0;
    while (opened && (one = readdir(opened))) count += strcmp(one->d_name, ".") && strcmp(one->d_name, "..");
    if (opened) closedir(opened);
    return count;
}

static void remove_files(void) {
    DIR *opened = opendir(folder);
    struct dirent *one;
    while (opened && (one = readdir(opened))) {
        if (one->d_name[0] != '.') unlink(in_folder(one->d_name));
    }
    if (opened) closedir(opened);
    rmdir(folder);
}

uint8_t *load(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    long length;
    uint8_t *data;
    if (!file || fseek(file, 0, SEEK_END) != 0 || (length = ftell(file)) < 0 || fseek(file, 0, SEEK_SET) != 0) {
        printf("cannot read %s\n", path);
        exit(1);
    }
    data = (uint8_t *)malloc((size_t)length + 1);
    if (!data || fread(data, 1, (size_t)length, file) != (size_t)length) exit(1);
    fclose(file);
    *size = (size_t)length;
    return data;
}

void each_vector(const char *name, const char *suffix, use_file use) {
    char path[512];
    DIR *opened;
    struct dirent *one;
    snprintf(path, sizeof path, "%s%s", VECTORS, name);
    opened = opendir(path);
    if (!opened) {
        printf("no vectors in %s\n", path);
        failures++;
        return;
    }
    while ((one = readdir(opened))) {
        size_t length = strlen(one->d_name), end = strlen(suffix), size;
        uint8_t *data;
        if (length < end || strcmp(one->d_name + length - end, suffix) != 0) continue;
        snprintf(path, sizeof path, "%s%s/%s", VECTORS, name, one->d_name);
        data = load(path, &size);
        use(path, data, size);
        free(data);
    }
    closedir(opened);
}

shard_document *parse_file(const char *path) {
    shard_document *document;
    size_t size;
    uint8_t *text = load(path, &size);
    if (shard_json_parse(text, size, NULL, &document, NULL) != SHARD_OK) exit(1);
    free(text);
    return document;
}

int text_is(const shard_json *value, const char *key, const char *text) { return shard_json_is(shard_json_get(value, key), text); }

uint64_t number_in(const shard_json *value, const char *key) {
    const shard_json *found = shard_json_get(value, key);
    char text[32] = "";
    if (found && found->size < sizeof text) memcpy(text, found->is.text, found->size);
    return strtoull(text, NULL, 10);
}

static void *failing_allocate(void *context, size_t size) {
    failing_memory *memory = (failing_memory *)context;
    void *made;
    if (memory->left == 0) return NULL;
    if (memory->left > 0) memory->left--;
    made = malloc(size);
    memory->live += made != NULL;
    memory->used++;
    return made;
}

static void failing_release(void *context, void *given) {
    failing_memory *memory = (failing_memory *)context;
    memory->live -= given != NULL;
    free(given);
}

void failing_start(failing_memory *memory, long left) {
    memory->allocator.allocate = failing_allocate;
    memory->allocator.release = failing_release;
    memory->allocator.context = memory;
    memory->left = left;
    memory->live = memory->used = 0;
}

int main(void) {
    if (!mkdtemp(folder)) return 1;
    test_primitives();
    test_containers();
    test_episodes();
    test_compat();
    if (!getenv("SHARD_TESTS")) test_faults(); /* thousands of runs: too slow under valgrind */
    remove_files();
    printf(failures ? "%d tests failed\n" : "all tests pass\n", failures);
    return failures != 0;
}
