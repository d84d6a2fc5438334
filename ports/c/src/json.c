/* Reads the JSON of spec/registry.md: a strict subset of RFC 8259. */
#include "internal.h"

#include <math.h>
#include <stdlib.h>

#define MAX_DEPTH 128
#define MAX_DIGITS 4000

struct shard_document {
    const shard_allocator *allocator;
    shard_json *values;
    char *text; /* strings are unescaped in place */
};

/* One array holds everything: finished lists and objects at its start, and at its end the items of those that are not
 * finished, the newest first. Together they are never more than the values of the text. */
typedef struct parser {
    char *text;
    size_t at, size;
    shard_json *values, *end;
    size_t done, open;
    const char *problem;
} parser;

static int json_problem(parser *p, const char *problem) {
    if (!p->problem) p->problem = problem;
    return 0;
}

static int peek(const parser *p) { return p->at < p->size ? (unsigned char)p->text[p->at] : -1; }

static void skip_space(parser *p) {
    int c;
    while ((c = peek(p)) == ' ' || c == '\t' || c == '\n' || c == '\r') p->at++;
}

static int hex4(parser *p, uint32_t *value) {
    int i;
    *value = 0;
    for (i = 0; i < 4; i++, p->at++) {
        int c = peek(p);
        if (c >= '0' && c <= '9') *value = *value << 4 | (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f') *value = *value << 4 | (uint32_t)(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F') *value = *value << 4 | (uint32_t)(c - 'A' + 10);
        else return json_problem(p, "an escape is not four hexadecimal digits");
    }
    return 1;
}

