/* Opens an episode and puts its blocks into lanes (spec/wshard.md, sections 2, 10 and 16). */
#include "internal.h"

/* A part of a name. */
typedef struct part {
    const char *text;
    size_t size;
} part;

static part made_part(const char *text, size_t size) {
    part made;
    made.text = text;
    made.size = size;
    return made;
}

static int part_is(part p, const char *text) { return shardi_compare_bytes(p.text, p.size, text, strlen(text)) == 0; }

/* Cuts at the first slash, or at the last; without one, everything is the first part, or the last. */
static void cut_first(part whole, part *before, part *after) {
    const char *slash = whole.size ? (const char *)memchr(whole.text, '/', whole.size) : NULL;
    size_t size = slash ? (size_t)(slash - whole.text) : whole.size;
    *before = made_part(whole.text, size);
    *after = slash ? made_part(slash + 1, whole.size - size - 1) : made_part(whole.text + whole.size, 0);
}

static void cut_last(part whole, part *before, part *after) {
    size_t at = whole.size;
    while (at && whole.text[at - 1] != '/') at--;
    *before = made_part(whole.text, at ? at - 1 : 0);
    *after = made_part(whole.text + at, whole.size - at);
}

/* What a row says, if it says something. */
static part said(const shardi_row *row, const char *field, part otherwise) {
    const shard_json *value = row ? shardi_json_given(row->fields, field) : NULL;
    return value && value->kind == SHARD_JSON_STRING && value->size ? made_part(value->is.text, value->size) : otherwise;
}

static void set_names(shard_channel *c, part id, part model, part type) {
    c->id = id.text;
    c->id_size = id.size;
    c->model = model.text;
    c->model_size = model.size;
    c->type = type.text;
    c->type_size = type.size;
}

static void describe(shard_channel *c, const shardi_row *row) {
    const shard_json *rate = shardi_json_given(row->fields, "sampling_rate_hz");
    c->dtype = row->dtype;
    c->shape = row->shape;
    c->dimensions = row->dimensions;
    c->layout = row->layout;
    c->description = row->fields;
    (void)shard_json_int64(shardi_json_given(row->fields, "horizon"), &c->horizon);
    c->has_start = shard_json_int64(shardi_json_given(row->fields, "start_ns"), &c->start_ns);
    if (rate) (void)shard_json_double(rate, &c->sampling_rate_hz);
}

/* ---- blocks without a row (section 10) ---- */

static int guess(const shard_episode *ep, shard_channel *c, shard_dtype dtype, const uint64_t *shape, uint32_t dimensions) {
    uint64_t size = shard_reader_entry(ep->reader, c->row).orig_size, step, wanted, steps = (uint64_t)ep->facts.length;
    uint64_t more;
    if (!shardi_step_bytes(dtype, shape, dimensions, &step)) return 0;
    for (more = 0; more < 2; more++) {
        if (more && (c->lane == SHARD_LANE_ACTION || !step)) return 0;
        if (shardi_multiply(steps + more, step, &wanted) && wanted == size) {
            c->dtype = dtype;
            c->shape = shape;
            c->dimensions = dimensions;
            c->length = (int64_t)(steps + more);
            return 1;
        }
    }
    return 0;
}

static int guess_row(const shard_episode *ep, shard_channel *c, const shardi_row *row) {
    int64_t length;
    if (!row || !guess(ep, c, row->dtype, row->shape, row->dimensions)) return 0;
    length = c->length;
    describe(c, row);
    c->length = length;
    c->layout = SHARD_DENSE;
    c->description = NULL;
    return 1;
}

/* [k], where k follows from the size. */
static int guess_columns(const shard_episode *ep, shard_channel *c, shard_dtype dtype) {
    uint64_t size = shard_reader_entry(ep->reader, c->row).orig_size, line, *shape = ep->own_shapes + c->row;
    if (!ep->facts.length || !shardi_multiply((uint64_t)ep->facts.length, shard_dtype_size(dtype), &line) || size % line) return 0;
    *shape = size / line;
    return guess(ep, c, dtype, shape, 1);
}

