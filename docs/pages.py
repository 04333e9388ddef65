"""Hooks of MkDocs: some files outside of `docs/` become pages, and links that leave the site become text.

So the same Markdown works in the repository and on the site, and a link to a file that is gone fails both.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "eval/MEASURED.md": "measured.md",
}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie outside ``docs/``."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at the site's pages; a file that is no page is named instead of linked."""
    name = page.file.src_uri
    folder = {page: str(Path(source).parent) for source, page in PAGES.items()}.get(name, "docs")

    def rewritten(link: re.Match[str]) -> str:
        text, target, anchor = link.groups(default="")
        path = os.path.normpath(Path(folder, target))
        if not (ROOT / path).exists():
            raise PluginError(f"{name} links to {path}, which does not exist")
        if path in PAGES:
            return f"[{text}]({PAGES[path]}{anchor})"
        if Path(path).parent == Path("docs"):
            return f"[{text}]({Path(path).name}{anchor})"
        return f"`{path}`" if text == path else f"{text} (`{path}`)"

    return LINK.sub(rewritten, markdown)
