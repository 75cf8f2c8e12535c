"""Find what breaks prompt caches, in a log or request by request. Changes nothing."""

from ragboost.proxy.hosted.lint.report import LintReport, lint_log

__all__ = ["LintReport", "lint_log"]
