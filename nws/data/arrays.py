"""Arrays in files of others: .npz, .npy, idx. What a header promises is checked before it is read.

No array is allocated that its file cannot hold, and no code in a file is run.
"""

import contextlib
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from nws.errors import UserError

RATIO = 1032  # bytes that deflate makes of one, at most


def check_memory(where: object, size: int) -> None:
    """Raise `UserError` where so many bytes are more than the machine's memory."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # where it is not known
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if size > there:
            raise UserError(
                f"{where} promises {size / 2**30:,.0f} GiB of numbers, and this machine has"
                f" {there / 2**30:,.0f} GiB of memory; give a smaller file, or a good copy"
            )


def read_npy(file: Path, mapped: bool = False) -> np.ndarray:
    """Return the array of a .npy file; if `mapped`, bytes in the order of C stay in the file.

    Raises:
        UserError: Where the array is larger than the memory.
        ValueError: Where the file is damaged.
    """
    with open(file, "rb") as content:
        return _read(content, file.stat().st_size, file, file if mapped else None)


def read_npz(
    file: Path, names: tuple[str, ...], mapped: bool = False
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return those arrays of a .npz file that are there, and the names of all that is in it.

    If `mapped`, bytes in the order of C stay in the file, where they are not packed.

    Raises:
        UserError: Where an array is larger than the memory.
        ValueError: Where the file is damaged or encrypted, or a member is no array.
    """
    arrays = {}
    with zipfile.ZipFile(file) as archive:
        members = {each.filename.removesuffix(".npy"): each for each in archive.infolist()}
        for name in names:
            if name not in members:
                continue
            member = members[name]
            if member.flag_bits & 1:
                raise ValueError(f"{member.filename} is encrypted; write it without a password")
            if member.file_size > RATIO * member.compress_size + RATIO:
                raise ValueError(f"{member.filename} promises more bytes than it can hold")
            if mapped and member.compress_type == zipfile.ZIP_STORED:
                arrays[name] = _map_member(file, member, f"{file}: {name}")
                continue
            with archive.open(member) as content:
                arrays[name] = _read(content, member.file_size, f"{file}: {name}")
    return arrays, list(members)


def _map_member(file: Path, member: zipfile.ZipInfo, where: object) -> np.ndarray:
    """Return a member of a zip file that is not packed, after a check of its sum."""
    with open(file, "rb") as content:
        content.seek(member.header_offset + 26)
        name, extra = struct.unpack("<HH", content.read(4))
        begin = content.seek(member.header_offset + 30 + name + extra)
        left, found = member.file_size, 0
        while left and (chunk := content.read(min(left, 2**20))):
            left, found = left - len(chunk), zlib.crc32(chunk, found)
        if found != member.CRC:
            raise ValueError(f"{member.filename} is not what its checksum says")
        content.seek(begin)
        return _read(content, member.file_size, where, file)


def _read(content: IO[bytes], size: int, where: object, mapped: Path | None = None) -> np.ndarray:
    """Return the array of `size` bytes from here in an open file, after a check of its header.

    Bytes in the order of C stay in the file `mapped`, where it is given: the array is a map of it,
    in which changes do not reach the file.
    """
    begin = content.tell()
    major, _ = npy.read_magic(content)
    read_header = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
    shape, columns_first, dtype = read_header(content)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, no plain numbers")
    promised, there = math.prod(shape) * dtype.itemsize, size - (content.tell() - begin)
    if promised != there:
        raise ValueError(f"its header promises {promised:,} bytes of numbers, it holds {there:,}")
    if mapped is not None and dtype.itemsize == 1 and promised and not columns_first:
        return np.memmap(mapped, dtype, "c", content.tell(), shape)
    check_memory(where, promised)
    content.seek(begin)
    array: np.ndarray = npy.read_array(content, allow_pickle=False)
    content.read(1)  # the end, where zipfile compares the checksum
    return array


class Unpacked(NamedTuple):
    """What is in an idx file, up to a byte more than its header promises."""

    content: bytes
    size: int  # bytes, one too many where there are more than the header promises
    torn: bool  # whether a packed file ends too early


def read_idx(file: Path, header: int, promised: Callable[[bytes], int], mend: str) -> Unpacked:
    """Return what is in an idx file, packed (.gz) or not.

    Args:
        file: The file.
        header: Bytes of its header.
        promised: Says of a header, padded with zeros, how many bytes the file should have.
        mend: What to do about a damaged file, for messages.

    Raises:
        UserError: It cannot be read or unpacked, or promises more than the memory holds.
    """
    unpacker, packed = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS), file.suffix == ".gz"
    try:
        size = file.stat().st_size
        with open(file, "rb") as opened:
            head = unpacker.decompress(opened.read(), header) if packed else opened.read(header)
            expected = promised(head.ljust(header, b"\0"))
            possible = min(expected, RATIO * size if packed else size)
            check_memory(file, possible)
            if not packed:
                return Unpacked(head + opened.read(max(0, possible - header)), size, False)
        left = max(1, possible + 1 - len(head))
        content = head + unpacker.decompress(unpacker.unconsumed_tail, left)
    except zlib.error as error:
        raise UserError(
            f"{file}: expected a gzip file, but its bytes do not unpack ({error}); {mend}"
        ) from error
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{file} could not be read ({reason}); check its permissions") from error
    torn = not unpacker.eof and len(content) <= expected
    return Unpacked(content, len(content), torn)
