/* Opens a shard of ShardPack and finds its records (spec/shardpack.md, sections 7, 8 and 11). */
#include "internal.h"

#define TAIL_READ (1u << 16)
#define FIRST_RECORD_READ 4096u

struct shard_pack {
    const shard_allocator *allocator;
    shard_limits limits;
    shardi_input input;
    shardi_footer footer;
    const uint8_t *index; /* from its head to the footer */
    /* What is wrong with these parts of the index; code 0 for nothing. They are found when the shard is opened, so that
     * readers need no state, and reported when the part is used. */
    shard_error offsets, lookup;
};

static shard_code check_part(const shard_pack *pack, uint64_t start, uint64_t end, uint32_t crc, const char *what, const char *rule, shard_error *error) {
    uint32_t found = shard_crc32c(0, pack->index + start, (size_t)(end - start));
    if (found == crc) return SHARD_OK;
    return shardi_fail(error, SHARD_CHECKSUM_MISMATCH, rule, "%s damaged: expected %08lx, found %08lx", what, (unsigned long)crc, (unsigned long)found);
}

static uint64_t offset_of(const shard_pack *pack, uint64_t number) { return shardi_u64(pack->index + SHARDI_INDEX_HEAD + 8 * number); }
static uint64_t hash_at(const shard_pack *pack, uint64_t place) { return shardi_u64(pack->index + shardi_hashes_at(&pack->footer) + 8 * place); }
static uint32_t number_at(const shard_pack *pack, uint64_t place) { return shardi_u32(pack->index + shardi_numbers_at(&pack->footer) + 4 * place); }

/* P-IDX-3 and P-IDX-4. */
static shard_code find_bad_offset(const shard_pack *pack, shard_error *error) {
    const shardi_footer *f = &pack->footer;
    uint64_t i;
    int ascends = offset_of(pack, 0) == 0;
    shard_code code = check_part(pack, SHARDI_INDEX_HEAD, shardi_hashes_at(f), f->offsets_crc, "the offsets of the records are", "P-IDX-3", error);
    if (code != SHARD_OK) return code;
    for (i = 0; i < f->record_count; i++) ascends &= offset_of(pack, i) < offset_of(pack, i + 1);
    if (ascends && offset_of(pack, f->record_count) == f->index_offset) return SHARD_OK;
    return shardi_fail(error, SHARD_BAD_OFFSET, "P-IDX-4", "the offsets of the records do not ascend from 0 to the index");
}

/* P-IDX-5 and P-IDX-6. */
static shard_code find_bad_hash(const shard_pack *pack, shard_error *error) {
    const shardi_footer *f = &pack->footer;
    uint64_t i;
    int is_fine = 1;
    shard_code code = check_part(pack, shardi_hashes_at(f), shardi_index_metadata_at(f), f->lookup_crc, "the key hashes are", "P-IDX-5", error);
    if (code != SHARD_OK) return code;
    for (i = 0; i < f->record_count; i++) is_fine &= number_at(pack, i) < f->record_count && (!i || hash_at(pack, i - 1) <= hash_at(pack, i));
    if (is_fine) return SHARD_OK;
    return shardi_fail(error, SHARD_BAD_OFFSET, "P-IDX-6", "the key hashes are not sorted, or name records that do not exist");
}