static const shardi_row *row_of_signal(const shard_episode *ep, part channel) {
    const shardi_row *found;
    char *name = (char *)shardi_allocate(ep->allocator, (uint64_t)channel.size + 7);
    if (!name) return NULL;
    memcpy(name, "signal/", 7);
    if (channel.size) memcpy(name + 7, channel.text, channel.size);
    found = shardi_find_row(&ep->placed, name, channel.size + 7, 0);
    shardi_release(ep->allocator, name);
    return found;
}

static void infer(const shard_episode *ep, shard_channel *c, part name) {
    part lane, rest, channel, after;
    const shardi_row *signal;
    int is_predicted = c->lane == SHARD_LANE_OMEN || c->lane == SHARD_LANE_UNCERT;
    cut_first(name, &lane, &rest);
    cut_first(rest, &channel, &after);
    if (guess_row(ep, c, shardi_find_row(&ep->hints, name.text, name.size, 0))) return;
    c->is_inferred = 1;
    if (c->lane == SHARD_LANE_ACTION && guess_row(ep, c, shardi_find_row(&ep->unplaced, rest.text, rest.size, 1))) return;
    if (c->lane == SHARD_LANE_OMEN && part_is(channel, "latent_action_codebook") && (guess(ep, c, SHARD_I32, NULL, 0) || guess_columns(ep, c, SHARD_I32))) return;
    if (c->lane == SHARD_LANE_OMEN && part_is(channel, "latent_action") && guess_columns(ep, c, SHARD_F32)) return;
    signal = is_predicted ? row_of_signal(ep, channel) : NULL;
    if (signal) {
        int is_float = signal->dtype == SHARD_F64 || signal->dtype == SHARD_F32 || signal->dtype == SHARD_F16 || signal->dtype == SHARD_BF16;
        if (guess(ep, c, c->lane == SHARD_LANE_UNCERT && !is_float ? SHARD_F32 : signal->dtype, signal->shape, signal->dimensions)) return;
    }
    if (guess(ep, c, SHARD_F32, NULL, 0) || guess_columns(ep, c, SHARD_F32)) return;
    c->dtype = SHARD_U8;
    c->shape = NULL;
    c->dimensions = 0;
    c->has_time_axis = 0;
    c->length = (int64_t)(shard_reader_entry(ep->reader, c->row).orig_size & (uint64_t)INT64_MAX);
}

/* ---- lanes ---- */

static const char *const known_meta[] = {"meta/wshard", "meta/episode", "meta/channels", "meta/provenance", SHARDI_IDENTITY, "meta/sidecar", "meta/edit"};

static const struct {
    const char *block;
    shard_lane lane;
    shard_dtype dtype;
} step_blocks[] = {
    {"reward", SHARD_LANE_REWARD, SHARD_F32}, {"terminated", SHARD_LANE_TERMINATIONS, SHARD_BOOL}, {"done", SHARD_LANE_TERMINATIONS, SHARD_BOOL},
    {"truncated", SHARD_LANE_TRUNCATIONS, SHARD_BOOL}, {"time/ticks", SHARD_LANE_TICKS, SHARD_I32}, {"time/timestamps_ns", SHARD_LANE_TIMESTAMPS, SHARD_I64},
};

static int is_step_block(const shard_episode *ep, part name) {
    size_t i;
    for (i = 0; i < sizeof step_blocks / sizeof *step_blocks; i++) {
        if (part_is(name, step_blocks[i].block)) return 1;
    }
    return part_is(name, "reward/exact") && shardi_find_row(&ep->placed, name.text, name.size, 0);
}

