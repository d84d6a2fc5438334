/* Answers the questions of the conformance runner; spec/vectors/README.md describes them. */
#include "conformance.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define USAGE "run info | read KIND FILE | step KIND FILE CASE | stream FILE | write CASE OUT | rewrite KIND IN OUT | --batch"

/* ---- answers ---- */

void put_bytes(answer *out, const void *data, size_t size) {
    if (size >= out->capacity - out->size) {
        out->capacity = (out->size + size + 1) * 2;
        out->text = (char *)realloc(out->text, out->capacity);
        if (!out->text) exit(3);
    }
    if (size) memcpy(out->text + out->size, data, size);
    out->size += size;
    out->text[out->size] = 0;
}

void put(answer *out, const char *text) { put_bytes(out, text, strlen(text)); }

void put_string(answer *out, const char *text, size_t size) {
    shard_json value;
    memset(&value, 0, sizeof value);
    value.kind = SHARD_JSON_STRING;
    value.is.text = text;
    value.size = size;
    put_json(out, &value);
}

void put_json(answer *out, const shard_json *value) {
    shard_bytes text;
    if (shard_json_canonical(value, NULL, &text, NULL) != SHARD_OK) exit(3);
    put_bytes(out, text.data, text.size);
    shard_bytes_free(&text);
}

void put_hex(answer *out, const void *data, size_t size) {
    static const char digits[] = "0123456789abcdef";
    const uint8_t *bytes = (const uint8_t *)data;
    size_t i;
    put(out, "\"");
    for (i = 0; i < size; i++) {
        char pair[2] = {digits[bytes[i] >> 4], digits[bytes[i] & 15]};
        put_bytes(out, pair, 2);
    }
    put(out, "\"");
}

void put_key(answer *out, const char *key) {
    if (out->text[out->size - 1] != '{') put(out, ",");
    put(out, "\"");
    put(out, key);
    put(out, "\":");
}

void put_format(answer *out, const char *key, const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    put_text(out, key, text);
}

void put_number(answer *out, const char *key, uint64_t number) { put_format(out, key, "%llu", (unsigned long long)number); }
void put_integer(answer *out, const char *key, int64_t number) { put_format(out, key, "%lld", (long long)number); }

void put_text(answer *out, const char *key, const char *text) {
    put_key(out, key);
    put_string(out, text, strlen(text));
}

/* ---- cases ---- */

shard_code program_error(shard_error *error, const char *message) {
    memset(error, 0, sizeof *error);
    error->code = SHARD_IO_ERROR;
    snprintf(error->message, sizeof error->message, "%s", message);
    return SHARD_IO_ERROR;
}

shard_code load_file(const char *path, shard_bytes *content, shard_error *error) {
    static void *(*const make)(size_t) = malloc;
    FILE *file = fopen(path, "rb");
    long size;
    memset(content, 0, sizeof *content);
    if (!file || fseek(file, 0, SEEK_END) != 0 || (size = ftell(file)) < 0 || fseek(file, 0, SEEK_SET) != 0) {
        if (file) fclose(file);
        return program_error(error, "cannot read the file");
    }
    content->data = (uint8_t *)make((size_t)size + 1);
    content->size = content->data ? fread(content->data, 1, (size_t)size, file) : 0;
    fclose(file);
    if (content->size == (size_t)size) return SHARD_OK;
    free(content->data);
    return program_error(error, "cannot read the file");
}

shard_code load_case(const char *path, shard_document **document, shard_error *error) {
    shard_options options;
    shard_bytes text;
    shard_code code = load_file(path, &text, error);
    if (code != SHARD_OK) return code;
    memset(&options, 0, sizeof options);
    options.limits.max_json_bytes = UINT64_C(1) << 32;
    options.limits.max_json_nodes = UINT64_C(1) << 28;
    code = shard_json_parse(text.data, text.size, &options, document, error);
    free(text.data);
    return code;
}

const char *case_text(const shard_json *value, const char *key, char *room, size_t size) {
    const shard_json *found = shard_json_get(value, key);
    size_t count = found && found->kind == SHARD_JSON_STRING ? found->size : 0;
    if (count >= size) count = size - 1;
    if (count) memcpy(room, found->is.text, count);
    room[count] = 0;
    return room;
}

uint64_t case_number(const shard_json *value, const char *key) {
    char text[32];
    return strtoull(case_text(value, key, text, sizeof text), NULL, 10);
}

shard_options case_options(const shard_json *told) {
    const shard_json *lowered = shard_json_get(told, "limits");
    shard_options options;
    memset(&options, 0, sizeof options);
    options.limits.max_entries = case_number(lowered, "max_entries");
    options.limits.max_index_bytes = case_number(lowered, "max_index_bytes");
    options.limits.max_string_table_bytes = case_number(lowered, "max_string_table_bytes");
    options.limits.max_decompressed_bytes = case_number(lowered, "max_decompressed_bytes");
    options.limits.max_window_bytes = case_number(lowered, "max_window_bytes");
    options.limits.max_json_bytes = case_number(lowered, "max_json_bytes");
    options.limits.max_json_nodes = case_number(lowered, "max_json_nodes");
    return options;
}

