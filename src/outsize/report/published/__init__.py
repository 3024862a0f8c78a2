"""Tables that others published, as data with their sources.

NAME.toml   title, source, machine, what is assumed and why
            [[rows]]        one line of the table each, units in the names
     └> published(NAME) -> Publication
"""

from outsize.report.published.read import NAMES, Publication, published

__all__ = ["NAMES", "Publication", "published"]
