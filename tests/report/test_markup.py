"""What goes into the page is escaped, unless it is markup already."""

from __future__ import annotations

from outsize.report.markup import Markup, join, pairs, table, tag


def test_texts_and_attributes_are_escaped() -> None:
    assert tag("p", "<b> & \"c\" 'd'", title='"><x') == (
        '<p title="&quot;&gt;&lt;x">&lt;b&gt; &amp; &quot;c&quot; &#x27;d&#x27;</p>'
    )


def test_markup_stays_markup() -> None:
    inner = tag("b", "x<y")
    assert tag("p", inner, None, [" and ", inner, 3]) == "<p><b>x&lt;y</b> and <b>x&lt;y</b>3</p>"
    assert join("<", Markup("<br>")) == "&lt;<br>"


def test_names_of_attributes() -> None:
    assert tag("p", class_="a", aria_label="b", hidden=None) == '<p class="a" aria-label="b"></p>'
    assert tag("img", src="x") == '<img src="x"/>'


def test_tables_name_their_rows() -> None:
    found = table(("class", "IoU"), [("<a>", 0.5)])
    assert '<th scope="row">&lt;a&gt;</th><td>0.5</td>' in found
    assert found.startswith('<div class="scroll">')


def test_unknown_values_are_left_out() -> None:
    assert pairs([("a", 1), ("b", None)]) == "<dl><dt>a</dt><dd>1</dd></dl>"
