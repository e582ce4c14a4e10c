"""Data files: read exactly, refused when they are damaged, and never left half-written."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import http.client
import io
import socket
import struct
import tarfile
import urllib.error

import numpy as np
import pytest

from sinksort.paper import datasets
from sinksort.paper.datasets import DATA_SETS, DataSet, File
from sinksort.paper.images import read_cifar, read_idx, read_mnist
from sinksort.paper.store import write_atomic
from sinksort.paper.tables import TABLES, read_table, split

# ---- MNIST


def idx(array):
    array = np.asarray(array, dtype=np.uint8)
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize("packed", [False, True])
def test_idx_by_hand(tmp_path, packed):
    raw = b"\0\0\x08\x02" + b"\0\0\0\x02" + b"\0\0\0\x03" + bytes([1, 2, 3, 250, 251, 252])
    path = tmp_path / ("file.gz" if packed else "file")
    path.write_bytes(gzip.compress(raw) if packed else raw)
    assert read_idx(path).tolist() == [[1, 2, 3], [250, 251, 252]]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "begins with nothing, not with 00 00 08"),
        (b"\0\0\x0d\x01\0\0\0\x01\0", "begins with 00 00 0d 01"),
        (idx([1, 2, 3])[:-1], "announces 11 bytes for an array of shape \\(3,\\), it has 10"),
        (idx([1, 2, 3]) + b"x", "announces 11 bytes .* it has 12"),
        (b"\0\0\x08\x03\0\0\0\x02", "damaged"),
    ],
)
def test_idx_that_is_damaged(tmp_path, raw, said):
    path = tmp_path / "labels"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=f"{path}.*{said}"):
        read_idx(path)


@pytest.mark.parametrize("spoil", [lambda z: z[:-9], lambda z: z[:30] + b"\xff\xff\xff" + z[33:], lambda z: b"no gzip"])
def test_idx_in_a_damaged_gzip(tmp_path, spoil):
    path = tmp_path / "images.gz"
    path.write_bytes(spoil(gzip.compress(idx(np.arange(200)), mtime=0)))
    with pytest.raises(ValueError, match=r"is not a whole gzip file .* sinksort data --download mnist"):
        read_idx(path)


def test_mnist_needs_as_many_labels_as_images(tmp_path):
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(np.arange(12).reshape(3, 2, 2)))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx([7, 8, 9])))
    images, labels = read_mnist(tmp_path, "t10k")
    assert images[2].tolist() == [[8, 9], [10, 11]]
    assert labels.tolist() == [7, 8, 9]
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx([7, 8])))
    with pytest.raises(ValueError, match=r"images have shape \(3, 2, 2\) and the labels \(2,\)"):
        read_mnist(tmp_path, "t10k")


# ---- CIFAR


def record(label_bytes, red, green, blue):
    return bytes(label_bytes) + b"".join(bytes([c]) * 1024 for c in (red, green, blue))


def test_cifar_by_hand(tmp_path):
    one, two = tmp_path / "1.bin", tmp_path / "2.bin"
    one.write_bytes(record([3], 10, 20, 30) + record([9], 40, 50, 60))
    planes = np.arange(3072, dtype=np.uint64).astype(np.uint8).tobytes()
    two.write_bytes(bytes([0]) + planes)
    images, labels = read_cifar([one, two], 1)
    assert images.shape == (3, 3, 32, 32)
    assert labels.tolist() == [3, 9, 0]
    assert images[1, :, 5, 7].tolist() == [40, 50, 60]
    # pixel (row 2, column 3) of the green plane is byte 1024 + 2 * 32 + 3 of a record
    assert images[2, 1, 2, 3] == (1024 + 67) % 256


def test_cifar100_takes_the_fine_label(tmp_path):
    path = tmp_path / "train.bin"
    path.write_bytes(record([19, 99], 1, 2, 3))
    assert read_cifar([path], 2)[1].tolist() == [99]


@pytest.mark.parametrize("raw", [b"", record([1], 1, 2, 3)[:-1], record([1, 2], 1, 2, 3)])
def test_cifar_that_is_damaged(tmp_path, raw):
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=f"{path} is damaged .* no whole number of records of 3073; .*cifar10"):
        read_cifar([path], 1)


def test_cifar_of_another_kind(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(record([10], 1, 2, 3))
    with pytest.raises(ValueError, match="not CIFAR-10 in its binary version: a record has the label 10"):
        read_cifar([path], 1)


# ---- the six tables, by hand


def table(tmp_path, name, **files):
    for file, text in files.items():
        (tmp_path / file.replace("__", ".")).write_text(text)
    x, y = read_table(name, tmp_path)
    return x.tolist(), y.tolist()


def test_bio(tmp_path):
    x, y = table(tmp_path, "bio", CASP__csv='"RMSD","F1","F2"\n17.5,1,2\n6,3,4.5\n')
    assert (x, y) == ([[1, 2], [3, 4.5]], [17.5, 6])


def test_concrete(tmp_path):
    x, y = table(tmp_path, "concrete", Concrete_Data__csv='a,"b, c"\n540.0 ,79.99 \n1 ,2 \n')
    assert (x, y) == ([[540], [1]], [79.99, 2])


def test_bike(tmp_path):
    head = "datetime,season,holiday,workingday,weather,temp,atemp,humidity,windspeed,casual,registered,count\n"
    rows = "2011-01-01 05:00:00,1,0,1,2,9.5,14,81,0,3,13,16\n2012-12-03 23:00:00,4,1,0,1,10,15,80,2,4,14,18\n"
    x, y = table(tmp_path, "bike", bike_train__csv=head + rows)
    # holiday, workingday, temp, atemp, humidity, windspeed; season 1, 4; weather 1, 2; hour, weekday, month, year
    assert x == [
        [0, 1, 9.5, 14, 81, 0, 1, 0, 0, 1, 5, 5, 1, 0],
        [1, 0, 10, 15, 80, 2, 0, 1, 1, 0, 23, 0, 12, 1],
    ]
    assert y == [16, 18]  # casual and registered add up to it and are no features


def test_star(tmp_path):
    head = (
        '"","gender","ethnicity","birth","stark","readk","math1","lunchk","lunch1","degree1","ladderk","tethnicity3"\n'
    )
    whole = "7,male,asian,1980.25,small,400,500,free,non-free,phd,pending,afam\n"
    gap = "8,male,asian,1980.25,small,400,NA,free,non-free,phd,pending,afam\n"
    x, y = table(tmp_path, "star", STAR__csv=head + whole + gap)
    # the pupil's number is in, the column after the grades (lunchk) is out, a row with a gap is dropped
    assert (x, y) == ([[7, 1, 2, 1980.25, 1, 1, 3, 5, 1]], [900])


def test_star_refuses_an_unknown_word(tmp_path):
    with pytest.raises(ValueError, match="'robot' is no known value of gender; expected one of female, male"):
        table(tmp_path, "star", STAR__csv="gender,readk,lunchk\nrobot,1,free\n")


def test_community(tmp_path):
    names = ["state", "county", "community", "communityname", "fold", "gap", "OtherPerCap"]
    names += [f"f{i}" for i in range(100)]
    values = [
        [1, "?", "?", "town", 1, g, o, *(k + i for i in range(100))]
        for k, g, o in ((0, "?", 2), (5, 3, "?"), (9, 3, 6))
    ]
    lines = "".join(",".join(map(str, row)) + "\n" for row in values)
    x, y = table(
        tmp_path, "community", communities__data=lines, communities_attributes__csv="attributes\n" + "\n".join(names)
    )
    assert [row[0] for row in x] == [2, 4, 6]  # the mean where it is missing; the column gap is dropped
    assert [len(row) for row in x] == [100] * 3
    assert y == [99, 104, 108]


def test_facebook_test_part_has_no_header_and_a_variant_loses_its_first_row(tmp_path):
    rows = "".join(",".join(str(100 * k + i) for i in range(54)) + "\n" for k in range(3))
    x, y = table(tmp_path, "facebook", Features_TestSet__csv=rows)
    assert (len(x), x[1][0], y) == (3, 100, [53, 153, 253])
    x, y = table(tmp_path, "facebook", Features_Variant_1__csv=rows)
    assert (len(x), x[0][0], y) == (2, 100, [153, 253])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n3\n", "3 rows are not all of the same length"),
        ("a,b\n1,x\n", "damaged"),
        ("a,b\n1,nan\n", "no numbers"),
    ],
)
def test_tables_that_are_damaged(tmp_path, text, said):
    (tmp_path / "Concrete_Data.csv").write_text(text)
    with pytest.raises(ValueError, match=said):
        read_table("concrete", tmp_path)


def test_unknown_table(tmp_path):
    with pytest.raises(ValueError, match=f"table must be one of {', '.join(TABLES)}, got 'iris'"):
        read_table("iris", tmp_path)


@pytest.mark.parametrize("response", ["standard", "mean-abs"])
def test_split_is_scaled_by_its_training_part_alone(response):
    rng = np.random.default_rng(0)
    x, y = rng.normal(5, 3, (101, 4)), rng.normal(-7, 2, 101)
    x[:, 3] = 8.0  # constant
    x[:, 0] = np.arange(101)  # tells rows apart
    s = split(x, y, seed=1, response=response)
    assert (len(s.train_x), len(s.test_x)) == (81, 20)
    np.testing.assert_allclose(s.train_x[:, :3].mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(s.train_x[:, :3].std(0), 1)
    np.testing.assert_allclose(s.train_x[:, 3], 0)
    if response == "standard":
        np.testing.assert_allclose([s.train_y.mean(), s.train_y.std()], [0, 1], atol=1e-12)
    else:
        np.testing.assert_allclose(np.abs(s.train_y).mean(), 1)
    ids = np.concatenate([s.train_x[:, 0], s.test_x[:, 0]])
    assert len(np.unique(ids.round(9))) == 101  # every row is in exactly one part
    again, other = split(x, y, seed=1, response=response), split(x, y, seed=2, response=response)
    assert (again.test_y == s.test_y).all()
    assert not np.array_equal(other.test_y, s.test_y)


def test_split_knows_two_scales():
    with pytest.raises(ValueError, match="response must be 'standard' or 'mean-abs', got 'log'"):
        split(np.ones((5, 1)), np.ones(5), 0, response="log")


# ---- which files, and how they come


@pytest.fixture
def two_sets(monkeypatch, tmp_path):
    """A catalogue of two small data sets whose sources are files on this machine."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "table.csv").write_bytes(b"a,b\n")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name in ("folder/one.bin", "folder/two.bin", "../evil.bin"):
            member = tarfile.TarInfo(name)
            member.size = len(name)
            tar.addfile(member, io.BytesIO(name.encode()))
    (site / "all.tar.gz").write_bytes(archive.getvalue())

    def digest(content):
        return hashlib.sha256(content).hexdigest()

    sets = {
        "plain": DataSet("a table", (File("x/table.csv", digest(b"a,b\n"), (site / "table.csv").as_uri()),), ""),
        "packed": DataSet(
            "an archive",
            tuple(
                File(f"y/{name}", digest(f"folder/{name}".encode()), (site / "all.tar.gz").as_uri())
                for name in ("one.bin", "two.bin")
            ),
            "",
        ),
        "nowhere": DataSet("no address", (File("z/lost.csv", digest(b"lost")),), ""),
    }
    monkeypatch.setattr(datasets, "DATA_SETS", sets)
    return site


