"""Files that are written whole or not at all."""

import os
import stat

import pytest

from rs_keras._atomic_files import written_whole


def test_the_folder_is_made_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "some" / "where" / "note.txt"
    with written_whole(path) as temporary:
        assert temporary.suffix == ".txt" and temporary.parent == path.parent
        temporary.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file(error, tmp_path):
    path = tmp_path / "note.txt"
    path.write_text("old")
    with pytest.raises(error):
        with written_whole(path) as temporary:
            temporary.write_text("half of")
            raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_others_may_read_what_the_umask_allows(tmp_path):
    before = os.umask(0o027)
    try:
        with written_whole(tmp_path / "note.txt") as temporary:
            temporary.write_text("new")
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    mode = stat.S_IMODE((tmp_path / "note.txt").stat().st_mode)
    assert mode == 0o640
