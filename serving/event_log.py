"""The event log: one JSON object per line."""

import json
import logging
from datetime import UTC
from datetime import datetime
from typing import Any

LOGGER = logging.getLogger("rs_keras.serving")


def event(level: int, name: str, **fields: Any) -> None:
    """Logs that `name` happened, with its circumstances.

    Args:
        level: Of `logging`.
        name: What happened, in snake case.
        **fields: Values that `json` can write, else they become text.
    """
    if LOGGER.isEnabledFor(level):
        text = " ".join(f"{key}={value}" for key, value in fields.items())
        LOGGER.log(level, "%s %s", name, text, extra={"fields": fields})


class JSONFormatter(logging.Formatter):
    """Writes a record as one line of JSON.

    Example:

    >>> import logging
    >>> from rs_keras.serving.event_log import JSONFormatter
    >>> record = {"msg": "ready", "levelname": "INFO", "created": 0.0}
    >>> JSONFormatter().format(logging.makeLogRecord(record))[38:]
    '"level": "INFO", "event": "ready"}'
    """

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", None)
        message = record.getMessage()
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "event": message if fields is None else message.split(" ", 1)[0],
            **(fields or {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
