"""The page: a head, each run in turn, and the look of it all; one file, no script, no network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from outsize.files.ownership import MADE_BY
from outsize.report.gather import Story, gather
from outsize.report.markup import Markup, Part, tag
from outsize.report.parts import Chapter, drawn_from
from outsize.report.sections import show_run, show_runs

_LOOK = """
:root{--ink:#1d2730;--soft:#5b6772;--line:#dfe4e8;--pale:#f5f7f9;--accent:#0b6e8f}
*{box-sizing:border-box}
body{margin:0;background:#fff;color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
 overflow-wrap:anywhere}
header{background:var(--pale);border-bottom:3px solid var(--accent);padding:28px 0 20px}
main>div>.note:first-child{margin-top:20px}
header>div,main{max-width:1100px;margin:0 auto;padding:0 24px}
h1{margin:0 0 4px;font-size:1.9rem;line-height:1.2}
h2{margin:40px 0 12px;font-size:1.5rem;border-bottom:1px solid var(--line);padding-bottom:6px}
h3{margin:36px 0 8px;font-size:1.22rem}
h4{margin:22px 0 8px;font-size:1rem}
p{margin:6px 0 12px;max-width:75ch}
.note,header p{color:var(--soft);font-size:.92rem;margin:4px 0 10px}
code,pre{font:.86rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
pre{background:var(--pale);padding:14px;overflow-x:auto;white-space:pre;overflow-wrap:normal}
nav a{margin-right:14px}a{color:var(--accent)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:16px 0}
.cards div{background:var(--pale);border-left:4px solid var(--accent);padding:12px 14px}
.cards b{display:block;font-size:1.55rem;line-height:1.2;font-variant-numeric:tabular-nums}
.cards span{display:block;color:var(--soft);font-size:.86rem;line-height:1.3;margin-top:3px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:18px 28px;max-width:100%}
.charts>*{min-width:0}.charts>:only-child{max-width:520px}
.boxes{display:flex;flex-wrap:wrap;gap:0 36px}.boxes>*{min-width:0;max-width:100%}
.chart{width:440px;max-width:100%}.chart+.note{max-width:440px}
figure{margin:0;min-width:0}
svg{display:block;width:100%;height:auto}
svg text{font-size:13px;fill:var(--soft);font-family:inherit}
.scroll{overflow-x:auto;max-width:100%;margin:8px 0 14px;
 background:linear-gradient(90deg,transparent,#fff 0) right/26px 100% no-repeat local,
 linear-gradient(270deg,rgba(29,39,48,.2),transparent) right/12px 100% no-repeat scroll}
table{border-collapse:separate;border-spacing:0;font-size:.92rem;font-variant-numeric:tabular-nums}
th,td{padding:6px 9px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
thead th{color:var(--soft);font-weight:600;border-bottom:2px solid var(--line)}
th:first-child{text-align:left;font-weight:500;padding-left:0}
td.name,thead th.name{text-align:left}
table.words td{text-align:left;white-space:normal;overflow-wrap:normal}
table.words th{text-align:left}table.words th:first-child{white-space:normal;min-width:6.5em}
table.heat td{text-align:center;border:2px solid #fff;min-width:50px}
table.heat td,table.heat thead th+th{padding:6px 5px;text-align:center}
tbody th:first-child,thead th:first-child{position:sticky;left:0;background:#fff}
td.dark{color:#fff}
.swatch,.legend span{display:inline-block;width:.85em;height:.85em;margin-right:.5em;border-radius:2px;
 vertical-align:-.06em;box-shadow:inset 0 0 0 1px rgba(0,0,0,.18)}
.legend{list-style:none;margin:8px 0 14px;padding:0;display:flex;flex-wrap:wrap;gap:4px 18px;font-size:.9rem}
.times{display:flex;height:22px;border-radius:3px;overflow:hidden;background:var(--line)}
.times span{display:block;height:100%}
.place{margin:0 0 18px}.place .note{max-width:none}
.panels{display:grid;grid-template-columns:repeat(4,1fr);gap:8px}
.panels img{display:block;width:100%;height:auto;image-rendering:pixelated;border:1px solid var(--line)}
figcaption{color:var(--soft);font-size:.82rem;text-align:center}
dl{display:grid;grid-template-columns:max-content 1fr;gap:3px 18px;margin:8px 0 12px}
dt{color:var(--soft)}dd{margin:0;min-width:0}
details{margin:18px 0}summary{cursor:pointer;color:var(--accent);font-weight:600}
footer{color:var(--soft);font-size:.86rem;margin:48px 0 32px;border-top:1px solid var(--line);padding-top:12px}
@media(max-width:600px){
 header>div,main{padding:0 16px}h1{font-size:1.5rem}
 .panels{grid-template-columns:repeat(2,1fr)}
 .cards{grid-template-columns:repeat(2,1fr)}.cards b{font-size:1.25rem}
 th,td{padding:5px 7px}table{font-size:.84rem}
 dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:6px}
 svg text{font-size:17px}
}
"""


def make_page(runs: Sequence[Path], chapter_of: Callable[[str], Chapter], *, version: str, when: str) -> str:
    """Return the report of one or several runs as HTML; each task has a chapter of its own."""
    stories = _distinct([gather(path) for path in runs])
    several = len(stories) > 1
    links = [tag("a", story.name, href=f"#run-{number}") for number, story in enumerate(stories)]
    chapters = [chapter_of(story.job["task"]) for story in stories]
    bodies = [
        show_run(story, chapter, number, several)
        for number, (story, chapter) in enumerate(zip(stories, chapters, strict=True))
    ]
    beside = drawn_from(stories[0].run.path, "evaluate", show_runs, stories, chapters) if several else None
    return lay_out(
        " and ".join(story.name for story in stories),
        f"Report of {when} by outsize {version}",
        [beside, *bodies],
        footer="Everything on this page comes from the files of the run folder; it needs no network.",
        links=links if several else (),
        kind="report",
    )


def lay_out(
    title: str,
    note: str,
    parts: Sequence[Part | Iterable[Part]],
    *,
    footer: str,
    links: Sequence[Markup] = (),
    kind: str = "comparison",
) -> str:
    """Return a page with a head, parts one below the other and a foot."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="generator", content=MADE_BY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title}: outsize {kind}"),
        tag("style", Markup(_LOOK)),
    )
    nav = tag("nav", links) if links else None
    header = tag("header", tag("div", tag("h1", title), tag("p", note), nav))
    body = tag("body", header, tag("main", *parts, tag("footer", footer)))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _distinct(stories: Sequence[Story]) -> list[Story]:
    """Name runs by their whole path where the names of their folders are equal."""
    names = [story.name for story in stories]
    return [
        replace(story, name=str(story.run.path)) if names.count(story.name) > 1 else story
        for story in stories
    ]
