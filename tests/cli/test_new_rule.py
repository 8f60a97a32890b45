"""`perfdoctor new-rule` on the command line."""

from __future__ import annotations

from pathlib import Path


def test_it_says_what_it_wrote_and_what_comes_next(perfdoctor):
    ended = perfdoctor("new-rule", "XX101", "slow-widgets")
    assert (ended.code, ended.err) == (0, "")
    for name in ("perfdoctor_slow_widgets/xx101_slow_widgets.py", "tests/test_xx101_slow_widgets.py", "pyproject.toml"):
        assert name in ended.out
        assert Path(name).is_file()
    assert "pip install -e ." in ended.out


def test_it_works_in_another_folder(perfdoctor):
    Path("rules").mkdir()
    assert perfdoctor("new-rule", "XX101", "slow-widgets", "-C", "rules").code == 0
    assert [path.name for path in Path().iterdir()] == ["rules"]
    assert Path("rules/tests/test_xx101_slow_widgets.py").is_file()


def test_a_taken_id_is_one_sentence(perfdoctor):
    ended = perfdoctor("new-rule", "PD101", "slow-widgets")
    assert ended.code == 2
    assert ended.line == "perfdoctor: there is a rule PD101 dataloader-stall already; ids and names are used once"
    assert not list(Path().iterdir())


def test_a_folder_that_is_not_there_is_one_sentence(perfdoctor):
    ended = perfdoctor("new-rule", "XX101", "slow-widgets", "-C", "nowhere")
    assert ended.code == 2
    assert "'nowhere' does not exist" in ended.line
