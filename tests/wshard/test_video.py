"""Cameras as encoded video: frames and packets, files in and out, saving, cutting, joining, and hostile streams."""

from __future__ import annotations

import io
import pickle
import sys
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format import images
from shard_format.errors import BadValue, InvalidArgument, LimitExceeded, MissingExtra, UnknownCodec
from shard_format.registry import Limits
from shard_train import EpisodeDataset
from wshard import (
    Channel,
    ChannelDef,
    ChunkedEpisodeWriter,
    Episode,
    Timebase,
    WShardStreamWriter,
    add_lane,
    compact,
    load_wshard,
    open_partial,
    recover,
    save_wshard,
)
from wshard.doctor import examine
from wshard.streaming import StreamOptions
from wshard.video import Packet, VideoChannel, VideoFile

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

av = pytest.importorskip("av", reason="decoding and encoding video needs PyAV, the extra `video`")
Image = pytest.importorskip("PIL.Image", reason="decoding pictures needs Pillow, the extra `video`")

T, HEIGHT, WIDTH = 40, 48, 64
CODECS = ["h264:crf=20", "h265", "av1", "ffv1", "jpeg:90", "png"]


def picture_frames(count: int = T) -> NDArray[np.uint8]:
    """Smooth colours that move, of which every frame differs."""
    t, y, x = np.ogrid[:count, :HEIGHT, :WIDTH]
    planes = [x * 2 + t * 3, y * 3 + t * 2, x + y + t]
    return np.stack(
        [np.broadcast_to(plane, (count, HEIGHT, WIDTH)) for plane in planes], -1
    ).astype(np.uint8)


FRAMES = picture_frames()


@pytest.fixture(scope="module", params=CODECS)
def video(request: pytest.FixtureRequest) -> VideoChannel:
    return VideoChannel.encode(FRAMES, request.param, keyframe_every=8, sampling_rate_hz=20.0)


@pytest.fixture(scope="module")
def h264() -> VideoChannel:
    return VideoChannel.encode(FRAMES, keyframe_every=8, sampling_rate_hz=20.0, name="cam")


@pytest.fixture(scope="module", params=["h264", "h265"])
def open_groups(request: pytest.FixtureRequest) -> VideoChannel:
    """Video whose groups of pictures need each other, and with frames out of order."""
    name = request.param.replace("h", "libx")
    context = av.CodecContext.create(name, "w")
    context.width, context.height, context.pix_fmt = WIDTH, HEIGHT, "yuv420p"
    context.framerate, context.time_base, context.gop_size = 20, Fraction(1, 20), 8
    context.options = {f"{name[3:]}-params": "open-gop=1:bframes=3:b-adapt=0:scenecut=0:keyint=8"}
    packets: list[Any] = []
    for number, picture in enumerate(FRAMES):
        frame = av.VideoFrame.from_ndarray(picture, "rgb24")
        frame.pts = number
        packets += context.encode(frame)
    packets += context.encode(None)
    return VideoChannel.from_packets(
        [Packet(bytes(packet), packet.pts, packet.is_keyframe) for packet in packets],
        f"video/{request.param}",
        (HEIGHT, WIDTH, 3),
        sampling_rate_hz=20.0,
    )


def fresh(channel: VideoChannel) -> VideoChannel:
    """The same without frames that were decoded before."""
    return channel.clone()


def with_camera(channel: Channel | NDArray[Any], length: int = T) -> Episode:
    episode = Episode("ep", timebase=Timebase(tick_hz=20.0))
    episode.observations["cam"] = channel
    episode.actions["move"] = np.arange(2 * length, dtype=np.float32).reshape(length, 2)
    return episode


def assert_same_packets(one: VideoChannel, other: VideoChannel) -> None:
    assert [(bytes(p.data), p[1:]) for p in one.packets()] == [
        (bytes(p.data), p[1:]) for p in other.packets()
    ]


