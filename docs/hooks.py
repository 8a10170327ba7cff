r"""What `make docs` adds to MkDocs: formulas as MathML, the modules of each package, and conf/.

Formulas become MathML at build time, so that pages need no script and no network. They are written
as GitHub reads them: $a = w \cdot h$ in a line, and fenced blocks of the language `math`.
"""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as etree
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

INLINE = r"(?<![\\$\w])\$(?![\s$])([^$\n]*[^$\s\\])\$(?![\w$])"


def mathml(formula: str, display: str) -> str:
    """MathML of a LaTeX formula; the LaTeX is kept as the text for screen readers."""
    made = convert(formula.strip(), display=display)
    made = re.sub(
        r"(<mi>(?:log|exp|diag)</mi>)(?!<mo stretchy)", r'\1<mspace width="0.17em"/>', made
    )
    prime = r"<msup>(<mi>\w</mi>)<mi>(&#x0203[23];)</mi></msup>"  # readable at full size alone
    made = re.sub(prime, r'<mrow>\1<mo lspace="0" rspace="0">\2</mo></mrow>', made)
    return made.replace("<math ", f'<math alttext="{html.escape(formula.strip())}" ', 1)


def fenced(source: str, language: str, *_: Any, **__: Any) -> str:
    """A fenced block of the language `math`, for pymdownx.superfences."""
    return f'<div class="formula">{mathml(source, "block")}</div>'


class InlineFormula(InlineProcessor):
    """$...$ within a line."""

    def handleMatch(  # type: ignore[override]
        self, match: Any, data: str
    ) -> tuple[Any, int, int]:
        placeholder = self.md.htmlStash.store(mathml(match[1], "inline"))
        element = etree.Element("span", {"class": "formula"})
        element.text = placeholder
        return element, match.start(0), match.end(0)


class Formulas(Extension):
    """Before code is found within a line: pattern 185, just below backticks at 190."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.inlinePatterns.register(InlineFormula(INLINE, md), "formula", 185)


def on_config(config: Any) -> Any:
    """Let MkDocs know of both kinds of formula."""
    config.markdown_extensions.append(Formulas())
    fence = {"name": "math", "class": "formula", "format": fenced}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Give pages of docs/api/ their docstrings, and docs/configuration.md the files of conf/."""
    root = Path(config.config_file_path).parent
    folder, _, name = page.file.src_uri.rpartition("/")
    if page.file.src_uri == "configuration.md":
        link = r"^- \[`(conf/\S+)`\]\(\S+\): (.+)$"
        return re.sub(link, lambda found: options(root, *found.groups()), markdown, flags=re.M)
    if folder != "api":
        return markdown
    files = sorted((root / "nws" / name.removesuffix(".md")).rglob("*.py"))
    modules = [file.relative_to(root).with_suffix("").parts for file in files]
    named = [".".join(parts) for parts in modules if parts[-1] != "__init__"]
    return "\n\n".join([markdown, *(f"::: {module}" for module in named)])


def options(root: Path, name: str, meaning: str) -> str:
    """Return a section with a file of conf/, or with all files of one of its folders."""
    path = root / name
    files = [path] if path.is_file() else sorted(path.rglob("*.yaml"))
    blocks = [
        f'```yaml title="{file.relative_to(root)}"\n{file.read_text().strip()}\n```'
        for file in files
    ]
    heading = f"\n### {path.stem}\n\n{meaning[0].upper()}{meaning[1:]}."
    return "\n\n".join([heading, *blocks])
