// A step's plan: which rows go where, and what is whose task. Only for inclusion by kv_entry.cpp.

#pragma once

#include "kv_table.h"
#include "pool.h"

namespace edge_vl {
namespace {

using Model = edge_vl_kernels_kv_model;
using Rows = edge_vl_kernels_kv_rows;
using Sequence = edge_vl_kernels_kv_sequence;
using Slice = edge_vl_kernels_kv_slice;

// Long histories are attended to in parts, so that threads can share even a single head.
constexpr int64_t kBlocksPerPart = 32;
constexpr int64_t kMaxParts = 8;
constexpr int64_t kMaxSplitQueries = 16;

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline const Slice *slice_of(const Model *model, int64_t format, int64_t layer) {
    return &model->slices[format * model->num_layers + layer];
}

inline unsigned char *head_of(void *page, const Slice *slice, int64_t head) {
    return static_cast<unsigned char *>(page) + slice->offset + head * slice->head_bytes;
}

// Rows of a sequence that go into one block, or into the sinks.
struct Segment {
    int64_t first_row, num_rows;  // of the sequence's rows; no rows: the sequence has no such segment
    int64_t block;                // -1: the sinks
    int64_t first_entry;          // in the block or among the sinks
};

// Return a sequence's segment by its place in the step.
inline Segment segment_at(const Model *model, const Sequence *sequence, int64_t place) {
    const int64_t before = sequence->num_entries, num_sinks = model->num_sinks;
    const int64_t sink_rows = most(0, least(num_sinks - before, sequence->num_rows));
    if (sink_rows > 0) {
        if (place == 0) {
            return {0, sink_rows, -1, before};
        }
        --place;
    }
    const int64_t start = most(before, num_sinks) - num_sinks;  // of the rows behind the sinks
    const int64_t end = before + sequence->num_rows - num_sinks;
    const int64_t block = start / kBlockEntries + place;
    const int64_t first = most(start, block * kBlockEntries);
    const int64_t last = least(end, (block + 1) * kBlockEntries);
    if (first >= last) {
        return {0, 0, 0, 0};
    }
    return {first + num_sinks - before, last - first, block, first - block * kBlockEntries};
}

struct Step {
    edge_vl_kernels_pool *pool;
    const KvTable *table;
    const Model *model;
    const Sequence *sequences;
    int64_t num_sequences, layer;
    const Rows *rows;
    const Slice *open;
    int64_t sink_head_bytes;

    int64_t place;          // of the segments that are worked on
    int64_t rows_per_task;
    float *partials;        // of rows that are attended to in parts
    KvMagnitudes *magnitudes;  // one of each task

    int64_t group_size() const { return model->num_query_heads / model->num_kv_heads; }

    unsigned char *sinks(const Sequence *sequence, int64_t head) const {
        return static_cast<unsigned char *>(sequence->sinks) + (layer * model->num_kv_heads + head) * sink_head_bytes;
    }

    void *open_page(const Sequence *sequence, int64_t block) const {
        const int64_t num_closed = most(0, sequence->num_entries - model->num_sinks - 1) / kBlockEntries;
        return sequence->open_pages[block - num_closed];
    }

    int64_t num_parts(const Segment &segment) const {
        if (segment.num_rows * group_size() > kMaxSplitQueries) {
            return 1;
        }
        return most(1, least(kMaxParts, segment.block / kBlocksPerPart));
    }

    int64_t num_chunks(const Segment &segment) const { return ceil_div(segment.num_rows, rows_per_task); }

    int64_t num_attend_tasks(const Segment &segment) const {
        return model->num_kv_heads * num_chunks(segment) * num_parts(segment);
    }

    int64_t partials_size(const Segment &segment) const {
        const int64_t parts = num_parts(segment);
        if (parts == 1) {
            return 0;
        }
        return model->num_kv_heads * parts * table->partial_size(segment.num_rows * group_size(), model->head_dim);
    }
};

// A sequence, its segment, and a task's number among the tasks of that segment.
struct Place {
    const Sequence *sequence;
    Segment segment;
    int64_t first_row;  // of the sequence in the step
    int64_t task;
    int64_t partials;   // where its partial results begin
};

// Find the sequence of a task, given how many tasks a segment has.
template <class NumTasks>
Place place_of(const Step *step, int64_t task, NumTasks num_tasks) {
    Place place = {step->sequences, {0, 0, 0, 0}, 0, task, 0};
    while (true) {
        place.segment = segment_at(step->model, place.sequence, step->place);
        const int64_t count = place.segment.num_rows > 0 ? num_tasks(place.segment) : 0;
        if (place.task < count) {
            return place;
        }
        place.task -= count;
        if (place.segment.num_rows > 0) {
            place.partials += step->partials_size(place.segment);
        }
        place.first_row += place.sequence->num_rows;
        ++place.sequence;
    }
}

// Count the tasks of all segments at the step's place.
template <class NumTasks>
int64_t count_tasks(const Step *step, NumTasks num_tasks) {
    int64_t count = 0;
    for (int64_t index = 0; index < step->num_sequences; ++index) {
        const Segment segment = segment_at(step->model, &step->sequences[index], step->place);
        count += segment.num_rows > 0 ? num_tasks(segment) : 0;
    }
    return count;
}

}  // namespace
}  // namespace edge_vl
