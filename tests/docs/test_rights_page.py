from pathlib import Path

from braidmq.cli.rights_page import page

PAGE = Path(__file__).parents[2] / "docs" / "rights.md"


def test_the_page_has_the_rights_of_the_code() -> None:
    assert PAGE.read_text() == page(), "run `python -m braidmq.cli.rights_page > docs/rights.md`"
