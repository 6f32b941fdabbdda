"""What a run can be told: the schema, the settings, and reading them from files and the command line."""
