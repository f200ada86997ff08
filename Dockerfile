# Two images from one source: `coordinator`, without PyTorch, and `peer`. docker-compose.yml starts them, docs/docker.md explains.
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS base
ENV PATH=/opt/shoal/bin:$PATH PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/shoal
RUN useradd --uid 10001 --create-home shoal && install -d -o shoal -g shoal -m 700 /var/lib/shoal /invite
WORKDIR /source
COPY docker/wheels wheels
COPY pyproject.toml constraints.txt docker/requirements.py ./

FROM base AS wheel
COPY . .
RUN pip wheel --no-deps --find-links wheels --wheel-dir /wheels .

FROM base AS coordinator
RUN python requirements.py coordinator > requirements.txt && pip install -c constraints.txt --find-links wheels -r requirements.txt
COPY --from=wheel /wheels /wheels
RUN pip install --no-deps /wheels/*.whl
COPY docker/*.sh /usr/local/bin/
WORKDIR /home/shoal
USER shoal
EXPOSE 7600 7601
ENTRYPOINT ["coordinator.sh"]

# The peer comes last, so that builders that go from top to bottom make the coordinator without PyTorch.
FROM base AS peer
RUN command -v tc || { apt-get update && apt-get install -y --no-install-recommends iproute2 && rm -rf /var/lib/apt/lists/*; }
# Where PyTorch comes from, beside docker/wheels. Empty: wherever pip looks, which for Linux is usually a build for CUDA, several GB.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-deps -c constraints.txt --find-links wheels ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
RUN python requirements.py peer > requirements.txt && pip install -c constraints.txt --find-links wheels -r requirements.txt
COPY --from=wheel /wheels /wheels
RUN pip install --no-deps /wheels/*.whl
COPY docker/*.sh /usr/local/bin/
WORKDIR /home/shoal
USER shoal
ENTRYPOINT ["peer.sh"]
