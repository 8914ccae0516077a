// Trains a small network whose parameters and optimizer state live on a storage path, without Python.
//
//   train_network DIRECTORY [STEPS]
//
// Four dense layers of 256 x 256 with tanh learn a fixed set of samples, in fp32. The engine holds weights,
// moments, gradients and boundary activations in a volume in DIRECTORY and brings each layer to memory for its turn;
// this program only computes. It prints the loss and exits with 1 when the loss has not halved.
#include <spillway/engine.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kWidth = 256;
constexpr std::size_t kLayers = 4;
constexpr std::size_t kRows = 32;  // samples of a step: "tokens" of the engine
constexpr std::size_t kSize = kRows * kWidth;

float* floats(std::byte* at) {
  return reinterpret_cast<float*>(at);
}

spillway::plan::Description describe() {
  spillway::plan::Description out;
  out.weight_dtype = spillway::state::ComputeType::fp32;
  for (std::size_t i = 0; i < kLayers; ++i) {
    const auto name = "layers." + std::to_string(i);
    const auto width = static_cast<std::int64_t>(kWidth);
    out.blocks.push_back({name,
                          spillway::state::BlockRole::layer,
                          {{name + ".weight", {width, width}, true}, {name + ".bias", {width}, false}}});
  }
  out.hidden_size = kWidth;
  out.tokens = kRows;
  out.chunk_elements = 64 * 1024;
  return out;
}

/// out = tanh(W in + b); weights: W [width, width] row by row, then b.
void forward(const float* weights, const float* in, float* out) {
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t o = 0; o < kWidth; ++o) {
      float sum = weights[kWidth * kWidth + o];
      for (std::size_t i = 0; i < kWidth; ++i) sum += weights[o * kWidth + i] * in[r * kWidth + i];
      out[r * kWidth + o] = std::tanh(sum);
    }
  }
}

/// d loss / d output becomes d loss / d input; fills the gradients of W and b.
void backward(const float* weights, const float* in, float* gradient, std::vector<float>& dw, std::vector<float>& db) {
  std::vector<float> out(kSize), din(kSize, 0);
  forward(weights, in, out.data());
  std::fill(dw.begin(), dw.end(), 0);
  std::fill(db.begin(), db.end(), 0);
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t o = 0; o < kWidth; ++o) {
      const auto at = r * kWidth + o;
      const float delta = gradient[at] * (1 - out[at] * out[at]);
      db[o] += delta;
      for (std::size_t i = 0; i < kWidth; ++i) {
        dw[o * kWidth + i] += delta * in[r * kWidth + i];
        din[r * kWidth + i] += delta * weights[o * kWidth + i];
      }
    }
  }
  std::copy(din.begin(), din.end(), gradient);
}

class Training {
 public:
  explicit Training(spillway::Engine& engine) : engine_(engine), in_(kSize), dw_(kWidth * kWidth), db_(kWidth) {}

  void fill() {
    std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(kWidth)));
    std::vector<float> values(kWidth * kWidth);
    for (std::size_t i = 0; i < kLayers; ++i) {
      for (auto& value : values) value = normal(random_);
      engine_.store_tensor(2 * i, 0, values);
    }
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (auto& value : in_) value = uniform(random_);
  }

  float step() {
    engine_.begin_step({.ids = {}, .counts = {kRows}});
    bool first = true;
    float loss = 0;
    while (const auto pass = engine_.next_pass()) {
      if (pass->kind == spillway::plan::PassKind::forward) {
        if (first) std::copy(in_.begin(), in_.end(), floats(pass->input));
        forward(floats(pass->weights), floats(pass->input), floats(pass->output));
        first = false;
      } else {
        if (pass->output != nullptr) loss = start_backward(floats(pass->output), floats(pass->hidden_gradient));
        backward(floats(pass->weights), floats(pass->input), floats(pass->hidden_gradient), dw_, db_);
        engine_.gradient(2 * pass->block, reinterpret_cast<std::byte*>(dw_.data()), 0);
        engine_.gradient(2 * pass->block + 1, reinterpret_cast<std::byte*>(db_.data()), 0);
      }
      engine_.end_pass();
    }
    engine_.end_step({.learning_rate = 1e-3, .weight_decay = 0.01, .max_grad_norm = 1.0});
    return loss;
  }

 private:
  /// Mean squared error against sin(3 x) / 2; fills d loss / d output.
  float start_backward(const float* out, float* gradient) const {
    double loss = 0;
    for (std::size_t i = 0; i < kSize; ++i) {
      const float error = out[i] - 0.5F * std::sin(3 * in_[i]);
      loss += error * error / kSize;
      gradient[i] = 2 * error / kSize;
    }
    return static_cast<float>(loss);
  }

  spillway::Engine& engine_;
  std::mt19937 random_{1};
  std::vector<float> in_, dw_, db_;
};

int run(const std::string& directory, int steps) {
  spillway::Settings settings;
  settings.storage = spillway::StorageOptions{.places = {{directory}}};
  settings.budget.dram = 64 * spillway::MiB;
  settings.budget.paths = {{.name = "path:0", .capacity = spillway::GiB}};
  settings.budget.placement = {.weight = 0, .state = 0, .grad = 0, .activation = 0};
  spillway::Engine engine(describe(), settings);
  std::printf("%zu parameters; %s of DRAM, %s on the path\n", static_cast<std::size_t>(engine.layout().parameters()),
              spillway::human(engine.plan().dram_peak).c_str(), spillway::human(engine.plan().path_bytes).c_str());
  engine.start();
  Training training(engine);
  training.fill();
  float first = 0, last = 0;
  for (int i = 0; i < steps; ++i) {
    last = training.step();
    if (i == 0) first = last;
    if (i % 10 == 0 || i + 1 == steps) std::printf("step %d: loss %.5f\n", i + 1, static_cast<double>(last));
  }
  engine.flush();
  return last < first / 2 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: train_network DIRECTORY [STEPS]\n");
    return 2;
  }
  try {
    return run(argv[1], argc > 2 ? std::atoi(argv[2]) : 60);
  } catch (const spillway::Error& error) {
    std::fprintf(stderr, "train_network: %s\n", error.what());
    return error.code() == spillway::ErrorCode::does_not_fit ? 3 : 1;
  }
}
