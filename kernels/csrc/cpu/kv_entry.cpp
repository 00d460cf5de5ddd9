// The ABI of the key/value kernels: which rows go where, and which task does what.
//
// A step is worked off from one block's border to the next, all sequences at once: close the block before, append,
// attend. How the work is split never changes the arithmetic of a row: results do not depend on the number of threads.

#include <stddef.h>

#include "kv_step.h"

namespace edge_vl {
namespace {

// Rows and query heads of one task, at most: their queries and sums stay in the second-level cache.
constexpr int64_t kMaxTaskQueries = 256;
// Rows of a task that only looks at them.
constexpr int64_t kMeasuredRows = 256;

const KvTable *table_of(int isa) {
    switch (isa) {
#if defined(EDGE_VL_KERNELS_AVX2_FEATURES)
        case EDGE_VL_KERNELS_ISA_AVX2:
            return &kKvAvx2;
#endif
#if defined(EDGE_VL_KERNELS_AVX512_FEATURES)
        case EDGE_VL_KERNELS_ISA_AVX512:
            return &kKvAvx512;
#endif
#if defined(EDGE_VL_KERNELS_NEON_FEATURES)
        case EDGE_VL_KERNELS_ISA_NEON:
            return &kKvNeon;
#endif
        default:
            return &kKvScalar;
    }
}

KvAppend append_of(const Step *step, const Sequence *sequence, int64_t head, int64_t row, int64_t first_row) {
    KvAppend append = {};
    append.model = step->model;
    append.slice = step->open;
    append.first_position = sequence->first_position + row;
    append.keys = step->rows->keys + (first_row + row) * step->rows->key_row + head * step->rows->key_head;
    append.values = step->rows->values + (first_row + row) * step->rows->value_row + head * step->rows->value_head;
    append.key_row = step->rows->key_row;
    append.value_row = step->rows->value_row;
    return append;
}

// --- tasks -----------------------------------------------------------------------------------------------------------

// Look at rows of all heads; a task per `kMeasuredRows` of them, counted over all sequences.
void measure_task(void *state, int task, int) {
    const Step *step = static_cast<const Step *>(state);
    KvMagnitudes magnitudes = {0, 0};
    const int64_t begin = task * kMeasuredRows, end = begin + kMeasuredRows;
    int64_t first_row = 0;
    for (int64_t index = 0; index < step->num_sequences && first_row < end; ++index) {
        const Sequence *sequence = &step->sequences[index];
        const int64_t first = most(begin - first_row, 0), last = least(end - first_row, sequence->num_rows);
        for (int64_t head = 0; first < last && head < step->model->num_kv_heads; ++head) {
            KvAppend rows = append_of(step, sequence, head, first, first_row);
            rows.num_rows = last - first;
            step->table->measure(&rows, &magnitudes);
        }
        first_row += sequence->num_rows;
    }
    step->magnitudes[task] = magnitudes;
}

// Close the block before, if it is full, and append a segment's rows; a task per head.
void append_task(void *state, int task, int) {
    const Step *step = static_cast<const Step *>(state);
    const Model *model = step->model;
    const Place place = place_of(step, task, [=](const Segment &) { return model->num_kv_heads; });
    const Sequence *sequence = place.sequence;
    const Segment &segment = place.segment;
    const int64_t head = place.task;
    KvAppend append = append_of(step, sequence, head, segment.first_row, place.first_row);
    append.num_rows = segment.num_rows;
    append.first_entry = segment.first_entry;
    if (segment.block < 0) {
        append.is_sinks = 1;
        append.memory = step->sinks(sequence, head);
    } else {
        if (segment.first_entry == 0 && segment.block > 0) {
            const int64_t closing = segment.block - 1;
            void *from = step->open_page(sequence, closing), *to = sequence->blocks[closing];
            if (from != to) {
                const Slice *slice = slice_of(model, sequence->formats[closing], step->layer);
                step->table->close(model, step->open, head_of(from, step->open, head), slice,
                                   head_of(to, slice, head));
            }
        }
        append.memory = head_of(step->open_page(sequence, segment.block), step->open, head);
    }
    step->table->append(&append);
}

// What the rows of a place attend to with all parts taken together.
KvAttention attention_of(const Step *step, const Place &place, int64_t head, int64_t row, int64_t num_rows) {
    const Segment &segment = place.segment;
    const Sequence *sequence = place.sequence;
    KvAttention attention = {};
    attention.model = step->model;
    attention.layer = step->layer;
    attention.head = head;
    attention.num_rows = num_rows;
    attention.num_step_queries = segment.num_rows * step->group_size();
    attention.query_row = step->rows->query_row;
    attention.query_head = step->rows->query_head;
    attention.queries = step->rows->queries + (place.first_row + segment.first_row + row) * attention.query_row +
                        head * step->group_size() * attention.query_head;
    attention.first_position = sequence->first_position + segment.first_row + row;
    if (segment.block < 0) {
        attention.sinks = step->sinks(sequence, head);
        attention.first_sinks = segment.first_entry + row + 1;
        return attention;
    }
    if (step->model->num_sinks > 0) {
        attention.sinks = step->sinks(sequence, head);
        attention.first_sinks = step->model->num_sinks;
    }
    attention.blocks = sequence->blocks;
    attention.formats = sequence->formats;
    attention.num_blocks = segment.block;
    attention.own = head_of(step->open_page(sequence, segment.block), step->open, head);
    attention.first_own = segment.first_entry + row + 1;
    return attention;
}

KvContext context_of(const Step *step, const Place &place, int64_t head, int64_t row) {
    const Rows *rows = step->rows;
    return {rows->context + (place.first_row + place.segment.first_row + row) * rows->context_row +
                head * step->group_size() * rows->context_head,
            rows->context_row, rows->context_head};
}

// Attend; a task per head, chunk of rows and part of the blocks.
void attend_task(void *state, int task, int thread) {
    const Step *step = static_cast<const Step *>(state);
    const Place place = place_of(step, task, [=](const Segment &segment) { return step->num_attend_tasks(segment); });
    const int64_t num_parts = step->num_parts(place.segment), num_chunks = step->num_chunks(place.segment);
    const int64_t part = place.task % num_parts;
    const int64_t head = place.task / num_parts / num_chunks;
    const int64_t row = place.task / num_parts % num_chunks * step->rows_per_task;
    const int64_t num_rows = least(step->rows_per_task, place.segment.num_rows - row);
    KvAttention attention = attention_of(step, place, head, row, num_rows);
    const int64_t size = step->table->partial_size(num_rows * step->group_size(), step->model->head_dim);
    float *scratch = static_cast<float *>(pool_scratch(step->pool, thread, 1));
    if (num_parts == 1) {
        step->table->attend(&attention, scratch, scratch + size);
        const KvContext context = context_of(step, place, head, row);
        step->table->finish(&attention, scratch, 1, &context);
        return;
    }
    const int64_t first = attention.num_blocks * part / num_parts;
    const int64_t last = attention.num_blocks * (part + 1) / num_parts;
    attention.blocks += first;
    attention.formats += first;
    attention.num_blocks = last - first;
    if (part > 0) {
        attention.sinks = nullptr;
    }
    if (part < num_parts - 1) {
        attention.own = nullptr;
    }
    float *partial = step->partials + place.partials + (head * num_parts + part) * size;
    step->table->attend(&attention, partial, scratch);
}

// Join the parts; a task per head of a segment that was attended to in parts. Such a segment is one chunk.
void finish_task(void *state, int task, int) {
    const Step *step = static_cast<const Step *>(state);
    const Place place = place_of(step, task, [=](const Segment &segment) {
        return step->num_parts(segment) > 1 ? step->model->num_kv_heads : 0;
    });
    const int64_t num_parts = step->num_parts(place.segment), head = place.task;
    const KvAttention attention = attention_of(step, place, head, 0, place.segment.num_rows);
    const int64_t size = step->table->partial_size(attention.num_rows * step->group_size(), step->model->head_dim);
    const KvContext context = context_of(step, place, head, 0);
    step->table->finish(&attention, step->partials + place.partials + head * num_parts * size, num_parts, &context);
}

// --- a step ----------------------------------------------------------------------------------------------------------

void run(Step *step, int64_t num_tasks, PoolTask task, bool is_small) {
    if (!is_small) {
        pool_run(step->pool, static_cast<int>(num_tasks), task, step);
        return;
    }
    for (int64_t index = 0; index < num_tasks; ++index) {
        task(step, static_cast<int>(index), 0);
    }
}

// Return how large magnitudes may be, as bits: as float16, unless all that keeps them is float32.
KvMagnitudes limits_of(const Model *model, int64_t layer) {
    constexpr uint32_t kLargestFloat16 = 0x477fe000, kLargestFloat32 = 0x7f7fffff;
    KvMagnitudes limits = {kLargestFloat32, kLargestFloat32};
    for (int64_t format = 0; format < model->num_formats; ++format) {
        const Slice *slice = slice_of(model, format, layer);
        limits.keys = slice->key_precision == EDGE_VL_KERNELS_F32 ? limits.keys : kLargestFloat16;
        limits.values = slice->value_precision == EDGE_VL_KERNELS_F32 ? limits.values : kLargestFloat16;
    }
    return limits;
}

int32_t measure(Step *step, int64_t num_rows) {
    constexpr uint32_t kInfinity = 0x7f800000;
    const int64_t num_tasks = ceil_div(num_rows, kMeasuredRows);
    run(step, num_tasks, measure_task, num_tasks == 1);
    KvMagnitudes largest = {0, 0};
    for (int64_t task = 0; task < num_tasks; ++task) {
        const KvMagnitudes &magnitudes = step->magnitudes[task];
        largest.keys = magnitudes.keys > largest.keys ? magnitudes.keys : largest.keys;
        largest.values = magnitudes.values > largest.values ? magnitudes.values : largest.values;
    }
    const KvMagnitudes limits = limits_of(step->model, step->layer);
    if (largest.keys >= kInfinity || largest.values >= kInfinity) {
        return EDGE_VL_KERNELS_NOT_FINITE;
    }
    return largest.keys > limits.keys || largest.values > limits.values ? EDGE_VL_KERNELS_TOO_LARGE
                                                                        : EDGE_VL_KERNELS_OK;
}

// Divide the largest segment of the step so that all threads have something to do.
int64_t rows_per_task(const Step *step) {
    const int64_t num_threads = pool_threads(step->pool);
    const int64_t group_size = step->group_size();
    int64_t rows = most(1, kMaxTaskQueries / group_size);
    if (num_threads > 1) {
        const int64_t wanted = ceil_div(3 * num_threads, step->model->num_kv_heads * step->num_sequences);
        rows = least(rows, most(8, ceil_div(kBlockEntries, wanted)));
    }
    // Rows that may be attended to in parts have to be together.
    return most(rows, ceil_div(kMaxSplitQueries, group_size));
}

// Get all memory that the step will need, before it changes anything.
bool allocate(Step *step, int64_t num_rows, int64_t num_places) {
    const int64_t num_queries = least(step->rows_per_task, num_rows) * step->group_size();
    const int64_t head_dim = step->model->head_dim;
    int64_t own_bytes = 0;
    if (step->rows->context != nullptr) {
        own_bytes = step->table->partial_size(num_queries, head_dim) * static_cast<int64_t>(sizeof(float)) +
                    step->table->scratch_bytes(num_queries, head_dim);
    }
    int64_t partials = 0;
    const int64_t last_place = step->rows->context != nullptr ? num_places : 0;
    for (step->place = 0; step->place < last_place; ++step->place) {
        int64_t size = 0;
        for (int64_t index = 0; index < step->num_sequences; ++index) {
            const Segment segment = segment_at(step->model, &step->sequences[index], step->place);
            size += segment.num_rows > 0 ? step->partials_size(segment) : 0;
        }
        partials = most(partials, size);
    }
    const int64_t partial_bytes = partials * static_cast<int64_t>(sizeof(float));
    const int64_t measured_bytes = ceil_div(num_rows, kMeasuredRows) * static_cast<int64_t>(sizeof(KvMagnitudes));
    own_bytes = most(64, ceil_div(own_bytes, 64) * 64);
    const int64_t shared_bytes = ceil_div(most(partial_bytes, measured_bytes), 64) * 64;
    for (int thread = pool_threads(step->pool) - 1; thread >= 0; --thread) {
        const int64_t bytes = own_bytes + (thread == 0 ? shared_bytes : 0);
        void *memory = pool_scratch(step->pool, thread, static_cast<size_t>(bytes));
        if (memory == nullptr) {
            return false;
        }
        if (thread == 0) {
            void *shared = static_cast<unsigned char *>(memory) + own_bytes;
            step->partials = static_cast<float *>(shared);
            step->magnitudes = static_cast<KvMagnitudes *>(shared);
        }
    }
    return true;
}

int32_t run_step(Step *step) {
    const Model *model = step->model;
    int64_t num_rows = 0, num_places = 0;
    for (int64_t index = 0; index < step->num_sequences; ++index) {
        const Sequence *sequence = &step->sequences[index];
        num_rows += sequence->num_rows;
        int64_t places = 0;
        while (segment_at(model, sequence, places).num_rows > 0) {
            ++places;
        }
        num_places = most(num_places, places);
    }
    step->rows_per_task = rows_per_task(step);
    if (!allocate(step, num_rows, num_places)) {
        return EDGE_VL_KERNELS_NO_MEMORY;
    }
    const int32_t status = measure(step, num_rows);
    if (status != EDGE_VL_KERNELS_OK) {
        return status;
    }
    for (step->place = 0; step->place < num_places; ++step->place) {
        // A row or two are appended faster than threads are told of it; closing a block is worth it.
        bool is_small = true;
        for (int64_t index = 0; index < step->num_sequences; ++index) {
            const Segment segment = segment_at(model, &step->sequences[index], step->place);
            is_small &= segment.num_rows <= 2 && (segment.first_entry > 0 || segment.block <= 0);
        }
        run(step, count_tasks(step, [=](const Segment &) { return model->num_kv_heads; }), append_task, is_small);
        if (step->rows->context == nullptr) {
            continue;
        }
        const auto num_tasks = [=](const Segment &segment) { return step->num_attend_tasks(segment); };
        run(step, count_tasks(step, num_tasks), attend_task, false);
        const auto num_finished = [=](const Segment &segment) {
            return step->num_parts(segment) > 1 ? model->num_kv_heads : 0;
        };
        run(step, count_tasks(step, num_finished), finish_task, true);
    }
    return EDGE_VL_KERNELS_OK;
}

}  // namespace
}  // namespace edge_vl

