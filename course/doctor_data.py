"""The doctor's checks of data sets: what is here, and whether it is right. Nothing is downloaded for them."""

from mpi_classroom.check import Check


def check_data() -> Check:
    """MNIST is here and its checksums are right, or will be replaced; nothing is downloaded for this."""
    from course_lib.data import mnist
    from course_lib.data.storage import DataError

    remedy = "follow the message, or remove the damaged files and run: course fetch"
    try:
        download = mnist.read_registry("mnist")
        folder = mnist.find(download)
        if folder is None:
            detail = (
                "optional: MNIST is not downloaded yet (course fetch gets it); lessons download it or use "
                "drawn digits"
            )
            return Check("data sets", True, detail)
        data = mnist.read(download, folder)
    except DataError as error:
        return Check("data sets", False, str(error), remedy)
    return Check("data sets", True, f"{data.source} Checksums right." if data.real else data.source)


def check_larger_data() -> Check:
    """Where CIFAR-10 and CNN/DailyMail are; nothing is downloaded or read for this."""
    from course_lib.data import cifar10, cnn_dailymail
    from course_lib.data.storage import DataError, shown

    try:
        images, news = cifar10.find(), cnn_dailymail.find()
    except DataError as error:
        return Check("larger data", False, str(error), "follow the message")
    found = {
        "CIFAR-10": ("course fetch cifar10 gets it", images and images.path),
        "CNN/DailyMail": (
            "course fetch cnn_dailymail says how to get it",
            news and news["train"][0].parent,
        ),
    }
    parts = [
        f"{title} is " + (f"in {shown(path)}" if path else f"not downloaded yet ({remedy})")
        for title, (remedy, path) in found.items()
    ]
    details = ", ".join(parts)
    if not (images and news):
        details = f"optional: {details}; lessons generate data instead"
    return Check("larger data", True, details)
