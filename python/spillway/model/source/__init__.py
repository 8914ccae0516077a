"""Models as they are given: directories, hub ids, configurations, somebody's own modules."""
