"""Certification logs as one page that opens offline."""

from rs_keras.report.page import report_page
from rs_keras.report.page import write_report
from rs_keras.report.thumbnails import Thumbnails

__all__ = ["Thumbnails", "report_page", "write_report"]