/* Where a block belongs, by its name and its row (section 2). */
static void address(const shard_episode *ep, shard_channel *c, part name, const shardi_row *row) {
    part lane, rest, id, model, type, base, none = made_part("", 0);
    cut_first(name, &lane, &rest);
    c->lane = SHARD_LANE_EXTRA;
    set_names(c, name, none, none);
    if (part_is(lane, "signal") || part_is(lane, "action")) {
        if (!rest.size) return;
        c->lane = part_is(lane, "signal") ? SHARD_LANE_SIGNAL : SHARD_LANE_ACTION;
        set_names(c, row ? made_part(row->id, row->id_size) : rest, none, none);
    } else if (part_is(lane, "omen")) {
        cut_first(rest, &id, &model);
        id = said(row, "channel", id);
        model = said(row, "model", model);
        if (!id.size || !model.size) return;
        c->lane = SHARD_LANE_OMEN;
        set_names(c, id, model, none);
    } else if (part_is(lane, "uncert")) {
        cut_first(rest, &id, &base);
        cut_last(base, &model, &type);
        id = said(row, "channel", id);
        model = said(row, "model", model);
        type = said(row, "type", type);
        if (!id.size || !type.size) return;
        c->lane = SHARD_LANE_UNCERT;
        set_names(c, id, model, type);
    } else if (part_is(lane, "residual")) {
        cut_last(rest, &base, &type);
        if (part_is(type, "scales") && shard_reader_find_bytes(ep->reader, name.text, name.size - 7) != SHARD_NOT_FOUND) {
            c->lane = SHARD_LANE_RESIDUAL;
            set_names(c, rest, none, type);
            return;
        }
        base = said(row, "channel", base);
        type = said(row, "type", type);
        if (!base.size || !(part_is(type, "sign2nddiff") || part_is(type, "delta_q"))) return;
        c->lane = SHARD_LANE_RESIDUAL;
        set_names(c, rest, none, type); /* the whole name, so that no two are the same */
    } else if (part_is(lane, "label") && rest.size) {
        c->lane = SHARD_LANE_LABEL;
        set_names(c, rest, none, none);
    }
}

static int compare_channels(const void *a, const void *b, const void *context) {
    const shard_channel *x = *(const shard_channel *const *)a, *y = *(const shard_channel *const *)b;
    int order;
    (void)context;
    if (x->lane != y->lane) return x->lane < y->lane ? -1 : 1;
    order = shardi_compare_bytes(x->id, x->id_size, y->id, y->id_size);
    if (!order) order = shardi_compare_bytes(x->model, x->model_size, y->model, y->model_size);
    if (!order) order = shardi_compare_bytes(x->type, x->type_size, y->type, y->type_size);
    return order ? order : (x->row > y->row) - (x->row < y->row);
}

static int same_place(const shard_channel *x, const shard_channel *y) {
    return x->lane == y->lane && shardi_compare_bytes(x->id, x->id_size, y->id, y->id_size) == 0 && shardi_compare_bytes(x->model, x->model_size, y->model, y->model_size) == 0 &&
           shardi_compare_bytes(x->type, x->type_size, y->type, y->type_size) == 0;
}

static shard_code sort_channels(shard_episode *ep, shard_error *error) {
    const shard_channel **order = (const shard_channel **)shardi_allocate_array(ep->allocator, ep->count, sizeof *order);
    shard_channel *sorted = (shard_channel *)shardi_allocate_array(ep->allocator, ep->count, sizeof *sorted);
    size_t i;
    if (!order || !sorted) {
        shardi_release(ep->allocator, (void *)order);
        shardi_release(ep->allocator, sorted);
        return shardi_no_memory(error, (uint64_t)ep->count * sizeof *sorted);
    }
    for (i = 0; i < ep->count; i++) order[i] = ep->list + i;
    shardi_sort(order, ep->count, sizeof *order, compare_channels, NULL);
    for (i = 0; i < ep->count; i++) sorted[i] = *order[i];
    shardi_release(ep->allocator, (void *)order);
    shardi_release(ep->allocator, ep->list);
    ep->list = sorted;
    return SHARD_OK;
}

