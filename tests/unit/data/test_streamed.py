"""Images that stay in their files: ImageNet's batches, folders of images, random images."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from normscope.cli.targets import data_target
from normscope.data import DataSet, FlipAndCrop, StreamedData, data_sets
from normscope.data._imagenet32 import BatchImages, Mapped, image_batch
from normscope.errors import InputError, NormscopeError
from normscope.train.trial import checksum_of, training_trial

SIZES = [7, 5, 12]


def table(rows, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (rows, 3072)).astype(np.uint8), rng.integers(1, 1001, rows)


def write_imagenet(place, *, protocol=3, order="C"):
    """Three training batches and one for validation, as published; images and labels of all."""
    place.mkdir(parents=True)
    found = []
    for number, rows in enumerate(SIZES, 1):
        images, labels = table(rows, number)
        name = "val_data" if rows == 12 else f"train_data_batch_{number}"
        entry = {"data": np.asarray(images, order=order), "labels": labels.tolist()}
        if name != "val_data":
            entry["mean"] = images.mean(0)
        (place / name).write_bytes(pickle.dumps(entry, protocol=protocol))
        found.append((images.reshape(-1, 3, 32, 32), labels - 1))
    train = [np.concatenate(parts) for parts in zip(*found[:2], strict=True)]
    return {"train": train, "test": list(found[2])}


@pytest.fixture
def imagenet(monkeypatch, tmp_path):
    """The tiny files count as the published ones."""
    files = {"train": ("train_data_batch_1", "train_data_batch_2"), "test": ("val_data",)}
    tiny = replace(data_sets["imagenet32"], files=files, images={"train": 12, "test": 12})
    monkeypatch.setitem(data_sets._entries, "imagenet32", tiny)
    return write_imagenet(tmp_path / "imagenet32")


@pytest.mark.parametrize("split", ["train", "test"])
def test_imagenet_batches(tmp_path, imagenet, split):
    data = ns.load_data("imagenet32", split, data_dir=tmp_path, standardize="none")
    images, labels = imagenet[split]
    assert isinstance(data, StreamedData)
    assert (len(data), data.input_shape, data.num_classes) == (12, (3, 32, 32), 1000)
    assert data.labels.tolist() == labels.tolist()
    rows = torch.tensor([11, 0, 6, 7, 0])
    assert np.array_equal((data.images[rows] * 255).round().numpy(), images[rows])
    assert np.array_equal((data.images[:] * 255).round().numpy(), images)
    assert np.array_equal((data[-1][0] * 255).round().numpy(), images[-1])
    assert torch.equal(data.flat().images[3:5], data.images[3:5].flatten(1))
    assert len(ns.load_data("imagenet32", split, data_dir=tmp_path / "imagenet32")) == 12


@pytest.mark.parametrize("split", ["train", "test"])
def test_standardized_by_the_training_images(tmp_path, imagenet, split):
    data = ns.load_data("imagenet32", split, data_dir=tmp_path)
    train = imagenet["train"][0] / 255
    mean, std = (f(train, axis=(0, 2, 3), keepdims=True) for f in (np.mean, np.std))
    expected = torch.from_numpy((imagenet[split][0] / 255 - mean) / std).float()
    torch.testing.assert_close(data.images[:], expected)


def test_statistics_of_many_images_are_those_of_some_at_even_distances(
    tmp_path, imagenet, monkeypatch
):
    monkeypatch.setattr("normscope.data.load.SAMPLE", 4)
    data = ns.load_data("imagenet32", data_dir=tmp_path)
    some = imagenet["train"][0][[0, 3, 6, 9]] / 255
    torch.testing.assert_close(data.mean.flatten(), torch.from_numpy(some.mean((0, 2, 3))).float())
    assert data.standardized == "channel of 4 images"


@pytest.mark.parametrize(("protocol", "order", "mapped"), [
    (2, "C", False), (3, "C", True), (4, "C", True), (3, "F", False),
])  # fmt: skip
def test_images_stay_in_the_file_where_it_holds_them_as_they_are(tmp_path, protocol, order, mapped):
    truth = write_imagenet(tmp_path / "x", protocol=protocol, order=order)["test"]
    found, labels = image_batch(tmp_path / "x" / "val_data")
    assert isinstance(found, Mapped) == mapped
    assert np.array_equal(BatchImages([found], "").read(np.arange(12)), truth[0])
    assert labels.tolist() == truth[1].tolist()


def test_missing_and_incomplete_imagenet(tmp_path, imagenet):
    with pytest.raises(InputError, match=r"imagenet32/train_data_batch_1.*image-net\.org.*random:"):
        ns.load_data("imagenet32", data_dir=tmp_path / "nowhere")
    with pytest.raises(InputError, match="image-net"):
        ns.load_data("imagenet32", data_dir=tmp_path / "nowhere", download=True)
    (tmp_path / "imagenet32" / "train_data_batch_1").unlink()
    with pytest.raises(InputError, match=r"no .*train_data_batch_1"):
        ns.load_data("imagenet32", data_dir=tmp_path)
    assert len(ns.load_data("imagenet32", data_dir=tmp_path, verify=False)) == 5
    (tmp_path / "imagenet32" / "train_data_batch_1").write_bytes(
        (tmp_path / "imagenet32" / "train_data_batch_2").read_bytes()
    )
    with pytest.raises(InputError, match="hold 10 images, the published ones 12"):
        ns.load_data("imagenet32", data_dir=tmp_path)


@pytest.mark.parametrize(("entry", "text"), [
    ({"data": table(2, 0)[0], "labels": [1, 1001]}, "label 1001 of sample 1"),
    ({"data": table(2, 0)[0], "labels": [0, 1]}, "label 0 of sample 0"),
    ({"data": table(2, 0)[0] / 2, "labels": [1, 2]}, "not of integers"),
    ({"data": table(2, 0)[0][:, :9], "labels": [1, 2]}, "3072 columns"),
    ({"data": table(2, 0)[0], "labels": [1, 2], "mean": print}, "could run foreign code"),
])  # fmt: skip
def test_damaged_imagenet_batches_are_named(tmp_path, entry, text):
    path = tmp_path / "train_data_batch_1"
    path.write_bytes(pickle.dumps(entry, protocol=3))
    with pytest.raises(InputError, match=text) as caught:
        ns.load_data("imagenet32", data_dir=tmp_path, verify=False)
    assert str(path) in str(caught.value)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="0 bytes found"):
        ns.load_data("imagenet32", data_dir=tmp_path, verify=False)


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 4), nn.BatchNorm1d(4), nn.Linear(4, 1000))


def seeded():
    torch.manual_seed(3)
    return network()


USES = {
    "fit": lambda data: ns.fit(seeded(), data, "cross_entropy", lr=0.1, epochs=2, batch_size=4,
                               augment=FlipAndCrop()).losses,
    "evaluate": lambda data: ns.evaluate(seeded(), data, batch_size=5).loss,
    "risk": lambda data: ns.Risk.from_data(seeded(), data, "cross_entropy", statistics="batch",
                                           batch_size=6, num_batches=2).value,
    "examine": lambda data: ns.examine(seeded(), data, "cross_entropy", lr=0.1, batch_size=6)
    .to_dict()["findings"],
    "batches": lambda data: [x.sum().item() for x, _ in data.batches(5, seed=2)],
    "own batches": lambda data: ns.activations(seeded(), data.batches(6)).to_dict(),
    "subset": lambda data: data.subset(5, seed=1).images.tolist(),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_streamed_data_give_the_numbers_of_data_in_memory(tmp_path, imagenet, use, monkeypatch):
    data = ns.load_data("imagenet32", data_dir=tmp_path)
    memory = DataSet(data.images[:], data.labels, data.name, data.classes, data.standardized)
    expected, most, read = USES[use](memory), [], BatchImages.read
    monkeypatch.setattr(
        BatchImages, "read", lambda s, rows: most.append(len(rows)) or read(s, rows)
    )
    found = USES[use](data)
    assert repr(found).replace("StreamedData", "DataSet") == repr(expected)
    assert 0 < max(most) <= 6


def test_streamed_data_in_a_loader_and_its_checkpoint(tmp_path, imagenet):
    data = ns.load_data("imagenet32", data_dir=tmp_path)
    x, y = next(iter(torch.utils.data.DataLoader(data, batch_size=5)))
    assert torch.equal(x, data.images[:5])
    assert torch.equal(y, data.labels[:5])
    path = tmp_path / "run.pt"
    how = {"lr": 0.1, "batch_size": 4, "checkpoint": path}
    ns.fit(seeded(), data, "cross_entropy", steps=3, **how)
    (tmp_path / "imagenet32" / "train_data_batch_1").unlink()
    part = ns.load_data("imagenet32", data_dir=tmp_path, verify=False)
    with pytest.raises(InputError):
        ns.fit(seeded(), part, "cross_entropy", steps=3, **how)
    with pytest.raises(InputError, match="subset"):
        data.to("cpu")


def write_folder(root, *, parted=True):
    """Two classes of PNG files whose red is the number of the file."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    truth = {}
    for split in ("train", "val") if parted else ("",):
        for label, name in enumerate(("cat", "dog")):
            place = root / split / name
            place.mkdir(parents=True)
            for number in range(3 + label):
                pixels = rng.integers(0, 256, (8, 8, 3)).astype(np.uint8)
                image.fromarray(pixels).save(place / f"{number}.PNG")
                truth.setdefault(split, []).append((pixels.transpose(2, 0, 1), label))
            (place / "notes.txt").write_text("no image")
    return truth


