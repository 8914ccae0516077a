// How whoever called the engine ends a loop or a wait of it that takes long.
#pragma once

namespace spillway {

/// What a person may want to end: called now and then, at least every few milliseconds of work, on the thread that
/// called the engine and where an exception may leave. Asks what `on_interrupt` was given, at most fifty times a
/// second, and lets through what that throws. Never on a lane.
void throw_if_interrupted();

/// What is asked; null, as at first: nothing is. It throws to end what goes on. Of the whole process; before any other
/// call.
void on_interrupt(void (*ask)());

}  // namespace spillway