def test_states_of_a_file(tmp_path):
    file = File("a/b.txt", hashlib.sha256(b"right").hexdigest())
    assert file.state(tmp_path) == "missing"
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b.txt").write_bytes(b"wrong")
    assert file.state(tmp_path) == "damaged"
    (tmp_path / "a/b.txt").write_bytes(b"right")
    assert file.state(tmp_path) == "ok"


@pytest.mark.usefixtures("two_sets")
def test_download_writes_what_was_expected_and_nothing_else(tmp_path):
    data = tmp_path / "data"
    assert [p.name for p in datasets.download("plain", data)] == ["table.csv"]
    assert [p.name for p in datasets.download("packed", data)] == ["one.bin", "two.bin"]
    assert (data / "y/two.bin").read_bytes() == b"folder/two.bin"
    assert sorted(p.name for p in data.rglob("*") if p.is_file()) == ["one.bin", "table.csv", "two.bin"]
    assert list(datasets.download("packed", data)) == []  # nothing is missing


def test_download_of_something_else_writes_nothing(tmp_path, two_sets):
    (two_sets / "table.csv").write_bytes(b"tampered")
    with pytest.raises(ValueError, match=r"did not give table.csv as expected: sha256 .* nothing was written"):
        list(datasets.download("plain", tmp_path / "data"))
    assert not (tmp_path / "data").exists()


