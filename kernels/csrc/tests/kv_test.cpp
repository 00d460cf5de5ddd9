// Random caches, random steps: an instruction set of this machine, on one thread and on four, holds the same bytes as
// the portable code on one thread, and gives about the same context, also after steps that are refused. The number of
// threads changes no bit.

#include <math.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "kv_world.h"

namespace edge_vl_driver {
namespace {

constexpr int64_t kMaxEntries = 330, kMaxLongEntries = 4000;
constexpr int64_t kMaxQueryChannels = 320;  // of a row, about: more would only take longer
constexpr int kStepsPerModel = 12;

struct Setting {
    Model model;
    int num_sequences;
    bool is_long;     // small heads with a history so long that threads share it
    bool is_extreme;  // numbers up to the ends of float16, where contexts cannot be compared
    float key_size[256];

    int64_t max_entries() const { return is_long ? kMaxLongEntries : kMaxEntries; }
};

double now_s() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// One of the precisions that `open` may be compressed to.
int64_t random_precision(Random *random, int64_t open) { return random->between(open, EDGE_VL_KERNELS_INT4); }

void choose(Setting *setting, Random *random) {
    setting->is_long = random->one_in(4);
    auto &abi = setting->model.abi;
    abi.num_layers = random->between(1, setting->is_long ? 1 : 3);
    abi.head_dim = 32 * random->between(1, setting->is_long ? 2 : random->one_in(3) ? 8 : 4);
    abi.num_kv_heads = random->between(1, 3);
    const int64_t most_queries = kMaxQueryChannels / (abi.head_dim * abi.num_kv_heads);
    abi.num_query_heads = abi.num_kv_heads * random->between(1, most_queries > 1 ? most_queries : 1);
    abi.num_formats = random->between(2, 3);
    abi.num_sinks = random->one_in(3) ? 0 : random->between(1, 6);
    abi.scale = 1.0f / sqrtf(static_cast<float>(abi.head_dim));
    abi.rotary_dim = random->one_in(2) ? 0 : static_cast<int32_t>(2 * random->between(1, abi.head_dim / 2));
    abi.is_interleaved = random->one_in(2);
    const int32_t half = abi.rotary_dim / 2;
    for (int64_t position = 0; position < setting->max_entries(); ++position) {
        for (int32_t pair = 0; pair < half; ++pair) {
            const float angle = static_cast<float>(position) / static_cast<float>(1 + 7 * pair);
            setting->model.cosines.push_back(cosf(angle));
            setting->model.sines.push_back(sinf(angle));
        }
    }
    const int64_t open = random->one_in(3) ? EDGE_VL_KERNELS_F32 : EDGE_VL_KERNELS_F16;
    const bool is_raw = random->one_in(5);
    std::vector<int64_t> precisions;
    for (int64_t index = 0; index < 2 * abi.num_layers * (abi.num_formats - 1); ++index) {
        precisions.push_back(is_raw ? open : random_precision(random, open));
    }
    precisions.insert(precisions.end(), static_cast<size_t>(2 * abi.num_layers), open);
    lay_out(&setting->model, precisions);
    setting->num_sequences = static_cast<int>(random->between(1, 3));
    setting->is_extreme = random->one_in(4);
    for (float &size : setting->key_size) {
        size = random->one_in(8) ? 5.0f : 1.0f;  // a few channels of keys are larger than the others, as in real models
    }
}

float random_number(const Setting &setting, Random *random) {
    if (!setting.is_extreme) {
        return random->normal();
    }
    switch (random->between(0, 5)) {
        case 0:
            return 0.0f;
        case 1:
            return -0.0f;
        case 2:
            return random->normal() * 1e-7f;  // among the smallest of float16
        case 3:
            return random->normal() * 10000.0f;
        case 4:
            return random->one_in(2) ? 65504.0f : -65504.0f;
        default:
            return random->normal();
    }
}

// Make an array of (rows, heads, head_dim) in one of the layouts that graphs use, not a byte longer than it must be.
std::vector<float> new_array(Random *random, int64_t rows, int64_t heads, int64_t channels, int64_t *row_stride,
                             int64_t *head_stride) {
    const int64_t gap = random->one_in(2) ? 0 : random->between(1, 9);
    if (random->one_in(3)) {
        *row_stride = channels + gap;
        *head_stride = rows * *row_stride;
    } else {
        *head_stride = channels;
        *row_stride = heads * channels + gap;
    }
    const int64_t size = (rows - 1) * *row_stride + (heads - 1) * *head_stride + channels;
    return std::vector<float>(static_cast<size_t>(size), NAN);  // what lies in the gaps must not matter
}

template <typename Number>
void fill(std::vector<float> *array, int64_t rows, int64_t heads, int64_t channels, int64_t row_stride,
          int64_t head_stride, Number number) {
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t head = 0; head < heads; ++head) {
            for (int64_t channel = 0; channel < channels; ++channel) {
                (*array)[static_cast<size_t>(row * row_stride + head * head_stride + channel)] = number(channel);
            }
        }
    }
}

