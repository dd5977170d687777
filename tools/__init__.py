"""Programs for those who work on spdnn: they build docs and study scaling."""