/* ---- calls ---- */

/* A program made without zstd or lz4 does not claim them, nor what needs them. */
static shard_code tell_info(answer *out) {
    const char *letters = "R"
#if defined(SHARD_WITH_ZSTD)
                          "ZMSF"
#endif
#if defined(SHARD_WITH_LZ4)
                          "L"
#endif
                          "JNIVWXP";
    size_t i;
    put(out, "{\"name\":\"c\",\"version\":\"" SHARD_VERSION "\",\"formats\":{\"shard\":2,\"shardpack\":1,\"wshard\":1},\"features\":[");
    for (i = 0; letters[i]; i++) {
        if (i) put(out, ",");
        put_string(out, letters + i, 1);
    }
    put(out, "]}");
    return SHARD_OK;
}

static int is(const char *a, const char *b) { return strcmp(a, b) == 0; }

/* -1 for a call that is not known. */
static int run(answer *out, int count, char **words, shard_error *error) {
    shard_document *told = NULL;
    char kind[16];
    shard_code code = SHARD_OK;
    if (count == 1 && is(words[0], "info")) return (int)tell_info(out);
    if (count == 3 && is(words[0], "read") && is(words[1], "container")) return (int)read_container(out, words[2], error);
    if (count == 4 && is(words[0], "rewrite") && is(words[1], "container")) return (int)rewrite_container(out, words[2], words[3], error);
    if (count == 3 && is(words[0], "read") && is(words[1], "pack")) return (int)read_pack(out, words[2], error);
    if (count == 2 && is(words[0], "stream")) return (int)stream_pack(out, words[1], error);
    if (count == 3 && is(words[0], "read") && is(words[1], "episode")) return (int)read_episode(out, words[2], error);
    if (count == 4 && is(words[0], "step")) {
        code = load_case(words[3], &told, error);
        if (code == SHARD_OK && is(words[1], "container")) code = step_container(out, words[2], shard_document_root(told), error);
        else if (code == SHARD_OK && is(words[1], "pack")) code = step_pack(out, words[2], shard_document_root(told), error);
        else if (code == SHARD_OK && is(words[1], "episode")) code = step_episode(out, words[2], shard_document_root(told), error);
        else if (code == SHARD_OK) code = program_error(error, "unknown kind");
    } else if (count == 3 && is(words[0], "write")) {
        code = load_case(words[1], &told, error);
        if (code == SHARD_OK && is(case_text(shard_document_root(told), "kind", kind, sizeof kind), "container")) {
            code = write_container(out, shard_document_root(told), words[2], error);
        } else if (code == SHARD_OK) {
            code = program_error(error, "unknown kind");
        }
    } else {
        return -1;
    }
    shard_document_free(told);
    return (int)code;
}

static int tell(int count, char **words) {
    answer out = {NULL, 0, 0};
    shard_error error;
    int code;
    memset(&error, 0, sizeof error);
    put(&out, "");
    code = run(&out, count, words, &error);
    if (code > 0) {
        out.size = 0;
        put(&out, "{");
        put_text(&out, "error", shard_code_name((shard_code)code));
        put_text(&out, "rule", error.rule);
        put_text(&out, "message", error.message);
        put(&out, "}");
    } else if (code < 0) {
        put(&out, "{");
        put_text(&out, "usage", USAGE);
        put(&out, "}");
    }
    puts(out.text);
    fflush(stdout);
    free(out.text);
    return code < 0 ? 2 : code > 0;
}

static void batch_line(const char *line, size_t size) {
    shard_document *document;
    char *words[8] = {NULL};
    size_t count = 0, i;
    if (shard_json_parse(line, size, NULL, &document, NULL) == SHARD_OK) {
        const shard_json *list = shard_document_root(document);
        for (i = 0; list->kind == SHARD_JSON_LIST && i < list->size && i < 8; i++) {
            const shard_json *word = list->is.items + i;
            if (word->kind != SHARD_JSON_STRING) break;
            words[i] = (char *)calloc(1, word->size + 1);
            if (!words[i]) exit(3);
            memcpy(words[i], word->is.text, word->size);
            count++;
        }
        shard_document_free(document);
    }
    tell((int)count, words);
    for (i = 0; i < count; i++) free(words[i]);
}

int main(int count, char **words) {
    answer line = {NULL, 0, 0};
    int c;
    if (count != 2 || !is(words[1], "--batch")) return tell(count - 1, words + 1);
    put(&line, "");
    while ((c = getchar()) != EOF) {
        char one = (char)c;
        if (c != '\n') {
            put_bytes(&line, &one, 1);
            continue;
        }
        batch_line(line.text, line.size);
        line.size = 0;
    }
    free(line.text);
    return 0;
}
