"""A Hugging Face model as a stream of layers: built without weights, described to the engine, its own layers run one
after the other on views of the engine's memory. README.md has the list. It knows nothing of runs or directories."""
