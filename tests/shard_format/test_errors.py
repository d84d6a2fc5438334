"""The error tree, its codes, and what messages say."""

from __future__ import annotations

import errno
import inspect
import re

import pytest

from shard_format import ShardReader, errors
from shard_format.errors import (
    DATA_ERRORS,
    EntryNotFound,
    MissingExtra,
    ShardError,
    ShardIOError,
    TransportError,
    must_stop,
    shorten,
)
from tests.shard_format.support import REPOSITORY, HandMade, Row

# Classes that group others; no file ever causes one of them as such.
GROUPS = {"error", "bad_format", "untrusted"}


def all_classes() -> dict[str, type[ShardError]]:
    """Every error class that the module defines, by name."""
    return {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, ShardError)
    }


def registry_codes() -> dict[str, tuple[str, int]]:
    """Code, meaning and exit status from the table of spec/registry.md."""
    text = (REPOSITORY / "spec" / "registry.md").read_text("utf-8")
    section = text.split("## Errors")[1].split("Warnings of checking tools")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (\d) \|$", section, re.MULTILINE)
    return {code: (meaning, int(status)) for code, meaning, status in rows}


class TestCodes:
    """Classes and registry say the same."""

    def test_every_class_is_exported(self) -> None:
        assert sorted(all_classes()) == errors.__all__

    def test_every_class_has_a_code_of_its_own(self) -> None:
        kinds = [
            kind for kind in all_classes().values() if errors.ShardIOError not in kind.__mro__[1:]
        ]
        codes = [kind.code for kind in kinds]
        assert len(set(codes)) == len(codes)
        assert all("code" in vars(kind) for kind in kinds)

    def test_the_codes_are_those_of_the_registry(self) -> None:
        registered = registry_codes()
        assert len(registered) > 20
        codes = {kind.code for kind in all_classes().values()}
        assert codes - GROUPS == set(registered)
        assert codes > GROUPS

    def test_class_names_follow_from_codes(self) -> None:
        for name, kind in all_classes().items():
            if kind.code not in GROUPS and not issubclass(kind, errors.ShardIOError):
                assert "".join(part.title() for part in kind.code.split("_")) == name

    def test_every_class_says_what_it_means(self) -> None:
        for kind in all_classes().values():
            assert inspect.getdoc(kind), kind


class TestTree:
    """The drawing in the module's docstring is the tree."""

    def drawn(self) -> dict[str, tuple[str, list[str], str]]:
        """Class, then its parent, its other bases and its code or meaning, as drawn."""
        rows: dict[str, tuple[str, list[str], str]] = {}
        above: dict[int, str] = {-1: "Exception"}
        for line in (errors.__doc__ or "").splitlines():
            match = re.match(r"^([│├└─ ]*)([A-Z]\w+)(?: \((\w+)\))?(?:\s+(.*))?$", line)
            if not match or "." in line.split(" ")[0] or line.startswith("Every"):
                continue
            level = len(match[1]) // 4
            above[level] = match[2]
            rows[match[2]] = (above[level - 1], [match[3]] if match[3] else [], match[4] or "")
        return rows

    def test_the_drawn_classes_are_the_real_ones(self) -> None:
        assert set(self.drawn()) == set(all_classes())

    def test_the_drawn_bases_are_the_real_ones(self) -> None:
        for name, (parent, others, _) in self.drawn().items():
            bases = [base.__name__ for base in all_classes()[name].__bases__]
            assert bases == [parent, *others], name

    def test_the_drawn_codes_are_the_real_ones(self) -> None:
        for name, (_, _, text) in self.drawn().items():
            kind = all_classes()[name]
            if kind.code not in GROUPS:
                assert text == kind.code

    def test_callers_can_catch_what_they_know(self) -> None:
        for kind, known in (
            (errors.EntryNotFound, KeyError),
            (errors.NotViewable, ValueError),
            (errors.InvalidArgument, ValueError),
            (errors.Closed, ValueError),
            (errors.MissingExtra, ImportError),
            (errors.ShardIOError, OSError),
            (errors.FileMissing, FileNotFoundError),
            (errors.IsAFolder, IsADirectoryError),
            (errors.AccessDenied, PermissionError),
            (errors.FileThere, FileExistsError),
        ):
            assert issubclass(kind, known)


