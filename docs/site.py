"""Build the documentation site from docs/, which also reads well in the repository: `make docs`.

    python docs/site.py             build it
    python docs/site.py notebooks   run the notebooks and keep what they print and draw

Pages link to files of the repository, `../results/fig1b/runs.csv` say. The site is self-contained, so such a
file goes with it: source code as a page with colours, notebooks as pages, everything else as it is. This
program checks the files that links and images name, Zensical the headings.
"""

import ast
import base64
import contextlib
import io
import json
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
DOCS, STAGED = ROOT / "docs", ROOT / "build" / "docs"
WHOLE_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "README.md": "index.md"}
"""Pages outside docs/; the site begins with docs/index.md instead of the README."""
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml"}
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")


def stage() -> list[str]:
    """Copy docs/ to build/docs with links that stay inside; returns the names of the pages."""
    shutil.rmtree(STAGED, ignore_errors=True)
    shutil.copytree(DOCS, STAGED, ignore=shutil.ignore_patterns("*.py", "*.ipynb", "__pycache__"))
    texts = {path: path.read_text() for path in sorted(DOCS.glob("*.md"))}
    texts |= {path: notebook_page(path) for path in sorted((DOCS / "notebooks").glob("*.ipynb"))}
    texts |= {ROOT / name: (ROOT / name).read_text() for name in WHOLE_PAGES if name != "README.md"}
    for source, text in texts.items():
        page = staged_name(source)
        write(page, LINK.sub(lambda match, s=source, p=page: moved(match[1], s, p), text))
    return [staged_name(source) for source in texts]


def write(name: str, text: str) -> None:
    """Write a staged page."""
    path = STAGED / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def staged_name(source: Path) -> str:
    """The place of a file of the repository below build/docs."""
    name = source.relative_to(ROOT).as_posix()
    if name in WHOLE_PAGES:
        return WHOLE_PAGES[name]
    if source.suffix == ".ipynb":
        return name.removeprefix("docs/").replace(".ipynb", ".md")
    if source.is_relative_to(DOCS):
        return name.removeprefix("docs/")
    return f"files/{name}.md" if source.suffix in LANGUAGES or source.is_dir() else f"files/{name}"


def moved(target: str, source: Path, page: str) -> str:
    """The link to `target` from the staged `page`; the file goes with it if it is not in docs/."""
    if source.suffix == ".ipynb" and (STAGED / posixpath.dirname(page) / target).is_file():
        return target  # drawn by a cell, and written beside the page
    path = Path(posixpath.normpath(source.parent / target))
    if not path.exists() or not path.is_relative_to(ROOT):
        raise ValueError(f"{source.relative_to(ROOT)} links to {target}, which does not exist")
    name = staged_name(path)
    if name.startswith("files/") and not (STAGED / name).exists():
        if name.endswith(".md"):
            write(name, source_page(path))
        else:
            (STAGED / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, STAGED / name)
    return posixpath.relpath(name, posixpath.dirname(page) or ".")


def source_page(path: Path) -> str:
    """A file of code, or the list of files in a folder, as a page."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        inside = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.suffix in LANGUAGES)
        return f"# {name}\n\n```text\n" + "\n".join(inside) + "\n```\n"
    return f'# {name}\n\n```{LANGUAGES[path.suffix]} linenums="1"\n{path.read_text()}```\n'


def notebook_page(path: Path) -> str:
    """The cells of a notebook and what they printed; images are written beside the page."""
    parts = []
    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for index, output in enumerate(cell["outputs"]):
            parts += shown(output, STAGED / "notebooks" / f"{path.stem}-{number}-{index}.png")
    return "\n\n".join(parts) + "\n"


def shown(output: dict[str, Any], image: Path) -> list[str]:
    """One output of a cell as Markdown."""
    data = output.get("data", {})
    if "image/png" in data:
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(base64.b64decode("".join(data["image/png"])))
        return [f"![{''.join(data.get('text/plain', 'figure'))}]({image.name})"]
    text = "".join(output.get("text", data.get("text/plain", "")))
    return [f"```text\n{text.rstrip()}\n```"] if text else []


def run_notebook(path: Path) -> dict[str, Any]:
    """The notebook, with the outputs that its cells have in a new namespace."""
    notebook, names = json.loads(path.read_text()), {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = executed("".join(cell["source"]), names, path.name)
    return notebook


def executed(source: str, names: dict[str, Any], place: str) -> list[dict[str, Any]]:
    """What a cell prints, and the value of its last line."""
    tree, value = ast.parse(source), None
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(tree, place, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), place, "eval"), names)
    text = said.getvalue().splitlines(True)
    outputs: list[dict[str, Any]] = []
    if text:
        outputs.append({"name": "stdout", "output_type": "stream", "text": text})
    if value is not None:
        data = {"text/plain": [repr(value)]}
        if hasattr(value, "savefig"):
            value.savefig(image := io.BytesIO(), dpi=70)
            data = {"image/png": base64.b64encode(image.getvalue()).decode(), "text/plain": ["figure"]}
        outputs.append({"data": data, "metadata": {}, "output_type": "display_data"})
    return outputs


def keep_notebooks() -> int:
    """Run all notebooks and write them; returns the exit code."""
    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        path.write_text(json.dumps(run_notebook(path), indent=1, ensure_ascii=False) + "\n")
        print(path.relative_to(ROOT))
    return 0


def in_navigation(entries: list[Any]) -> list[str]:
    """All pages of the navigation in mkdocs.yml."""
    values = [value for entry in entries for value in entry.values()]
    return [p for value in values for p in (in_navigation(value) if isinstance(value, list) else [value])]


def main() -> int:
    """Stage and build; returns the exit code."""
    text = (ROOT / "mkdocs.yml").read_text()
    listed = in_navigation(yaml.safe_load(re.sub(r"!!python\S*", "", text))["nav"])
    try:
        pages = stage()
    except ValueError as error:
        print(error)
        return 1
    if lost := sorted(set(pages) ^ set(listed)):
        print(f"in docs/ or in the navigation of mkdocs.yml, but not in both: {', '.join(lost)}")
        return 1
    built = subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--strict", "--clean"], cwd=ROOT
    )
    if built.returncode == 0:
        print(f"{len(pages)} pages: {ROOT / 'build' / 'site' / 'index.html'}")
    return built.returncode


if __name__ == "__main__":
    sys.exit(keep_notebooks() if sys.argv[1:] == ["notebooks"] else main())
