#include "tests/stress/round.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>

#include "tests/stress/child.h"
#include "tests/stress/expectation.h"
#include "tests/stress/past.h"
#include "tests/stress/process.h"

namespace spillway::stress {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kMostLives = 14;
constexpr std::uint64_t kBeside = 1000;  ///< added to the number of a process that runs beside another
constexpr int kPatience = 12'000;        ///< looks of 10 ms at a process that tells nothing: longer than locks wait

class Round {
 public:
  Round(std::uint64_t seed, std::uint64_t round, Totals& totals)
      : seed_(seed),
        round_(round),
        totals_(totals),
        scenario_(draw_scenario(seed, round)),
        expectation_(scenario_, seed + round),
        random_(seed * 31 + round),
        past_(scenario_, seed + round) {
    auto name = ((scenario_.in_memory && fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path()) /
                 "spillway-stress-XXXXXX")
                    .string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no directory for the volumes");
    where_ = name;
    past_.begin(where_);
  }

  std::string run() {
    std::uint64_t number = 1;
    for (; number <= kMostLives && right(); ++number) {
      past_.meddle(totals_, [this](const std::string& what) {
        log(what);
        expectation_.distrust();
      });
      live(number, std::nullopt);
    }
    if (right()) live(number++, Opening::go_on);
    if (right() && keeps()) live(number++, Opening::verify);
    for (const auto& checkpoint : checkpoints(where_)) {
      if (right()) live(number++, Opening::read, checkpoint);
    }
    count("rounds");
    if (scenario_.swarm.lies()) count("rounds whose drives may lie");
    if (expectation_.older_steps() > 0) count("older steps found after lies", expectation_.older_steps());
    if (!right()) return report();
    fs::remove_all(where_);
    return {};
  }

 private:
  struct Working {
    Order order;
    Life life;
    std::unique_ptr<Child> child;
    std::optional<Clock::time_point> kill_at;
    std::string failure = {};    ///< in its own words
    bool is_distrusted = false;  ///< drives had lied when it began, or its own lie
  };

  [[nodiscard]] bool right() const { return wrong_.empty() && expectation_.wrong().empty(); }
  [[nodiscard]] bool keeps() const { return scenario_.durability != plan::Durability::none; }
  void fail(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }
  void count(const std::string& what, std::uint64_t times = 1) { totals_[what] += times; }

  // ---- one process, or two at once

  void live(std::uint64_t number, std::optional<Opening> undisturbed, std::optional<fs::path> checkpoint = {}) {
    std::vector<Working> all;
    all.push_back(start(choose(number, undisturbed, std::move(checkpoint))));
    const auto& life = all.front().life;
    const bool reads = life.opening == Opening::verify || life.opening == Opening::read;
    const bool alone = undisturbed || life.ending == Ending::power_cut || all.front().order.checkpoint || reads;
    if (!alone && scenario_.swarm.pairs && one_in(random_, 3)) {
      wait(all, static_cast<int>(random_() % 40));
      if (right()) all.push_back(start(choose(number + kBeside, {}, {})));
      count("two at once");
    }
    watch(all);
    if (right()) judge(all);
  }

  Order choose(std::uint64_t number, std::optional<Opening> undisturbed, std::optional<fs::path> checkpoint) {
    Order out{.seed = seed_, .round = round_, .life = number, .line = ++lines_, .where = where_};
    out.anew = expectation_.is_mixed() || begins_anew_;
    out.undisturbed = undisturbed;
    out.checkpoint = std::move(checkpoint);
    if (undisturbed || out.anew) return out;
    const bool beside = number > kBeside;
    const auto drawn = draw_life(scenario_, seed_, round_, number);
    const bool reads = drawn.opening == Opening::verify || drawn.opening == Opening::read;
    const auto there = checkpoints(where_);
    const bool takes = drawn.opening == Opening::back || (drawn.opening == Opening::read && one_in(random_, 2));
    if (takes && !there.empty() && !beside) out.checkpoint = there[random_() % there.size()];
    // Nothing can be read where nothing need be there, and without power all that works on the volumes is.
    if (reads && !out.checkpoint && (!expectation_.holds_something() || beside)) out.undisturbed = Opening::go_on;
    if (beside && drawn.ending == Ending::power_cut) out.undisturbed = Opening::go_on;
    return out;
  }

  Working start(const Order& order) {
    const auto life = order.draw(scenario_);
    if (life.outage) expectation_.forgive_damage();
    expectation_.begins(order.life, order.line, life.opening,
                        order.checkpoint ? place_of(*order.checkpoint) : std::nullopt);
    if (life.is_deceived()) {
      expectation_.deceive(order.life);
      expectation_.distrust();
    }
    log(text("process ", order.life, " ", life.words(), order.checkpoint ? text(", ", order.checkpoint->string()) : "",
             order.undisturbed ? ", undisturbed" : ""));
    Working out{order, life, std::make_unique<Child>(order.arguments(), pipe_, where_ / "errors"), {}};
    if (life.kill_after) {
      out.kill_at = Clock::now() + std::chrono::microseconds(static_cast<std::int64_t>(*life.kill_after * usual_));
    }
    out.is_distrusted = expectation_.is_distrusted();
    count(text("process ", name_of(life.opening)));
    if (life.outage) count("outages");
    return out;
  }

  /// From the name that a process gave it.
  static std::optional<Place> place_of(const fs::path& checkpoint) {
    unsigned long long line = 0, step = 0;
    const auto name = checkpoint.filename().string();
    if (std::sscanf(name.c_str(), "checkpoint-%llu-%llu", &line, &step) != 2) return std::nullopt;
    return Place{line, step};
  }

