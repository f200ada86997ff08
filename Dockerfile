# Two images from one source: `coordinator`, without PyTorch, and `peer`. docker-compose.yml starts them, docs/docker.md explains.
ARG PYTHON=python:3.11-slim-bookworm

# --- what pip installs, in an environment that the images copy ---

FROM ${PYTHON} AS builder
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/shoal/bin:$PATH
RUN python3 -m venv /opt/shoal
WORKDIR /source
COPY docker/wheels wheels

FROM builder AS wheel
COPY . .
RUN pip wheel --no-deps --find-links wheels --wheel-dir /wheels .

FROM builder AS coordinator-builder
COPY pyproject.toml constraints.txt docker/requirements.py ./
RUN python requirements.py coordinator > requirements.txt && pip install -c constraints.txt --find-links wheels -r requirements.txt
COPY --from=wheel /wheels /wheels
RUN pip install --no-deps /wheels/*.whl

# --- what both images are ---

FROM ${PYTHON} AS runtime
ENV PATH=/opt/shoal/bin:$PATH PYTHONUNBUFFERED=1
RUN useradd --uid 10001 --create-home shoal && install -d -o shoal -g shoal -m 700 /var/lib/shoal /invite
COPY docker/*.sh /usr/local/bin/
USER shoal

FROM runtime AS coordinator
COPY --from=coordinator-builder /opt/shoal /opt/shoal
EXPOSE 7600 7601
ENTRYPOINT ["coordinator.sh"]

# --- the peer comes last, so that builders that go from top to bottom make the coordinator without PyTorch ---

FROM builder AS peer-builder
# Where PyTorch comes from, beside docker/wheels. Empty: wherever pip looks, which for Linux is usually a build for CUDA, several GB.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY pyproject.toml constraints.txt docker/requirements.py ./
RUN pip install --no-deps -c constraints.txt --find-links wheels ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
RUN python requirements.py peer > requirements.txt && pip install -c constraints.txt --find-links wheels -r requirements.txt
COPY --from=wheel /wheels /wheels
RUN pip install --no-deps /wheels/*.whl

FROM runtime AS peer
USER root
RUN command -v tc || { apt-get update && apt-get install -y --no-install-recommends iproute2 && rm -rf /var/lib/apt/lists/*; }
USER shoal
COPY --from=peer-builder /opt/shoal /opt/shoal
ENTRYPOINT ["peer.sh"]
