"""The course as a folder: what is in it, and one sentence for whatever is wrong with it or the machine."""

import ast
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course.paths import ROOT
from course.tools import cli
from course.tools.bundle import install, make
from course.tools.bundle.install import Trouble
from course.tools.pins import LOCK, PYTHONS, pins
from course_lib.data import mnist
from course_lib.data.downloads import read_registry

GLIBC = ("glibc", "2.36")
TARGETS = [
    {"platform": "linux-x86_64", "python": "3.11", "nbytes": 2e9, "files": ["one.whl"]},
    {"platform": "linux-x86_64", "python": "3.12", "nbytes": 2e9, "files": []},
]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle of a course with one file and one package, for this machine."""
    folder, source = tmp_path / "bundle", tmp_path / "source"
    (folder / "wheels").mkdir(parents=True)
    source.mkdir()
    (source / "requirements.lock").write_text("one==1.0\n")
    with zipfile.ZipFile(folder / "course.zip", "w") as archive:
        archive.write(source / "requirements.lock", "requirements.lock")
    (folder / "wheels" / "one.whl").write_bytes(b"one" * 1000)
    target = TARGETS[0] | {"platform": install.this_platform(), "python": install.this_python(), "nbytes": 1}
    (folder / "bundle.json").write_text(json.dumps({"targets": [target]}))
    shutil.copyfile(install.__file__, folder / "install.py")
    make.write_digests(folder)
    return folder


def start(bundle: Path, *arguments: object) -> tuple[int, str]:
    """Run a bundle's install.py as a learner does, with Python and nothing else; its code and its words."""
    command = [sys.executable, "-I", str(bundle / "install.py"), *map(str, arguments)]
    ran = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return ran.returncode, ran.stdout


# -------------------------------------------------------------------- the installer


def test_the_installer_reads_on_old_pythons_and_imports_the_standard_library_alone() -> None:
    tree = ast.parse(Path(install.__file__).read_text(), feature_version=(3, 6))
    names = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("system", "python", "libc", "sentence"),
    [
        ("linux-x86_64", "3.8", GLIBC, r"the bundle is for Python 3\.11 and 3\.12"),
        ("linux-aarch64", "3.11", GLIBC, r"is for linux-x86_64, .* linux-aarch64\. Ask for .*"),
        ("macos-x86_64", "3.11", GLIBC, r"no files for Macs with Intel processors"),
        ("windows-x86_64", "3.11", GLIBC, r"inside WSL2"),
        ("linux-x86_64", "3.11", ("glibc", "2.17"), r"glibc 2\.28 or newer, .* glibc 2\.17"),
        ("linux-x86_64", "3.11", ("", ""), r"another C library"),
    ],
)
def test_a_wrong_machine_is_one_sentence(system: str, python: str, libc: tuple, sentence: str) -> None:
    assert install.find_target(TARGETS, "linux-x86_64", "3.12", GLIBC) == TARGETS[1]
    with pytest.raises(Trouble, match=sentence):
        install.find_target(TARGETS, system, python, libc)


def test_a_python_that_fits_is_named_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name == "python3.12" else None)
    assert re.fullmatch(
        r"Start it again: python3\.12 /.*/install\.py", install.other_python(["3.11", "3.12"])
    )
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert install.other_python(["3.11"]).startswith("Install one of them")


def test_a_folder_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Trouble, match="file is a file; name another folder"):
        install.check_folder(tmp_path / "file", 1)
    with pytest.raises(Trouble, match="holds something else"):
        install.check_folder(tmp_path, 1)
    with pytest.raises(Trouble, match=r"The course needs 1000000000\.0 GB in .*, and [\d.]+ GB are free"):
        install.check_folder(tmp_path / "new", 10**18)

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refuse)
    with pytest.raises(Trouble, match="cannot hold symbolic links"):
        install.check_folder(tmp_path / "stick", 1)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("wheels/one.whl", lambda path: path.write_bytes(b"two" * 1000)),
        ("wheels/one.whl", Path.unlink),
        ("bundle.json", lambda path: path.write_text("{")),
        ("sha256.txt", lambda path: path.write_text(path.read_text()[:-90])),
    ],
)
def test_a_damaged_file_is_named_before_anything_is_installed(bundle, tmp_path, name, change) -> None:
    assert start(bundle, "--check") == (0, "All 4 files are as they were written.\n")
    change(bundle / name)
    code, words = start(bundle, tmp_path / "new")
    assert code == 1 and words.splitlines()[-1].startswith(f"{name} is missing or damaged"), words
    assert not (tmp_path / "new" / "requirements.lock").exists()
    assert start(bundle, "--check")[0] == 1


