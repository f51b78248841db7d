"""HTML read back: its elements, attributes, text and tables."""

from html.parser import HTMLParser

VOID = {"meta", "input", "br", "hr", "link"}


class Outline(HTMLParser):
    """Checks that elements nest, and collects attributes, text by element, scripts and tables' rows."""

    def __init__(self, page):
        super().__init__()
        self.open, self.attributes, self.ids = [], [], []
        self.texts, self.tags, self.rows = {}, [], []
        self.feed(page)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data

    def values(self, name, tag=None):
        return [value for of, key, value in self.attributes if key == name and tag in (None, of)]
