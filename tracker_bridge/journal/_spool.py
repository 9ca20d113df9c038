"""Segments on a file system that cannot map files: written in shared memory, copied to the file ten times a second.

A write for each record would be a system call for each, which costs as much as all the rest and gives the interpreter
lock away. What is in shared memory outlives a killed process; a note beside the segment says where it is, and whoever
comes next (`salvage`) copies what is missing. Everything here may raise `OSError`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
import tempfile
from pathlib import Path

import msgspec

from tracker_bridge.journal._files import CREATE, note_path, write_at
from tracker_bridge.journal._format import HEADER_SIZE, SEAL, SEAL_SIZE, frame_size
from tracker_bridge.journal._segment import MappedSegment, allocate

COPY_SECONDS = 0.1
"""Between two copies. Each takes the interpreter lock from the training thread for a moment, twice."""
LARGEST_SPOOL = 4 << 20
_SPARE = 8
"""Shared memory is others' too, and a container has 64 MiB for all its data loaders: so many spools must be free."""
_AT_ONCE = 512
"""Frames that are looked at before the interpreter lock is given away: 0.1 ms."""
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - everything in it is checked to be ours


class Note(msgspec.Struct, frozen=True):
    """Where the spool of a segment is: on which host, since which boot. It is there before the spool is, and after.

    `device` and `inode` are those of the journal's folder, which tell it from a copy.
    """

    path: str
    host: str
    boot: str
    device: int
    inode: int

    def is_of(self, folder: Path) -> bool:
        """Whether it was written in this very folder. Some network file systems give it another number now and then."""
        found = folder.stat()
        return (found.st_dev, found.st_ino) == (self.device, self.inode)


class SpooledSegment(MappedSegment):
    """A mapped segment whose bytes reach its file (`real`) by `copy`. `end`: where that is cut, once it is sealed."""

    def __init__(self, number: int, size: int, spool: Path, fd: int, real: int, note: Path) -> None:
        super().__init__(number, size, fd)
        self.end: int | None = None
        self._spool = spool
        self._real = real
        self._note = note
        self._copied = 0

    def has_begun(self) -> bool:
        """Whether readers are to see it. All segments before it are complete then."""
        return bool(self.words[0])

    def copy(self) -> None:
        """Bring every whole frame to the file. Done by one thread at a time, while another one may append."""
        while (end := self._whole()) > self._copied:
            with self.view[self._copied : end] as piece:
                write_at(self._real, piece, self._copied)
            self._copied = end

    def is_at(self, path: Path) -> bool:
        """Whether its file is the one at `path`. Raises `OSError` if there is none."""
        return os.path.samestat(os.fstat(self._real), os.stat(path))

    def cut(self, end: int) -> None:
        """Bring the rest to the file and give back what is unused after `end`, and the spool."""
        self.copy()
        with contextlib.suppress(OSError):  # a segment that stays longer than its seal is whole all the same
            os.ftruncate(self._real, end)
        self.forget()
        self.unmap()

    def forget(self) -> None:
        """Remove spool and note: everything is in the file, or nothing will be."""
        for path in (self._spool, self._note):
            with contextlib.suppress(OSError):
                path.unlink()

    def release(self) -> None:
        """Let go of both files."""
        super().release()
        if self._real >= 0:
            os.close(self._real)
            self._real = -1

    def _whole(self) -> int:
        """Where the frames end of which the first word, which is stored last, is there; not many at once."""
        at = max(self._copied, HEADER_SIZE)
        words = self.words
        for _ in range(_AT_ONCE):
            word = words[at >> 3] if at < self.size else 0
            if not word:
                break
            length = word & 0xFFFFFFFF
            if length == SEAL:
                return at + SEAL_SIZE
            at += frame_size(length)
        return at


def spooled(folder: Path, number: int, size: int, least: int, real: int) -> SpooledSegment:
    """A segment of about `size` bytes, and at least `least`, that is copied to the file `real`.

    Raises `OSError` and `ValueError` where there is no room in shared memory, or it cannot be mapped either.
    """
    if os.name != "posix":
        raise OSError("whose a file is cannot be told here")
    size = max(min(size, LARGEST_SPOOL), least)
    place = _place(size)
    allocate(real, size)  # so that no copy finds the disk full
    path = place / f"{_prefix()}{secrets.token_hex(12)}"
    note = note_path(folder, number)
    found = folder.stat()
    _write_note(note, Note(str(path), socket.gethostname(), boot_id(), found.st_dev, found.st_ino))
    try:
        fd = os.open(path, CREATE, 0o600)
    except BaseException:
        note.unlink()
        raise
    try:
        allocate(fd, size)
        return SpooledSegment(number, size, path, fd, real, note)
    except BaseException:
        os.close(fd)
        path.unlink()
        note.unlink()
        raise


def open_spool(path: Path) -> int:
    """A descriptor of the spool that a note names. Raises `OSError` if there is none, or it is not one of ours."""
    if not path.name.startswith(_prefix()):
        raise FileNotFoundError(f"{path} is no spool of this user")
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    found = os.fstat(fd)
    # Anyone may put a file, or a link, where all users share memory.
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077:
        return fd
    os.close(fd)
    raise FileNotFoundError(f"{path} is another file by now")


def boot_id() -> str:
    """What tells one start of this machine from another, "" where nothing does. Shared memory ends with it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _prefix() -> str:
    return f"tracker_bridge-{os.getuid()}-"


def _place(size: int) -> Path:
    """A folder of memory, else of a disk, in which `size` bytes are little. Raises `OSError` if there is none."""
    for place in (_SHARED_MEMORY, Path(tempfile.gettempdir())):
        with contextlib.suppress(OSError):
            if os.access(place, os.W_OK) and _free(place) >= _SPARE * size:
                return place
    raise OSError("there is no shared memory to spare")


def _free(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def _write_note(path: Path, note: Note) -> None:
    """All or nothing."""
    fresh = path.with_suffix(".tmp")
    fresh.write_bytes(msgspec.json.encode(note))
    fresh.replace(path)
