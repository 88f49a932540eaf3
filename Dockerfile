# Built and checked with buildah, never with Docker.
#
# The course, ready to run and without a network: JupyterLab, the lessons, Open MPI, the embedded data.
#
#   docker build --tag mpi-course .
#   docker run --rm -p 127.0.0.1:8888:8888 --shm-size=1g mpi-course        then open the address it prints
#
# docs/image.md says what the options are for. A change of a lesson rebuilds the last three layers only.

# Any Debian 12 with Python 3.11 will do. A release names this one by its digest: .github/workflows/release.yml.
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}

LABEL org.opencontainers.image.title="Distributed deep learning on a real MPI cluster" \
      org.opencontainers.image.description="JupyterLab, the lessons and everything they need, CPU only" \
      org.opencontainers.image.licenses="BSD-3-Clause AND CC-BY-4.0"

# tini: MPI processes outlive their parents, and PID 1 must reap them. gcc: lesson 01 compiles a C program.
# iproute2: one container can play several nodes (docs/several-machines/lab.md).
RUN packages='tini gcc libc6-dev iproute2' \
 && { python3 -c 'import ensurepip' 2>/dev/null || packages="$packages python3-venv"; } \
 && apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends $packages \
 && apt-get clean && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 1000 --create-home --shell /bin/bash learner \
 && install --directory --owner learner --group learner /course

# Open MPI may not read another process's memory in a container: do not try, and do not warn.
ENV PATH=/opt/venv/bin:$PATH LANG=C.UTF-8 OMPI_MCA_smsc=^cma
WORKDIR /course

# The same recipe as `make setup`: torch first and alone, so that nothing else is looked up in its index.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY requirements.lock ./
RUN python3 -m venv /opt/venv \
 && python -m pip install --no-cache-dir --disable-pip-version-check --no-deps --retries 1 --timeout 20 \
      --extra-index-url ${TORCH_INDEX} "$(sed -n 's/^# \(torch==.*\)/\1/p' requirements.lock)"

# The build back end before what is built with it. What only developers need stays out.
RUN sed -n '/^setuptools==/,/[^\\]$/p' requirements.lock > /tmp/first.txt \
 && sed '/^# What only developers need/,$d' requirements.lock > /tmp/learners.txt \
 && python -m pip install --no-cache-dir --disable-pip-version-check --no-deps --require-hashes \
      --requirement /tmp/first.txt \
 && python -m pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation --require-hashes \
      --requirement /tmp/learners.txt \
 && python -m pip install --no-cache-dir --disable-pip-version-check --quiet \
      "$(sed -n 's/^# \(torch==.*\)/\1/p' requirements.lock)" \
 && rm /tmp/first.txt /tmp/learners.txt

# An editable install records only where a package will be; the packages themselves come below.
COPY pyproject.toml LICENSE ./
COPY course/pyproject.toml course/
COPY course_lib/README.md course_lib/
COPY packages/torch_mpi4py/pyproject.toml packages/torch_mpi4py/README.md packages/torch_mpi4py/LICENSE packages/torch_mpi4py/
COPY packages/mpi_classroom/pyproject.toml packages/mpi_classroom/README.md packages/mpi_classroom/LICENSE packages/mpi_classroom/
RUN python -m pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation \
      --editable packages/torch_mpi4py --editable packages/mpi_classroom --editable . --editable course

COPY --chown=1000:1000 . ./
# mpiexec and torchrun as `make setup` leaves them.
RUN python -m mpi_classroom.commands
USER 1000:1000
# build/ is there so that a read-only container can lay memory over it; Python cannot cache what it compiled in one.
RUN mkdir my_course build \
 && python -m compileall -q course course_lib packages \
 && COURSE_OFFLINE=1 python -c 'from course_lib.data.mnist import load_mnist; load_mnist()'

EXPOSE 8888
HEALTHCHECK --interval=30s --timeout=6s --start-period=30s --retries=3 \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8888/api', timeout=5)"]
ENTRYPOINT ["tini", "-g", "--"]
# 0.0.0.0 inside is what makes the port reachable from outside at all; publish it on 127.0.0.1 only.
CMD ["course", "lab", "--no-browser", "--", "--ip=0.0.0.0"]
