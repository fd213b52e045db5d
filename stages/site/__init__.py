"""Documentation as a site, which `make site` writes to site/.

The site's pages are the repository's Markdown files, at the same paths, so that links between them
work in both places. Pages about tables, source files and the gallery are generated.
"""