/* A block with one value for each step; none if it is absent or empty. */
static void add_steps(shard_episode *ep, const char *block, shard_lane lane, shard_dtype dtype) {
    uint32_t row = shard_reader_find(ep->reader, block);
    shard_channel *c = ep->list + ep->count;
    const shardi_row *described;
    if (row == SHARD_NOT_FOUND || !shard_reader_entry(ep->reader, row).orig_size) return;
    memset(c, 0, sizeof *c);
    c->lane = lane;
    c->row = row;
    c->has_time_axis = 1;
    set_names(c, made_part("", 0), made_part("", 0), made_part("", 0));
    described = lane == SHARD_LANE_REWARD ? shardi_find_row(&ep->placed, block, strlen(block), 0) : NULL;
    if (described) describe(c, described);
    if (!described || strcmp(block, "reward") == 0) { /* reward is f32 [T] whatever its row says */
        c->dtype = dtype;
        c->shape = NULL;
        c->dimensions = 0;
        c->layout = SHARD_DENSE;
        c->horizon = 0;
        c->has_start = 0;
        c->description = NULL;
    }
    (void)shardi_measure(ep, c, NULL);
    ep->count++;
}

static void place_steps(shard_episode *ep) {
    size_t i, before;
    int has_exact = shardi_find_row(&ep->placed, "reward/exact", 12, 0) != NULL;
    if (has_exact) { /* described as any other channel, also if it is empty */
        shard_channel *c = ep->list + ep->count++;
        memset(c, 0, sizeof *c);
        c->lane = SHARD_LANE_REWARD;
        c->row = shard_reader_find(ep->reader, "reward/exact");
        c->has_time_axis = 1;
        set_names(c, made_part("", 0), made_part("", 0), made_part("", 0));
        describe(c, shardi_find_row(&ep->placed, "reward/exact", 12, 0));
        (void)shardi_measure(ep, c, NULL);
    }
    for (i = 0; i < sizeof step_blocks / sizeof *step_blocks; i++) {
        if (has_exact && step_blocks[i].lane == SHARD_LANE_REWARD) continue;
        before = ep->count;
        add_steps(ep, step_blocks[i].block, step_blocks[i].lane, step_blocks[i].dtype);
        if (ep->count > before && strcmp(step_blocks[i].block, "terminated") == 0) i++; /* done only without it */
    }
}

/* Blocks that belong to a channel: its clock, its offsets, its frames. */
static void take_blocks(const shard_episode *ep, const shard_channel *c, uint8_t *taken) {
    static const char *const fields[] = {"time_block", "offsets_block", "frames_block"};
    size_t i, count = c->layout == SHARD_DENSE || c->layout == SHARD_OTHER_LAYOUT ? 1 : c->layout == SHARD_VIDEO ? 3 : 2;
    for (i = 0; i < count; i++) {
        uint32_t row = shardi_named_block(ep, c, fields[i]);
        if (row != SHARD_NOT_FOUND) taken[row] = 1;
    }
}

static void place_entries(shard_episode *ep) {
    uint32_t i;
    size_t k;
    for (i = 0; i < shard_reader_count(ep->reader); i++) {
        shard_entry entry = shard_reader_entry(ep->reader, i);
        part name = made_part(entry.name, entry.name_size);
        const shardi_row *row = shardi_find_row(&ep->placed, name.text, name.size, 0);
        shard_channel *c = ep->list + ep->count;
        for (k = 0; k < sizeof known_meta / sizeof *known_meta && !part_is(name, known_meta[k]); k++) {}
        if (k < sizeof known_meta / sizeof *known_meta || is_step_block(ep, name)) continue;
        memset(c, 0, sizeof *c);
        c->row = i;
        c->has_time_axis = 1;
        address(ep, c, name, row);
        if (row) describe(c, row);
        ep->count++;
    }
}