extern "C" {

int32_t edge_vl_kernels_kv_step(edge_vl_kernels_pool *pool, const edge_vl_kernels_kv_model *model,
                                const edge_vl_kernels_kv_sequence *sequences, int64_t num_sequences, int64_t layer,
                                const edge_vl_kernels_kv_rows *rows) {
    using namespace edge_vl;
    Step step = {};
    step.pool = pool;
    step.table = table_of(pool_isa(pool));
    step.model = model;
    step.sequences = sequences;
    step.num_sequences = num_sequences;
    step.layer = layer;
    step.rows = rows;
    step.open = slice_of(model, model->num_formats - 1, layer);
    const int64_t element_bytes = step.open->key_precision == EDGE_VL_KERNELS_F32 ? 4 : 2;
    step.sink_head_bytes = 2 * model->num_sinks * model->head_dim * element_bytes;
    return run_step(&step);
}

void edge_vl_kernels_kv_close(edge_vl_kernels_pool *pool, const edge_vl_kernels_kv_model *model, int64_t format,
                              int64_t layer, const void *open_page, void *page) {
    using namespace edge_vl;
    const KvTable *table = table_of(pool_isa(pool));
    const Slice *from = slice_of(model, model->num_formats - 1, layer), *to = slice_of(model, format, layer);
    for (int64_t head = 0; head < model->num_kv_heads; ++head) {
        const unsigned char *open_head =
            static_cast<const unsigned char *>(open_page) + from->offset + head * from->head_bytes;
        table->close(model, from, open_head, to, head_of(page, to, head));
    }
}

void edge_vl_kernels_kv_read(edge_vl_kernels_pool *pool, const edge_vl_kernels_kv_model *model, int64_t format,
                             int64_t layer, const void *page, int64_t first, int64_t count, float *keys,
                             float *values) {
    using namespace edge_vl;
    const KvTable *table = table_of(pool_isa(pool));
    const Slice *slice = slice_of(model, format, layer);
    const int64_t stride = model->num_kv_heads * model->head_dim;
    for (int64_t head = 0; head < model->num_kv_heads; ++head) {
        table->read(model, slice, static_cast<const unsigned char *>(page) + slice->offset + head * slice->head_bytes,
                    first, count, stride, keys + head * model->head_dim, values + head * model->head_dim);
    }
}

}  // extern "C"