class TestFrames:
    def test_frames_come_back_as_they_were_or_as_near_as_the_row_says(
        self, video: VideoChannel
    ) -> None:
        assert video.shape == FRAMES.shape
        assert video.dtype == np.uint8
        error = np.abs(video.data.astype(int) - FRAMES)
        assert video.lossy is None or error.max() == video.lossy["max_error"]
        assert (video.lossy is None) == (video.codec in ("ffv1", "png"))
        if video.lossy is not None:
            decibels = 10 * np.log10(255**2 / np.mean(np.square(error, dtype=float)))
            assert decibels == pytest.approx(video.lossy["psnr_db"], abs=0.01)
            assert decibels > 28

    def test_any_range_is_what_all_frames_have_there(self, video: VideoChannel) -> None:
        whole, part = video.data, fresh(video)
        for start, stop in ((0, 1), (7, 9), (8, 16), (13, 31), (39, 40), (5, 5)):
            assert np.array_equal(part[start:stop], whole[start:stop])
        assert np.array_equal(part[-1], whole[-1])
        assert np.array_equal(part[3:20:4, :5], whole[3:20:4, :5])
        out = np.empty((6, HEIGHT, WIDTH, 3), np.uint8)
        part.read_steps_into(12, out)
        assert np.array_equal(out, whole[12:18])

    def test_only_the_frames_from_the_keyframe_before_are_decoded(self, h264: VideoChannel) -> None:
        assert h264.keyframes.tolist() == [0, 8, 16, 24, 32]
        needed = h264.packets(19, 21)
        assert needed[0].is_keyframe
        assert 5 <= len(needed) <= 8
        assert {p.step for p in needed if not p.is_hidden} == {0, 1}

    def test_frames_that_need_the_group_before_are_decoded_from_there(
        self, open_groups: VideoChannel
    ) -> None:
        steps = [packet.step for packet in open_groups.packets()]
        leading = [
            step
            for at, step in enumerate(steps)
            if any(step < key for key in open_groups.keyframes if steps.index(key) < at)
        ]
        assert leading
        whole = open_groups.data
        for step in (*leading, *open_groups.keyframes.tolist()):
            assert np.array_equal(fresh(open_groups)[step], whole[step])

    def test_depth_is_kept_bit_for_bit(self) -> None:
        depth = np.random.default_rng(0).integers(0, 1 << 16, (5, 24, 32), np.uint16)
        channel = VideoChannel.encode(depth, "ffv1")
        assert channel.lossy is None
        assert np.array_equal(channel.data, depth)
        with pytest.raises(InvalidArgument, match="ffv1"):
            VideoChannel.encode(depth, "h264")

    @pytest.mark.parametrize("shape", [(12, 48, 64), (12, 48, 64, 1), (12, 33, 47, 3)])
    def test_grey_frames_and_odd_sizes_can_be_encoded(self, shape: tuple[int, ...]) -> None:
        frames = np.resize(FRAMES[:12, :, :, :1], shape)
        channel = VideoChannel.encode(frames, "h264:crf=10")
        assert channel.shape == shape
        assert np.abs(channel.data.astype(int) - frames).mean() < 12

    @pytest.mark.parametrize(
        ("codec", "problem"),
        [
            ("mpeg2", "unknown codec"),
            ("h264:passlogfile=/tmp/x", "unknown setting"),
            ("h264:crf=high", "cannot encode"),
            ("jpeg:0", "1 to 100"),
            ("ffv1:5", "unknown setting"),
        ],
    )
    def test_codecs_and_settings_that_do_not_exist_are_refused(
        self, codec: str, problem: str
    ) -> None:
        with pytest.raises(InvalidArgument, match=problem):
            VideoChannel.encode(FRAMES[:2], codec)

    def test_frames_of_a_video_cannot_be_assigned(self, h264: VideoChannel) -> None:
        with pytest.raises(InvalidArgument, match="cannot be replaced"):
            h264.data = FRAMES


