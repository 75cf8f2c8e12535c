"""The reports of pip-audit, as `make audit` reads them."""

from scripts.audit import num_checked, vulnerabilities

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
