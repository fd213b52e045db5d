"""Give mkdocs the pages of this project. mkdocs calls these functions."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

from stages.site import pages


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = pages.navigation()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    texts = pages.pages()
    menu = pages.listed(pages.navigation())
    for page, text in texts.items():
        level = InclusionLevel.INCLUDED if page in menu else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, page, content=text, inclusion=level))
    for path in pages.served(texts):
        files.append(File.generated(config, path, abs_src_path=str(pages.ROOT / path)))
    return files
