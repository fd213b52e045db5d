"""The types of params.yaml, split so that a stage depends only on the sections it reads."""
