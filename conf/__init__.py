"""conf: the schema of swarmd.toml, its defaults and its loading."""
