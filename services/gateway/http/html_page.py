"""Markdown of tables, headings and paragraphs as a page that loads nothing from anywhere."""

import re
from collections.abc import Iterable, Iterator
from html import escape

STYLE = """\
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { border: 1px solid #8886; padding: .2rem .6rem; text-align: left }
code { font-family: ui-monospace, monospace } :root { color-scheme: light dark }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
OWN_PAGE = "#"  # what links within it begin with; others, of a folder of pages, become plain text

_CODE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\[([^]]+)\]\(([^)]+)\)")


def html_page(title: str, markdown: str) -> str:
    """``markdown``: blocks with empty lines between them, of one kind each."""
    blocks = (block.splitlines() for block in re.split(r"\n\s*\n", markdown) if block.strip())
    content = "\n".join(_block(lines) for lines in blocks)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body>\n{content}\n</body></html>\n"
    )


def _block(lines: list[str]) -> str:
    first = lines[0]
    if first.startswith("#"):
        level, text = first.count("#", 0, 6), first.lstrip("# ")
        return f'<h{level} id="{_anchor(text)}">{_inline(text)}</h{level}>'
    if first.startswith("| "):
        return f"<table>{''.join(_rows(lines))}</table>"
    return f"<p>{_inline(' '.join(lines))}</p>"


def _rows(lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if number != 1:  # the rule below the head
            cell = "th" if number == 0 else "td"
            cells = (f"<{cell}>{_inline(each.strip())}</{cell}>" for each in line.strip().strip("|").split(" | "))
            yield f"<tr>{''.join(cells)}</tr>"


def _inline(text: str) -> str:
    text = _CODE.sub(r"<code>\1</code>", escape(text, quote=False))
    return _LINK.sub(lambda link: _link(link[1], link[2]), text)


def _link(text: str, target: str) -> str:
    return f'<a href="{escape(target)}">{text}</a>' if target.startswith(OWN_PAGE) else text


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9 _-]", "", text.lower()).replace(" ", "-")
