"""What a long run tells where nobody sees a bar."""

from lengthen.cli import output


def test_without_a_terminal_a_long_run_says_that_it_is_alive(capsys, monkeypatch):
    with output.Progress(output.Common()) as progress:
        progress.stage("post-train", 1, 500)
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(output, "QUIET_SECONDS", 0.0)
        progress.stage("post-train", 120, 1500)
    assert capsys.readouterr().err == "lengthen: post-train: 120 of 1,500\n"
