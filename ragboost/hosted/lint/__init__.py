"""Find what breaks prompt caches in a log of requests. Knows files; changes nothing."""

from ragboost.hosted.lint.report import LintReport, lint_log

__all__ = ["LintReport", "lint_log"]
