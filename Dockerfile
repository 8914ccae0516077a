# The spillway command in an image, from the wheels that `make wheel` has put into dist/:
#
#   make wheel && docker build -t spillway .
#   docker run --rm -v "$PWD:/work" -v /mnt/nvme/spillway:/mnt/nvme/spillway spillway train config.yaml
#
# pip chooses the wheel of the image's Python, which is 3.11 in Debian 12. If dist/ has a wheel for 3.12 and newer alone:
# --build-arg BASE=debian:trixie-slim.
# PyTorch is the build without CUDA; for a GPU: --build-arg TORCH_INDEX=https://pypi.org/simple, and docker run --gpus all.
# The directories of -v belong to you: docker run --user "$(id -u)" -e HOME=/tmp lets the image write there.
# Docker's default profile forbids io_uring, and storage paths are then served by threads, which takes more of the
# CPUs; --security-opt seccomp=unconfined allows it. --ulimit memlock=-1 lets what drives read and write be locked.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home spillway \
 && mkdir /work && chown spillway /work

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
USER spillway
ENV PATH=/home/spillway/venv/bin:$PATH
RUN python3 -m venv /home/spillway/venv && pip install --no-cache-dir --index-url ${TORCH_INDEX} torch
COPY dist/spillway-*.whl /tmp/dist/
RUN pip download --no-deps --no-index --find-links /tmp/dist --dest /tmp/chosen spillway \
 && pip install --no-cache-dir /tmp/chosen/*.whl && spillway doctor

WORKDIR /work
ENTRYPOINT ["spillway"]
CMD ["--help"]
