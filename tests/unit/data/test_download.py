"""Downloads from a server on this machine: checked, whole, or nothing at all."""

import functools
import gzip
import http.server
import io
import sys
import tarfile
import threading
from dataclasses import replace

import pytest

from data_files import cifar_records, idx_contents, md5, tiny_cifar, tiny_mnist, write_cifar
from normscope.data import data_sets, load_data
from normscope.data._download import Archive
from normscope.errors import InputError, NormscopeError


class _Quiet(http.server.SimpleHTTPRequestHandler):
    requests: list[str] = []  # noqa: RUF012 - shared on purpose

    def log_message(self, *_):
        self.requests.append(self.path)


@pytest.fixture
def server(tmp_path):
    """(url, folder) of a web server; what lies in the folder can be fetched."""
    folder = tmp_path / "served"
    folder.mkdir()
    _Quiet.requests.clear()
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}", folder
        httpd.shutdown()
        thread.join()


@pytest.fixture
def served_mnist(server, monkeypatch):
    url, folder = server
    packed = {f"{name}.gz": gzip.compress(c, mtime=0) for name, c in idx_contents().items()}
    for name, content in packed.items():
        (folder / name).write_bytes(content)
    sums = {name: md5(content) for name, content in packed.items()}
    source = replace(tiny_mnist(), url=url, packed=sums)
    monkeypatch.setitem(data_sets._entries, "mnist", source)
    return folder


@pytest.fixture
def served_cifar(server, monkeypatch):
    url, folder = server
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, table in cifar_records().items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            entry.size = table.nbytes
            archive.addfile(entry, io.BytesIO(table.tobytes()))
        archive.addfile(tarfile.TarInfo("../outside.txt"))
    (folder / "cifar.tar.gz").write_bytes(stream.getvalue())
    archive = Archive(f"{url}/cifar.tar.gz", md5(stream.getvalue()))
    monkeypatch.setitem(data_sets._entries, "cifar10", replace(tiny_cifar(), archive=archive))


def files_below(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_mnist_is_fetched_once(tmp_path, served_mnist):
    target = tmp_path / "data"
    assert len(load_data("mnist", data_dir=target, download=True)) == 30
    assert len(load_data("mnist", "test", data_dir=target, download=True)) == 12
    assert len(_Quiet.requests) == 4
    assert len(files_below(target)) == 4


def test_files_already_there_are_not_fetched(tmp_path, served_mnist):
    place = tmp_path / "data" / "MNIST" / "raw"
    place.mkdir(parents=True)
    name = "train-images-idx3-ubyte"
    (place / name).write_bytes(idx_contents()[name])
    load_data("mnist", data_dir=tmp_path / "data", download=True)
    assert not any("train-images" in request for request in _Quiet.requests)


def test_downloads_go_to_the_cache_folder_by_default(tmp_path, served_mnist, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("NORMSCOPE_DATA", raising=False)
    load_data("mnist", download=True)
    assert len(files_below(tmp_path / "cache" / "normscope" / "MNIST" / "raw")) == 4


def test_cifar_is_unpacked_by_name_only(tmp_path, served_cifar):
    target = tmp_path / "data"
    assert len(load_data("cifar10", data_dir=target, download=True)) == 30
    names = [f"cifar-10-batches-bin/{name}.bin" for name in sorted(cifar_records())]
    assert files_below(target) == names
    assert not (tmp_path / "outside.txt").exists()
    load_data("cifar10", "test", data_dir=target, download=True)
    assert len(_Quiet.requests) == 1


def test_the_pickled_layout_is_enough(tmp_path, served_cifar):
    write_cifar(tmp_path, "pickled")
    load_data("cifar10", data_dir=tmp_path, download=True)
    assert not _Quiet.requests


def test_a_wrong_file_is_not_kept(tmp_path, served_mnist):
    (served_mnist / "train-labels-idx1-ubyte.gz").write_bytes(b"another file")
    with pytest.raises(NormscopeError, match=r"train-labels-idx1-ubyte\.gz is not the published"):
        load_data("mnist", data_dir=tmp_path / "data", download=True)
    assert files_below(tmp_path / "data") == ["MNIST/raw/train-images-idx3-ubyte.gz"]


def test_a_server_without_the_file(tmp_path, served_mnist):
    (served_mnist / "train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(NormscopeError, match=r"could not be fetched .*404"):
        load_data("mnist", data_dir=tmp_path / "data", download=True)
    assert files_below(tmp_path / "data") == []


def test_no_network(tmp_path, monkeypatch):
    source = replace(tiny_mnist(), url="http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setitem(data_sets._entries, "mnist", source)
    with pytest.raises(NormscopeError, match="'digits', which comes with the package"):
        load_data("mnist", data_dir=tmp_path / "data", download=True)
    assert files_below(tmp_path / "data") == []


def test_an_archive_without_the_member(tmp_path, server, served_cifar):
    url, folder = server
    archive = Archive(f"{url}/cifar.tar.gz", md5((folder / "cifar.tar.gz").read_bytes()))
    with pytest.raises(InputError, match="holds no file other"):
        archive.unpack(["other"], tmp_path / "data")
    assert files_below(tmp_path / "data") == []


def test_without_pooch_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(NormscopeError, match=r"pip install 'normscope\[data\]'"):
        load_data("mnist", data_dir=tmp_path, download=True)


def test_digits_download_nothing(tmp_path):
    assert len(load_data("digits", data_dir=tmp_path, download=True)) == 1437
    assert files_below(tmp_path) == []
