"""Cameras as encoded video: channels of packets, and video files."""

from wshard._video import Packet, VideoChannel
from wshard._video_file import VideoFile

__all__ = ["Packet", "VideoChannel", "VideoFile"]
