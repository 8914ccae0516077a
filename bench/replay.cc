// Replays the transfers and updates of a training step without its compute: how fast can the path and the update lane
// go, and what do they take from a compute loop beside them?
//
//   replay DIRECTORY[,DIRECTORY...] [SHAPE] [DRAM_GIB] [STEPS]      SHAPE: 0.5b (default), 1.5b, tiny
//
// Each directory is a path. Each step is a line, with the bytes that each path has read and written.
// Everything lives on the path (30 bytes per parameter and step, 32 of a tied table). Passes return at once, so the
// step takes as long as path and update need. Run it beside a PyTorch loop (bench/overlap.py does) to see what each
// costs the other.
#include <spillway/engine.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Shape {
  std::int64_t hidden, ffn, layers, kv, vocabulary;
};

/// One path for each directory between commas.
void add_paths(const std::string& directories, spillway::Settings& settings) {
  std::istringstream words(directories);
  for (std::string word; std::getline(words, word, ',');) {
    const auto number = std::to_string(settings.budget.paths.size());
    settings.storage.places.push_back({word});
    settings.budget.paths.push_back({.name = "path:" + number, .capacity = 64 * spillway::GiB});
  }
}

spillway::plan::Description describe(const Shape& shape, std::uint64_t tokens) {
  using spillway::state::BlockRole;
  spillway::plan::Description out;
  out.blocks.push_back({"embed", BlockRole::embedding, {{"embed", {shape.vocabulary, shape.hidden}, true}}});
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    const auto at = "layers." + std::to_string(i) + ".";
    out.blocks.push_back({at,
                          BlockRole::layer,
                          {{at + "q", {shape.hidden, shape.hidden}, true},
                           {at + "k", {shape.kv, shape.hidden}, true},
                           {at + "v", {shape.kv, shape.hidden}, true},
                           {at + "o", {shape.hidden, shape.hidden}, true},
                           {at + "gate", {shape.ffn, shape.hidden}, true},
                           {at + "up", {shape.ffn, shape.hidden}, true},
                           {at + "down", {shape.hidden, shape.ffn}, true},
                           {at + "norms", {2, shape.hidden}, false}}});
  }
  out.tied_head = true;
  out.hidden_size = static_cast<std::uint64_t>(shape.hidden);
  out.tokens = tokens;
  return out;
}

spillway::StepResult step(spillway::Engine& engine, const std::vector<std::int64_t>& ids,
                          std::vector<std::byte>& zeros) {
  engine.begin_step({.ids = ids, .counts = {ids.size()}});
  engine.embedding_forward();
  while (const auto pass = engine.next_pass()) {
    if (pass->kind == spillway::plan::PassKind::head_gradient) engine.head_gradient(zeros.data(), 0);
    if (pass->kind == spillway::plan::PassKind::embedding_backward) engine.embedding_backward(zeros.data());
    engine.end_pass();
  }
  return engine.end_step({.learning_rate = 1e-5, .max_grad_norm = 1});
}

int run(int argc, char** argv) {
  const std::string name = argc > 2 ? argv[2] : "0.5b";
  const Shape shape = name == "1.5b"   ? Shape{1536, 8960, 28, 256, 151936}
                      : name == "tiny" ? Shape{256, 1024, 4, 128, 8192}
                                       : Shape{896, 4864, 24, 128, 151936};
  const std::uint64_t tokens = 1024;
  spillway::Settings settings;
  add_paths(argv[1], settings);
  settings.budget.dram = static_cast<spillway::Bytes>((argc > 3 ? std::atof(argv[3]) : 2.0) * spillway::GiB);
  settings.budget.placement = {.weight = 0, .state = 0, .grad = 0, .activation = 0};
  const int steps = argc > 4 ? std::atoi(argv[4]) : 3;
  auto model = describe(shape, tokens);
  if (name == "tiny") model.chunk_elements = 256 * 1024;  // so many chunks that each path gets its share
  spillway::Engine engine(model, settings);
  engine.start();
  std::vector<std::int64_t> ids(tokens);
  for (std::size_t i = 0; i < tokens; ++i) ids[i] = static_cast<std::int64_t>(i * 147) % shape.vocabulary;
  std::vector<std::byte> zeros(spillway::round_up(engine.layout().largest_chunk(), 4096) * 4);
  step(engine, ids, zeros);  // nothing to update yet
  auto before = engine.counters().paths;
  const auto& plan = engine.plan();
  const double bytes = static_cast<double>(plan.read_per_step + plan.written_per_step);
  for (int i = 0; i < steps; ++i) {
    const auto result = step(engine, ids, zeros);
    std::printf("step %d: %.2f s, %.2f GB, %.2f GB/s, %.1f bytes per parameter", i + 1, result.seconds, bytes / 1e9,
                bytes / 1e9 / result.seconds, bytes / static_cast<double>(engine.layout().parameters()));
    for (const auto& [which, path] : engine.counters().paths) {
      std::printf(", %s %llu %llu", which.c_str(), static_cast<unsigned long long>(path.read - before[which].read),
                  static_cast<unsigned long long>(path.written - before[which].written));
    }
    std::puts("");
    before = engine.counters().paths;
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: replay DIRECTORY[,DIRECTORY...] [0.5b|1.5b|tiny] [DRAM_GIB] [STEPS]\n");
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const spillway::Error& error) {
    std::fprintf(stderr, "replay: %s\n", error.what());
    return 1;
  }
}