def test_an_installation_is_brought_up_to_date_and_repaired(bundle, tmp_path, monkeypatch) -> None:
    folder, installed = tmp_path / "new", []

    def packages(bundle, folder):
        installed.append(folder)
        (folder / ".venv").mkdir(exist_ok=True)

    monkeypatch.setattr(install, "install_packages", packages)
    install.install(bundle, folder)
    install.install(bundle, folder)
    assert installed == [folder], "the same packages are installed once"
    (folder / "my_course").mkdir()
    (folder / "my_course" / "mine.ipynb").write_text("mine")
    (folder / ".venv" / ".ready").write_text("what an older lock was")
    install.install(bundle, folder)
    assert len(installed) == 2 and (folder / "my_course" / "mine.ipynb").read_text() == "mine"


def test_a_full_disk_is_taken_from_what_pip_printed() -> None:
    log = "x\nERROR: Could not install: [Errno 28] No space left on device: 'x'\n"
    assert install.reason(log).startswith("the disk is full; free")


def test_a_command_that_fails_names_the_log(tmp_path: Path) -> None:
    settings = "print(sorted(name for name in os.environ if name[:4] == 'PIP_'), flush=True)"
    program = f"import os; {settings}; raise SystemExit('no luck')"
    with pytest.raises(Trouble, match=rf"pip failed: no luck All of it is in {tmp_path}/log"):
        install.run([sys.executable, "-c", program], tmp_path, tmp_path / "log", "pip failed")
    assert "['PIP_CONFIG_FILE']" in (tmp_path / "log").read_text(), "pip's own settings are out of the way"


# -------------------------------------------------------------------- what is in the folder


