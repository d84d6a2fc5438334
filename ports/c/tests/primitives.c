/* Hashes, numbers, JSON and times against spec/vectors/primitives.json. */
#include "../src/internal.h"
#include "tests.h"

static shard_document *document;
static const shard_json *all;

static size_t unhex(const shard_json *text, uint8_t *out) {
    size_t i;
    for (i = 0; i < text->size / 2; i++) {
        char pair[3] = {text->is.text[2 * i], text->is.text[2 * i + 1], 0};
        out[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return i;
}

static double from_bits(const shard_json *text) {
    char digits[17] = "";
    uint64_t bits;
    double value;
    memcpy(digits, text->is.text, 16);
    bits = strtoull(digits, NULL, 16);
    memcpy(&value, &bits, 8);
    return value;
}

static void hashes_are_those_of_every_language(void) {
    static const char *const lists[] = {"hashes_of_ramps", "hashes_of_texts"};
    int k;
    for (k = 0; k < 2; k++) {
        const shard_json *list = shard_json_get(all, lists[k]);
        size_t i, n;
        CHECK(list && list->size > 5);
        for (i = 0; i < list->size; i++) {
            const shard_json *one = list->is.items + i;
            uint8_t data[8192];
            uint32_t piecewise = 0;
            char text[32];
            size_t size = unhex(shard_json_get(one, "input_hex"), data);
            snprintf(text, sizeof text, "%08lx", (unsigned long)shard_crc32c(0, data, size));
            CHECK(text_is(one, "crc32c", text));
            /* Short pieces take the portable way. */
            for (n = 0; n < size; n++) piecewise = shard_crc32c(piecewise, data + n, 1);
            CHECK(piecewise == shard_crc32c(0, data, size));
            snprintf(text, sizeof text, "%016llx", (unsigned long long)shard_xxh64(data, size, 0));
            CHECK(text_is(one, "xxh64", text));
        }
    }
}

static void both_ways_to_a_checksum_agree(void) {
    uint8_t data[300];
    size_t i, size;
    for (i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 7 + 3);
    for (size = 0; size < sizeof data; size++) {
        uint32_t pieces = 0;
        for (i = 0; i < size; i += 15) pieces = shard_crc32c(pieces, data + i, size - i < 15 ? size - i : 15);
        CHECK(pieces == shard_crc32c(0, data, size));
    }
}

static void sha256_of_known_texts(void) {
    char hex[65], million[1000];
    shard_sha256_hex("", 0, hex);
    CHECK(!strcmp(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
    shard_sha256_hex("abc", 3, hex);
    CHECK(!strcmp(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
    memset(million, 'a', sizeof million);
    shard_sha256_hex(million, sizeof million, hex);
    CHECK(!strcmp(hex, "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3"));
}

static void numbers_are_written_as_every_language_writes_them(void) {
    const shard_json *list = shard_json_get(all, "numbers");
    char text[32];
    size_t i;
    CHECK(list && list->size > 20);
    for (i = 0; i < list->size; i++) {
        shard_json_number(from_bits(shard_json_get(list->is.items + i, "bits")), text);
        CHECK(text_is(list->is.items + i, "canonical", text));
    }
    CHECK(shard_json_number(1.0 / 0.0, text) == 0 && shard_json_number(0.0 / 0.0, text) == 0);
}

/* Random bits, with many powers of two, whose neighbours are not equally far. */
static void numbers_read_back_as_the_same(void) {
    uint64_t state = 1, bits;
    int i;
    for (i = 0; i < 3000; i++) {
        char text[32];
        double value, again;
        shard_document *read;
        size_t size;
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        bits = i % 3 ? state : state & UINT64_C(0x7FF0000000000000);
        memcpy(&value, &bits, 8);
        size = shard_json_number(value, text);
        if (!size) continue;
        CHECK(shard_json_parse(text, size, NULL, &read, NULL) == SHARD_OK);
        CHECK(shard_json_double(shard_document_root(read), &again) && again == value);
        shard_document_free(read);
    }
}

static void strings_and_keys_are_written_as_every_language_writes_them(void) {
    const shard_json *list = shard_json_get(all, "json_strings"), *keys = shard_json_get(all, "json_keys_in_order");
    size_t i;
    for (i = 0; i < list->size; i++) {
        uint8_t wanted[256];
        size_t size = unhex(shard_json_get(list->is.items + i, "canonical_hex"), wanted);
        shard_bytes text;
        CHECK(shard_json_canonical(shard_json_get(list->is.items + i, "value"), NULL, &text, NULL) == SHARD_OK);
        CHECK(text.size == size && memcmp(text.data, wanted, size) == 0);
        shard_bytes_free(&text);
    }
    for (i = 1; i < keys->size; i++) {
        const shard_json *a = keys->is.items + i - 1, *b = keys->is.items + i;
        size_t shorter = a->size < b->size ? a->size : b->size;
        int order = shorter ? memcmp(a->is.text, b->is.text, shorter) : 0;
        CHECK(order < 0 || (!order && a->size < b->size));
    }
}

static void numbers_are_read_as_their_text_says(void) {
    const shard_json *list = shard_json_get(all, "json_numbers"), *refused = shard_json_get(all, "json_numbers_refused");
    size_t i;
    for (i = 0; i < list->size; i++) {
        const shard_json *one = list->is.items + i, *text = shard_json_get(one, "text"), *bits = shard_json_get(one, "bits");
        shard_document *read;
        double value, wanted;
        shard_bytes again;
        CHECK(shard_json_parse(text->is.text, text->size, NULL, &read, NULL) == SHARD_OK);
        if (bits) {
            wanted = from_bits(bits);
            CHECK(shard_document_root(read)->kind == SHARD_JSON_FLOAT && shard_json_double(shard_document_root(read), &value));
            CHECK(memcmp(&value, &wanted, 8) == 0);
        } else {
            CHECK(shard_json_canonical(shard_document_root(read), NULL, &again, NULL) == SHARD_OK);
            CHECK(again.size == shard_json_get(one, "integer")->size && !memcmp(again.data, shard_json_get(one, "integer")->is.text, again.size));
            shard_bytes_free(&again);
        }
        shard_document_free(read);
    }
    for (i = 0; i < refused->size; i++) {
        shard_document *read;
        CHECK(shard_json_parse(refused->is.items[i].is.text, refused->is.items[i].size, NULL, &read, NULL) == SHARD_BAD_METADATA);
    }
}

static void integers_are_read_up_to_their_limits(void) {
    static const struct {
        const char *text;
        int fits;
        int64_t value;
    } cases[] = {{"9223372036854775807", 1, INT64_MAX}, {"9223372036854775808", 0, 0}, {"-9223372036854775808", 1, INT64_MIN}, {"-9223372036854775809", 0, 0}, {"-0", 1, 0}, {"1.0", 0, 0}};
    size_t i;
    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        shard_document *read;
        int64_t value = 1;
        CHECK(shard_json_parse(cases[i].text, strlen(cases[i].text), NULL, &read, NULL) == SHARD_OK);
        CHECK(shard_json_int64(shard_document_root(read), &value) == cases[i].fits && (!cases[i].fits || value == cases[i].value));
        shard_document_free(read);
    }
}

static void what_is_outside_the_subset_is_refused(void) {
    static const char *const texts[] = {
        "", " ", "{", "[1,]", "{\"a\":1,}", "{\"a\":1,\"a\":2}", "{\"b\":0,\"a\":1,\"\\u0061\":2}", "\"\\ud800\"", "\"\\udc00\\ud800\"", "\"\\ud800\\u0041\"", "\"\x01\"",
        "\xef\xbb\xbf" "1", "\"\xff\"", "1 2", "nul", "'a'", "\"\\x\"", "\"\\u12\"", "\"\\ud800\\u12\"", "{1:2}", "{\"a\" 1}", "[1 2]", "\"a", "1.", "1e", "-",
    };
    char deep[300];
    char *digits = (char *)malloc(5000);
    shard_document *read;
    shard_options options;
    shard_error error;
    size_t i;
    for (i = 0; i < sizeof texts / sizeof *texts; i++) CHECK(shard_json_parse(texts[i], strlen(texts[i]), NULL, &read, &error) == SHARD_BAD_METADATA && !read);
    memset(deep, '[', 129);
    memset(deep + 129, ']', 129);
    CHECK(shard_json_parse(deep, 258, NULL, &read, &error) == SHARD_BAD_METADATA);
    CHECK(shard_json_parse(deep + 1, 256, NULL, &read, &error) == SHARD_OK);
    shard_document_free(read);
    memset(digits, '9', 5000);
    CHECK(shard_json_parse(digits, 4001, NULL, &read, &error) == SHARD_BAD_METADATA);
    digits[1] = '.';
    CHECK(shard_json_parse(digits, 5000, NULL, &read, &error) == SHARD_OK);
    shard_document_free(read);
    free(digits);
    memset(&options, 0, sizeof options);
    options.limits.max_json_nodes = 3;
    CHECK(shard_json_parse("[[],[]]", 7, &options, &read, &error) == SHARD_LIMIT_EXCEEDED && !strcmp(error.rule, "S-SCH-8"));
    options.limits.max_json_bytes = 6;
    CHECK(shard_json_parse("[[],[]]", 7, &options, &read, &error) == SHARD_LIMIT_EXCEEDED && !strcmp(error.rule, "S-SCH-7"));
}

static void steps_have_the_times_of_every_language(void) {
    const shard_json *list = shard_json_get(all, "step_times");
    size_t i;
    int64_t time;
    CHECK(list && list->size > 20);
    for (i = 0; i < list->size; i++) {
        const shard_json *one = list->is.items + i;
        double rate;
        CHECK(shard_json_double(shard_json_get(one, "rate_hz"), &rate));
        CHECK(shard_step_time(0, (int64_t)number_in(one, "step"), rate, &time, NULL) == SHARD_OK);
        CHECK((uint64_t)time == number_in(one, "nanoseconds"));
    }
    CHECK(shard_step_time(0, INT64_MAX, 0.001, &time, NULL) == SHARD_BAD_VALUE);
    CHECK(shard_step_time(INT64_MAX, 1, 1, &time, NULL) == SHARD_BAD_VALUE);
    CHECK(shard_step_time(INT64_MIN, -1, 1, &time, NULL) == SHARD_BAD_VALUE);
}

static void dtypes_have_their_sizes(void) {
    const shard_json *sizes = shard_json_get(all, "dtype_sizes");
    int kind;
    for (kind = 1; kind < SHARD_DTYPE_COUNT; kind++) CHECK(number_in(sizes, shard_dtype_name((shard_dtype)kind)) == shard_dtype_size((shard_dtype)kind));
    CHECK(shard_dtype_size(SHARD_DTYPE_NONE) == 0 && shard_dtype_name(SHARD_DTYPE_NONE)[0] == 0);
    for (kind = 1; kind < SHARD_CODE_COUNT; kind++) CHECK(strcmp(shard_code_name((shard_code)kind), "ok") != 0);
    CHECK(!strcmp(shard_code_name(SHARD_OK), "ok"));
}

/* A member with dynamic codes, which no vector has. With a changed bit it is refused, or the same. */
static void gzip_members_are_decoded_or_refused(void) {
    static const char member[] =
        "1f8b08000000000000ff7d943b4e43311000af921320efd75e711a2428a00044727f1114173b2e689262b47e3bfbbbdedebe2fe3f2f1f5fe79bbffbfdc7f9ed4d6e5e7e5f5f9"
        "72fd83b2a13c60b837a81bea03da1c0dda86f680397aa46fe81b6a36181bc6038eec3037cc0dc51a9c5459361b5c54d1a8068b2a6a3d5b1974a9ea198950c6510651da2c43ac"
        "51c727a8d327ada72c412109e9346994169d4e1aad44d3178d427b91a56834bd7f57078d72820a8d46629e9446337a566a348ac2cb4e231ba041a361a079f40813a7f3ec51af"
        "862e1a4de93dd2a2d19a9ddaa0d1945e0d9363eab4e76c4a23abde5fb3c308d5303f8c1cb141a3c2c45afe6b346934aa6fa02d1a095f2e1aa9f4581f34aaec39bb1c4678d9f5"
        "d823c5cb46234e8efb317503b1714cddc277f3e81136d4278d62c168d12816ee671d3dc2758d41a35cdaa9d0a8b47730f4b80c81d36c342aec60388db8fb113492ec7b1479dc"
        "ee44eca411bb1feb301aa045a3c8edfb0baf9825d2fe060000";
    shard_json hex;
    uint8_t *stored = (uint8_t *)malloc(sizeof member), *out = (uint8_t *)malloc(1790);
    size_t size, bit;
    char digest[65];
    memset(&hex, 0, sizeof hex);
    hex.is.text = member;
    hex.size = sizeof member - 1;
    size = unhex(&hex, stored);
    CHECK(shardi_decode_gzip(stored, size, out, 1790, NULL) == SHARD_OK);
    shard_sha256_hex(out, 1790, digest);
    CHECK(!strcmp(digest, "58e88450e9a3dae0b4efaf3e87d7aa4cb0e4c85672dcdd9397e9c23c9964669e"));
    CHECK(shardi_decode_gzip(stored, size, out, 1790 - 1, NULL) == SHARD_SIZE_MISMATCH);
    CHECK(shardi_decode_gzip(stored, size - 1, out, 1790, NULL) == SHARD_BAD_COMPRESSION);
    for (bit = 80; bit < 8 * size; bit++) {
        stored[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (shardi_decode_gzip(stored, size, out, 1790, NULL) == SHARD_OK) { /* a bit that nothing uses */
            char same[65];
            shard_sha256_hex(out, 1790, same);
            CHECK(!strcmp(same, digest));
        }
        stored[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(stored);
    free(out);
}

void test_primitives(void) {
    document = parse_file(VECTORS "primitives.json");
    all = shard_document_root(document);
    RUN(hashes_are_those_of_every_language);
    RUN(both_ways_to_a_checksum_agree);
    RUN(sha256_of_known_texts);
    RUN(numbers_are_written_as_every_language_writes_them);
    RUN(numbers_read_back_as_the_same);
    RUN(strings_and_keys_are_written_as_every_language_writes_them);
    RUN(numbers_are_read_as_their_text_says);
    RUN(integers_are_read_up_to_their_limits);
    RUN(what_is_outside_the_subset_is_refused);
    RUN(steps_have_the_times_of_every_language);
    RUN(dtypes_have_their_sizes);
    RUN(gzip_members_are_decoded_or_refused);
    shard_document_free(document);
}
