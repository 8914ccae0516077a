#include "tests/stress/process.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>

#include "spillway/engine_testing.h"
#include "spillway/execute/journal_objects.h"
#include "spillway/storage/superblock.h"
#include "spillway/storage/volume.h"
#include "spillway/sys/power_cut.h"
#include "tests/contract/toy.h"
#include "tests/stress/message.h"
#include "tests/stress/spoiled_ring.h"

namespace spillway::stress {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kKeptCheckpoints = 2;

int status_of(ErrorCode code) {
  if (code == ErrorCode::bad_input || code == ErrorCode::unsupported) return 2;
  return code == ErrorCode::does_not_fit ? 3 : 1;
}

const char* name_of(ErrorCode code) {
  static constexpr const char* kNames[] = {"bad_input", "does_not_fit", "io", "corrupt", "unsupported", "internal"};
  return kNames[static_cast<std::size_t>(code)];
}

class Process {
 public:
  explicit Process(const Order& order)
      : order_(order),
        scenario_(draw_scenario(order.seed, order.round)),
        life_(order.draw(scenario_)),
        description_(plan::test::describe(scenario_.shape)),
        settings_(draw_settings(scenario_, life_, order.where)),
        random_(life_.seed) {
    settings_.storage.overwrite = life_.opening == Opening::anew;
    const sys::RingFactory ring = life_.threads_move ? sys::make_thread_ring : sys::make_ring;
    if (life_.ending == Ending::power_cut) {
      power_ = std::make_shared<sys::PowerCut>();
      power_->cut_after(life_.event);
      if (life_.first_false_flush) power_->lie_from(*life_.first_false_flush);
    }
    const auto drive = power_ ? sys::power_cut(sys::make_thread_ring, power_) : ring;
    use_ring(settings_, spoiled(deceived(drive, life_, part_bounds(), lies_), life_));
  }

  int run() {
    try {
      if (life_.opening == Opening::verify) {
        verify();
      } else if (life_.opening == Opening::read) {
        read();
      } else {
        train();
      }
    } catch (const Error& error) {
      tell_lies();
      if (is_cut()) leave_what_the_cut_left();
      say("failed", name_of(error.code()), error.what());
      return status_of(error.code());
    }
    tell_lies();
    if (is_cut()) leave_what_the_cut_left();
    return 0;
  }

 private:
  template <class... Words>
  void say(const Words&... words) const {
    tell(order_.life, words...);
  }

  /// How often its drives lied since it said so last.
  void tell_lies() {
    static constexpr const char* kLies[] = {"lost", "misdirected", "late", "stale"};
    if (life_.deceit && lies_->count() > lie_count_) {
      const bool reads = life_.deceit->operation == sys::Operation::read;
      say("lied", lies_->count() - lie_count_, kLies[static_cast<std::size_t>(life_.deceit->lie)],
          reads ? "reads" : "writes");
      lie_count_ = lies_->count();
    }
    if (power_ && power_->false_syncs() > false_sync_count_) {
      say("lied", power_->false_syncs() - false_sync_count_, "false", "flushes");
      false_sync_count_ = power_->false_syncs();
    }
  }

  [[nodiscard]] PartBounds part_bounds() const {
    const journal::MetadataLayout layout(execute::journal_spec(description_, description_.layout(),
                                                               plan::Durability::step, settings_.run, scenario_.paths));
    return {storage::kSuperblockExtent + layout.commit(0, layout.commit_slots()),
            storage::kSuperblockExtent + layout.bytes()};
  }

  /// An engine that is given more memory until the plan fits.
  [[nodiscard]] std::unique_ptr<Engine> make() {
    for (auto& limit = settings_.budget.dram;; limit += limit / 16) {
      try {
        return std::make_unique<Engine>(description_, settings_);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::does_not_fit || limit > 4 * GiB) throw;
        say("more", error.what());
      }
    }
  }

  // ---- training

  void train() {
    auto made = make();
    auto& engine = *made;
    // Where the power was cut nothing is put in order when a process ends.
    const auto owner = power_ ? made.release() : nullptr;
    open(engine);
    if (engine.memory().size() > settings_.budget.dram && settings_.budget.nodes.empty()) {
      say("wrong", "the arena is larger than the limit");
    }
    test::Toy toy(engine, description_, description_.micro_batches);
    const auto last = std::min(scenario_.steps, step_ + life_.steps);
    while (step_ < last) one_step(engine, toy);
    end(engine);
    delete owner;
  }