void point_to_arrays(Rows *rows, bool has_context) {
    rows->abi.queries = rows->queries.data();
    rows->abi.keys = rows->keys.data();
    rows->abi.values = rows->values.data();
    rows->abi.context = has_context ? rows->context.data() : nullptr;
}

Rows random_rows(const Setting &setting, Random *random, int64_t num_rows) {
    const auto &model = setting.model.abi;
    const int64_t channels = model.head_dim;
    Rows rows;
    auto &abi = rows.abi;
    rows.queries =
        new_array(random, num_rows, model.num_query_heads, channels, &abi.query_row, &abi.query_head);
    rows.keys = new_array(random, num_rows, model.num_kv_heads, channels, &abi.key_row, &abi.key_head);
    rows.values = new_array(random, num_rows, model.num_kv_heads, channels, &abi.value_row, &abi.value_head);
    rows.context =
        new_array(random, num_rows, model.num_query_heads, channels, &abi.context_row, &abi.context_head);
    // A turned pair may be longer than each of its two: no farther out than float16 goes.
    const float key_limit = model.rotary_dim ? 0.7f : 1.0f;
    fill(&rows.queries, num_rows, model.num_query_heads, channels, abi.query_row, abi.query_head,
         [&](int64_t) { return random->normal() * 0.7f; });
    fill(&rows.keys, num_rows, model.num_kv_heads, channels, abi.key_row, abi.key_head, [&](int64_t channel) {
        const float size = setting.is_extreme ? 1.0f : setting.key_size[channel];
        return random_number(setting, random) * size * key_limit;
    });
    fill(&rows.values, num_rows, model.num_kv_heads, channels, abi.value_row, abi.value_head,
         [&](int64_t) { return random_number(setting, random); });
    return rows;
}

// Put one number that cannot be kept into the keys or values.
void spoil(Rows *rows, const Setting &setting, Random *random, int64_t num_rows) {
    const auto &model = setting.model.abi;
    const bool is_key = random->one_in(2);
    const int64_t row_stride = is_key ? rows->abi.key_row : rows->abi.value_row;
    const int64_t head_stride = is_key ? rows->abi.key_head : rows->abi.value_head;
    const int64_t index = random->between(0, num_rows - 1) * row_stride +
                          random->between(0, model.num_kv_heads - 1) * head_stride +
                          random->between(0, model.head_dim - 1);
    constexpr float kBad[] = {NAN, INFINITY, -INFINITY, 70000.0f, -3e38f};
    (is_key ? rows->keys : rows->values)[static_cast<size_t>(index)] = kBad[random->between(0, 4)];
}

// How many rows to append.
int64_t random_count(const Setting &setting, Random *random, int64_t before) {
    if (setting.is_long) {
        return before == 0 ? random->between(2200, 3800) : random->between(1, 2);
    }
    const int64_t to_border = kBlock - setting.model.num_open(before);
    if (to_border > 0 && random->one_in(4)) {
        return to_border;
    }
    return random->one_in(2) ? 1 : random->between(1, random->one_in(4) ? 140 : 10);
}