static shard_code route(shard_episode *ep, shard_error *error) {
    uint32_t entries = shard_reader_count(ep->reader);
    uint8_t *taken = (uint8_t *)shardi_allocate(ep->allocator, entries);
    size_t i, kept = 0;
    shard_code code = SHARD_OK;
    ep->list = (shard_channel *)shardi_allocate_array(ep->allocator, (uint64_t)entries + 8, sizeof *ep->list);
    ep->own_shapes = (uint64_t *)shardi_allocate_array(ep->allocator, entries, sizeof *ep->own_shapes);
    if (!taken || !ep->list || !ep->own_shapes) code = shardi_no_memory(error, (uint64_t)entries * sizeof *ep->list);
    if (code == SHARD_OK) {
        memset(taken, 0, entries);
        place_entries(ep);
        code = sort_channels(ep, error);
    }
    for (i = 1; code == SHARD_OK && i < ep->count; i++) { /* another block has that place: nothing is dropped */
        if (ep->list[i].lane <= SHARD_LANE_UNCERT && same_place(ep->list + i - 1, ep->list + i)) {
            shard_entry entry = shard_reader_entry(ep->reader, ep->list[i].row);
            size_t k;
            for (k = i; k < ep->count && same_place(ep->list + i - 1, ep->list + k); k++) {}
            for (; k > i; k--) {
                entry = shard_reader_entry(ep->reader, ep->list[k - 1].row);
                ep->list[k - 1].lane = SHARD_LANE_EXTRA;
                set_names(ep->list + k - 1, made_part(entry.name, entry.name_size), made_part("", 0), made_part("", 0));
            }
        }
    }
    for (i = 0; code == SHARD_OK && i < ep->count; i++) {
        shard_channel *c = ep->list + i;
        shard_entry entry = shard_reader_entry(ep->reader, c->row);
        if (c->description) {
            (void)shardi_measure(ep, c, NULL);
            take_blocks(ep, c, taken);
        } else if (c->lane <= SHARD_LANE_UNCERT) {
            infer(ep, c, made_part(entry.name, entry.name_size));
        } else {
            c->dtype = SHARD_U8;
            c->has_time_axis = 0;
            c->length = (int64_t)(entry.orig_size & (uint64_t)INT64_MAX);
        }
    }
    for (i = 0; code == SHARD_OK && i < ep->count; i++) {
        if (ep->list[i].lane != SHARD_LANE_EXTRA || !taken[ep->list[i].row]) ep->list[kept++] = ep->list[i];
    }
    if (code == SHARD_OK) {
        size_t most = (size_t)entries + 8;
        shard_channel *roomy = (shard_channel *)shardi_allocate_array(ep->allocator, most, sizeof *roomy);
        if (!roomy) code = shardi_no_memory(error, (uint64_t)most * sizeof *roomy);
        else {
            if (kept) memcpy(roomy, ep->list, kept * sizeof *roomy);
            shardi_release(ep->allocator, ep->list);
            ep->list = roomy;
            ep->count = kept;
            place_steps(ep);
            code = sort_channels(ep, error);
        }
    }
    shardi_release(ep->allocator, taken);
    return code;
}

/* ---- opening ---- */

static shard_code read_description(const shard_episode *ep, const char *name, shard_document **document, shard_error *error) {
    uint32_t row = shard_reader_find(ep->reader, name);
    if (row == SHARD_NOT_FOUND) return SHARD_OK;
    return shardi_read_json(ep->reader, row, "W-JSN-1", &ep->reader->limits, document, error);
}