def test_a_folder_of_classes(tmp_path):
    truth = write_folder(tmp_path)
    for split, part in (("train", "train"), ("test", "val")):
        data = ns.load_data(f"folder:{tmp_path}", split, size=8, standardize="none")
        assert data.classes == ("cat", "dog")
        assert data.labels.tolist() == [label for _, label in truth[part]] == [0, 0, 0, 1, 1, 1, 1]
        assert np.array_equal((data.images[:] * 255).round(), [p for p, _ in truth[part]])
    standard = ns.load_data(f"folder:{tmp_path},size=8", "test")
    train = np.array([p for p, _ in truth["train"]]) / 255
    mean = torch.from_numpy(train.mean((0, 2, 3))).float()
    torch.testing.assert_close(standard.mean.flatten(), mean)
    assert isinstance(data_target(f"folder:{tmp_path},size=8:test"), StreamedData)
    assert torch.equal(data_target(f"folder:{tmp_path},size=8:test").images[:], standard.images[:])


def test_a_folder_without_parts_and_a_run_on_it(tmp_path):
    write_folder(tmp_path, parted=False)
    name = f"folder:{tmp_path}:size=32"
    net = ns.network("imagenet-resnet18:width=4,classes=2")
    assert ns.fit(net, name, "cross_entropy", lr=0.1, steps=2, batch_size=4).updates == 2
    assert ns.load_data(name).input_shape == (3, 32, 32)
    with pytest.raises(InputError, match="no part for testing"):
        ns.load_data(name, "test")


