// Signals, for Python: what its handlers raise ends the engine's long waits, a second signal ends the process, and so
// does a crash for want of memory, in words.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "module.h"
#include "spillway/base/interrupt.h"
#include "spillway/sys/out_of_memory_exit.h"
#include "spillway/sys/second_signal.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

/// Runs the handlers of signals that have come, on the main thread alone; what one raises goes through the engine.
void ask_python() {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

/// Ends when Python says so, not when it collects the object.
struct PySecondSignal {
  PySecondSignal(const std::vector<int>& signals, const std::string& words) : watch(std::in_place, signals, words) {}
  void say(const std::string& words) {
    if (watch) watch->say(words);
  }
  void close() { watch.reset(); }

  std::optional<spillway::sys::SecondSignal> watch;
};

struct PyOutOfMemoryExit {
  PyOutOfMemoryExit(const std::string& words, int code) : watch(std::in_place, words, code) {}
  void close() { watch.reset(); }

  std::optional<spillway::sys::OutOfMemoryExit> watch;
};

}  // namespace

void bind_interruption(nb::module_& module) {
  spillway::on_interrupt(ask_python);
  nb::class_<PySecondSignal>(module, "SecondSignal",
                             "Until it is closed the second of these signals ends the process at once, whatever it "
                             "waits for; the first goes to the handler that was there.")
      .def(nb::init<const std::vector<int>&, const std::string&>(), "signals"_a, "words"_a,
           "`words` go to standard error then.")
      .def("say", &PySecondSignal::say, "words"_a)
      .def("close", &PySecondSignal::close, "Puts the handlers back. Once or more.");
  nb::class_<PyOutOfMemoryExit>(module, "OutOfMemoryExit",
                                "Until it is closed a crash that finds no memory to be had ends the process with "
                                "words and an exit code.")
      .def(nb::init<const std::string&, int>(), "words"_a, "code"_a)
      .def("close", &PyOutOfMemoryExit::close, "Puts the handlers back. Once or more.");
}