class TestSaving:
    def test_a_saved_video_has_the_same_packets_and_saving_it_again_the_same_bytes(
        self, video: VideoChannel, tmp_path: Path
    ) -> None:
        path, again, moved = (tmp_path / f"{name}.wshard" for name in ("a", "b", "c"))
        save_wshard(with_camera(video), path)
        loaded = load_wshard(path)
        channel = loaded.observations["cam"]
        assert isinstance(channel, VideoChannel)
        assert_same_packets(channel, video)
        assert (channel.lossy, channel.extradata) == (video.lossy, video.extradata)
        assert np.array_equal(channel[9:20], video.data[9:20])
        save_wshard(loaded, again)
        assert again.read_bytes() == path.read_bytes()
        save_wshard(loaded.clone(), moved, compression="zstd")
        assert_same_packets(load_wshard(moved).observations["cam"], video)  # type: ignore[arg-type]

    def test_cameras_are_encoded_on_the_way_into_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "e.wshard"
        times = np.arange(T) * 10**7
        camera = Channel(
            data=FRAMES, modality="rgb", unit="px", timestamps_ns=times, extra={"k": 1}
        )
        episode = with_camera(camera)
        depth = np.arange((T + 1) * 64, dtype=np.uint16).reshape(T + 1, 8, 8)
        episode.observations["depth"] = depth
        rules = {"cam": "h264:crf=18", "depth": "ffv1", "*": "zstd"}
        save_wshard(episode, path, compression=rules, steps_per_frame={"cam": 10})
        assert type(episode.observations["cam"]) is Channel
        loaded = load_wshard(path)
        channel = loaded.observations["cam"]
        assert isinstance(channel, VideoChannel)
        assert channel.keyframes.tolist() == [0, 10, 20, 30]
        assert (channel.modality, channel.unit, channel.extra) == ("rgb", "px", {"k": 1})
        assert channel.lossy is not None
        assert channel.lossy["crf"] == 18
        assert np.array_equal(channel.timestamps_ns, times)  # type: ignore[arg-type]
        assert np.array_equal(loaded.observations["depth"].data, depth)
        with pytest.raises(InvalidArgument, match="encoded already"):
            save_wshard(loaded, tmp_path / "f.wshard", compression={"cam": "av1"})

    @pytest.mark.parametrize(
        ("compression", "problem"),
        [("h264", "name the cameras"), ({"move": "h264"}, "only cameras")],
    )
    def test_what_is_not_a_camera_is_not_encoded(
        self,
        compression: Any,  # noqa: ANN401 - as for save_wshard
        problem: str,
        tmp_path: Path,
    ) -> None:
        with pytest.raises(InvalidArgument, match=problem):
            save_wshard(with_camera(FRAMES), tmp_path / "e.wshard", compression=compression)

    def test_cards_tables_and_the_doctor_show_codec_and_loss(
        self, h264: VideoChannel, tmp_path: Path
    ) -> None:
        path = tmp_path / "e.wshard"
        save_wshard(with_camera(h264), path)
        loaded = load_wshard(path)
        assert "h264 lossy" in loaded.observations["cam"].summary()["codec"]
        assert "<img" in loaded._repr_html_()
        report = examine(path)
        assert not report.errors
        assert "psnr_db" in next(f.message for f in report.findings if f.code == "lossy_channel")

    def test_a_video_can_be_a_prediction_in_a_sidecar(
        self, h264: VideoChannel, tmp_path: Path
    ) -> None:
        path = tmp_path / "e.wshard"
        save_wshard(with_camera(FRAMES), path)
        add_lane(path, "omen/cam/dreamer", h264.clone())
        omen = load_wshard(path).omens["cam"]["dreamer"]
        assert_same_packets(omen, h264)  # type: ignore[arg-type]
        compact(path)
        omen = load_wshard(path).omens["cam"]["dreamer"]
        assert np.array_equal(omen[4:9], h264.data[4:9])


class TestCuttingAndJoining:
    @pytest.mark.parametrize(("start", "stop"), [(0, 8), (3, 5), (8, 24), (13, 40), (40, 40)])
    def test_a_cut_anywhere_keeps_the_packets(
        self, video: VideoChannel, start: int, stop: int
    ) -> None:
        cut = video.sliced(start, stop)
        assert np.array_equal(cut.data, video.data[start:stop])
        again = cut.sliced(0, len(cut))
        assert np.array_equal(again.data, cut.data)
        if start in (0, 8) and video.codec == "jpeg":
            assert cut.hidden == 0

    def test_chunks_are_joined_again_without_decoding(
        self, open_groups: VideoChannel, h264: VideoChannel, tmp_path: Path
    ) -> None:
        episode = with_camera(open_groups)
        episode.observations["other"] = h264
        with ChunkedEpisodeWriter(tmp_path, "ep", chunk_size_t=13) as writer:
            writer.write_episode(episode)
        joined = load_wshard(tmp_path / "ep_manifest.wshard")
        for name, source in (("cam", open_groups), ("other", h264)):
            channel = joined.observations[name]
            assert isinstance(channel, VideoChannel)
            assert np.array_equal(channel[11:28], source.data[11:28])
            assert np.array_equal(channel.data, source.data)
        save_wshard(joined, tmp_path / "whole.wshard")
        whole = load_wshard(tmp_path / "whole.wshard").observations["cam"]
        assert np.array_equal(whole.data, open_groups.data)

    def test_copies_and_pickles_read_the_same(self, h264: VideoChannel, tmp_path: Path) -> None:
        save_wshard(with_camera(h264), tmp_path / "e.wshard")
        channel = load_wshard(tmp_path / "e.wshard").observations["cam"]
        for copy in (channel.clone(), pickle.loads(pickle.dumps(channel)), channel.uncached()):
            assert np.array_equal(copy[5:12], h264.data[5:12])


