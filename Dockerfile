# An image whose entry point is xc: docker build --tag xcflow . (docs/operate.md, Containers)
FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/xcflow
COPY constraints.txt constraints-cuda.txt ./
# A page that links builds of torch, such as those for CPUs alone; where it has not the pinned one, the index's is taken,
# with CUDA's libraries.
ARG TORCH_LINKS=
RUN python -m venv /opt/venv \
    && sed -n '/^torch==/,/[^\\]$/p' constraints.txt > torch.txt \
    && (/opt/venv/bin/pip install --quiet --no-cache-dir --no-deps --no-index --find-links "$TORCH_LINKS" \
        --require-hashes --requirement torch.txt || true) \
    && /opt/venv/bin/pip install --quiet --no-cache-dir --no-deps --require-hashes --requirement constraints.txt \
    && (/opt/venv/bin/pip check > missing.log \
        || /opt/venv/bin/pip install --quiet --no-cache-dir --no-deps --require-hashes --requirement constraints-cuda.txt)
COPY . .
RUN /opt/venv/bin/pip install --quiet --no-cache-dir --no-deps --no-build-isolation . \
    && /opt/venv/bin/pip check
ENV PATH=/opt/venv/bin:$PATH
USER 1000:1000
ENTRYPOINT ["/opt/venv/bin/xc"]
