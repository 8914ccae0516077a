// Signals, for Python: what its handlers raise ends the engine's long waits, and a second signal ends the process.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "module.h"
#include "spillway/base/interrupt.h"
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
}
