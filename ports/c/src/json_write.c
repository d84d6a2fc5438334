/* Writes the canonical JSON of spec/registry.md. */
#include "internal.h"

#include <math.h>
#include <stdio.h>

/* The digits of a number with a given precision, and the exponent of the first. */
static int digits_of(double number, int precision, char digits[24], int *exponent) {
    char text[48];
    size_t i;
    int count = 0;
    (void)snprintf(text, sizeof text, "%.*e", precision - 1, number);
    for (i = 0; text[i] && text[i] != 'e'; i++) { /* skips the point, which depends on the locale */
        if (text[i] >= '0' && text[i] <= '9' && count < 20) digits[count++] = text[i];
    }
    *exponent = 0;
    if (text[i] == 'e') {
        int negative = text[i + 1] == '-';
        for (i += 2; text[i]; i++) *exponent = *exponent * 10 + (text[i] - '0');
        if (negative) *exponent = -*exponent;
    }
    digits[count] = 0;
    return count;
}

static double from_digits(const char *digits, int count, int exponent) {
    char text[48];
    int size = snprintf(text, sizeof text, "%se%d", digits, exponent - (count - 1));
    return shardi_to_double(text, (size_t)size);
}

/* Changes the last digit by one, if that needs no carry: one that did would have been found with fewer digits. */
static int step_digit(char *digits, int count, int by) {
    char last = digits[count - 1];
    if ((by > 0 && last == '9') || (by < 0 && last == '0')) return 0;
    digits[count - 1] = (char)(last + by);
    return 1;
}

/* The fewest digits that read back as the same number. The nearest decimal of that length need not be one: the numbers
 * below a power of two are closer than those above it, so its neighbours are tried, too. */
static int shortest_digits(double number, char digits[24], int *exponent) {
    int precision, count = 0;
    for (precision = 1; precision <= 17; precision++) {
        char other[24];
        count = digits_of(number, precision, digits, exponent);
        if (from_digits(digits, count, *exponent) == number) break;
        memcpy(other, digits, sizeof other);
        if (step_digit(other, count, 1) && from_digits(other, count, *exponent) == number) {
            memcpy(digits, other, sizeof other);
            break;
        }
        memcpy(other, digits, sizeof other);
        if (step_digit(other, count, -1) && from_digits(other, count, *exponent) == number) {
            memcpy(digits, other, sizeof other);
            break;
        }
    }
    while (count > 1 && digits[count - 1] == '0') digits[--count] = 0;
    return count;
}

size_t shard_json_number(double number, char text[32]) {
    char digits[24];
    int count, point, at = 0, i;
    if (isnan(number) || isinf(number)) {
        text[0] = 0;
        return 0;
    }
    if (number == 0) {
        memcpy(text, "0", 2);
        return 1;
    }
    if (number < 0) text[at++] = '-';
    count = shortest_digits(fabs(number), digits, &point);
    point++;
    if (count <= point && point <= 21) {
        for (i = 0; i < point; i++) text[at++] = i < count ? digits[i] : '0';
    } else if (point > 0 && point <= 21) {
        for (i = 0; i < count; i++) {
            if (i == point) text[at++] = '.';
            text[at++] = digits[i];
        }
    } else if (point > -6 && point <= 0) {
        text[at++] = '0';
        text[at++] = '.';
        for (i = point; i < 0; i++) text[at++] = '0';
        for (i = 0; i < count; i++) text[at++] = digits[i];
    } else {
        text[at++] = digits[0];
        if (count > 1) text[at++] = '.';
        for (i = 1; i < count; i++) text[at++] = digits[i];
        at += snprintf(text + at, 8, "e%+d", point - 1);
    }
    text[at] = 0;
    return (size_t)at;
}

void shardi_append_string(shardi_buffer *out, const char *text, size_t size) {
    static const char hex[] = "0123456789abcdef";
    size_t start = 0, i;
    shardi_append(out, "\"", 1);
    for (i = 0; i < size; i++) {
        unsigned char c = (unsigned char)text[i];
        char escaped[6] = {'\\', 'u', '0', '0', 0, 0};
        size_t length = 2;
        switch (c) {
            case '"':
            case '\\': escaped[1] = (char)c; break;
            case '\b': escaped[1] = 'b'; break;
            case '\f': escaped[1] = 'f'; break;
            case '\n': escaped[1] = 'n'; break;
            case '\r': escaped[1] = 'r'; break;
            case '\t': escaped[1] = 't'; break;
            default:
                if (c >= 0x20) continue;
                escaped[4] = hex[c >> 4];
                escaped[5] = hex[c & 15];
                length = 6;
        }
        shardi_append(out, text + start, i - start);
        shardi_append(out, escaped, length);
        start = i + 1;
    }
    shardi_append(out, text + start, size - start);
    shardi_append(out, "\"", 1);
}

void shardi_append_canonical(shardi_buffer *out, const shard_json *value) {
    char number[32];
    size_t i;
    switch (value->kind) {
        case SHARD_JSON_NULL: shardi_append_text(out, "null"); break;
        case SHARD_JSON_FALSE: shardi_append_text(out, "false"); break;
        case SHARD_JSON_TRUE: shardi_append_text(out, "true"); break;
        case SHARD_JSON_INTEGER:
            if (value->size == 2 && memcmp(value->is.text, "-0", 2) == 0) shardi_append_text(out, "0");
            else shardi_append(out, value->is.text, value->size);
            break;
        case SHARD_JSON_FLOAT:
            shardi_append(out, number, shard_json_number(shardi_to_double(value->is.text, value->size), number));
            break;
        case SHARD_JSON_STRING: shardi_append_string(out, value->is.text, value->size); break;
        case SHARD_JSON_LIST:
        case SHARD_JSON_OBJECT:
            shardi_append_text(out, value->kind == SHARD_JSON_LIST ? "[" : "{");
            for (i = 0; i < value->size; i++) {
                const shard_json *item = value->is.items + i;
                if (i) shardi_append_text(out, ",");
                if (value->kind == SHARD_JSON_OBJECT) {
                    shardi_append_string(out, item->key, item->key_size);
                    shardi_append_text(out, ":");
                }
                shardi_append_canonical(out, item);
            }
            shardi_append_text(out, value->kind == SHARD_JSON_LIST ? "]" : "}");
            break;
    }
}

shard_code shard_json_canonical(const shard_json *value, const shard_allocator *allocator, shard_bytes *text, shard_error *error) {
    shardi_buffer out;
    memset(&out, 0, sizeof out);
    memset(text, 0, sizeof *text);
    out.allocator = shardi_allocator(allocator);
    shardi_append_canonical(&out, value);
    if (out.failed) {
        shardi_release(out.allocator, out.data);
        return shardi_no_memory(error, out.size);
    }
    text->data = out.data;
    text->size = out.size;
    text->allocator = out.allocator;
    return SHARD_OK;
}
