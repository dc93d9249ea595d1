"""The report: from records only, escaped, self-contained, and alive in a real browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpa.report.page import Page, Section, render
from bpa.report.sections import build_page, tables_of
from bpa.report.table import Table
from bpa.runs.demo import DemoConfig, run_demo
from bpa.runs.store import RunStore

SMALL = DemoConfig(tasks=20, cluster_classes=4, cluster_repeats=2, regs=(0.1, 0.5), ranked=200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    with RunStore(place) as store:
        records = run_demo(store, SMALL)
        (place / "report.html").write_text(
            render(build_page(records, store.plans(), title="A <demo> & more"))
        )
    return place


def test_a_report_is_made_from_records_alone(folder: Path) -> None:
    store = RunStore(folder)
    page = build_page(store.records(), store.plans(), title="A <demo> & more")
    assert (folder / "report.html").read_text() == render(page)


def test_a_second_run_reads_instead_of_computing(folder: Path) -> None:
    before = (folder / "results.jsonl").read_bytes()
    with RunStore(folder) as store:
        records = run_demo(store, SMALL)
    assert (folder / "results.jsonl").read_bytes() == before
    studies = dict.fromkeys(record.study for record in records)
    assert list(studies) == ["fewshot", "cluster", "retrieve", "answers", "inside"]


def test_a_page_asks_nothing_of_the_network_and_escapes_its_texts(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    assert "<title>A &lt;demo&gt; &amp; more</title>" in text
    assert not re.findall(r"(?:src|href)=\"(?!data:|#)[^\"]*\"", text)
    assert "default-src 'none'" in text
    assert len(text) < 3_000_000


def test_hostile_texts_stay_texts() -> None:
    evil = "<script>alert(1)</script>\"'>"
    table = Table(evil, [evil], [[evil]], [evil])
    page = Page(evil, evil, [("better", evil)], [Section("a", evil, evil, [table])], {evil: {evil: evil}})
    text = render(page)
    assert text.count("<script>") == 1
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&gt;" in text


def test_tables_show_the_means_of_the_records(folder: Path) -> None:
    records = RunStore(folder).records()
    by_title = {table.title: table for table in tables_of(records)}
    raw = next(r for r in records if r.study == "fewshot" and r.way["transform"]["name"] == "identity")
    assert by_title["5-way, 1-shot"].rows[0][1].mean == pytest.approx(100 * np.mean(raw.values["accuracy"]))
    ranked = next(r for r in records if r.study == "retrieve" and r.way["transform"]["name"] == "identity")
    table = next(table for title, table in by_title.items() if "sketches" in title)
    assert table.rows[0][1].mean == pytest.approx(100 * np.mean(ranked.values["average_precision"]))


def test_records_of_every_verb_find_their_section(
    tmp_path: Path, clusters: tuple[np.ndarray, np.ndarray]
) -> None:
    from bpa.cli.main import main
    from bpa.data.features import write_features
    from bpa.records import FeatureSet

    write_features(tmp_path / "x.npz", FeatureSet(*clusters))
    out = f"--out {tmp_path / 'runs'}"
    for line in (
        f"fewshot {tmp_path / 'x.npz'} --way 3 --query 3 --tasks 8 --protocol balanced --reg 0.1 0.5",
        f"cluster {tmp_path / 'x.npz'} --k 5 --repeats 2 --n-init 1",
        f"retrieve {tmp_path / 'x.npz'} --reg 0.1 0.2",
    ):
        assert main(f"{line} {out}".split()) == 0
    assert main(["report", str(tmp_path / "runs")]) == 0
    store = RunStore(tmp_path / "runs")
    page = build_page(store.records(), store.plans())
    assert [s.title for s in page.sections] == ["Few-shot", "Clustering", "Retrieval", "Runtime"]
    assert all(section.tables and section.figures for section in page.sections)
    kinds = [kind for kind, _ in page.findings]
    assert len(kinds) >= 3
    assert set(kinds) <= {"better", "worse", "same"}
    assert "over best free" in (tmp_path / "runs" / "report.html").read_text()


# ------------------------------------------------------------------------------------------------- browser

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(service=webdriver.ChromeService(executable_path=driver), options=options)
    yield opened
    opened.quit()


def column(browser: Any, k: int) -> list[str]:
    script = (
        "return [...document.querySelector('table.sortable').tBodies[0].rows].map(r => r.cells[%d].innerText)"
    )
    return list(browser.execute_script(script % k))


@pytest.mark.slow
def test_the_page_opens_without_a_complaint(browser: Any, folder: Path) -> None:
    browser.get((folder / "report.html").as_uri())
    assert browser.title == "A <demo> & more"
    assert browser.get_log("browser") == []
    assert (
        browser.execute_script(
            "return performance.getEntriesByType('resource').filter(r => !r.name.startsWith('data:')).length"
        )
        == 0
    )


@pytest.mark.slow
def test_tabs_switch_by_mouse_and_by_keyboard(browser: Any, folder: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.get("about:blank")
    browser.get((folder / "report.html").as_uri())
    visible = (
        "return [...document.querySelectorAll('[role=tabpanel]')].filter(p => p.offsetParent).map(p => p.id)"
    )
    assert browser.execute_script(visible) == ["panel-fewshot"]
    tab = browser.find_element("id", "tab-retrieve")
    tab.click()
    assert browser.execute_script(visible) == ["panel-retrieve"]
    assert tab.get_attribute("aria-selected") == "true"
    tab.send_keys(Keys.ARROW_RIGHT)
    assert browser.execute_script(visible) == ["panel-answers"]
    browser.switch_to.active_element.send_keys(Keys.HOME)
    assert browser.execute_script(visible) == ["panel-fewshot"]
    browser.get((folder / "report.html").as_uri() + "#cluster")
    browser.refresh()
    assert browser.execute_script(visible) == ["panel-cluster"]


@pytest.mark.slow
def test_tables_sort_by_number_and_back(browser: Any, folder: Path) -> None:
    browser.get("about:blank")
    browser.get((folder / "report.html").as_uri())
    button = browser.find_elements("css selector", "#panel-fewshot th button")[1]
    button.click()
    up = [float(cell.split(" ")[0]) for cell in column(browser, 1)]
    assert up == sorted(up)
    assert len(set(up)) > 1
    button.click()
    down = [float(cell.split(" ")[0]) for cell in column(browser, 1)]
    assert down == sorted(down, reverse=True)
    assert button.find_element("xpath", "..").get_attribute("aria-sort") == "descending"


CONTRAST = """
const rgb = (s) => s.match(/[0-9.]+/g).slice(0, 3).map(Number);
const linear = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
const light = (c) => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
const behind = (e) => {
  for (; e; e = e.parentElement) {
    const colour = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$/.test(colour)) return colour;
  }
  return "rgb(255,255,255)";
};
const parts = "h1,h2,p,li,td,th button,figcaption,.notes div,[role=tab],svg text";
return [...document.querySelectorAll(parts)].filter((e) => e.getClientRects().length).map((e) => {
  const style = getComputedStyle(e), ink = e instanceof SVGElement ? style.fill : style.color;
  const a = light(rgb(ink)), b = light(rgb(behind(e)));
  return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.textContent.slice(0, 30)];
});
"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_both_themes(browser: Any, folder: Path, scheme: str) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    browser.get((folder / "report.html").as_uri())
    found = browser.execute_script(CONTRAST)
    assert len(found) > 30
    assert [item for item in found if item[0] < 4.5] == []


@pytest.mark.slow
def test_a_phone_needs_no_sideways_scrolling_of_the_page(browser: Any, folder: Path) -> None:
    metrics = {"width": 375, "height": 720, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        for part in ("fewshot", "cluster", "retrieve", "answers", "inside", "runtime", "facts"):
            browser.get("about:blank")
            browser.get((folder / "report.html").as_uri() + "#" + part)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= 375, part
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
def test_every_picture_has_an_alternative_text(browser: Any, folder: Path) -> None:
    browser.get((folder / "report.html").as_uri())
    silent = "return document.querySelectorAll('img:not([alt]), img[alt=\"\"], svg:not([aria-label])').length"
    assert browser.execute_script(silent) == 0
    assert browser.execute_script("return document.querySelectorAll('img').length") > 20
    assert browser.execute_script("return [...document.images].every(i => i.naturalWidth > 0)")