  void open(Engine& engine) {
    const auto found = engine.start({.reopen = life_.opening != Opening::anew && keeps(),
                                     .checkpoint = order_.checkpoint,
                                     .pinned = [this] { return pinned(); }});
    if (found.has_step) {
      step_ = found.step;
      say("opened", found.payload);
      if (!found.damage.empty()) say("damage", found.damage.size(), found.damage.front());
    } else {
      say("opened", "none");
      if (life_.opening == Opening::anew) {
        for (const auto& it : checkpoints(order_.where)) fs::remove_all(it);
      }
      test::Toy(engine, description_, description_.micro_batches).fill();
      commit(engine);
    }
    if (one_in(random_, 2)) look(engine);
  }

  [[nodiscard]] std::vector<fs::path> pinned() const {
    const bool there = keeps() && life_.opening != Opening::anew;
    return there ? checkpoints(order_.where) : std::vector<fs::path>();
  }
  [[nodiscard]] bool keeps() const { return scenario_.durability != plan::Durability::none; }
  [[nodiscard]] bool keeps_steps() const { return scenario_.durability == plan::Durability::step; }

  void commit(Engine& engine) const {
    say("commit", step_);
    engine.commit(text(order_.line, ' ', step_));
  }

  void one_step(Engine& engine, test::Toy& toy) {
    if (one_in(random_, life_.evaluate_one_in)) toy.step(random_() % 1000, false);
    take(toy, order_.line, step_ + 1);
    ++step_;
    commit(engine);
    tell_lies();
    if (keeps_steps() && step_ > first_ + 1) say("durable", step_ - 1);
    if (first_ == 0) first_ = step_ - 1;
    if (one_in(random_, life_.look_one_in)) look(engine);
    if (one_in(random_, life_.flush_one_in)) flush(engine);
    if (keeps() && one_in(random_, life_.save_one_in)) save(engine);
  }

  /// Updates during backward are told the truth, something else, or nothing.
  void take(test::Toy& toy, std::uint64_t line, std::uint64_t step) {
    const auto draw = draw_step(scenario_, order_.seed + order_.round, line, step);
    toy.poison(draw.poisoned);
    toy.update = draw.update;
    toy.expected = draw.update;
    if (one_in(random_, 4)) toy.expected->learning_rate *= 2;
    if (one_in(random_, 6)) toy.expected.reset();
    toy.step(draw.inputs);
  }

  void look(Engine& engine) const {
    say("state", step_, hash_of(test::Toy(engine, description_, description_.micro_batches).masters()));
  }

  void flush(Engine& engine) const {
    engine.flush();
    if (keeps_steps()) say("durable", step_);
  }

  void save(Engine& engine) {
    const auto place = order_.where / text("saving-", order_.life);
    fs::remove_all(place);
    fs::create_directory(place);
    say("saving", step_);
    engine.save_manifest(place);
    const auto whole = order_.where / text("checkpoint-", order_.line, "-", step_);
    if (fs::exists(whole)) {  // saved twice: the one that is replaced holds its places until its name is gone
      forget(engine, whole);
    }
    fs::rename(place, whole);
    say("saved", step_);
    const auto all = checkpoints(order_.where);
    if (all.size() > kKeptCheckpoints) forget(engine, all.front());
  }

  static void forget(Engine& engine, const fs::path& checkpoint) {
    std::ifstream in(checkpoint / "manifest.bin", std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    fs::remove_all(checkpoint);
    engine.release_manifest(std::as_bytes(std::span(bytes)));
  }

  void end(Engine& engine) {
    look(engine);
    flush(engine);
    if (!keeps() && one_in(random_, 2)) {
      leave(engine);
      look(engine);
    }
    say("closing");
    engine.close();
    say("closed");
  }

  /// What was reached stays on the paths although the run is not durable; it is taken back, as where a save succeeds.
  void leave(Engine& engine) const {
    try {
      if (engine.leave(text(order_.line, ' ', step_)).empty()) say("wrong", "nothing was left");
      engine.take_back();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::bad_input && error.code() != ErrorCode::does_not_fit) throw;
    }
  }

  // ---- reading

  void verify() {
    const auto found = make()->verify(checkpoints(order_.where));
    say("verified", found.step ? text(*found.step) : "none", found.damage.size(),
        found.damage.empty() ? "" : found.damage.front().path + ": " + found.damage.front().what);
  }

