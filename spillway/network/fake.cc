#include "spillway/network/fake.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "spillway/base/error.h"

namespace spillway::network {
namespace {

std::exception_ptr network_error(const std::string& words) {
  return std::make_exception_ptr(Error(ErrorCode::io, words));
}

}  // namespace

/// A transfer that has begun.
struct FakeNetwork::Open {
  std::size_t left = 0;  ///< messages
  Done done;
};

class FakeNetwork::FakePort : public Port {
 public:
  FakePort(FakeNetwork& network, std::size_t rank) : network_(network), rank_(rank) {}
  [[nodiscard]] std::size_t rank() const noexcept override { return rank_; }
  [[nodiscard]] std::size_t size() const noexcept override { return network_.ports_.size(); }
  void start(std::vector<Message> messages, Done done) override {
    network_.start(rank_, std::move(messages), std::move(done));
  }

 private:
  FakeNetwork& network_;
  const std::size_t rank_;
};

FakeNetwork::FakeNetwork(std::size_t size, std::uint32_t seed)
    : lanes_(size * size), begun_(size, 0), lost_(size, false), random_(seed) {
  for (std::size_t rank = 0; rank < size; ++rank) ports_.push_back(std::make_unique<FakePort>(*this, rank));
}

FakeNetwork::~FakeNetwork() = default;

Port& FakeNetwork::port(std::size_t rank) {
  return *ports_.at(rank);
}

void FakeNetwork::fail(std::size_t rank, std::uint64_t transfer, std::string words) {
  MutexLock lock(mutex_);
  faults_.push_back({{rank, transfer}, std::move(words)});
}

void FakeNetwork::start(std::size_t rank, std::vector<Message> messages, Done done) {
  if (messages.empty()) return done(nullptr);
  std::exception_ptr error;
  {
    MutexLock lock(mutex_);
    const std::pair now{rank, begun_[rank]++};
    const auto fault = std::ranges::find_if(faults_, [&](const auto& it) { return it.first == now; });
    if (fault != faults_.end()) error = network_error(fault->second);
    for (const auto& it : messages) {
      if (lost_[it.peer] || lost_[rank]) error = network_error(text("rank ", it.peer, " is gone"));
    }
    if (!error) {
      const auto open = std::make_shared<Open>(Open{messages.size(), std::move(done)});
      for (const auto& it : messages) {
        (it.sends ? lane(rank, it.peer).sent : lane(it.peer, rank).wanted).push_back({open, it});
      }
      ++under_way_;
      return;
    }
  }
  done(error);
}

bool FakeNetwork::move() {
  std::vector<Done> ended;
  {
    MutexLock lock(mutex_);
    std::vector<Lane*> ready;
    for (auto& it : lanes_) {
      if (!it.sent.empty() && !it.wanted.empty()) ready.push_back(&it);
    }
    if (ready.empty()) return false;
    auto& it = *ready[random_() % ready.size()];
    auto [sender, from] = it.sent.front();
    auto [receiver, to] = it.wanted.front();
    it.sent.pop_front();
    it.wanted.pop_front();
    if (from.bytes.size() != to.bytes.size()) {
      throw Error(ErrorCode::internal, text(from.bytes.size(), " bytes for a message of ", to.bytes.size()));
    }
    std::memcpy(to.bytes.data(), from.bytes.data(), from.bytes.size());
    bytes_ += from.bytes.size();
    it.bytes += from.bytes.size();
    for (const auto& open : {sender, receiver}) {
      if (--open->left > 0) continue;
      --under_way_;
      ended.push_back(std::move(open->done));
    }
  }
  for (const auto& done : ended) {
    if (done) done(nullptr);
  }
  return true;
}

void FakeNetwork::move_all() {
  while (move()) {
  }
}

void FakeNetwork::lose(std::size_t rank) {
  const auto error = network_error(text("rank ", rank, " is gone"));
  std::vector<Done> ended;
  {
    MutexLock lock(mutex_);
    lost_[rank] = true;
    ended = take_waiting(rank);
  }
  for (const auto& done : ended) done(error);
}

/// Every transfer that has a message to or from this rank, and what else it has.
std::vector<Done> FakeNetwork::take_waiting(std::size_t rank) {
  std::vector<Done> out;
  std::vector<std::shared_ptr<Open>> failed;
  for (std::size_t peer = 0; peer < ports_.size(); ++peer) {
    for (auto* it : {&lane(rank, peer), &lane(peer, rank)}) {
      for (auto* queue : {&it->sent, &it->wanted}) {
        for (const auto& [open, message] : *queue) failed.push_back(open);
      }
    }
  }
  for (auto& it : lanes_) {
    for (auto* queue : {&it.sent, &it.wanted}) {
      std::erase_if(*queue, [&](const auto& each) { return std::ranges::find(failed, each.first) != failed.end(); });
    }
  }
  for (const auto& open : failed) {
    if (!open->done) continue;
    --under_way_;
    out.push_back(std::exchange(open->done, nullptr));
  }
  return out;
}

std::size_t FakeNetwork::under_way() const {
  MutexLock lock(mutex_);
  return under_way_;
}

std::uint64_t FakeNetwork::bytes() const {
  MutexLock lock(mutex_);
  return bytes_;
}

std::uint64_t FakeNetwork::bytes(std::size_t from, std::size_t to) const {
  MutexLock lock(mutex_);
  return lanes_[from * ports_.size() + to].bytes;
}

}  // namespace spillway::network