class TestMessages:
    """One line with file, place, facts, rule and advice."""

    @pytest.mark.parametrize("kind", all_classes().values(), ids=lambda kind: kind.__name__)
    def test_a_message_has_all_its_parts_in_order(self, kind: type[ShardError]) -> None:
        error = kind(
            "a problem",
            path="file.shard",
            entry="signal/rgb",
            offset=8192,
            expected="9a71bb4c",
            found=0,
            rule="S-CRC-1",
            hint="look elsewhere",
        )
        assert str(error) == (
            "file.shard: entry 'signal/rgb' at byte 8192: a problem "
            "(expected 9a71bb4c, found 0) [S-CRC-1]; look elsewhere"
        )

    @pytest.mark.parametrize("kind", all_classes().values(), ids=lambda kind: kind.__name__)
    def test_parts_that_are_unknown_leave_no_trace(self, kind: type[ShardError]) -> None:
        assert str(kind("a problem")) == "a problem"
        assert str(kind("a problem", offset=0)) == "at byte 0: a problem"
        assert str(kind("a problem", expected=1)) == "a problem (expected 1)"
        assert kind("a problem").args == ("a problem",)

    def test_the_place_is_added_once(self) -> None:
        error = ShardError("a problem", path="inner")
        assert error.located(path="outer", entry="x") is error
        assert (error.path, error.entry) == ("inner", "x")

    def test_long_names_are_cut_in_the_middle(self) -> None:
        shown = shorten("a" * 40_000 + "z" * 25_000)
        assert len(shown) < 200
        assert shown.startswith("'aaa")
        assert "zzz'" in shown
        assert "65000 characters" in shown

    def test_control_characters_of_names_are_not_printed(self) -> None:
        assert shorten("\x1b[31m\n") == r"'\x1b[31m\n'"
        long = shorten("\x1b[31m\n" * 100)
        assert "\x1b" not in long
        assert "\n" not in long

    def test_an_unknown_entry_is_printed_without_quotes_around_it(self) -> None:
        reader = ShardReader(HandMade([Row(b"entry")]).to_bytes())
        with pytest.raises(KeyError) as caught:
            reader.read_entry("entri")
        assert isinstance(caught.value, EntryNotFound)
        assert str(caught.value) == "<bytes>: no entry 'entri'; did you mean 'entry'?"

    def test_damage_tells_where_and_what(self) -> None:
        reader = ShardReader(HandMade([Row(b"a", b"data", crc=0xABC)]).to_bytes())
        with pytest.raises(ShardError) as caught:
            reader.read_entry("a")
        error = caught.value
        assert (error.path, error.entry, error.offset) == ("<bytes>", "a", 128)
        assert (error.expected, error.rule) == ("00000abc", "S-CRC-1")
        assert re.fullmatch("[0-9a-f]{8}", str(error.found))


class TestSystemErrors:
    """OSError in our clothes."""

    def test_a_wrapped_error_keeps_its_numbers(self) -> None:
        original = OSError(errno.ENOSPC, "No space left on device")
        error = ShardIOError.wrap(original, "cannot write", "a.shard")
        assert isinstance(error, OSError)
        assert (error.errno, error.strerror) == (errno.ENOSPC, "No space left on device")
        assert error.filename == "a.shard"
        assert error.path == "a.shard"
        assert str(error).startswith("a.shard: cannot write: No space left on device; ")

    @pytest.mark.parametrize(
        ("number", "advice"),
        [
            (errno.ENOSPC, "free some space"),
            (errno.EDQUOT, "quota"),
            (errno.EFBIG, "size"),
            (errno.EROFS, "read-only"),
            (errno.EMFILE, "too many files"),
        ],
    )
    def test_common_failures_come_with_advice(self, number: int, advice: str) -> None:
        error = ShardIOError.wrap(OSError(number, "text"), "cannot write", None)
        assert advice in str(error.hint)

    def test_an_error_without_a_number_is_wrapped_too(self) -> None:
        error = ShardIOError.wrap(OSError("lost its end"), "cannot write", "a.shard")
        assert error.errno is None
        assert str(error) == "a.shard: cannot write: lost its end"

    def test_a_missing_extra_is_an_import_error(self) -> None:
        error = MissingExtra("a problem", path="a.shard", hint="pip install")
        assert isinstance(error, ImportError)
        assert str(error) == "a.shard: a problem; pip install"

    @pytest.mark.parametrize(
        "kind",
        [ConnectionRefusedError, ConnectionResetError, ConnectionAbortedError, TimeoutError],
    )
    def test_a_network_that_fails_is_a_transport_error(self, kind: type[OSError]) -> None:
        error = ShardIOError.wrap(kind(errno.ECONNRESET, "text"), "cannot read", "a.shard")
        assert isinstance(error, TransportError)
        assert error.errno == errno.ECONNRESET
        again = ShardIOError.wrap(error, "make failed", "out")
        assert isinstance(again, TransportError)
        assert "a.shard: cannot read: text" in str(again)

    def test_a_scan_stops_at_what_is_not_about_the_data(self) -> None:
        """No error of the data is one of them, so a scan either leaves out or stops."""
        for kind in all_classes().values():
            is_transport = issubclass(kind, TransportError)
            assert must_stop(kind("a problem")) == is_transport
            assert not (is_transport and issubclass(kind, DATA_ERRORS))
        assert must_stop(MemoryError())
        assert must_stop(OSError(errno.EMFILE, "text"))
