"""Paths as users give them."""

import pytest

from rs_keras import cli
from rs_keras._paths import expanded


def test_a_home_of_nobody_is_refused(capsys):
    with pytest.raises(ValueError, match="~nobody-of-that-name/x"):
        expanded("~nobody-of-that-name/x")
    assert cli.main(["predict", "--model", "~nobody-here/x", "a.png"]) == 2
    assert "~nobody-here/x" in capsys.readouterr().err