def test_a_download_whose_second_file_is_bad_leaves_none(tmp_path, two_sets, monkeypatch):
    bad = dataclasses.replace(datasets.DATA_SETS["packed"].files[1], sha256="0" * 64)
    good = datasets.DATA_SETS["packed"].files[0]
    for files in ((good, bad), (*datasets.DATA_SETS["plain"].files, bad)):  # of one archive, and of two addresses
        monkeypatch.setitem(datasets.DATA_SETS, "both", DataSet("two files", files, ""))
        with pytest.raises(ValueError, match=r"did not give two.bin as expected: sha256 .* nothing was written"):
            list(datasets.download("both", tmp_path / "data"))
        assert not (tmp_path / "data").exists()


def test_an_archive_is_checked_before_it_is_unpacked(tmp_path, two_sets, monkeypatch):
    address = (two_sets / "all.tar.gz").as_uri()
    monkeypatch.setitem(datasets.ARCHIVES, address, "0" * 64)
    monkeypatch.setattr(datasets.tarfile, "open", None)  # is not called
    monkeypatch.setattr(datasets.gzip, "open", None)
    with pytest.raises(ValueError, match=r"did not give the archive as expected: sha256 .*, expected 0000"):
        datasets.download("packed", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_every_archive_has_a_checksum():
    sources = {file.source for data_set in DATA_SETS.values() for file in data_set.files}
    assert {source for source in sources if source and source.endswith(".tar.gz")} == set(datasets.ARCHIVES)


def packed(name, size):
    """A tar.gz of one file of zeros, which is small whatever its size."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.size = size
        tar.addfile(member, io.BytesIO(bytes(size)))
    return made.getvalue()


@pytest.mark.parametrize("name", ["one.bin", "other.bin"])
def test_an_archive_is_unpacked_up_to_a_bound(tmp_path, two_sets, monkeypatch, name):
    monkeypatch.setattr(datasets, "_MOST", 1 << 20)
    (two_sets / "all.tar.gz").write_bytes(packed(name, 1 << 22))
    assert (two_sets / "all.tar.gz").stat().st_size < 1 << 14
    with pytest.raises(ValueError, match=r"all.tar.gz unpacks to more than 1,048,576 bytes, .* nothing was written"):
        datasets.download("packed", tmp_path / "data")
    (two_sets / "table.csv").write_bytes(bytes(2 << 20))
    with pytest.raises(ValueError, match=r"table.csv has more than 1,048,576 bytes, .* nothing was written"):
        datasets.download("plain", tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("spoil", [lambda z: z[:50], lambda z: z[:30] + b"\xff\xff" + z[32:], lambda z: b"no archive"])
def test_an_archive_that_is_damaged(tmp_path, two_sets, spoil):
    path = two_sets / "all.tar.gz"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(
        ValueError, match=r"all.tar.gz (is not a whole archive|did not give one.bin).* nothing was written"
    ):
        datasets.download("packed", tmp_path / "data")


def test_a_connection_that_breaks_off_is_told(monkeypatch):
    class Answer(io.BytesIO):
        def read(self, size=-1):
            raise http.client.IncompleteRead(b"half")

    monkeypatch.setattr(datasets.urllib.request, "urlopen", lambda *_, **__: Answer())
    with pytest.raises(OSError, match=r"https://example.org/x broke off .* nothing was written. Try again"):
        datasets.fetch("https://example.org/x")


def test_every_data_set_can_be_downloaded(tmp_path, monkeypatch):
    """What every message recommends can be done: each file has an address, and nothing else is in the way."""
    for name, data_set in DATA_SETS.items():
        assert all(file.source is not None for file in data_set.files), name
    content = {file.source: file.name.encode() for file in DATA_SETS["cqr"].files}
    files = tuple(
        dataclasses.replace(file, sha256=hashlib.sha256(file.name.encode()).hexdigest())
        for file in DATA_SETS["cqr"].files
    )
    monkeypatch.setitem(DATA_SETS, "cqr", dataclasses.replace(DATA_SETS["cqr"], files=files))
    monkeypatch.setattr(datasets, "fetch", content.__getitem__)
    assert len(datasets.download("cqr", tmp_path)) == 7
    datasets.require(("cqr",), tmp_path)


@pytest.mark.usefixtures("two_sets")
def test_download_without_an_address(tmp_path):
    with pytest.raises(LookupError, match=r"lost.csv has no official address .* sinksort data --place"):
        list(datasets.download("nowhere", tmp_path))


def test_a_machine_without_a_network_is_told_the_address(monkeypatch):
    def offline(*_, **__):
        raise urllib.error.URLError(socket.gaierror(-2, "Name or service not known"))

    monkeypatch.setattr(datasets.urllib.request, "urlopen", offline)
    with pytest.raises(
        OSError, match=r"https://example.org/x cannot be fetched \(.*Name or service not known\)"
    ) as told:
        datasets.fetch("https://example.org/x")
    assert "sinksort data --place FOLDER" in str(told.value)


def test_only_https_and_files_are_fetched():
    with pytest.raises(ValueError, match="must be an https or file address, got 'http://"):
        datasets.fetch("http://example.org/x")
    sources = [file.source for data_set in DATA_SETS.values() for file in data_set.files if file.source]
    assert all(source.startswith("https://") for source in sources)


@pytest.mark.usefixtures("two_sets")
def test_place_takes_whole_files_only(tmp_path):
    source, data = tmp_path / "mine", tmp_path / "data"
    (source / "deep").mkdir(parents=True)
    (source / "deep/table.csv").write_bytes(b"a,b\n")
    (source / "one.bin").write_bytes(b"damaged")
    (source / "other.txt").write_bytes(b"")
    assert datasets.place(source, data) == [data / "x/table.csv"]
    assert datasets.place(source, data) == []
    with pytest.raises(NotADirectoryError, match="--place must be a folder"):
        datasets.place(source / "one.bin", data)


@pytest.mark.usefixtures("two_sets")
def test_place_finds_the_whole_one_of_two(tmp_path):
    source, data = tmp_path / "mine", tmp_path / "data"
    for name, content in (("a", b"a,b\n"), ("b", b"damaged")):
        (source / name).mkdir(parents=True)
        (source / name / "table.csv").write_bytes(content)
    assert datasets.place(source, data) == [data / "x/table.csv"]


@pytest.mark.usefixtures("two_sets")
def test_damaged_data_is_named_with_the_ways_to_mend_it(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x/table.csv").write_bytes(b"a;b\n")
    with pytest.raises(
        ValueError, match=r"a table: x/table.csv not what they should be \(by their sha256\).*--download plain"
    ):
        datasets.require(("plain",), tmp_path)
    (tmp_path / "x/table.csv").write_bytes(b"a,b\n")
    datasets.require(("plain",), tmp_path)


def test_missing_data_is_named_with_the_ways_to_get_it(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"train-images.* not found in .*--data.*SINKSORT_DATA.*--download mnist"
    ):
        datasets.require(("mnist",), tmp_path)


def test_data_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("SINKSORT_DATA", raising=False)
    assert str(datasets.data_folder(None)) == "data"
    monkeypatch.setenv("SINKSORT_DATA", str(tmp_path))
    assert datasets.data_folder(None) == tmp_path
    assert datasets.data_folder(tmp_path / "given") == tmp_path / "given"


def test_write_atomic_keeps_the_old_file_when_it_fails(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, b"old")
    with pytest.raises(TypeError):
        write_atomic(path, "text")  # fails in the middle of writing
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
