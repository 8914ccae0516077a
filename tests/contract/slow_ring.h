// Rings whose transfers take their time.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "spillway/sys/ring.h"

namespace spillway::test {

/// A drive that is slower than everything else.
class SlowRing : public sys::Ring {
 public:
  explicit SlowRing(std::unique_ptr<sys::Ring> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return inner_->name(); }
  std::string register_memory(std::span<std::byte> memory) override { return inner_->register_memory(memory); }
  void submit(const sys::Piece& piece) override { inner_->submit(piece); }
  void flush() override { inner_->flush(); }
  std::size_t wait(std::span<sys::Completion> out) override {
    const auto count = inner_->wait(out.first(1));
    std::this_thread::sleep_for(std::chrono::microseconds(500));
    return count;
  }
  void wake() noexcept override { inner_->wake(); }

 private:
  std::unique_ptr<sys::Ring> inner_;
};

/// Keeps reads into memory that was never registered from beginning as long as `held` is true.
class HoldingRing : public sys::Ring {
 public:
  HoldingRing(std::unique_ptr<sys::Ring> inner, std::shared_ptr<std::atomic<bool>> held)
      : inner_(std::move(inner)), held_(std::move(held)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return inner_->name(); }
  std::string register_memory(std::span<std::byte> memory) override {
    registered_.push_back(memory);
    return inner_->register_memory(memory);
  }
  void submit(const sys::Piece& piece) override {
    if (piece.operation == sys::Operation::read && *held_ && !is_registered(piece.memory)) {
      kept_.push_back(piece);
      return;
    }
    ++under_way_;
    inner_->submit(piece);
  }
  void flush() override { inner_->flush(); }
  std::size_t wait(std::span<sys::Completion> out) override {
    if (!*held_) {
      for (const auto& piece : std::exchange(kept_, {})) submit(piece);
    }
    if (under_way_ == 0 && !kept_.empty()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return 0;
    }
    const auto count = inner_->wait(out);
    under_way_ -= count;
    return count;
  }
  void wake() noexcept override { inner_->wake(); }

 private:
  [[nodiscard]] bool is_registered(const std::byte* memory) const {
    for (const auto& it : registered_) {
      if (memory >= it.data() && memory < it.data() + it.size()) return true;
    }
    return false;
  }

  std::unique_ptr<sys::Ring> inner_;
  std::shared_ptr<std::atomic<bool>> held_;
  std::vector<std::span<std::byte>> registered_;
  std::vector<sys::Piece> kept_;
  std::size_t under_way_ = 0;
};

}  // namespace spillway::test