  /// What was read goes on in memory, so that moments are compared, too.
  void read() {
    const auto to = order_.where / text("read-", order_.life);
    fs::remove_all(to);
    fs::create_directory(to);
    Recovery found;
    {
      const auto reader = make();
      found = reader->read_back(order_.checkpoint);
      say("read", found.payload);
      if (one_in(random_, 2)) look_at_read(*reader, found.step);
      reader->save_weights(to, one_in(random_, 2) ? 1 * GiB : 64 * KiB);
      reader->save_state(to / "state");
      reader->close();
    }
    Settings plain;
    plain.budget.dram = 4 * GiB;
    Engine engine(description_, plain);
    engine.start();
    engine.load_state(to / "state", to, found.updates);
    step_ = found.step;
    look(engine);
    test::Toy toy(engine, description_, description_.micro_batches);
    for (int i = 0; i < 2; ++i) {
      take(toy, order_.line, ++step_);
      look(engine);
    }
    fs::remove_all(to);
  }

  void look_at_read(Engine& engine, std::uint64_t step) const {
    say("state", step, hash_of(test::Toy(engine, description_, description_.micro_batches).masters()));
  }

  // ---- the power

  [[nodiscard]] bool is_cut() const { return power_ && power_->is_cut(); }

  [[noreturn]] void leave_what_the_cut_left() {
    const auto kind = random_() % 3;
    const auto seed = kind == 0 ? sys::PowerCut::kNothing : kind == 1 ? sys::PowerCut::kEverything : random_();
    for (const auto& place : settings_.storage.places) {
      const auto volume = place.path / storage::kVolumeName;
      sys::SparseBytes bytes;
      try {
        bytes = power_->image(volume, seed);
      } catch (const Error&) {
        continue;  // no ring had been made for it
      }
      const auto left = place.path / "left";
      bytes.save(left);
      fs::rename(left, volume);
    }
    say("cut");
    ::_exit(kPowerCut);
  }

  const Order order_;
  const Scenario scenario_;
  const Life life_;
  const plan::Description description_;
  Settings settings_;
  Random random_;
  std::shared_ptr<sys::PowerCut> power_;
  const std::shared_ptr<sys::Lies> lies_ = std::make_shared<sys::Lies>();
  std::uint64_t lie_count_ = 0, false_sync_count_ = 0;
  std::uint64_t step_ = 0;
  std::uint64_t first_ = 0;
};

}  // namespace

std::vector<fs::path> checkpoints(const fs::path& where) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, fs::path> out;
  for (const auto& entry : fs::directory_iterator(where)) {
    unsigned long long line = 0, step = 0;
    const auto name = entry.path().filename().string();
    if (std::sscanf(name.c_str(), "checkpoint-%llu-%llu", &line, &step) == 2) out[{line, step}] = entry.path();
  }
  std::vector<fs::path> list;
  for (const auto& [which, path] : out) list.push_back(path);
  return list;
}

std::vector<std::string> Order::arguments() const {
  return {"--life",
          std::to_string(seed),
          std::to_string(round),
          std::to_string(life),
          std::to_string(line),
          where.string(),
          checkpoint ? checkpoint->string() : "-",
          anew ? "anew" : "-",
          undisturbed ? std::to_string(static_cast<int>(*undisturbed)) : "-"};
}

Order parse_order(const std::vector<std::string>& arguments) {
  Order out;
  out.seed = std::stoull(arguments.at(1));
  out.round = std::stoull(arguments.at(2));
  out.life = std::stoull(arguments.at(3));
  out.line = std::stoull(arguments.at(4));
  out.where = arguments.at(5);
  if (arguments.at(6) != "-") out.checkpoint = arguments.at(6);
  out.anew = arguments.at(7) == "anew";
  if (arguments.at(8) != "-") out.undisturbed = static_cast<Opening>(std::stoi(arguments.at(8)));
  return out;
}

Life Order::draw(const Scenario& scenario) const {
  auto out = draw_life(scenario, seed, round, life);
  if (undisturbed) {
    out.opening = *undisturbed;
    out.ending = Ending::closed;
    out.kill_after.reset();
    out.outage.reset();
    out.deceit.reset();
    out.first_false_flush.reset();
    out.steps = scenario.steps;
  }
  if (anew) out.opening = Opening::anew;
  const bool keeps = scenario.durability != plan::Durability::none;
  if (out.opening == Opening::back && !checkpoint) out.opening = Opening::go_on;
  if (!keeps && out.opening != Opening::anew) out.opening = Opening::go_on;
  const bool reads = out.opening == Opening::verify || out.opening == Opening::read;
  if (reads) {
    out.ending = out.ending == Ending::power_cut ? Ending::closed : out.ending;
    out.outage.reset();
    out.first_false_flush.reset();
  }
  return out;
}

int live(const Order& order) {
  return Process(order).run();
}

}  // namespace spillway::stress