static size_t put_rune(char *out, uint32_t rune) {
    if (rune < 0x80) {
        out[0] = (char)rune;
        return 1;
    }
    if (rune < 0x800) {
        out[0] = (char)(0xC0 | rune >> 6);
        out[1] = (char)(0x80 | (rune & 0x3F));
        return 2;
    }
    if (rune < 0x10000) {
        out[0] = (char)(0xE0 | rune >> 12);
        out[1] = (char)(0x80 | (rune >> 6 & 0x3F));
        out[2] = (char)(0x80 | (rune & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | rune >> 18);
    out[1] = (char)(0x80 | (rune >> 12 & 0x3F));
    out[2] = (char)(0x80 | (rune >> 6 & 0x3F));
    out[3] = (char)(0x80 | (rune & 0x3F));
    return 4;
}

/* Reads what follows a backslash. */
static int escape(parser *p, uint32_t *rune) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *found;
    uint32_t second;
    int c = peek(p);
    p->at++;
    found = c > 0 ? strchr(names, c) : NULL;
    if (found) {
        *rune = (uint32_t)values[found - names];
        return 1;
    }
    if (c != 'u') return json_problem(p, "an unknown escape");
    if (!hex4(p, rune)) return 0;
    if (*rune < 0xD800 || *rune > 0xDFFF) return 1;
    if (*rune <= 0xDBFF && p->size - p->at >= 6 && p->text[p->at] == '\\' && p->text[p->at + 1] == 'u') {
        p->at += 2;
        if (!hex4(p, &second)) return 0;
        if (second >= 0xDC00 && second <= 0xDFFF) {
            *rune = 0x10000 + ((*rune - 0xD800) << 10) + (second - 0xDC00);
            return 1;
        }
    }
    return json_problem(p, "a lone surrogate");
}

/* Reads a string and unescapes it in place: no escape is shorter than what it stands for. */
static int parse_string(parser *p, const char **text, size_t *size) {
    char *start = p->text + ++p->at, *out = start;
    for (;;) {
        int c = peek(p);
        if (c < 0) return json_problem(p, "a string does not end");
        if (c < 0x20) return json_problem(p, "a control character in a string");
        p->at++;
        if (c == '"') break;
        if (c == '\\') {
            uint32_t rune;
            if (!escape(p, &rune)) return 0;
            out += put_rune(out, rune);
        } else {
            *out++ = (char)c;
        }
    }
    *text = start;
    *size = (size_t)(out - start);
    return 1;
}

static size_t skip_digits(parser *p) {
    size_t start = p->at;
    while (peek(p) >= '0' && peek(p) <= '9') p->at++;
    return p->at - start;
}

static int parse_number(parser *p, shard_json *value) {
    size_t start = p->at, count;
    int first;
    value->kind = SHARD_JSON_INTEGER;
    if (peek(p) == '-') p->at++;
    first = peek(p);
    count = skip_digits(p);
    if (!count || (first == '0' && count > 1)) return json_problem(p, "not a number");
    if (peek(p) == '.') {
        value->kind = SHARD_JSON_FLOAT;
        p->at++;
        if (!skip_digits(p)) return json_problem(p, "not a number");
    }
    if (peek(p) == 'e' || peek(p) == 'E') {
        value->kind = SHARD_JSON_FLOAT;
        p->at++;
        if (peek(p) == '+' || peek(p) == '-') p->at++;
        if (!skip_digits(p)) return json_problem(p, "not a number");
    }
    value->is.text = p->text + start;
    value->size = p->at - start;
    if (value->kind == SHARD_JSON_INTEGER && count > MAX_DIGITS) return json_problem(p, "an integer of more than 4000 digits");
    if (value->kind == SHARD_JSON_FLOAT && isinf(shardi_to_double(value->is.text, value->size))) {
        return json_problem(p, "a number is too large for a 64-bit float");
    }
    return 1;
}

static int compare_keys(const void *a, const void *b, const void *context) {
    const shard_json *x = (const shard_json *)a, *y = (const shard_json *)b;
    (void)context;
    return shardi_compare_bytes(x->key, x->key_size, y->key, y->key_size);
}

/* Moves the newest open items to the finished ones. */
static int close_items(parser *p, shard_json *value, size_t count) {
    shard_json *items = p->values + p->done;
    size_t i;
    int is_sorted = 1;
    /* The open items may start inside the place of the finished ones only if that is free: see the type. */
    for (i = 0; i < count; i++) {
        if (i + 1 < count - i) { /* reverse: the newest is the first */
            shard_json *low = p->end - p->open + i, *high = p->end - p->open + count - 1 - i, kept = *low;
            *low = *high;
            *high = kept;
        }
    }
    memmove(items, p->end - p->open, count * sizeof *items);
    p->open -= count;
    p->done += count;
    value->size = count;
    value->is.items = items;
    if (value->kind != SHARD_JSON_OBJECT) return 1;
    for (i = 1; i < count; i++) is_sorted &= compare_keys(items + i - 1, items + i, NULL) < 0;
    if (is_sorted) return 1;
    shardi_sort(items, count, sizeof *items, compare_keys, NULL);
    for (i = 1; i < count; i++) {
        if (compare_keys(items + i - 1, items + i, NULL) == 0) return json_problem(p, "a key occurs twice in one object");
    }
    return 1;
}

static int parse_value(parser *p, shard_json *value, int depth);

static int parse_items(parser *p, shard_json *value, int depth) {
    int is_object = peek(p) == '{', last = is_object ? '}' : ']';
    size_t count = 0;
    if (depth > MAX_DEPTH) return json_problem(p, "nested more than 128 levels deep");
    value->kind = is_object ? SHARD_JSON_OBJECT : SHARD_JSON_LIST;
    p->at++;
    skip_space(p);
    if (peek(p) == last) {
        p->at++;
        return close_items(p, value, 0);
    }
    for (;;) {
        shard_json item;
        memset(&item, 0, sizeof item);
        skip_space(p);
        if (is_object) {
            size_t size;
            if (peek(p) != '"') return json_problem(p, "a key is missing");
            if (!parse_string(p, &item.key, &size)) return 0;
            item.key_size = (uint32_t)size;
            skip_space(p);
            if (peek(p) != ':') return json_problem(p, "a colon is missing");
            p->at++;
            skip_space(p);
        }
        if (!parse_value(p, &item, depth + 1)) return 0;
        p->open++;
        *(p->end - p->open) = item;
        count++;
        skip_space(p);
        if (peek(p) == last) {
            p->at++;
            return close_items(p, value, count);
        }
        if (peek(p) != ',') return json_problem(p, "a comma is missing");
        p->at++;
    }
}

static int parse_word(parser *p, const char *word, shard_json_kind kind, shard_json *value) {
    size_t size = strlen(word);
    if (p->size - p->at < size || memcmp(p->text + p->at, word, size) != 0) return json_problem(p, "a value is missing");
    p->at += size;
    value->kind = kind;
    return 1;
}

static int parse_value(parser *p, shard_json *value, int depth) {
    int c = peek(p);
    switch (c) {
        case '{':
        case '[': return parse_items(p, value, depth);
        case '"': value->kind = SHARD_JSON_STRING; return parse_string(p, &value->is.text, &value->size);
        case 't': return parse_word(p, "true", SHARD_JSON_TRUE, value);
        case 'f': return parse_word(p, "false", SHARD_JSON_FALSE, value);
        case 'n': return parse_word(p, "null", SHARD_JSON_NULL, value);
        default: break;
    }
    if (c == '-' || (c >= '0' && c <= '9')) return parse_number(p, value);
    return json_problem(p, "a value is missing");
}

static uint64_t count_nodes(const char *text, size_t size) {
    uint64_t count = 0;
    int in_string = 0;
    size_t i;
    for (i = 0; i < size; i++) {
        char c = text[i];
        if (c == '"') in_string = !in_string;
        else if (c == '\\' && in_string) i++;
        else if (!in_string && (c == '[' || c == '{' || c == ',' || c == ':')) count++;
    }
    return count;
}

static shard_code bad_json(shard_error *error, const char *rule, const char *problem, size_t at) {
    shardi_fail(error, SHARD_BAD_METADATA, rule, "not valid JSON: %s at byte %llu", problem, (unsigned long long)at);
    if (error) error->offset = at;
    return SHARD_BAD_METADATA;
}

shard_code shardi_parse_json(const void *text, size_t size, const char *rule, const shard_limits *limits,
                             const shard_allocator *allocator, shard_document **document, shard_error *error) {
    shard_document *made;
    uint64_t nodes, room;
    parser p;
    shard_json root;
    *document = NULL;
    if (size > limits->max_json_bytes) {
        return shardi_fail(error, SHARD_LIMIT_EXCEEDED, "S-SCH-7", "the JSON text is too long: expected at most %llu bytes, found %llu",
                           (unsigned long long)limits->max_json_bytes, (unsigned long long)size);
    }
    if (!shardi_is_utf8(text, size)) return bad_json(error, rule, "not UTF-8", 0);
    nodes = count_nodes((const char *)text, size);
    if (nodes > limits->max_json_nodes) {
        return shardi_fail(error, SHARD_LIMIT_EXCEEDED, "S-SCH-8", "the JSON text has too many values: expected at most %llu, found %llu",
                           (unsigned long long)limits->max_json_nodes, (unsigned long long)nodes);
    }
    room = nodes + 2; /* the values of the text, and the root once more */
    made = (shard_document *)shardi_allocate(allocator, sizeof *made);
    if (!made) return shardi_no_memory(error, sizeof *made);
    made->allocator = allocator;
    made->values = (shard_json *)shardi_allocate_array(allocator, room, sizeof *made->values);
    made->text = (char *)shardi_allocate(allocator, size);
    if (!made->values || !made->text) {
        shard_document_free(made);
        return shardi_no_memory(error, room * sizeof(shard_json) + size);
    }
    if (size) memcpy(made->text, text, size);
    memset(&p, 0, sizeof p);
    memset(&root, 0, sizeof root);
    p.text = made->text;
    p.size = size;
    p.values = made->values + 1; /* the root comes first */
    p.end = made->values + room;
    skip_space(&p);
    if (parse_value(&p, &root, 1)) {
        skip_space(&p);
        if (p.at != size) (void)json_problem(&p, "something follows the value");
    }
    if (p.problem) {
        shard_document_free(made);
        return bad_json(error, rule, p.problem, p.at);
    }
    made->values[0] = root;
    *document = made;
    return SHARD_OK;
}

shard_code shardi_parse_object(const void *text, size_t size, const char *what, const char *rule, const shard_limits *limits,
                               const shard_allocator *allocator, shard_document **document, shard_error *error) {
    shard_code code = shardi_parse_json(text, size, rule, limits, allocator, document, error);
    if (code == SHARD_OK && shard_document_root(*document)->kind != SHARD_JSON_OBJECT) {
        shard_document_free(*document);
        *document = NULL;
        return shardi_fail(error, SHARD_BAD_METADATA, rule, "%s is not a JSON object", what);
    }
    return shardi_locate(error, code, what, NULL, 0);
}

shard_code shard_json_parse(const void *text, size_t size, const shard_options *options, shard_document **document, shard_error *error) {
    shard_limits limits = shardi_limits(options ? &options->limits : NULL);
    return shardi_parse_json(text, size, "", &limits, shardi_allocator(options ? options->allocator : NULL), document, error);
}

const shard_json *shard_document_root(const shard_document *document) { return document->values; }

void shard_document_free(shard_document *document) {
    if (!document) return;
    shardi_release(document->allocator, document->values);
    shardi_release(document->allocator, document->text);
    shardi_release(document->allocator, document);
}

/* ---- values ---- */

const shard_json *shardi_json_get_bytes(const shard_json *value, const char *key, size_t size) {
    size_t low = 0, high;
    if (!value || value->kind != SHARD_JSON_OBJECT) return NULL;
    for (high = value->size; low < high;) {
        size_t middle = low + (high - low) / 2;
        const shard_json *item = value->is.items + middle;
        int order = shardi_compare_bytes(item->key, item->key_size, key, size);
        if (order == 0) return item;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return NULL;
}

const shard_json *shard_json_get(const shard_json *value, const char *key) { return shardi_json_get_bytes(value, key, strlen(key)); }

const shard_json *shardi_json_given(const shard_json *value, const char *key) {
    const shard_json *found = shard_json_get(value, key);
    return found && found->kind != SHARD_JSON_NULL ? found : NULL;
}

int shardi_json_bool(const shard_json *value) { return value && value->kind == SHARD_JSON_TRUE; }

int shard_json_int64(const shard_json *value, int64_t *integer) {
    uint64_t total = 0, most = (uint64_t)INT64_MAX;
    size_t i = 0;
    if (!value || value->kind != SHARD_JSON_INTEGER) return 0;
    if (value->is.text[0] == '-') {
        i = 1;
        most++;
    }
    for (; i < value->size; i++) {
        uint64_t digit = (uint64_t)(value->is.text[i] - '0');
        if (total > (most - digit) / 10) return 0;
        total = total * 10 + digit;
    }
    if (most == (uint64_t)INT64_MAX) *integer = (int64_t)total;
    else *integer = total ? -(int64_t)(total - 1) - 1 : 0;
    return 1;
}

int shard_json_double(const shard_json *value, double *number) {
    if (!value || (value->kind != SHARD_JSON_INTEGER && value->kind != SHARD_JSON_FLOAT)) return 0;
    *number = shardi_to_double(value->is.text, value->size);
    return !isinf(*number);
}

int shard_json_is(const shard_json *value, const char *text) {
    return value && value->kind == SHARD_JSON_STRING && shardi_compare_bytes(value->is.text, value->size, text, strlen(text)) == 0;
}

double shardi_to_double(const char *text, size_t size) {
    /* No double needs more than 767 digits; one more says that others follow. Without a point, the locale does not matter. */
    enum { MOST = 800 };
    char digits[MOST + 32];
    size_t count = 0, i = 0;
    int64_t exponent = 0, stated = 0;
    int after_point = 0, more = 0, negative = 0;
    if (size && text[0] == '-') digits[count++] = text[i++];
    for (; i < size && text[i] != 'e' && text[i] != 'E'; i++) {
        if (text[i] == '.') {
            after_point = 1;
            continue;
        }
        if (count < MOST) {
            if (text[i] != '0' || (count && digits[count - 1] != '-')) digits[count++] = text[i];
            exponent -= after_point;
        } else {
            more |= text[i] != '0';
            exponent += !after_point;
        }
    }
    if (more) {
        digits[count++] = '1';
        exponent--;
    }
    for (i++; i < size; i++) {
        if (text[i] == '-') negative = 1;
        else if (text[i] != '+' && stated < 100000000) stated = stated * 10 + (text[i] - '0');
    }
    if (!count || digits[count - 1] == '-') digits[count++] = '0';
    exponent += negative ? -stated : stated;
    if (exponent > 99999999) exponent = 99999999;
    if (exponent < -99999999) exponent = -99999999;
    digits[count++] = 'e';
    digits[count++] = exponent < 0 ? '-' : '+';
    if (exponent < 0) exponent = -exponent;
    for (stated = 10000000; stated; stated /= 10) digits[count++] = (char)('0' + exponent / stated % 10);
    digits[count] = 0;
    return strtod(digits, NULL);
}
