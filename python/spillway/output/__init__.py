"""The output directory and the storage paths of a run, as files: what lies there, when it may be used again, how it is
written so that a crash leaves the old content or the new."""
