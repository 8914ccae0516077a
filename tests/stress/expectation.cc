#include "tests/stress/expectation.h"

#include <algorithm>
#include <iterator>

namespace spillway::stress {
namespace {

/// Whether it was refused the first of its volumes, so that it has changed none.
bool was_locked_out(const Message& failed) {
  static const std::vector<std::string> kInUse = {"is", "in", "use"};
  return failed.words.size() > 1 && failed.words[1].ends_with("/0/spillway.volume") &&
         !std::ranges::search(failed.words, kInUse).empty();
}

}  // namespace

void Expectation::begins(std::uint64_t process, std::uint64_t line, Opening opening, std::optional<Place> checkpoint) {
  auto& known = processes_[process] = {line, opening, checkpoint};
  if (opening == Opening::anew) {
    nothing_ = true;
    std::ranges::copy_if(beginning_, std::inserter(known.before, known.before.end()),
                         [&](std::uint64_t it) { return processes_.at(it).ended; });
    beginning_.insert(process);
  }
  if (opening == Opening::back) steps_.push_back({checkpoint->line, checkpoint->step, checkpoint->step});
}

void Expectation::hears(const Message& message) {
  auto& process = processes_.at(message.process);
  const auto& what = message.what;
  const auto place = [&]() -> std::optional<Place> {
    return message.words.at(0) == "none" ? std::nullopt : std::optional(Place{message.number(0), message.number(1)});
  };
  const bool changes = what == "commit" || what == "durable" || what == "saving" || what == "saved";
  if (changes && owner_ != message.process) return fail("two processes work on the same volumes");
  if (what == "opened") {
    owner_ = message.process;
    opened(process, place());
  } else if (what == "commit") {
    commits(message.process, message.number(0));
  } else if (what == "durable") {
    durable(process, message.number(0));
  } else if (what == "saving" || what == "saved") {
    saves(process, message.number(0), what == "saved");
  } else if (what == "state") {
    look(process, message.number(0), message.number(1));
  } else if (what == "read") {
    const auto found = place();
    const bool known = is_allowed(*found) || (is_distrusted_ && is_known(*found));
    if (process.checkpoint ? found != process.checkpoint : !known) {
      return fail(text("step ", found->step, " of line ", found->line, " was read; allowed are ", allowed()));
    }
    truth_.begin(process.line, *found);
  } else if (what == "verified") {
    if (message.words.at(1) != "0" && !damage_forgiven_) fail("verify reports damage");
  } else if (what == "failed") {
    if (was_locked_out(message)) beginning_.erase(message.process);
  } else if (what == "wrong") {
    fail("a process says so");
  }
}

std::string Expectation::allowed() const {
  std::string out = nothing_ ? "nothing" : "";
  for (const auto& it : steps_) {
    out += text(out.empty() ? "" : ", ", "steps ", it.from, " to ", it.to, " of line ", it.line);
  }
  return out;
}

bool Expectation::is_allowed(Place place) const {
  return std::ranges::any_of(
      steps_, [&](const Range& it) { return it.line == place.line && it.from <= place.step && place.step <= it.to; });
}

bool Expectation::is_known(Place place) const {
  const auto at = committed_.find(place.line);
  return at != committed_.end() && place.step <= at->second;
}

void Expectation::opened(const Known& process, std::optional<Place> found) {
  if (process.opening == Opening::back && found != process.checkpoint) {
    return fail("another step was found than that of the checkpoint");
  }
  const bool anew = process.opening == Opening::anew;
  if (anew && found) return fail("a run that begins anew has found a step");
  const bool expected = found ? is_allowed(*found) : nothing_ || anew;
  if (!expected && is_distrusted_ && (!found || is_known(*found))) {
    ++older_steps_;
  } else if (!expected) {
    return fail(text(found ? text("step ", found->step, " of line ", found->line, " was found") : "nothing was found",
                     "; allowed are ", allowed()));
  }
  truth_.begin(process.line, found.value_or(Place{}));
  nothing_ = !found;
  if (anew) is_distrusted_ = false;
  if (process.is_deceived) distrust();
  steps_.clear();
  if (found) steps_.push_back({found->line, found->step, found->step});
}

/// What began anew has removed the checkpoints of before by its first commit, and those that began before it and died
/// have left nothing that it has not replaced. One that works beside it may still come after it.
void Expectation::commits(std::uint64_t number, std::uint64_t step) {
  const auto& process = processes_.at(number);
  committed_[process.line] = std::max(committed_[process.line], step);
  if (process.opening == Opening::anew) {
    std::erase_if(beginning_, [&](std::uint64_t it) { return it == number || process.before.contains(it); });
  }
  if (scenario_.durability != plan::Durability::step) return;
  for (auto& it : steps_) {
    if (it.line == process.line && step == it.to + 1) {
      it.to = step;
      return;
    }
  }
  steps_.push_back({process.line, step, step});
}

void Expectation::durable(const Known& process, std::uint64_t step) {
  std::uint64_t to = step;
  for (const auto& it : steps_) to = it.line == process.line ? std::max(to, it.to) : to;
  nothing_ = false;
  steps_ = {{process.line, step, to}};
  const auto from = truth_.at({process.line, step});
  if (from.line != process.line) steps_.push_back({from.line, step, step});
}

void Expectation::saves(const Known& process, std::uint64_t step, bool done) {
  const auto from = truth_.at({process.line, step});
  if (!done) {
    if (scenario_.durability == plan::Durability::checkpoint) steps_.push_back({from.line, step, step});
    return;
  }
  durable(process, step);
}

void Expectation::look(const Known& process, std::uint64_t step, std::uint64_t hash) {
  if (!truth_.knows(process.line)) return fail("a state before the volumes were opened");
  const auto expected = truth_.hash({process.line, step});
  if (hash != expected) fail(text("the weights after step ", step, " of line ", process.line, " have other bits"));
}

}  // namespace spillway::stress
