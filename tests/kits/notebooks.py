"""Runs notebooks as a reader would; writes the outputs that are committed.

    python tests/kits/notebooks.py examples/*.ipynb

The kernel is this interpreter, whatever kernels are installed. Of what a cell
prints to standard error nothing is kept: TensorFlow notes the machine there.
"""

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
_LAUNCH = ["-m", "ipykernel_launcher", "-f", "{connection_file}"]


class _ThisInterpreter(AsyncKernelManager):
    """Starts one kernel, under any name: the running interpreter."""

    @property
    def kernel_spec(self):
        return KernelSpec(
            argv=[sys.executable, *_LAUNCH],
            display_name="Python 3",
            language="python",
        )


def run(path):
    """Returns the notebook with fresh outputs, and what went to stderr.

    Args:
        path: Of the notebook, which stays as it is.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            kernel_manager_class=_ThisInterpreter,
            timeout=900,
            record_timing=False,
            resources={"metadata": {"path": folder}},
        )
        client.execute(
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                # Nothing of the reader's own profile and history.
                "IPYTHONDIR": folder,
            }
        )
    return notebook, _without_errors(notebook)


def _without_errors(notebook):
    """Takes away what was printed to standard error, and returns it."""
    said = []
    for cell in code_cells(notebook):
        said += [out.text for out in cell.outputs if _is_error(out)]
        cell.outputs = [out for out in cell.outputs if not _is_error(out)]
    return "".join(said)


def _is_error(output):
    return output.get("name") == "stderr"


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell):
    """Returns what a cell prints, pictures left out."""
    return "".join(out.text for out in cell.outputs if "text" in out)


def pictures(cell):
    """Returns the PNG pictures of a cell, in base64."""
    data = [out.data for out in cell.outputs if "data" in out]
    return [one["image/png"] for one in data if "image/png" in one]


def main():
    for name in sys.argv[1:]:
        notebook, said = run(name)
        # What a kernel tells of itself is that of this machine.
        notebook.metadata["language_info"] = {"name": "python"}
        nbformat.write(notebook, name)
        print(f"{name}: {os.path.getsize(name)} bytes, stderr:\n{said}")


if __name__ == "__main__":
    main()
