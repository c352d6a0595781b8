"""MkDocs hook: a link to a file outside docs/, such as an example, leads to that file in the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Point links such as `[text](../examples/x.py)` to the repository. Without `repo_url` only the text remains."""

    def replace(link: re.Match[str]) -> str:
        text, path = link.groups()
        if not (_ROOT / path).exists():
            raise FileNotFoundError(f"{page.file.src_path} links to ../{path}")
        return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path})" if config.repo_url else text

    return _OUTSIDE.sub(replace, markdown)