  void hear(std::vector<Working>& all, int milliseconds) {
    for (const auto& line : pipe_.lines(milliseconds)) {
      log(line);
      silent_ = 0;
      const auto message = parse_message(line);
      if (message.what == "failed") {
        for (auto& it : all) it.failure = it.order.life == message.process ? line : it.failure;
      }
      if (message.what == "commit") count("steps");
      if (message.what == "state") count("states compared");
      if (message.what == "damage") count("damage told at a start");
      if (message.what == "lied") {
        count(text(message.words.at(1), ' ', message.words.at(2)), message.number(0));
      }
      if (message.what == "opened") begins_anew_ = false;
      if (right()) expectation_.hears(message);
    }
  }

  void wait(std::vector<Working>& all, int milliseconds) {
    const auto end = Clock::now() + std::chrono::milliseconds(milliseconds);
    while (Clock::now() < end && right()) hear(all, 1);
  }

  void watch(std::vector<Working>& all) {
    const auto began = Clock::now();
    silent_ = 0;
    for (bool busy = true; busy;) {
      busy = false;
      const auto now = Clock::now();
      auto next = 10;
      for (auto& it : all) {
        if (it.child->ended()) continue;
        busy = true;
        if (!it.kill_at) continue;
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*it.kill_at - now).count();
        if (left > 0) {
          next = static_cast<int>(std::min<std::int64_t>(left, next));
        } else {
          it.child->kill(SIGKILL);
          it.kill_at.reset();
        }
      }
      hear(all, next);
      if (!right() || ++silent_ > kPatience) break;
    }
    if (silent_ > kPatience) fail("a process does nothing any more");
    for (int i = 0; i < 3; ++i) hear(all, 0);
    const double took = std::chrono::duration<double, std::micro>(Clock::now() - began).count();
    if (all.size() == 1 && !all.front().life.kill_after) usual_ = 0.8 * usual_ + 0.2 * std::min(took, 3e6);
  }

  void judge(const std::vector<Working>& all) {
    std::size_t refused = 0, undisturbed = 0;
    for (const auto& it : all) {
      const int status = it.child->status();
      expectation_.ended(it.order.life);
      const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      const bool to_be_killed = it.life.kill_after || it.life.ending == Ending::killed;
      if (killed) count("kills");
      if (WIFEXITED(status) && WEXITSTATUS(status) == kPowerCut) count("power cuts");
      if (!to_be_killed && !it.life.may_fail()) ++undisturbed;
      if (killed && to_be_killed) continue;
      if (!WIFEXITED(status)) {
        fail(text("process ", it.order.life, " ended by signal ", WTERMSIG(status)));
        continue;
      }
      judge_exit(it, WEXITSTATUS(status), all.size() > 1);
      if (WEXITSTATUS(status) == 2) ++refused;
    }
    const bool honest = std::ranges::none_of(all, &Working::is_distrusted) && !expectation_.is_distrusted();
    if (honest && refused == all.size() && undisturbed == all.size())
      fail("each of two processes was refused for the other");
  }

  void judge_exit(const Working& it, int status, bool beside_another) {
    const auto says = [&](const char* words) { return it.failure.find(words) != std::string::npos; };
    const bool cut = status == kPowerCut && it.life.ending == Ending::power_cut;
    if (status == 0 || cut) return;
    const bool unreadable =
        it.life.outage && it.life.outage->operation == sys::Operation::read && says("cannot be read");
    if (status == 1 && it.life.may_fail() && (says(" failed io ") || unreadable)) return count("failed for its drives");
    if ((it.is_distrusted || expectation_.is_distrusted()) && is_refusal_for_lies(it.failure)) {
      begins_anew_ = begins_anew_ || expectation_.is_distrusted();
      return count("refused or ended for lies");
    }
    const bool refused = says("is in use by another run") || says("was being begun anew");
    if (status == 2 && beside_another && refused) return count("refused beside another");
    fail(text("process ", it.order.life, " ended with status ", status, ": ", it.failure));
  }

  /// Whatever the drives say, the process says what is wrong, and is not at a loss itself.
  static bool is_refusal_for_lies(const std::string& failure) {
    return std::ranges::any_of(std::array{" failed corrupt ", " failed bad_input ", " failed io "},
                               [&](const char* words) { return failure.find(words) != std::string::npos; });
  }

  // ---- telling

  void log(const std::string& line) { log_ += line + '\n'; }

  [[nodiscard]] std::string report() const {
    std::ifstream in(where_ / "errors");
    const std::string errors((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    return text("round ", round_, " of seed ", seed_, ": ", wrong_.empty() ? expectation_.wrong() : wrong_, "\n",
                scenario_.words(), "\n", log_, errors, "what is left lies in ", where_.string(), "\nstress --seed ",
                seed_, " --round ", round_, " does it again");
  }

  const std::uint64_t seed_, round_;
  Totals& totals_;
  const Scenario scenario_;
  Expectation expectation_;
  Random random_;
  Past past_;
  fs::path where_;
  bool begins_anew_ = false;  ///< a process was refused for what drives did before: the next one begins anew
  Pipe pipe_;
  std::string log_, wrong_;
  std::uint64_t lines_ = 0;
  double usual_ = 150'000;  ///< microseconds that a life takes
  int silent_ = 0;
};

}  // namespace

std::string run_round(std::uint64_t seed, std::uint64_t round, Totals& totals) {
  return Round(seed, round, totals).run();
}

}  // namespace spillway::stress