def test_a_trial_of_a_sweep_on_a_folder(tmp_path):
    write_folder(tmp_path)
    settings = {"network": "mlp:192-4-2", "data": f"folder:{tmp_path}:size=8", "lr": 0.1}
    settings |= {"steps": 2, "batch_size": 4, "loss": "cross_entropy"}
    for samples in (None, 7):  # streamed, and a subset in memory
        assert np.isfinite(training_trial(**settings, samples=samples).test_loss)
    checksum = checksum_of(settings)
    (tmp_path / "train" / "cat" / "2.PNG").unlink()
    changed = checksum_of({**settings, "data": f"folder:{tmp_path}/:size=8"})  # not the cached one
    assert changed != checksum


def test_images_of_any_shape_are_resized_and_the_middle_is_cut_out(tmp_path):
    image = pytest.importorskip("PIL.Image")
    ramp = np.arange(24, dtype=np.uint8)[None, :].repeat(8, 0) * 10  # 24 wide, 8 high, grey
    (tmp_path / "a").mkdir()
    image.fromarray(ramp).save(tmp_path / "a" / "wide.png")
    data = ns.load_data(f"folder:{tmp_path}", size=8, standardize="none")
    expected = np.broadcast_to(ramp[:, 8:16], (3, 8, 8))
    assert np.array_equal((data.images[0] * 255).round(), expected)
    half = ns.load_data(f"folder:{tmp_path}", size=4, standardize="none").images[0] * 255
    inner = (ramp[0, 8:16:2] + ramp[0, 9:16:2].astype(int)) / 2  # the mean of each pair of columns
    assert np.abs(half[:, :, 1:3].numpy() - inner[1:3]).max() <= 0.5 + 1e-4


