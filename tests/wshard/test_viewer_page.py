"""The viewer as a file, with an episode inside or without, and as a widget of a notebook."""

from __future__ import annotations

import json
from base64 import b64decode
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format.errors import FileMissing, InvalidArgument, MissingExtra
from tests.wshard.viewer_support import PAGE, configuration_of, make_episode, put_page, save_episode
from wshard import Episode, add_lane, load_wshard
from wshard.viewer import LARGEST_EMBEDDED, LARGEST_RANGE, export_page, to_html, widget
from wshard.viewer._page import policy_of
from wshard.viewer._widget import Kernel

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "</script><script>alert(1)</script><!--<script>&quot;\u2028\u202e\x00]]>"


@pytest.fixture(autouse=True)
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_page(tmp_path / "page", monkeypatch)


class Elements(HTMLParser):
    """The elements of a page, as a browser would find them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:  # noqa: ANN401
        self.found.append(tag)


def embedded(path: Path) -> Episode:
    """The episode in a page."""
    configuration = configuration_of(path.read_text("utf-8"))
    (file,) = configuration["embedded"]
    assert configuration["open"] == 0
    return load_wshard(b64decode(file["base64"], validate=True))


class TestOneFile:
    """`Episode.to_html` and `wshard view --export`."""

    def test_the_page_holds_the_episode_with_its_predictions(self, tmp_path: Path) -> None:
        episode = make_episode()
        episode.to_html(tmp_path / "ep.html")
        found = embedded(tmp_path / "ep.html")
        assert (found.id, found.env_id, found.metadata) == ("ep_001", "Reach-v1", episode.metadata)
        np.testing.assert_array_equal(
            found.observations["state"].data, episode.observations["state"].data
        )
        assert found.omens["state"]["dreamer"].shape == (40, 3)

    def test_lanes_that_were_added_later_come_along(self, tmp_path: Path) -> None:
        path = save_episode(tmp_path / "ep.wshard")
        add_lane(path, "omen/state/other", np.ones((40, 3), "f4"), name="other")
        with load_wshard(path) as episode:
            episode.to_html(tmp_path / "ep.html")
        assert set(embedded(tmp_path / "ep.html").omens["state"]) == {"dreamer", "other"}
        configuration = configuration_of((tmp_path / "ep.html").read_text("utf-8"))
        assert configuration["embedded"][0]["name"] == "ep.wshard"

    def test_a_file_that_was_loaded_keeps_its_bytes(self, tmp_path: Path) -> None:
        path = save_episode(tmp_path / "ep.wshard")
        with load_wshard(path) as episode:
            to_html(episode, tmp_path / "ep.html")
        configuration = configuration_of((tmp_path / "ep.html").read_text("utf-8"))
        assert b64decode(configuration["embedded"][0]["base64"]) == path.read_bytes()

    def test_names_cannot_end_the_element_they_are_in(self, tmp_path: Path) -> None:
        episode = make_episode(HOSTILE.replace("\x00", ""))
        episode.metadata["note"] = HOSTILE
        episode.observations[HOSTILE.replace("\x00", "").replace("/", "")] = np.ones((40, 2), "f4")
        episode.to_html(tmp_path / "ep.html")
        text = (tmp_path / "ep.html").read_text("utf-8")
        assert Elements(text).found == Elements(PAGE).found
        assert embedded(tmp_path / "ep.html").metadata["note"] == HOSTILE
        # The same scripts and styles, so that the policy of the page still fits.
        assert policy_of(text) == policy_of(PAGE)

    def test_a_large_episode_is_refused_with_what_to_do(self, tmp_path: Path) -> None:
        episode = Episode("large")
        noise = np.random.default_rng(1).integers(0, 256, (LARGEST_EMBEDDED // 1000 + 1, 1000))
        episode.observations["noise"] = noise.astype("u1")
        with pytest.raises(InvalidArgument, match="too large") as caught:
            episode.to_html(tmp_path / "ep.html")
        for remedy in ("slice_episode", "channels=", "wshard view"):
            assert remedy in str(caught.value)
        assert not (tmp_path / "ep.html").exists()

    def test_a_page_that_cannot_be_written_leaves_the_old_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target = tmp_path / "ep.html"
        target.write_text("old")
        put_page(tmp_path / "page", monkeypatch, "<html></html>")
        with pytest.raises(InvalidArgument, match="not the page of the viewer"):
            make_episode().to_html(target)
        assert target.read_text() == "old"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["ep.html", "page"]

    def test_the_exported_page_is_the_built_one(self, tmp_path: Path) -> None:
        export_page(tmp_path / "viewer.html")
        assert (tmp_path / "viewer.html").read_text("utf-8") == PAGE

    def test_a_page_that_was_not_built_is_an_error_that_says_how(self, tmp_path: Path) -> None:
        (tmp_path / "page" / "viewer.html.gz").unlink()
        with pytest.raises(FileMissing, match="make viewer"):
            export_page(tmp_path / "viewer.html")

    def test_a_page_that_is_damaged_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        file = tmp_path / "page" / "viewer.html.gz"
        whole = file.read_bytes()
        for damaged in (b"", whole[:-9], whole[:40], b"<!doctype html>", whole[:-8] + bytes(8)):
            file.write_bytes(damaged)
            with pytest.raises(InvalidArgument, match=r"viewer\.html\.gz.*make viewer"):
                export_page(tmp_path / "viewer.html")


class TestKernel:
    """What the kernel answers to the page of a widget."""

    def test_it_answers_as_the_server_does(self, tmp_path: Path) -> None:
        path = save_episode(tmp_path / "ep.wshard")
        kernel = Kernel(path)
        page = kernel.answer({"path": "/"})[1]
        assert page is not None
        assert configuration_of(page.decode()) == {"widget": True}
        files = kernel.answer({"path": "/files.json"})[0]["document"]
        assert [(one["name"], one["size"]) for one in files["files"]] == [
            ("ep.wshard", path.stat().st_size)
        ]
        rows = kernel.answer({"path": "/episodes.json"})[0]["document"]["rows"]
        assert rows[0]["id"] == "ep"
        answer, data = kernel.answer({"path": "/f/0", "offset": 4, "length": 1 << 20})
        assert data == path.read_bytes()[4:]
        assert answer["size"] == path.stat().st_size
        json.dumps([files, rows, answer], allow_nan=False)

    def test_an_episode_in_memory_is_read_as_a_file(self) -> None:
        kernel = Kernel(make_episode("../../ä" + HOSTILE))
        (file,) = kernel.answer({"path": "/files.json"})[0]["document"]["files"]
        _, data = kernel.answer({"path": "/f/0", "offset": 0, "length": file["size"]})
        assert data is not None
        assert load_wshard(data).omens["state"]["dreamer"].shape == (40, 3)

    @pytest.mark.parametrize(
        "question",
        [
            *({}, {"path": None}, {"path": 7}, {"path": "/f/1"}, {"path": "/f/-1"}),
            *({"path": "/f/../../etc/passwd"}, {"path": "/f/" + "9" * 5000}, {"path": "/etc"}),
            {"path": "/f/0"},
            {"path": "/f/0", "offset": -1, "length": 4},
            {"path": "/f/0", "offset": 0, "length": True},
            {"path": "/f/0", "offset": "0", "length": 4},
            {"path": "/f/0", "offset": 0, "length": LARGEST_RANGE + 1},
        ],
    )
    def test_other_questions_get_an_error(self, tmp_path: Path, question: dict[str, Any]) -> None:
        answer, data = Kernel(save_episode(tmp_path / "ep.wshard")).answer(question)
        assert data is None
        assert answer["error"]


class TestWidget:
    """The widget itself, where anywidget is installed."""

    def test_messages_are_answered_with_the_number_of_the_question(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("anywidget")
        path = save_episode(tmp_path / "ep.wshard")
        shown = widget(path, height=300)
        assert shown.height == 300
        sent: list[tuple[Any, Any]] = []
        monkeypatch.setattr(type(shown), "send", lambda _, *message: sent.append(message))
        for question in ({"id": 7, "path": "/f/0", "offset": 0, "length": 4}, {"id": 8}, "junk"):
            shown._handle_custom_msg(question, [])
        assert sent[0] == (
            {"size": path.stat().st_size, "tag": sent[0][0]["tag"], "id": 7},
            [b"SHRD"],
        )
        assert [message["id"] for message, _ in sent] == [7, 8, None]
        assert "error" in sent[1][0]

    def test_what_remains_without_scripts_is_the_static_summary(self) -> None:
        pytest.importorskip("anywidget")
        episode = make_episode()
        bundle, _ = episode.view()._repr_mimebundle_()
        assert bundle["text/html"] == episode._repr_html_()
        assert "application/vnd.jupyter.widget-view+json" in bundle

    def test_without_the_package_the_error_names_the_extra(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(__import__("sys").modules, "anywidget", None)
        from wshard.viewer._widget import _kind_of_widget

        _kind_of_widget.cache_clear()
        with pytest.raises(MissingExtra, match=r"shard-format\[notebook\]"):
            make_episode().view()
