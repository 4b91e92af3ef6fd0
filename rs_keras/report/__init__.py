"""Certification logs as one page that opens offline."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach

if TYPE_CHECKING:
    from rs_keras.report.page import report_page as report_page
    from rs_keras.report.page import write_report as write_report
    from rs_keras.report.thumbnails import Thumbnails as Thumbnails

__all__, __getattr__, __dir__ = attach(__name__)
