"""runtimes: ModelRuntime and its plugins. torch lives here only."""
