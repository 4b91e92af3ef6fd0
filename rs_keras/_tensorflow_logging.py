"""TensorFlow without the notes that it prints while it starts."""

import os


def import_tensorflow() -> None:
    """Imports TensorFlow with the process' standard error turned away.

    Its C++ part notes processor features and missing GPU drivers before any
    log level applies. They would bury the one line that matters on a command
    line. What fails raises, as ever.

    Example:

    >>> import sys
    >>> from rs_keras._tensorflow_logging import import_tensorflow
    >>> import_tensorflow()
    >>> "tensorflow" in sys.modules
    True
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        kept = os.dup(2)
    except OSError:
        # There is no standard error to keep clean.
        import tensorflow  # noqa: F401

        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        import tensorflow  # noqa: F401
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
