"""The disk tier is bounded, ranks by heat, and survives dying writers, full disks and others."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.files import encode
from ragboost.errors import ChunkCacheError
from tests.chunk_cache.store.chunks import files_of_at_most, make_chunk, same

SIZE = len(encode("a", make_chunk()))
ROOT = Path(__file__).parents[3]


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def keys_in(tier: DiskTier) -> str:
    return "".join(sorted(path.stem for path in tier.directory.glob("*.safetensors")))


def in_another_process(code: str, *arguments: object) -> "subprocess.Popen[bytes]":
    lines = """
        import os, resource, signal, sys
        from pathlib import Path
        from ragboost.chunk_cache.store.disk import DiskTier
        from tests.chunk_cache.store.chunks import make_chunk, same
    """
    program = textwrap.dedent(lines) + textwrap.dedent(code)
    command = [sys.executable, "-c", program, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)


def test_a_chunk_outlives_the_tier_that_stored_it(tmp_path: Path) -> None:
    assert DiskTier(tmp_path, capacity_bytes=10 * SIZE).save("a", make_chunk())
    tier = DiskTier(tmp_path, capacity_bytes=10 * SIZE)
    assert "a" in tier
    assert same(tier.load("a"), make_chunk())
    assert tier.load("b") is None
    tier.clear()
    assert (len(tier), tier.size_bytes) == (0, 0)


def test_files_stay_within_the_bound_and_the_coldest_goes_first(tmp_path: Path) -> None:
    clock = Clock()
    tier = DiskTier(tmp_path, capacity_bytes=3 * SIZE + SIZE // 2, clock=clock)
    for key in "abc":
        tier.save(key, make_chunk())
        clock.now += 1
    for _ in range(3):
        tier.load("a")
    clock.now += 60
    tier.load("b")

    tier.save("d", make_chunk())

    assert keys_in(tier) == "abd"
    assert tier.size_bytes <= tier.capacity_bytes


def test_heat_fades_and_what_is_dear_to_compute_stays_longer(tmp_path: Path) -> None:
    clock = Clock()
    tier = DiskTier(tmp_path, capacity_bytes=2 * SIZE + SIZE // 2, clock=clock)
    tier.save("hot", make_chunk())
    for _ in range(7):
        tier.load("hot")  # heat 8, which is 1 after three times tau
    clock.now += 4 * 600
    tier.save("warm", make_chunk())
    tier.save("new", make_chunk())
    assert keys_in(tier) == "newwarm", "heat 1/2 now, behind heat 1"

    tier.remove("new")
    tier.save("dear", make_chunk(compute_s=0.1))  # ten times the cost: 3.3 times tau
    clock.now += 3 * 600
    tier.save("late", make_chunk())
    assert keys_in(tier) == "dearlate"


def test_a_chunk_larger_than_the_tier_is_not_kept(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, capacity_bytes=SIZE - 1)
    assert not tier.save("a", make_chunk())
    assert tier.size_bytes == 0


def test_a_broken_file_is_removed_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier = DiskTier(tmp_path, capacity_bytes=10 * SIZE)
    tier.save("a", make_chunk())
    path = tmp_path / "a.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    assert tier.load("a") is None

    assert tier.num_refused == 1
    assert "a" not in tier
    assert "layer 2 has a wrong checksum" in caplog.text
    assert tier.save("a", make_chunk())
    assert same(tier.load("a"), make_chunk())


def test_a_full_disk_leaves_everything_as_it_was(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, capacity_bytes=10 * SIZE)
    tier.save("a", make_chunk())
    with files_of_at_most(SIZE // 2):
        assert not tier.save("a", make_chunk(1))
        assert not tier.save("b", make_chunk(2))
    assert tier.num_failed == 2
    assert os.listdir(tmp_path) != []
    assert keys_in(tier) == "a"
    assert not list(tmp_path.glob("*.unfinished"))
    assert same(tier.load("a"), make_chunk())
    assert tier.save("b", make_chunk(2))


def test_a_writer_killed_in_the_middle_leaves_no_chunk_and_its_room_is_found_again(
    tmp_path: Path,
) -> None:
    tier = DiskTier(tmp_path, capacity_bytes=3 * SIZE)
    child = in_another_process(
        """
        tier = DiskTier(Path(sys.argv[1]), capacity_bytes=int(sys.argv[2]))
        def stop(descriptor):
            print("writing", flush=True)
            signal.pause()
        os.fdatasync = stop  # the file is written and not yet renamed
        tier.save("a", make_chunk())
        """,
        tmp_path,
        3 * SIZE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"writing\n"
    assert len(list(tmp_path.glob("*.unfinished"))) == 1
    assert tier.size_bytes == SIZE, "what is being written counts"

    child.send_signal(signal.SIGKILL)
    child.communicate()

    assert tier.load("a") is None
    for key in "bcd":
        assert tier.save(key, make_chunk())
    assert not list(tmp_path.glob("*.unfinished"))
    assert tier.size_bytes <= 3 * SIZE


def test_writers_killed_at_any_moment_leave_only_whole_chunks(tmp_path: Path) -> None:
    for num_saved in (1, 9):
        child = in_another_process(
            """
            tier = DiskTier(Path(sys.argv[1]), capacity_bytes=10**8)
            for number in range(10**6):
                tier.save(str(number), make_chunk(number, num_tokens=64))
                print(number, flush=True)
            """,
            tmp_path,
        )
        assert child.stdout is not None
        assert [int(child.stdout.readline()) for _ in range(num_saved)] == [*range(num_saved)]
        child.kill()  # while it saves the next one, or one behind it
        child.communicate()
    tier = DiskTier(tmp_path, capacity_bytes=10**8)
    for path in tmp_path.glob("*.safetensors"):
        assert same(tier.load(path.stem), make_chunk(int(path.stem), num_tokens=64))
    assert tier.num_refused == 0
    assert not list(tmp_path.glob("*.unfinished"))


def test_two_processes_share_a_directory_without_wrong_kv_and_within_one_bound(
    tmp_path: Path,
) -> None:
    code = """
        tier = DiskTier(Path(sys.argv[1]), capacity_bytes=int(sys.argv[2]))
        wrong = over = found = 0
        for turn in range(40):
            number = (turn // 2 * int(sys.argv[3])) % 11  # each twice
            chunk = tier.load(str(number))
            if chunk is not None:
                found += 1
                wrong += not same(chunk, make_chunk(number))
            else:
                tier.save(str(number), make_chunk(number))
            over += tier.size_bytes > tier.capacity_bytes
        print(wrong, over, found > 0, tier.num_refused)
    """
    children = [in_another_process(code, tmp_path, 6 * SIZE, step) for step in (3, 7)]
    for child in children:
        out, _ = child.communicate()
        assert out.split() == [b"0", b"0", b"True", b"0"]


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ChunkCacheError, match="cannot hold chunk files"):
        DiskTier(file, capacity_bytes=1)
    with pytest.raises(ChunkCacheError, match="capacity_bytes must be at least 1, got 0"):
        DiskTier(tmp_path, capacity_bytes=0)


@pytest.mark.parametrize("suffix", ["safetensors", "unfinished"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "link to itself", "link to nothing"])
def test_what_is_no_file_is_left_alone_and_does_no_harm(
    tmp_path: Path, kind: str, suffix: str
) -> None:
    odd = tmp_path / f"odd.{suffix}"
    if kind == "folder":
        odd.mkdir()
    elif kind == "pipe":
        os.mkfifo(odd)
    else:
        odd.symlink_to(odd if kind == "link to itself" else tmp_path / "nothing")
    os.utime(odd, (0, 0), follow_symlinks=False)  # the first to be evicted
    tier = DiskTier(tmp_path, capacity_bytes=3 * SIZE)

    assert all(tier.save(str(number), make_chunk(number)) for number in range(9))

    assert odd.is_symlink() or odd.exists()
    assert 0 < tier.size_bytes <= tier.capacity_bytes
    assert tier.load("odd") is None
    assert same(tier.load("8"), make_chunk(8))


def test_files_ranked_by_a_clock_that_was_wrong_make_room(tmp_path: Path) -> None:
    clock = Clock()
    tier = DiskTier(tmp_path, capacity_bytes=4 * SIZE, clock=clock)
    clock.now += 1e8
    for key in "abc":
        tier.save(key, make_chunk())
    clock.now -= 1e8
    for key in "defg":
        clock.now += 1
        tier.save(key, make_chunk())
    assert keys_in(tier) == "efg"


def test_a_removed_file_is_no_longer_counted(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, capacity_bytes=10 * SIZE)
    for key in "ab":
        tier.save(key, make_chunk())
    tier.remove("a")
    tier.remove("nothing")
    assert tier.recorded_bytes == tier.size_bytes == SIZE


def test_books_that_cannot_be_read_are_made_again(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, capacity_bytes=2 * SIZE + SIZE // 2)
    tier.save("a", make_chunk())
    (tmp_path / "lock").write_text("nonsense")
    for key in "bcd":
        assert tier.save(key, make_chunk())
        assert tier.size_bytes <= tier.capacity_bytes


def test_a_disk_that_fails_has_no_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines ask between two steps, where an error would end them."""
    disk = DiskTier(tmp_path, capacity_bytes=1 << 24)
    disk.save("a", make_chunk())

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "the disk fails")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        assert disk.load("a") is None
    assert "a" in disk