std::vector<Part> random_parts(const Setting &setting, Random *random, const World &world) {
    const Model &model = setting.model;
    std::vector<Part> parts;
    for (int index = 0; index < setting.num_sequences; ++index) {
        const int64_t before = world.sequences[static_cast<size_t>(index)].num_entries;
        const int64_t most = setting.max_entries() - before;
        if (most == 0 || (random->one_in(4) && index + 1 < setting.num_sequences)) {
            continue;
        }
        const int64_t wanted = random_count(setting, random, before);
        const int64_t num_rows = wanted < most ? wanted : most;
        Part part = {index, num_rows, before, {}, random->one_in(2)};
        while (model.num_closed(before) + static_cast<int64_t>(part.new_formats.size()) <
               model.num_closed(before + num_rows)) {
            part.new_formats.push_back(static_cast<int32_t>(random->between(0, model.abi.num_formats - 2)));
        }
        parts.push_back(part);
    }
    return parts;
}

class Test {
public:
    Test(Setting *setting, Random *random) : setting_(setting), random_(random) {
        std::vector<int> isas;
        for (int isa = EDGE_VL_KERNELS_ISA_SCALAR; isa <= EDGE_VL_KERNELS_ISA_NEON; ++isa) {
            if (edge_vl_kernels_has_isa(isa) == 1) {
                isas.push_back(isa);
            }
        }
        const int isa = isas[static_cast<size_t>(random->between(0, static_cast<int64_t>(isas.size()) - 1))];
        add_world(EDGE_VL_KERNELS_ISA_SCALAR, 1);
        add_world(isa, 1);
        add_world(isa, 4);
    }

    void run(double end_s) {
        for (int index = 0; index < kStepsPerModel && (index == 0 || now_s() < end_s); ++index) {
            step();
            if (random_->one_in(4)) {
                trim();
            }
            if (random_->one_in(4)) {
                read_and_close();
            }
        }
    }

private:
    void add_world(int isa, int num_threads) {
        worlds_.push_back(std::make_unique<World>(&setting_->model, isa, num_threads, setting_->num_sequences));
    }

    void step() {
        const std::vector<Part> parts = random_parts(*setting_, random_, *worlds_[0]);
        if (parts.empty()) {
            return;
        }
        int64_t num_rows = 0;
        for (const Part &part : parts) {
            num_rows += part.num_rows;
        }
        // A long history is appended without looking at it: that would take long, too.
        const bool is_spoiled = random_->one_in(6), has_context = num_rows < kMaxEntries && !random_->one_in(6);
        const int64_t num_layers = setting_->model.abi.num_layers, spoiled = random_->between(0, num_layers - 1);
        const int memory_limit = random_->one_in(4) ? static_cast<int>(random_->between(0, 3)) : -1;
        for (auto &world : worlds_) {
            world->begin(parts);
        }
        bool is_kept = true;
        for (int64_t layer = 0; layer < num_layers && is_kept; ++layer) {
            Rows rows = random_rows(*setting_, random_, num_rows);
            const bool is_spoiled_here = is_spoiled && layer == spoiled;
            if (is_spoiled_here) {
                spoil(&rows, *setting_, random_, num_rows);
            }
            const bool is_comparable = has_context && !setting_->is_extreme && !is_spoiled_here;
            is_kept = run_layer(layer, rows, num_rows, has_context, is_comparable, memory_limit) && !is_spoiled_here;
        }
        for (auto &world : worlds_) {
            world->end(is_kept);
        }
        check_worlds();
    }

