"""The table of public reports is complete, points at things that exist, and the page is the one in docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from xpu_shim._targets import PATCHES
from xpu_shim.doctor.checks import all_checks
from xpu_shim.doctor.reports import REPORTS, anchor, render
from xpu_shim.doctor.signatures import SIGNATURES

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: anchor(report.symptom))
def test_a_report_is_cured_found_or_listed_with_a_reason(report):
    assert report.patches or report.checks or report.limit
    assert set(report.patches) <= set(PATCHES)
    assert set(report.checks) <= {item.id for item in all_checks()}
    assert set(report.signatures) <= {item.id for item in SIGNATURES}
    assert report.links
    if report.limit:
        headings = [line[3:] for line in (DOCS / "limits.md").read_text().splitlines() if line.startswith("## ")]
        assert report.limit in headings


def test_no_report_is_listed_twice():
    assert len({report.symptom for report in REPORTS}) == len(REPORTS)


def test_the_page_is_current():
    assert (DOCS / "reports.md").read_text() == render(), "python -m xpu_shim.doctor.reports > docs/reports.md"
