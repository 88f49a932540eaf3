"""The doctor's checks of data sets: what is here, and whether it is whole. Nothing is downloaded for them."""

import hashlib
from pathlib import Path
from typing import Any

from course_lib.training.idx import find_file
from mpi_classroom.doctor import Check, some


def check_data() -> Check:
    """MNIST is here and its checksums are right, or will be replaced; nothing is downloaded for this."""
    from course_lib.training import datasets

    remedy = "do as it says; or remove the damaged files, then: course fetch"
    try:
        download = datasets.read_registry("mnist")
        folder = datasets.find(download)
        if folder is None:
            detail = (
                "MNIST is not here; lessons download it, or draw digits in its stead (course fetch gets it)"
            )
            return Check("data sets", True, detail)
        wrong = [path.name for file in download.files if (path := _damaged(folder, file)) is not None]
        if wrong:
            return Check(
                "data sets", False, f"{some(wrong)} in {folder}: another sha256 than expected", remedy
            )
        return Check("data sets", True, f"{datasets.read(download, folder).source} Checksums right.")
    except datasets.DataError as error:
        return Check("data sets", False, str(error), remedy)


def check_larger_data() -> Check:
    """Where CIFAR-10 and CNN/DailyMail are; nothing is downloaded or read for this."""
    from course_lib.training import cifar, cnn_dailymail, datasets

    try:
        images, news = cifar.find(), cnn_dailymail.find()
    except datasets.DataError as error:
        return Check("larger data", False, str(error), "do as it says")
    found = {
        "CIFAR-10": ("cifar10", images and images.path),
        "CNN/DailyMail": ("cnn_dailymail", news and news["train"][0].parent),
    }
    parts = [
        f"{title} is " + (f"in {datasets.place(path)}" if path else f"not here (course fetch {name} gets it)")
        for title, (name, path) in found.items()
    ]
    aside = "" if images and news else "; lessons make data in their stead"
    return Check("larger data", True, ", ".join(parts) + aside)


def _damaged(folder: Path, file: Any) -> Path | None:
    """The compressed file when its checksum is another one; one that was unpacked is looked at when read."""
    path = find_file(folder, file)
    if path is None or path.suffix != ".gz":
        return None
    return path if hashlib.sha256(path.read_bytes()).hexdigest() != file.sha256 else None
