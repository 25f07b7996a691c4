"""A key in a file."""

import pytest

from runfold.encryption.wrapping import wrapping_of
from runfold_schemas.errors import ConfigurationError


def test_a_missing_file_shows_at_once(tmp_path):
    with pytest.raises(ConfigurationError, match="encryption key cannot be read"):
        wrapping_of(f"file:{tmp_path / 'nope.key'}")