def test_bad_folders_are_explained(tmp_path, monkeypatch):
    write_folder(tmp_path / "ok")
    (tmp_path / "ok" / "train" / "cat" / "0.PNG").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"train/cat/0\.PNG cannot be read"):
        ns.load_data(f"folder:{tmp_path}/ok")
    (tmp_path / "ok" / "val" / "cow").mkdir()
    with pytest.raises(InputError, match="class 'cow'"):
        ns.load_data(f"folder:{tmp_path}/ok", "test")
    (tmp_path / "empty" / "cat").mkdir(parents=True)
    bad = {"nowhere": "no folder", "empty": "no images", "empty/cat": "holds no folders"}
    for name, text in {**bad, "ok,size=0": "size must be", "ok,size=x": "size must be"}.items():
        with pytest.raises(InputError, match=text):
            ns.load_data(f"folder:{tmp_path}/{name}")
    with pytest.raises(InputError, match="no option 'samples'"):
        ns.load_data(f"folder:{tmp_path}/ok", samples=3)
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(NormscopeError, match=r"Pillow.*pip install 'normscope\[data\]'"):
        ns.load_data(f"folder:{tmp_path}/ok")


def test_random_images():
    data = ns.load_data("random:3x32x32,classes=7", samples=30)
    assert (len(data), data.input_shape, data.num_classes) == (30, (3, 32, 32), 7)
    assert sorted(torch.bincount(data.labels).tolist()) == [4, 4, 4, 4, 4, 5, 5]
    assert torch.equal(data.images, ns.load_data("random:3x32x32:samples=30:classes=7").images)
    test = ns.load_data("random:3x32x32,classes=7", "test", samples=30)
    assert not torch.equal(test.images, data.images)
    raw = ns.load_data("random:1x40x40", standardize="none").images  # uniform: 4.5 standard errors
    assert abs(float(raw.mean()) - 0.5) < 4.5 * (1 / 12 / raw.numel()) ** 0.5
    net = ns.network("imagenet-resnet50:width=2,classes=7,extra_norms=before-last,dropout=0.3")
    run = ns.fit(net, data_target("random:3x32x32,classes=7"), "cross_entropy", lr=0.1, steps=2)
    assert run.updates == 2


@pytest.mark.parametrize(("name", "text"), [
    ("random:3x32", "channels, height and width"),
    ("random:3xax3", "channels, height and width"),
    ("random:", "channels, height and width"),
    ("random:3x0x3", "channels, height and width"),
    ("random:3x3x3,classes=0", "classes must be"),
    ("random:3x3x3,size=9", "no option 'size'.*samples and classes"),
    ("imagenet23", "imagenet32"),
])  # fmt: skip
def test_bad_names(name, text):
    with pytest.raises(InputError, match=text):
        data_target(name)
    with pytest.raises(InputError, match=text):
        ns.load_data(name)