static shard_code read_index(shard_pack *pack, shard_error *error) {
    const shardi_input *input = &pack->input;
    uint64_t size = input->size, tail_size = size < TAIL_READ ? size : TAIL_READ;
    uint8_t start[SHARDI_BLOCK_START];
    const uint8_t *tail;
    shard_code code = shardi_input_borrow(input, pack->allocator, size - tail_size, tail_size, &tail, error);
    if (code != SHARD_OK) return code;
    if (size >= sizeof start) code = shardi_input_read(input, 0, start, sizeof start, error);
    if (code == SHARD_OK) code = shardi_parse_footer(tail, (size_t)tail_size, size, size >= sizeof start ? start : NULL, &pack->footer, error);
    shardi_input_release(input, pack->allocator, tail);
    if (code == SHARD_OK) code = shardi_check_index_size(&pack->footer, pack->limits.max_index_bytes, error);
    if (code == SHARD_OK) code = shardi_input_borrow(input, pack->allocator, pack->footer.index_offset, size - pack->footer.index_offset, &pack->index, error);
    if (code == SHARD_OK) code = shardi_check_index_head(pack->index, &pack->footer, error);
    if (code == SHARD_OK) {
        (void)find_bad_offset(pack, &pack->offsets);
        (void)find_bad_hash(pack, &pack->lookup);
    }
    return code;
}

/* Takes over the input. */
static shard_code open_pack(shardi_input *input, const shard_options *options, shard_pack **pack, shard_error *error) {
    const shard_allocator *allocator = shardi_allocator(options ? options->allocator : NULL);
    shard_pack *made = (shard_pack *)shardi_allocate(allocator, sizeof *made);
    shard_code code;
    if (!made) {
        shardi_input_close(input, allocator);
        return shardi_no_memory(error, sizeof *made);
    }
    memset(made, 0, sizeof *made);
    made->allocator = allocator;
    made->limits = shardi_limits(options ? &options->limits : NULL);
    made->input = *input;
    code = read_index(made, error);
    if (code == SHARD_OK) {
        *pack = made;
        return SHARD_OK;
    }
    shardi_locate(error, code, input->name, NULL, 0);
    shard_pack_close(made);
    return code;
}

shard_code shard_pack_open(const char *path, const shard_options *options, shard_pack **pack, shard_error *error) {
    shardi_input input;
    shard_code code = shardi_input_open(path, options && options->map, shardi_allocator(options ? options->allocator : NULL), &input, error);
    *pack = NULL;
    return code == SHARD_OK ? open_pack(&input, options, pack, error) : code;
}

shard_code shard_pack_open_memory(const void *data, size_t size, const shard_options *options, shard_pack **pack, shard_error *error) {
    shardi_input input;
    shard_code code = shardi_input_memory(data, size, shardi_allocator(options ? options->allocator : NULL), &input, error);
    *pack = NULL;
    return code == SHARD_OK ? open_pack(&input, options, pack, error) : code;
}

shard_code shard_pack_open_source(const shard_source *source, const shard_options *options, shard_pack **pack, shard_error *error) {
    shardi_input input;
    shard_code code = shardi_input_source(source, shardi_allocator(options ? options->allocator : NULL), &input, error);
    *pack = NULL;
    return code == SHARD_OK ? open_pack(&input, options, pack, error) : code;
}

void shard_pack_close(shard_pack *pack) {
    const shard_allocator *allocator;
    if (!pack) return;
    allocator = pack->allocator;
    if (pack->index) shardi_input_release(&pack->input, allocator, pack->index);
    shardi_input_close(&pack->input, allocator);
    shardi_release(allocator, pack);
}

uint64_t shard_pack_count(const shard_pack *pack) { return pack->footer.record_count; }
uint64_t shard_pack_index_offset(const shard_pack *pack) { return pack->footer.index_offset; }

static shard_code found_before(const shard_pack *pack, const shard_error *found, shard_error *error) {
    if (found->code != SHARD_OK && error) *error = *found;
    return shardi_locate(error, found->code, pack->input.name, NULL, 0);
}

shard_code shard_pack_check_offsets(const shard_pack *pack, shard_error *error) { return found_before(pack, &pack->offsets, error); }
shard_code shard_pack_check_lookup(const shard_pack *pack, shard_error *error) { return found_before(pack, &pack->lookup, error); }

