"""The reports of pip-audit, as `make audit` reads them."""

import pytest

from scripts.audit import conclude, num_checked, vulnerabilities

REPORT = {
    "dependencies": [
        {
            "name": "jinja2",
            "version": "3.1.2",
            "vulns": [
                {"id": "CVE-2024-22195", "fix_versions": ["3.1.3"]},
                {"id": "CVE-2099-1", "fix_versions": []},
            ],
        },
        {"name": "httpx", "version": "0.28.1", "vulns": []},
        {"name": "ours", "skip_reason": "Dependency not found"},
    ]
}


def test_each_vulnerability_is_named_with_the_version_that_fixes_it() -> None:
    assert vulnerabilities("pins.txt", REPORT) == [
        "pins.txt: jinja2 3.1.2 has CVE-2024-22195, fixed in 3.1.3",
        "pins.txt: jinja2 3.1.2 has CVE-2099-1, fixed in no version",
    ]


def test_packages_that_no_service_knows_are_not_counted_as_checked() -> None:
    assert num_checked(REPORT) == 2


def test_an_audit_that_could_not_check_a_file_does_not_succeed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nothing = {"dependencies": []}
    unknown = {"dependencies": [{"name": "ours", "skip_reason": "Dependency not found"}]}
    sound = {"dependencies": [{"name": "httpx", "version": "0.28.1", "vulns": []}]}
    assert conclude({"a.txt": sound, "b.txt": sound}) == 0
    assert conclude({"a.txt": sound, "b.txt": REPORT}) == 1
    assert "NOT CHECKED" not in capsys.readouterr().out
    for empty in (nothing, unknown):
        assert conclude({"a.txt": sound, "b.txt": empty}) == 3
        assert "b.txt was NOT CHECKED" in capsys.readouterr().out
    assert conclude({"a.txt": REPORT, "b.txt": nothing}) == 1
