"""From files and datasets to batches: rows (`sources`), what their columns mean (`columns`), their tokens and labels
(`encode`, `chat`), held compactly and packed (`dataset`, `preferences`), and the order in which steps take them."""