static shard_code open_episode(shard_episode *ep, shard_error *error) {
    const shard_reader *reader = ep->reader;
    shard_code code;
    if (reader->header.role != SHARD_ROLE_WSHARD) return shardi_fail(error, SHARD_BAD_PROFILE, "W-ROL-1", "not an episode: expected a file of role 5, found role %d", reader->header.role);
    if (shard_reader_find(reader, "meta/sidecar") != SHARD_NOT_FOUND) {
        return shardi_fail(error, SHARD_BAD_PROFILE, "W-ROL-2", "this is a sidecar, which adds lanes to an episode: open the episode itself");
    }
    if (shard_reader_find(reader, "meta/episode") == SHARD_NOT_FOUND) return shardi_fail(error, SHARD_BAD_PROFILE, "W-ROL-2", "the episode is not described: it has no meta/episode");
    code = read_description(ep, "meta/episode", &ep->episode, error);
    if (code == SHARD_OK) code = read_description(ep, "meta/wshard", &ep->wshard, error);
    if (code == SHARD_OK) code = read_description(ep, "meta/channels", &ep->channels, error);
    if (code == SHARD_OK) code = shardi_parse_facts(ep, error);
    if (code == SHARD_OK) code = shardi_parse_rows(ep, error);
    return code == SHARD_OK ? route(ep, error) : code;
}

shard_code shard_episode_from_reader(const shard_reader *reader, shard_episode **episode, shard_error *error) {
    shard_episode *ep = (shard_episode *)shardi_allocate(reader->allocator, sizeof *ep);
    shard_code code;
    *episode = NULL;
    if (!ep) return shardi_no_memory(error, sizeof *ep);
    memset(ep, 0, sizeof *ep);
    ep->reader = reader;
    ep->allocator = reader->allocator;
    code = open_episode(ep, error);
    if (code == SHARD_OK) *episode = ep;
    else shard_episode_close(ep);
    return shardi_locate(error, code, reader->input.name, NULL, 0);
}

shard_code shard_episode_open(const char *path, const shard_options *options, shard_episode **episode, shard_error *error) {
    shard_reader *reader;
    shard_code code = shard_reader_open(path, options, &reader, error);
    *episode = NULL;
    if (code == SHARD_OK) code = shard_episode_from_reader(reader, episode, error);
    if (code == SHARD_OK) (*episode)->own = reader;
    else shard_reader_close(reader);
    return code;
}

void shard_episode_close(shard_episode *ep) {
    const shard_allocator *allocator;
    shard_reader *own;
    if (!ep) return;
    allocator = ep->allocator;
    own = ep->own;
    shard_document_free(ep->episode);
    shard_document_free(ep->wshard);
    shard_document_free(ep->channels);
    shardi_release(allocator, ep->placed.rows);
    shardi_release(allocator, ep->unplaced.rows);
    shardi_release(allocator, ep->hints.rows);
    shardi_release(allocator, ep->shapes);
    shardi_release(allocator, ep->list);
    shardi_release(allocator, ep->own_shapes);
    shardi_release(allocator, ep);
    shard_reader_close(own);
}

const shard_reader *shard_episode_reader(const shard_episode *ep) { return ep->reader; }
const shard_facts *shard_episode_facts(const shard_episode *ep) { return &ep->facts; }
size_t shard_episode_count(const shard_episode *ep) { return ep->count; }
const shard_channel *shard_episode_channel(const shard_episode *ep, size_t number) { return ep->list + number; }

const shard_channel *shard_episode_find(const shard_episode *ep, shard_lane lane, const char *id, const char *model, const char *type) {
    size_t low = 0, high = ep->count;
    shard_channel wanted;
    const shard_channel *pointer = &wanted;
    memset(&wanted, 0, sizeof wanted);
    wanted.lane = lane;
    set_names(&wanted, made_part(id, strlen(id)), made_part(model ? model : "", model ? strlen(model) : 0), made_part(type ? type : "", type ? strlen(type) : 0));
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const shard_channel *one = ep->list + middle;
        if (!same_place(one, pointer) && compare_channels(&one, &pointer, NULL) < 0) low = middle + 1;
        else high = middle;
    }
    return low < ep->count && same_place(ep->list + low, pointer) ? ep->list + low : NULL;
}