class TestVideoFiles:
    @pytest.mark.parametrize("ending", ["mp4", "mkv"])
    def test_packets_go_into_a_file_and_out_of_it_without_being_encoded(
        self, video: VideoChannel, ending: str, tmp_path: Path
    ) -> None:
        path = tmp_path / f"v.{ending}"
        if video.codec == "png":
            with pytest.raises(InvalidArgument, match="cannot hold this codec"):
                video.to_file(path)
            return
        video.to_file(path)
        back = VideoChannel.from_file(path)
        assert np.array_equal(back.data, video.data)
        assert back.hidden == 0
        with av.open(str(path)) as container:
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        # FFmpeg decodes JPEG a little differently.
        most = 4 if video.codec == "jpeg" else 0
        assert np.abs(np.subtract(frames, video.data, dtype=np.int64)).max() <= most

    def test_parts_of_a_file_are_cut_by_the_order_in_which_frames_are_shown(
        self, open_groups: VideoChannel, tmp_path: Path
    ) -> None:
        path = tmp_path / "v.mp4"
        open_groups.to_file(path)
        with VideoFile(path) as file:
            assert len(file) == T
            assert file.fps == 20
            assert np.diff(file.timestamps_ns).tolist() == [50_000_000] * (T - 1)
            for start, count in ((20, 9), (0, 3), (29, 11), (21, 1), (40, 0)):
                part = VideoChannel.from_file(file, start, count)
                assert np.array_equal(part.data, open_groups.data[start : start + count])
            with pytest.raises(InvalidArgument, match="fewer frames"):
                VideoChannel.from_file(file, 30, 11)

    def test_a_part_says_that_it_does_not_begin_at_a_keyframe_and_an_edit_list_hides_that(
        self, h264: VideoChannel, tmp_path: Path
    ) -> None:
        part = h264.sliced(11, 32)
        assert part.hidden == len(part.packets()) - 21 > 0
        part.to_file(tmp_path / "part.mp4")
        back = VideoChannel.from_file(tmp_path / "part.mp4")
        assert back.hidden == part.hidden
        assert np.array_equal(back.data, part.data)
        with pytest.raises(InvalidArgument, match="not shown"):
            part.to_file(tmp_path / "part.mkv")
        assert not (tmp_path / "part.mkv").exists()

    def test_files_that_are_not_video_are_refused(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret.mp4"
        VideoChannel.encode(FRAMES[:2]).to_file(secret, fps=20)
        playlist = tmp_path / "list.mp4"
        playlist.write_text(f"#EXTM3U\n#EXTINF:1,\n{secret}\n")
        (tmp_path / "text.mp4").write_bytes(b"hello" * 100)
        for name in ("list.mp4", "text.mp4"):
            with pytest.raises(BadValue, match="not a video file"):
                VideoChannel.from_file(tmp_path / name)
        with pytest.raises(FileNotFoundError):
            VideoChannel.from_file(tmp_path / "none.mp4")

    def test_a_file_that_was_cut_off_is_refused_or_read_as_far_as_it_goes(
        self, h264: VideoChannel, tmp_path: Path
    ) -> None:
        path = tmp_path / "v.mkv"
        h264.to_file(path)
        data = path.read_bytes()
        for size in (10, 200, len(data) // 2):
            path.write_bytes(data[:size])
            try:
                part = VideoChannel.from_file(path)
            except (BadValue, InvalidArgument):
                continue
            assert len(part) < T


class TestWindows:
    def test_windows_and_batches_hold_decoded_frames(
        self, h264: VideoChannel, tmp_path: Path
    ) -> None:
        save_wshard(with_camera(h264), tmp_path / "a.wshard")
        save_wshard(with_camera(np.array(h264.data)), tmp_path / "b.wshard")
        paths = [tmp_path / "a.wshard", tmp_path / "b.wshard"]
        dataset = EpisodeDataset(paths, window=16, index=False)
        half = len(dataset) // 2
        batch = dataset.batch([3, half + 3, 20, half + 20])
        assert batch["cam"].shape == (4, 16, HEIGHT, WIDTH, 3)
        assert np.array_equal(batch["cam"][0], h264.data[3:19])
        assert np.array_equal(batch["cam"][0::2], batch["cam"][1::2])

    def test_a_camera_with_its_own_clock_is_aligned(self, tmp_path: Path) -> None:
        camera = VideoChannel.encode(FRAMES[:20], "ffv1", timestamps_ns=np.arange(20) * 10**8)
        save_wshard(with_camera(camera), tmp_path / "e.wshard")
        aligned = load_wshard(tmp_path / "e.wshard").align(channels=["cam"])
        assert np.array_equal(aligned["cam"].data[::2], FRAMES[:20])


class TestWithoutADecoder:
    def test_packets_and_descriptions_need_no_pyav(
        self, h264: VideoChannel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, again = tmp_path / "e.wshard", tmp_path / "f.wshard"
        save_wshard(with_camera(h264), path)
        monkeypatch.setitem(sys.modules, "av", None)
        loaded = load_wshard(path)
        channel = loaded.observations["cam"]
        assert isinstance(channel, VideoChannel)
        assert channel.shape == FRAMES.shape
        assert_same_packets(channel, h264)
        assert "h264" in loaded._repr_html_()
        save_wshard(loaded, again)
        assert again.read_bytes() == path.read_bytes()
        with pytest.raises(MissingExtra, match=r"shard-format\[video\]"):
            _ = channel.data
        report = examine(path)
        assert not report.errors
        assert "not_decoded" in {finding.code for finding in report.findings}


def image_file(pixels: NDArray[Any], kind: str, **options: Any) -> bytes:  # noqa: ANN401 - of Pillow
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


class TestFilesOfImages:
    @pytest.mark.parametrize("has_simplejpeg", [True, False])
    def test_jpeg_gives_the_pixels_that_pillow_gives_and_needs_no_pyav(
        self, has_simplejpeg: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "av", None)
        if not has_simplejpeg:
            monkeypatch.setattr(images, "_simplejpeg", lambda: None)
        files = [image_file(frame, "JPEG", quality=70) for frame in FRAMES[:6]]
        channel = VideoChannel.from_packets(files, "image/jpeg", FRAMES.shape[1:])
        expected = [np.asarray(Image.open(io.BytesIO(file))) for file in files]
        assert np.array_equal(channel.data, expected)

    @pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "LA", "CMYK"])
    @pytest.mark.parametrize("shape", [(8, 6), (8, 6, 1), (8, 6, 3), (8, 6, 4)])
    def test_pictures_become_what_the_channel_is(self, mode: str, shape: tuple[int, ...]) -> None:
        image = Image.fromarray(FRAMES[3, :8, :6]).convert(mode)
        kind = "jpeg" if mode == "CMYK" else "png"
        out = io.BytesIO()
        image.save(out, kind)
        channel = VideoChannel.from_packets([out.getvalue()], f"image/{kind}", shape)
        wanted = {1: "L", 3: "RGB", 4: "RGBA"}[shape[2] if len(shape) == 3 else 1]
        plain = Image.open(io.BytesIO(out.getvalue())).convert(
            {"P": "RGB", "LA": "RGBA", "CMYK": "RGB"}.get(mode, mode)
        )
        assert np.array_equal(channel.data[0], np.asarray(plain.convert(wanted)).reshape(shape))

    def test_16_bits_are_not_made_8_or_the_reverse(self) -> None:
        files = {
            "u1": image_file(np.zeros((8, 6), np.uint8), "PNG"),
            "u2": image_file(np.full((8, 6), 40_000, np.uint16), "PNG"),
        }
        same = VideoChannel.from_packets([files["u2"]], "image/png", (8, 6, 1), dtype="u16")
        assert (same.data == 40_000).all()
        for dtype, other in (("u8", "u2"), ("u16", "u1")):
            bad = VideoChannel.from_packets([files[other]], "image/png", (8, 6), dtype=dtype)
            with pytest.raises(BadValue, match=r"a different type.*W-VID-6"):
                _ = bad.data

    def test_a_picture_larger_than_the_channel_is_not_decoded(self) -> None:
        # The file ends after its header: decoding it would say that, not that it is too large.
        head = image_file(np.zeros((9000, 9000), np.uint8), "PNG")[:60]
        bad = VideoChannel.from_packets([head], "image/png", (48, 64, 3))
        with pytest.raises(BadValue, match=r"too large.*9000.*W-VID-6"):
            _ = bad.data
        both = VideoChannel.from_packets([head], "image/png", (65535, 65535, 3))
        with pytest.raises(BadValue, match="W-VID-6"):
            _ = both[0]

    def test_the_error_without_pillow_names_what_brings_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = image_file(FRAMES[0], "PNG")
        monkeypatch.setitem(sys.modules, "PIL.PngImagePlugin", None)
        channel = VideoChannel.from_packets([file], "image/png", FRAMES.shape[1:])
        with pytest.raises(MissingExtra, match=r"shard-format\[images\]"):
            _ = channel.data


class TestHostileStreams:
    def changed(self, channel: VideoChannel, **changes: Any) -> VideoChannel:  # noqa: ANN401 - any argument
        given: dict[str, Any] = {
            "packets": channel.packets(),
            "content_type": channel.content_type,
            "shape": channel.step_shape,
            "extradata": channel.extradata,
        }
        return VideoChannel.from_packets(**(given | changes))

    def test_a_damaged_packet_is_an_error_with_a_rule(self, video: VideoChannel) -> None:
        first, *others = video.packets()
        cut = first._replace(data=first.data[: len(first.data) // 3])
        bad = self.changed(video, packets=[cut, *others])
        with pytest.raises(BadValue, match="W-VID-6"):
            _ = bad.data

    def test_noise_and_empty_packets_are_errors(self, video: VideoChannel) -> None:
        noise = [bytes(np.random.default_rng(n).integers(0, 256, 99, np.uint8)) for n in range(T)]
        for contents in (noise, [b""] * T):
            packets = [
                packet._replace(data=content)
                for packet, content in zip(video.packets(), contents, strict=True)
            ]
            with pytest.raises(BadValue, match="W-VID-6"):
                self.changed(video, packets=packets).read_steps(0, 4)

    def test_frames_of_another_size_are_refused(self, video: VideoChannel) -> None:
        if video.codec == "ffv1":
            pytest.skip("FFV1 does not say how large its frames are")
        for shape in ((HEIGHT, WIDTH - 2, 3), (HEIGHT * 8, WIDTH, 3), (8, 8, 3)):
            with pytest.raises(BadValue, match="W-VID-6"):
                _ = self.changed(video, shape=shape).data

    def test_a_size_that_changes_within_the_stream_is_refused(self, h264: VideoChannel) -> None:
        small = VideoChannel.encode(FRAMES[:8, :32, :32], keyframe_every=8)
        later = [packet._replace(step=8 + packet.step) for packet in small.packets()]
        mixed = self.changed(h264, packets=[*h264.packets(0, 8), *later])
        assert np.array_equal(mixed[0:8], h264.data[0:8])
        with pytest.raises(BadValue, match="a different size"):
            _ = mixed[6:10]

    def test_a_packet_that_is_not_a_keyframe_cannot_be_called_one(self, h264: VideoChannel) -> None:
        packets = [
            packet._replace(is_keyframe=packet.is_keyframe or packet.step == T - 1)
            for packet in h264.packets()
        ]
        lying = self.changed(h264, packets=packets)
        with pytest.raises(BadValue, match="W-VID-6"):
            lying.read_steps(T - 1, T)

    def test_many_frames_of_few_bytes_do_not_fill_the_memory(self, tmp_path: Path) -> None:
        black = VideoChannel.encode(np.zeros((64, 512, 512, 3), np.uint8), keyframe_every=64)
        save_wshard(with_camera(black, 64), tmp_path / "e.wshard")
        small = Limits(max_decompressed_bytes=20 << 20)
        channel = load_wshard(tmp_path / "e.wshard", limits=small).observations["cam"]
        assert not channel[60:62].any()
        with pytest.raises(LimitExceeded, match="fewer steps"):
            _ = channel.data

    def test_a_codec_that_nobody_knows_keeps_its_packets(self, tmp_path: Path) -> None:
        channel = VideoChannel.from_packets([b"a", b"bc"], "video/x-none", (4, 4, 3))
        save_wshard(with_camera(channel, 2), tmp_path / "e.wshard")
        loaded = load_wshard(tmp_path / "e.wshard").observations["cam"]
        assert isinstance(loaded, VideoChannel)
        assert [bytes(packet.data) for packet in loaded.packets()] == [b"a", b"bc"]
        with pytest.raises(UnknownCodec, match="x-none"):
            _ = loaded.data


class TestRecording:
    def recorded(self, path: Path, codec: str, **options: Any) -> WShardStreamWriter:  # noqa: ANN401 - of the writer
        camera = ChannelDef("cam", "u8", FRAMES.shape[1:], compression=codec, rate=20)
        move = ChannelDef("move", shape=(2,), lane="action")
        writer = WShardStreamWriter(
            path, "ep", [camera, move], options=StreamOptions(flush_steps=12, **options)
        )
        writer.begin_episode()
        for step, frame in enumerate(FRAMES):
            writer.write_timestep({"cam": frame, "move": [step, 0]})
        return writer

    @pytest.mark.parametrize("codec", CODECS)
    def test_a_recorded_camera_is_video_with_a_keyframe_in_front_of_each_run(
        self, codec: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "e.wshard"
        writer = self.recorded(path, codec)
        writer.end_episode(final_observations={"cam": FRAMES[0]})
        channel = load_wshard(path).observations["cam"]
        assert isinstance(channel, VideoChannel)
        assert (len(channel), channel.sampling_rate_hz, channel.extra) == (T + 1, 20, {})
        assert {0, 12, 24, 36, 40} <= set(channel.keyframes.tolist())
        difference = channel.data.astype(int) - np.concatenate([FRAMES, FRAMES[:1]])
        assert np.abs(difference).max() == (channel.lossy or {"max_error": 0})["max_error"]
        assert not examine(path).errors

    def test_a_recording_that_was_cut_off_anywhere_gives_back_the_frames_before(
        self, tmp_path: Path
    ) -> None:
        path, journal = tmp_path / "e.wshard", tmp_path / "e.wshard.partial"
        writer = self.recorded(path, "h264:crf=20")
        writer.flush()
        data = journal.read_bytes()
        following = open_partial(journal).observations["cam"]
        assert isinstance(following, VideoChannel)
        writer.end_episode()
        whole = load_wshard(path).observations["cam"].data
        assert np.array_equal(following.data, whole)
        found = set()
        for size in range(len(data), 600, -len(data) // 12):
            cut = tmp_path / f"cut{size}.wshard.partial"
            cut.write_bytes(data[:size])
            result = recover(cut, tmp_path / f"cut{size}.wshard", fsync=False)
            found.add(result.steps)
            if result.steps:
                back = load_wshard(tmp_path / f"cut{size}.wshard").observations["cam"]
                assert isinstance(back, VideoChannel)
                assert np.array_equal(back.data, whole[: result.steps])
        assert {12, 24, 36, 40} <= found

    def test_a_camera_goes_on_in_the_next_file(self, tmp_path: Path) -> None:
        writer = self.recorded(tmp_path / "e.wshard", "h264:crf=20", max_steps_per_file=15)
        writer.end_episode()
        joined = load_wshard(tmp_path / "e_manifest.wshard").observations["cam"]
        assert isinstance(joined, VideoChannel)
        assert (joined.hidden, len(joined)) == (0, T)
        assert np.abs(joined[13:17].astype(int) - FRAMES[13:17]).mean() < 12

    def test_what_cannot_be_encoded_is_refused_before_the_recording(self, tmp_path: Path) -> None:
        for bad in (
            ChannelDef("cam", "f32", (4, 4), compression="h264"),
            ChannelDef("cam", "u16", (16, 16), compression="h264"),
            ChannelDef("cam", "u8", (16, 16, 3), compression="h264:crf=x"),
        ):
            with pytest.raises(InvalidArgument, match="signal/cam"):
                WShardStreamWriter(tmp_path / "e.wshard", "ep", [bad])
        assert list(tmp_path.iterdir()) == []