def test_what_the_course_reads_is_in_the_bundle_and_in_the_image() -> None:
    read = set()
    for path in [*ROOT.glob("course/**/*.py"), *ROOT.glob("course_lib/**/*.py")]:
        if not path.is_relative_to(ROOT / "course" / "tools"):
            read |= set(re.findall(r'\bROOT / "([\w.]+)"', path.read_text()))
    assert {"benchmarks", "notebooks", "requirements.lock"} <= read
    made = {"my_course", "build"}
    image = set(re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    assert read - made <= image
    assert image | {"Makefile"} == set(make.COURSE_FILES)


def test_the_data_of_the_programs_to_take_home_is_in_the_bundle() -> None:
    packed = {path.relative_to(ROOT).as_posix() for path in make.course_files()}
    assert {"notebooks/code/06_by_hand.py", "notebooks/code/data/digits.npz"} <= packed


def test_what_was_made_or_downloaded_here_stays_here(tmp_path: Path) -> None:
    for name in ("README.md", "data/README.md", "data/mnist/x.gz", "data/cache/x", "course/a.py", ".git/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "course" / "__pycache__").mkdir()
    (tmp_path / "course" / "__pycache__" / "a.pyc").touch()
    found = [path.relative_to(tmp_path).as_posix() for path in make.course_files(tmp_path)]
    assert found == ["README.md", "course/a.py", "data/README.md"]


def test_programs_stay_programs_in_the_zip(tmp_path: Path) -> None:
    (tmp_path / "course").mkdir()
    for name, mode in (("run.sh", 0o755), ("text", 0o644)):
        (tmp_path / "course" / name).write_text("12345")
        (tmp_path / "course" / name).chmod(mode)
    assert make.pack_course(tmp_path / "course.zip", tmp_path) == 10
    install.unpack(tmp_path / "course.zip", tmp_path / "new")
    assert os.access(tmp_path / "new/course/run.sh", os.X_OK)
    assert not os.access(tmp_path / "new/course/text", os.X_OK)


@pytest.mark.parametrize("system", make.SYSTEMS)
@pytest.mark.parametrize("python", PYTHONS)
def test_each_target_gets_the_pins_of_the_lock_that_hold_there(system: str, python: str) -> None:
    text = make.wanted_pins(LOCK.read_text(), system, python)
    names = pins(text)
    assert ("appnope" in names) == system.startswith("macos")
    assert ("overrides" in names) == (python == "3.11")
    assert " ; " not in text and "ruff" not in names and "torch" not in names
    assert text.count("--hash=sha256:") >= len(names) > 100
    if (system, python) == (install.this_platform(), install.this_python()):
        learners = install.requirements(LOCK.read_text())[2]
        assert names == {name: pin for name, pin in pins(learners).items() if name != "torch"}


def test_a_build_of_pytorch_for_an_accelerator_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    lines = ["Name: torch", "Requires-Dist: sympy", 'Requires-Dist: triton==3 ; platform_system == "Linux"']
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("torch-2.13.0.dist-info/METADATA", "\n".join(lines))
    with pytest.raises(make.BundleError, match=r"for an accelerator .* --torch-index"):
        make.check_torch(wheel, make.environment_of("linux-x86_64", "3.11"))
    make.check_torch(wheel, make.environment_of("macos-arm64", "3.11"))


def test_an_earlier_bundle_is_replaced_and_nothing_else(bundle: Path) -> None:
    (bundle / "photos").mkdir()
    with pytest.raises(make.BundleError, match="holds photos, which is no part of a bundle"):
        make.clear(bundle)
    (bundle / "photos").rmdir()
    make.clear(bundle)
    assert list(bundle.iterdir()) == []


def test_a_data_set_goes_where_lessons_look_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    monkeypatch.setattr(mnist, "data_folders", lambda: [tmp_path / "none"])
    with pytest.raises(make.BundleError, match="get it first: course fetch mnist"):
        make.files_of_set("mnist")
    names = [file.name for file in read_registry("mnist").files]
    (tmp_path / "mnist").mkdir()
    for name in names:
        (tmp_path / "mnist" / name).write_text(name)
    make.copy_all(make.files_of_set("mnist"), tmp_path / "bundle" / "data" / "mnist")
    install.copy_data(tmp_path / "bundle", tmp_path / "room")
    assert sorted(path.name for path in (tmp_path / "room" / "data" / "mnist").iterdir()) == sorted(names)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--platform", "windows-x86_64"], "no packages for windows-x86_64; choose from linux-"),
        (["--python", "3.8"], "the course is not for Python 3.8; choose from 3.11, "),
        (["--data", "imagenet"], "no data set imagenet to add; choose from mnist, cifar10"),
        (["--image", "none.tar.gz"], "none.tar.gz is not a file; write it with: docker save"),
    ],
)
def test_a_wish_that_cannot_be_met_is_one_sentence(tmp_path: Path, options: list[str], sentence: str) -> None:
    result = CliRunner().invoke(cli.app, ["bundle", str(tmp_path / "new"), *options])
    assert result.exit_code == 1 and sentence in result.output, result.output
    assert not (tmp_path / "new").exists()


# -------------------------------------------------------------------- the real thing


@pytest.mark.release
@pytest.mark.timeout(1500)
def test_the_course_installs_and_runs_without_a_network(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "course.tools.cli", "bundle", str(tmp_path / "a stick")],
        cwd=ROOT,
        text=True,
        capture_output=True,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    python, script = getattr(sys, "_base_executable", sys.executable), tmp_path / "a stick" / "install.py"
    code, words = without_network([python, "-I", str(script), str(tmp_path / "room")])
    assert code == 0, words
    code, words = without_network([str(tmp_path / "room/.venv/bin/course"), "run", "00", "02"])
    assert code == 0 and "2 lessons ran" in words, words
    taken = sum(path.lstat().st_size for path in (tmp_path / "room").rglob("*") if not path.is_symlink())
    (target,) = json.loads((tmp_path / "a stick" / "bundle.json").read_text())["targets"]
    assert 0.7 * target["nbytes"] < taken < target["nbytes"], "it takes what was said"


def without_network(command: list[str]) -> tuple[int, str]:
    """Run a command with the loopback as its only network, or, where that cannot be made, as it is."""
    own = ["unshare", "--net", *(["--map-root-user"] if os.geteuid() else []), "sh", "-c"]
    own += ['ip link set lo up && exec "$@"', "sh"]
    alone = (
        bool(shutil.which("unshare")) and not subprocess.run([*own, "true"], capture_output=True).returncode
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))
    }
    environment |= {"PIP_NO_INDEX": "1", "COURSE_OFFLINE": "1"}
    ran = subprocess.run(
        [*own, *command] if alone else command,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return ran.returncode, ran.stdout
