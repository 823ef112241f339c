"""The source of the documents' site: every page is in it, and every link of it leads to one."""

from __future__ import annotations

import importlib.util
import json
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site", ROOT / "docs" / "generate_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_site_and_every_link_leads_to_one(
    generator: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "old").touch()
    generator.make(tmp_path)
    assert not (tmp_path / "old").exists()
    made = tmp_path / "docs"
    for page in (ROOT / "docs").rglob("*.md"):
        assert (made / page.relative_to(ROOT / "docs")).exists()
    for page in made.rglob("*.md"):
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
        for where in re.findall(r"\]\(([^()\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
            path = where.partition("#")[0]
            if path and "://" not in path:
                assert (page.parent / path).resolve().exists(), f"{page}: {where}"
    nav = yaml.safe_load((tmp_path / "mkdocs.yml").read_text("utf-8"))["nav"]
    listed = [page for section in nav for pages in section.values() for page in pages]
    assert sorted(listed) == sorted(
        page.relative_to(made).as_posix() for page in made.rglob("*.md")
    )


def test_the_reference_names_what_is_there(generator: ModuleType) -> None:
    for names in generator.REFERENCE.values():
        for name in names:
            assert pkgutil.resolve_name(name).__doc__, name


def test_links_out_of_the_pages_become_words(generator: ModuleType) -> None:
    page = ROOT / "docs" / "decisions" / "0001-house.md"
    pages = {ROOT / "docs" / "client.md": Path("client.md"), page: Path("decisions/0001-house.md")}
    text = "[the client](../client.md#sending), [a program](../../examples/orders.py), [x](#y)\n"
    made = generator.site_text(text, page, pages[page], pages)
    assert made == "[the client](../client.md#sending), a program, [x](#y)\n"
    fenced = "```\n[a](../../examples/orders.py)\n```\n"
    assert generator.site_text(fenced, page, pages[page], pages) == fenced


def test_versions_are_listed_with_the_newest_first(generator: ModuleType, tmp_path: Path) -> None:
    for name in ("0.9.0", "0.10.0", "0.2.1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").touch()
    (tmp_path / "other").mkdir()
    assert generator.list_versions(tmp_path) == ["0.10.0", "0.9.0", "0.2.1"]
    listed = json.loads((tmp_path / "versions.json").read_text("utf-8"))
    assert [each["version"] for each in listed] == ["0.10.0", "0.9.0", "0.2.1"]
    assert listed[0]["aliases"] == ["latest"]
    assert 'url=0.10.0/index.html"' in (tmp_path / "index.html").read_text("utf-8")
    assert generator.settings([])["extra"] == {"version": {"provider": "mike"}}
