"""Tests of the project. They read YAML with libyaml, ten times as fast as PyYAML's own reader."""

import yaml

yaml.SafeLoader = yaml.CSafeLoader  # type: ignore[assignment, misc]