    // Run a layer in every world; return whether its rows were taken.
    bool run_layer(int64_t layer, const Rows &given, int64_t num_rows, bool has_context, bool is_comparable,
                   int memory_limit) {
        std::vector<Rows> results;
        int32_t expected = EDGE_VL_KERNELS_OK;
        for (auto &world : worlds_) {
            Rows rows = given;
            point_to_arrays(&rows, has_context);
            limit_memory(memory_limit);
            int32_t status = world->run(layer, rows);
            limit_memory(-1);
            if (status == EDGE_VL_KERNELS_NO_MEMORY) {
                CHECK(memory_limit >= 0, "%s: there was memory", world->name());
                status = world->run(layer, rows);  // as if nothing had happened
            }
            CHECK(rows.queries.size() == given.queries.size() &&
                      !memcmp(rows.queries.data(), given.queries.data(), rows.queries.size() * sizeof(float)) &&
                      !memcmp(rows.keys.data(), given.keys.data(), rows.keys.size() * sizeof(float)) &&
                      !memcmp(rows.values.data(), given.values.data(), rows.values.size() * sizeof(float)),
                  "%s changes its input", world->name());
            if (results.empty()) {
                expected = status;
            }
            CHECK(status == expected, "%s: status %d, not %d", world->name(), status, expected);
            results.push_back(rows);
            point_to_arrays(&results.back(), has_context);
            if (status == EDGE_VL_KERNELS_OK && is_comparable && results.size() > 1) {
                check_same_context(setting_->model, results[0], results.back(), num_rows, world->name());
            }
            if (status == EDGE_VL_KERNELS_OK && results.size() == worlds_.size()) {
                const auto &alone = results[1].context, &shared = results[2].context;
                CHECK(!memcmp(alone.data(), shared.data(), alone.size() * sizeof(float)),
                      "%s: the context depends on the number of threads", world->name());
            }
        }
        return expected == EDGE_VL_KERNELS_OK;
    }

    void trim() {
        const auto index = static_cast<size_t>(random_->between(0, setting_->num_sequences - 1));
        const int64_t num_open = setting_->model.num_open(worlds_[0]->sequences[index].num_entries);
        const int64_t dropped = num_open > 1 ? random_->between(0, num_open - 1) : 0;
        for (auto &world : worlds_) {
            world->sequences[index].num_entries -= dropped;
        }
    }

    // Restore a few entries of a page, and close an open block by hand.
    void read_and_close() {
        const Model &model = setting_->model;
        const auto index = static_cast<size_t>(random_->between(0, setting_->num_sequences - 1));
        const int64_t layer = random_->between(0, model.abi.num_layers - 1);
        const int64_t format = random_->between(0, model.abi.num_formats - 2);
        const int64_t first = random_->between(0, kBlock - 1), count = random_->between(1, kBlock - first);
        const auto numbers = static_cast<size_t>(count * model.abi.num_kv_heads * model.abi.head_dim);
        std::vector<float> keys(numbers), values(numbers), expected_keys, expected_values;
        Page expected;
        for (auto &world : worlds_) {
            Sequence &sequence = world->sequences[index];
            if (model.num_open(sequence.num_entries) < kBlock) {
                return;
            }
            const Page page = new_page(model.page_bytes[static_cast<size_t>(format)]);
            edge_vl_kernels_kv_close(world->pool(), &model.abi, format, layer, sequence.open_page.get(), page.get());
            edge_vl_kernels_kv_read(world->pool(), &model.abi, format, layer, page.get(), first, count, keys.data(),
                                    values.data());
            if (!expected) {
                expected = page;
                expected_keys = keys;
                expected_values = values;
            }
            CHECK(!memcmp(page.get(), expected.get(),
                          static_cast<size_t>(model.page_bytes[static_cast<size_t>(format)])),
                  "%s closes a block differently", world->name());
            CHECK(keys == expected_keys && values == expected_values, "%s reads a block differently", world->name());
        }
    }

    void check_worlds() {
        for (size_t world = 1; world < worlds_.size(); ++world) {
            for (size_t index = 0; index < worlds_[0]->sequences.size(); ++index) {
                check_same_pages(setting_->model, worlds_[0]->sequences[index], worlds_[world]->sequences[index],
                                 worlds_[world]->name());
            }
        }
    }

    Setting *setting_;
    Random *random_;
    std::vector<std::unique_ptr<World>> worlds_;
};

}  // namespace

int test_kv(uint64_t seed, double seconds) {
    const double end_s = now_s() + seconds;
    int num_models = 0;
    for (; num_models == 0 || now_s() < end_s; ++num_models) {
        Random random = {seed + static_cast<uint64_t>(num_models)};
        Setting setting;
        choose(&setting, &random);
        Test(&setting, &random).run(end_s);
    }
    printf("%d models\n", num_models);
    return 0;
}

}  // namespace edge_vl_driver
