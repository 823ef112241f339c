"""Makes the source of the documents' site: the pages, README as its first, and the references.

    python docs/generate_site.py [DIRECTORY]        build/site-source if it is not given
    python docs/generate_site.py --list SITE        SITE/index.html and SITE/versions.json

`make docs` runs it, then mkdocs, which builds into a directory named as the version, and then lists
the versions that are there: a site keeps those that were built before. The pages stay as they are
read beside the code; links that lead out of them (to examples, benchmarks, files of the project)
become plain words in the site.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

NAV: dict[str, list[str]] = {
    "Start": [
        "index.md",
        "production.md",
        "operations.md",
        "console.md",
        "replication.md",
        "settings.md",
    ],
    "Clients": ["client.md", "programs.md", "pytest.md", "grpc.md", "cli-json.md"],
    "Spark": ["spark.md"],
    "Inside": ["architecture.md", "formats.md", "protocol.md", "compatibility.md"],
    "Measured": ["interop.md", "integration-tests.md", "attacks.md", "reliability.md"],
}
"""Sections and their pages. A page that is in none stands under "More"."""

REFERENCE: dict[str, list[str]] = {
    "client": [
        "oberth.client.producer.Producer",
        "oberth.client.transactions.TransactionProducer",
        "oberth.client.push_consumer.PushConsumer",
        "oberth.client.pull_consumer.PullConsumer",
        "oberth.client.pop_consumer.PopConsumer",
        "oberth.client.admin.Admin",
        "oberth.client.config.ClientConfig",
        "oberth.client.messages.Message",
        "oberth.client.messages.MessageExt",
        "oberth.client.messages.SendResult",
    ],
    "testing": [
        "oberth.testing.embedded_broker.EmbeddedBroker",
        "oberth.testing.virtual_clock.VirtualClock",
        "oberth.testing.wire_faults.WireFaults",
        "oberth.testing.pytest_plugin",
    ],
    "store": [
        "oberth.store.offline.reader.StoreReader",
        "oberth.store.message_store.MessageStore",
    ],
    "errors": ["oberth.errors"],
}
"""Pages of the reference, and whose docstrings they show."""

_LINK = re.compile(r"(?<!!)\[([^\]\n]*)\]\(([^()\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def site_text(text: str, page: Path, target: Path, pages: dict[Path, Path]) -> str:
    """A page's text with its links as they are in the site.

    Args:
        text: of the page.
        page: where it lies in the project.
        target: where it lies in the site.
        pages: every page's place in the site by that in the project.
    """

    def link(found: re.Match[str]) -> str:
        words, where = found.groups()
        path, mark, anchor = where.partition("#")
        if "://" in where or where.startswith("mailto:") or not path:
            return found[0]
        there = pages.get((page.parent / path).resolve())
        if there is None:
            return words
        up = "../" * (len(target.parts) - 1)
        return f"[{words}]({up}{there.as_posix()}{mark}{anchor})"

    pieces = _FENCE.split(text)
    return "".join(piece if piece.startswith("```") else _LINK.sub(link, piece) for piece in pieces)


def make(directory: Path) -> None:
    """Write the site's source into a directory; what is there goes."""
    shutil.rmtree(directory, ignore_errors=True)
    sources = {ROOT / "README.md": Path("index.md")}
    for page in sorted(DOCS.rglob("*.md")):
        sources[page] = page.relative_to(DOCS)
    for page, target in sources.items():
        path = directory / "docs" / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(site_text(page.read_text("utf-8"), page, target, sources), "utf-8")
    for picture in sorted(each for each in DOCS.rglob("*") if each.suffix in (".png", ".svg")):
        path = directory / "docs" / picture.relative_to(DOCS)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, path)
    index = directory / "docs" / "index.md"
    index.write_text(re.sub(r"\((?:\./)?docs/", "(", index.read_text("utf-8")), "utf-8")
    for name, objects in REFERENCE.items():
        path = directory / "docs" / "reference" / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        shown = "\n\n".join(f"::: {each}" for each in objects)
        path.write_text(f"# {name.capitalize()}\n\n{shown}\n", "utf-8")
    (directory / "mkdocs.yml").write_text(
        yaml.safe_dump(settings(list(sources.values())), sort_keys=False), "utf-8"
    )


def version() -> str:
    """The version that is documented."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["version"])


def list_versions(site: Path) -> list[str]:
    """Write what the pages' choice of versions reads, and a first page that leads to the newest.

    Args:
        site: has a directory for each version, named as it.

    Returns:
        The versions, the newest first.
    """
    found = [path.parent.name for path in site.glob("*/index.html")]
    found.sort(key=lambda name: [int(part) for part in re.findall(r"\d+", name)], reverse=True)
    listed = [
        {"version": name, "title": name, "aliases": [] if number else ["latest"]}
        for number, name in enumerate(found)
    ]
    (site / "versions.json").write_text(json.dumps(listed, indent=1) + "\n", "utf-8")
    (site / "index.html").write_text(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Oberth</title>'
        f'<meta http-equiv="refresh" content="0; url={found[0]}/index.html"></head>'
        f'<body><a href="{found[0]}/index.html">Oberth {found[0]}</a></body></html>\n',
        "utf-8",
    )
    return found


def settings(pages: list[Path]) -> dict[str, object]:
    """What mkdocs is told."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = {page for section in NAV.values() for page in section}
    nav: list[dict[str, list[str]]] = [{title: section} for title, section in NAV.items()]
    decisions = [str(page) for page in pages if page.parts[0] == "decisions"]
    more = [str(page) for page in pages if len(page.parts) == 1 and str(page) not in named]
    if more:
        nav.append({"More": more})
    nav.append({"Reference": [f"reference/{name}.md" for name in REFERENCE]})
    nav.append({"Decisions": decisions})
    return {
        "site_name": f"Oberth {version()}",
        "extra": {"version": {"provider": "mike"}},
        "site_description": project["description"],
        "docs_dir": "docs",
        "use_directory_urls": False,
        "theme": {
            "name": "material",
            "font": False,
            "features": ["navigation.sections", "search.highlight", "content.code.copy"],
            "palette": [
                {
                    "media": f"(prefers-color-scheme: {scheme})",
                    "scheme": name,
                    "toggle": {"icon": icon, "name": f"Switch to {other}"},
                }
                for scheme, name, icon, other in (
                    ("light", "default", "material/weather-night", "dark"),
                    ("dark", "slate", "material/weather-sunny", "light"),
                )
            ],
        },
        "plugins": [
            "search",
            {
                "mkdocstrings": {
                    "handlers": {
                        "python": {
                            "paths": [str(ROOT / "src")],
                            "options": {
                                "docstring_style": "google",
                                "show_source": False,
                                "show_root_heading": True,
                                "inherited_members": True,
                                "members_order": "source",
                                "show_signature_annotations": True,
                                "separate_signature": True,
                                "heading_level": 2,
                            },
                        }
                    }
                }
            },
        ],
        "markdown_extensions": ["tables", "toc", "pymdownx.superfences", "pymdownx.highlight"],
        "validation": {"links": {"anchors": "warn", "unrecognized_links": "warn"}},
        "nav": nav,
    }  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["--list"]:
        print(*list_versions(Path(sys.argv[2])), sep="\n")  # noqa: T201
    else:
        make(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site-source")
