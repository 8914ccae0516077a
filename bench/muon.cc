// How fast Muon's update of a matrix is: `muon ROWS COLUMNS [THREADS] [ROUNDS]`. One line of JSON: seconds of the
// median round, operations per second of its products, and the elements per second that the rest leaves.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "spillway/execute/thread_pool.h"
#include "spillway/optim/optimizers.h"
#include "spillway/optim/step.h"

int main(int count, char** words) {
  using namespace spillway;
  if (count < 3) return std::fprintf(stderr, "muon ROWS COLUMNS [THREADS] [ROUNDS]\n"), 2;
  const std::uint64_t rows = std::strtoull(words[1], nullptr, 10), columns = std::strtoull(words[2], nullptr, 10);
  const unsigned threads = count > 3 ? static_cast<unsigned>(std::atoi(words[3])) : std::thread::hardware_concurrency();
  const int rounds = count > 4 ? std::atoi(words[4]) : 5;
  const auto n = rows * columns;
  std::mt19937 random(1);
  std::normal_distribution<float> values;
  std::vector<float> weight(n), grad(n), mean(n);
  for (auto* list : {&weight, &grad}) {
    for (auto& value : *list) value = values(random);
  }
  const auto& kernel = *optim::muon.matrix;
  std::vector<std::byte> room(kernel.workspace(rows, columns) + 64);
  const optim::MatrixSpan span{
      .rows = rows,
      .columns = columns,
      .weights = kernels::Weights::fp32,
      .weight = reinterpret_cast<std::byte*>(weight.data()),
      .fields = {mean.data(), nullptr},
      .grad = reinterpret_cast<const std::byte*>(grad.data()),
      .workspace = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::uintptr_t>(room.data()), 64UL))};
  const auto step = optim::make_step(optim::muon, {{"learning_rate", 1e-3}});
  execute::ThreadPool thread_pool(threads);
  std::vector<double> all, products;
  for (int round = 0; round < rounds; ++round) {
    double seconds = 0, of_products = 0;
    for (std::size_t part = 0; part < kernel.parts; ++part) {
      const auto began = std::chrono::steady_clock::now();
      thread_pool.run(kernel.tiles(rows, columns, part), [&](std::size_t tile) { kernel.run(span, step, part, tile); });
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
      seconds += took.count();
      if (part > 1 && part + 1 < kernel.parts) of_products += took.count();
    }
    all.push_back(seconds), products.push_back(of_products);
  }
  std::ranges::sort(all), std::ranges::sort(products);
  const double less = static_cast<double>(std::min(rows, columns)), more = static_cast<double>(std::max(rows, columns));
  const double operations = 5 * less * less * (3 * more + less), median = all[all.size() / 2];
  std::printf(
      "{\"rows\": %llu, \"columns\": %llu, \"threads\": %u, \"seconds\": %.6f, \"products_per_second\": %.4g, "
      "\"other_seconds\": %.6f}\n",
      static_cast<unsigned long long>(rows), static_cast<unsigned long long>(columns), threads, median,
      operations / products[products.size() / 2], median - products[products.size() / 2]);
}
