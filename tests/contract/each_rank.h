// Processes of a run as threads of one program, over the fake network.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "spillway/network/fake.h"

namespace spillway::test {

/// Calls body(rank) in a thread for each rank, and moves bytes between them until all have ended. Those that wait for
/// one that has thrown are told. Throws what the first rank that failed threw.
inline void each_rank(network::FakeNetwork& network, std::size_t size, const std::function<void(std::size_t)>& body) {
  std::vector<std::exception_ptr> errors(size);
  std::atomic<std::size_t> running = size;
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[rank] = std::current_exception();
        network.lose(rank);
      }
      --running;
    });
  }
  while (running > 0) {
    if (!network.move()) std::this_thread::yield();
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace spillway::test