/* P-IDX-7 and P-IDX-8. */
shard_code shard_pack_metadata(const shard_pack *pack, shard_document **document, shard_error *error) {
    const shardi_footer *f = &pack->footer;
    uint64_t start = shardi_index_metadata_at(f);
    shard_code code;
    *document = NULL;
    if (f->metadata_size > pack->limits.max_json_bytes) {
        code = shardi_fail(error, SHARD_LIMIT_EXCEEDED, "S-SCH-7", "the metadata of the shard is too long: expected at most %llu bytes, found %llu",
                           (unsigned long long)pack->limits.max_json_bytes, (unsigned long long)f->metadata_size);
    } else {
        code = check_part(pack, start, start + f->metadata_size, f->metadata_crc, "the metadata of the shard is", "P-IDX-7", error);
    }
    if (code == SHARD_OK) {
        code = shardi_parse_object(pack->index + start, (size_t)f->metadata_size, "the metadata of the shard", "P-IDX-8", &pack->limits, pack->allocator, document, error);
    }
    return shardi_locate(error, code, pack->input.name, NULL, 0);
}

shard_code shard_pack_record(const shard_pack *pack, uint64_t number, shard_record **record, shard_error *error) {
    uint64_t offset, size, first;
    uint8_t *block;
    shard_code code = shard_pack_check_offsets(pack, error);
    *record = NULL;
    if (code != SHARD_OK) return code;
    if (number >= pack->footer.record_count) {
        code = shardi_fail(error, SHARD_ENTRY_NOT_FOUND, "", "no such record: expected a number below %llu, found %llu", (unsigned long long)pack->footer.record_count, (unsigned long long)number);
        return shardi_locate(error, code, pack->input.name, NULL, 0);
    }
    offset = offset_of(pack, number);
    size = offset_of(pack, number + 1) - offset;
    first = size < FIRST_RECORD_READ ? size : FIRST_RECORD_READ;
    block = (uint8_t *)shardi_allocate(pack->allocator, first);
    if (!block) return shardi_no_memory(error, first);
    code = shardi_input_read(&pack->input, offset, block, first, error);
    if (code != SHARD_OK) shardi_release(pack->allocator, block);
    else code = shardi_open_record(&pack->input, pack->allocator, &pack->limits, offset, size, block, (size_t)first, record, error);
    return shardi_locate(error, code, pack->input.name, NULL, 0);
}

/* The first place of the lookup whose hash is not below this one. */
static uint64_t first_place(const shard_pack *pack, uint64_t hash) {
    uint64_t low = 0, high = pack->footer.record_count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (hash_at(pack, middle) < hash) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Hashes collide: looks at all records with that hash (P-IDX-9), and does not choose between two of one key (P-REC-10). */
shard_code shard_pack_record_by_key(const shard_pack *pack, const void *key, size_t size, shard_record **record, shard_error *error) {
    uint64_t hash = shard_xxh64(key, size, 0), place;
    shard_code code = shard_pack_check_lookup(pack, error);
    *record = NULL;
    if (code != SHARD_OK) return code;
    for (place = first_place(pack, hash); place < pack->footer.record_count && hash_at(pack, place) == hash; place++) {
        shard_record *one;
        const char *found;
        size_t found_size;
        code = shard_pack_record(pack, number_at(pack, place), &one, error);
        if (code != SHARD_OK) break;
        found = shard_record_key(one, &found_size);
        if (shardi_compare_bytes(found, found_size, key, size) != 0 || (*record && shard_record_offset(*record) == shard_record_offset(one))) {
            shard_record_free(one);
            continue;
        }
        if (*record) {
            shard_record_free(one);
            code = shardi_fail(error, SHARD_DUPLICATE_NAME, "P-REC-10", "two records have this key");
            break;
        }
        *record = one;
    }
    if (code == SHARD_OK && *record) return SHARD_OK;
    shard_record_free(*record);
    *record = NULL;
    if (code == SHARD_OK) code = shardi_fail(error, SHARD_ENTRY_NOT_FOUND, "", "no such record");
    return shardi_locate(error, code, pack->input.name, (const char *)key, size);
}
