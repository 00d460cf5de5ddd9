// Steps that were recorded with the NumPy reference (tests/kernels/recording.py writes the file), done again here.

#include "check.h"
#include "kv_world.h"

namespace edge_vl_driver {
namespace {

constexpr int64_t kPageAlignment = 4096;

class File {
public:
    explicit File(const char *path) : file_(fopen(path, "rb")) { CHECK(file_ != nullptr, "%s", path); }
    ~File() { fclose(file_); }
    File(const File &) = delete;
    File &operator=(const File &) = delete;

    void read(void *to, int64_t bytes) {
        CHECK(fread(to, 1, static_cast<size_t>(bytes), file_) == static_cast<size_t>(bytes), "the file ends early");
    }
    int64_t integer() {
        int64_t number;
        read(&number, sizeof number);
        return number;
    }
    std::vector<float> floats(int64_t count) {
        std::vector<float> numbers(static_cast<size_t>(count));
        read(numbers.data(), count * static_cast<int64_t>(sizeof(float)));
        return numbers;
    }
    // A page comes with the rounding to 4 KiB that pages here go without.
    Page page(int64_t bytes) {
        const Page page = new_page((bytes + kPageAlignment - 1) / kPageAlignment * kPageAlignment);
        read(page.get(), (bytes + kPageAlignment - 1) / kPageAlignment * kPageAlignment);
        return page;
    }

private:
    FILE *file_;
};

struct Step {
    std::vector<Part> parts;
    int64_t num_rows = 0;
    std::vector<Rows> layers;  // with the context of the reference
};

struct Recording {
    Model model;
    std::vector<Step> steps;
    std::vector<Sequence> results;
};

void read_model(File *file, Model *model) {
    auto &abi = model->abi;
    for (int64_t *number : {&abi.num_layers, &abi.num_query_heads, &abi.num_kv_heads, &abi.head_dim, &abi.num_sinks,
                            &abi.num_formats}) {
        *number = file->integer();
    }
    abi.scale = file->floats(1)[0];
    abi.rotary_dim = static_cast<int32_t>(file->integer());
    abi.is_interleaved = static_cast<int32_t>(file->integer());
    const int64_t num_positions = file->integer();
    model->cosines = file->floats(num_positions * (abi.rotary_dim / 2));
    model->sines = file->floats(num_positions * (abi.rotary_dim / 2));
    std::vector<int64_t> precisions;
    for (int64_t index = 0; index < 2 * abi.num_layers * abi.num_formats; ++index) {
        precisions.push_back(file->integer());
    }
    lay_out(model, precisions);
    for (const int64_t bytes : model->page_bytes) {
        const int64_t nbytes = file->integer();
        CHECK(nbytes - kPageAlignment < bytes && bytes <= nbytes, "a page has %lld bytes, not %lld",
              static_cast<long long>(nbytes), static_cast<long long>(bytes));
    }
}

Step read_step(File *file, const Model &model) {
    const auto &abi = model.abi;
    Step step;
    for (int64_t num_parts = file->integer(); num_parts > 0; --num_parts) {
        Part part = {};
        part.sequence = static_cast<int>(file->integer());
        part.num_rows = file->integer();
        part.first_position = file->integer();
        for (int64_t num_formats = file->integer(); num_formats > 0; --num_formats) {
            part.new_formats.push_back(static_cast<int32_t>(file->integer()));
        }
        step.num_rows += part.num_rows;
        step.parts.push_back(part);
    }
    for (int64_t layer = 0; layer < abi.num_layers; ++layer) {
        const int64_t query_row = abi.num_query_heads * abi.head_dim, key_row = abi.num_kv_heads * abi.head_dim;
        Rows rows;
        rows.queries = file->floats(step.num_rows * query_row);
        rows.keys = file->floats(step.num_rows * key_row);
        rows.values = file->floats(step.num_rows * key_row);
        rows.context = file->floats(step.num_rows * query_row);
        rows.abi = {rows.queries.data(), rows.keys.data(), rows.values.data(), rows.context.data(),
                    query_row,           abi.head_dim,     key_row,            abi.head_dim,
                    key_row,             abi.head_dim,     query_row,          abi.head_dim};
        step.layers.push_back(std::move(rows));
    }
    return step;
}

Sequence read_result(File *file, const Model &model) {
    Sequence sequence;
    sequence.num_entries = file->integer();
    for (int64_t num_blocks = file->integer(); num_blocks > 0; --num_blocks) {
        sequence.formats.push_back(static_cast<int32_t>(file->integer()));
        sequence.blocks.push_back(file->page(model.page_bytes[static_cast<size_t>(sequence.formats.back())]));
    }
    sequence.open_page = file->page(model.page_bytes.back());
    if (model.sinks_bytes) {
        sequence.sinks = file->page(model.sinks_bytes);
    }
    return sequence;
}

void run(const Recording &recording, int isa, int num_threads) {
    World world(&recording.model, isa, num_threads, static_cast<int>(recording.results.size()));
    for (const Step &step : recording.steps) {
        world.begin(step.parts);
        for (int64_t layer = 0; layer < recording.model.abi.num_layers; ++layer) {
            const Rows &expected = step.layers[static_cast<size_t>(layer)];
            Rows rows = expected;
            rows.abi.context = rows.context.data();
            const int32_t status = world.run(layer, rows);
            CHECK(status == EDGE_VL_KERNELS_OK, "%s: status %d", world.name(), status);
            check_same_context(recording.model, expected, rows, step.num_rows, world.name());
        }
        world.end(true);
    }
    for (size_t index = 0; index < recording.results.size(); ++index) {
        CHECK(world.sequences[index].num_entries == recording.results[index].num_entries, "wrong recording");
        check_same_pages(recording.model, recording.results[index], world.sequences[index], world.name());
    }
    printf("%s: as recorded\n", world.name());
}

}  // namespace

int replay(const char *path) {
    File file(path);
    Recording recording;
    read_model(&file, &recording.model);
    for (int64_t num_steps = file.integer(); num_steps > 0; --num_steps) {
        recording.steps.push_back(read_step(&file, recording.model));
    }
    for (int64_t num_sequences = file.integer(); num_sequences > 0; --num_sequences) {
        recording.results.push_back(read_result(&file, recording.model));
    }
    for (int isa = EDGE_VL_KERNELS_ISA_SCALAR; isa <= EDGE_VL_KERNELS_ISA_NEON; ++isa) {
        for (const int num_threads : {1, 4}) {
            if (edge_vl_kernels_has_isa(isa) == 1) {
                run(recording, isa, num_threads);
            }
        }
    }
    return 0;
}

}  // namespace edge_vl_driver
