"""What building the package adds: a description for a package index, and plotly.js alone.

The README links to files of the repository. In the description these links lead to `repository` in
pyproject.toml; without an address they are plain text, because an index has no such files.
"""

import gzip
import re
from importlib import resources
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

IMAGE, LINK = (
    re.compile(r"!\[[^]]*\]\((?!https?:)([^)]+)\)"),
    re.compile(r"\[([^]]*)\]\((?!https?:|#)([^)]+)\)"),
)


def description(readme: str, repository: str) -> str:
    """The README with absolute links, or without those that would lead nowhere."""
    if not repository:
        return LINK.sub(r"\1", IMAGE.sub("", readme))
    readme = IMAGE.sub(lambda m: m[0].replace(f"]({m[1]})", f"]({repository}/raw/main/{m[1]})"), readme)
    return LINK.sub(lambda m: f"[{m[1]}]({repository}/blob/main/{m[2]})", readme)


class Metadata(MetadataHookInterface):
    """Sets `readme` and the addresses that depend on the repository's."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling."""
        repository = self.config.get("repository", "")
        text = description((Path(self.root) / "README.md").read_text(encoding="utf-8"), repository)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = {"Paper": "https://arxiv.org/abs/2202.00063"}
        if repository:
            pages = {"Changelog": "CHANGELOG.md", "Documentation": "docs/index.md"}
            metadata["urls"] |= {name: f"{repository}/blob/main/{page}" for name, page in pages.items()}
            metadata["urls"] |= {"Repository": repository, "Issues": f"{repository}/issues"}


class PlotlyBundle(BuildHookInterface):
    """Takes the minified plotly.js, which the report embeds, from the Python package plotly."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it packs a wheel."""
        script = resources.files("plotly").joinpath("package_data/plotly.min.js").read_bytes()
        path = Path(self.root) / "src" / "briee" / "report" / "plotly.min.js.gz"
        path.write_bytes(gzip.compress(script, 9, mtime=0))
        if version != "editable":
            build_data["force_include"][str(path)] = "briee/report/plotly.min.js.gz"
