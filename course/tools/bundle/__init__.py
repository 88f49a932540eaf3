"""The course as a folder, for a USB stick or a room without a network: `course bundle FOLDER`.

`make` writes the folder where there is a network. `install` is the folder's own `install.py`: it needs
Python's standard library only, and works where nothing of the course is installed.

    FOLDER/install.py       python3 install.py: checks the files, then installs into ~/mpi-course
    FOLDER/wheels/          every package of requirements.lock that learners need, and PyTorch
    FOLDER/course.zip       the lessons, the library, the embedded data
    FOLDER/data/            data sets that were asked for
    FOLDER/image/           the container image, where one was given
    FOLDER/bundle.json      for which systems and Pythons the folder is, and how much they need
    FOLDER/sha256.txt       the digest of every other file
"""
