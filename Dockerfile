# One image, two commands: `node` and `coordinator`. docs/container.md says how to build and run it.
#
# BASE         any Debian or Ubuntu with python3 3.11 or later, or with an apt to get it from;
#              make image-offline makes one where nothing can be pulled
# TORCH        cpu or cuda: which build of torch it must be; the other one ends the build
# TORCH_INDEX  where pip finds that build besides its own index (torch's installation page says where)
ARG BASE=python:3.11-slim-bookworm

# -- what pip needs, as text: so that only another dependency makes the next layers anew -------------
FROM ${BASE} AS python
RUN python3 -c 'import ensurepip' 2>/dev/null \
    || { apt-get update -q && apt-get install -qy --no-install-recommends python3 python3-venv; }

FROM python AS requirements
COPY pyproject.toml container/requirements.py ./
RUN python3 requirements.py > requirements.txt

# -- build: everything below /opt/murmurate; nothing else of this stage is kept ----------------------
FROM python AS build
ARG TORCH=cpu
ARG TORCH_INDEX=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
SHELL ["/bin/sh", "-euc"]

WORKDIR /src
COPY constraints.txt ./
COPY --from=requirements requirements.txt ./
# How the machine that builds reaches its package index is its own affair: a secret, not a layer.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/etc/pip.pem \
    python3 -m venv /opt/murmurate; \
    /opt/murmurate/bin/pip install -q ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
      -c constraints.txt -r requirements.txt; \
    built=$(/opt/murmurate/bin/python -c 'import torch; print("cuda" if torch.version.cuda else "cpu")'); \
    test "$built" = "$TORCH" || { echo "TORCH=$TORCH, but pip found the $built build of torch:" \
      "set TORCH_INDEX to where the other one is (torch's installation page says), or TORCH=$built"; \
      exit 1; }
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/etc/pip.pem \
    python3 -m venv /opt/sbom; \
    /opt/sbom/bin/pip install -q cyclonedx-bom==7.5.0

COPY pyproject.toml README.md LICENSE ./
COPY node node
COPY coordinator coordinator
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/etc/pip.pem \
    /opt/murmurate/bin/pip install -q --no-deps .

# What runs needs no installer, and of torch neither headers nor its own tests; the list is of the rest.
COPY container/trim.sh ./
RUN sh trim.sh /opt/murmurate; \
    /opt/sbom/bin/cyclonedx-py environment /opt/murmurate/bin/python --pyproject pyproject.toml \
      --mc-type application --output-reproducible --of JSON -o /opt/murmurate/sbom.cdx.json

# -- the image ---------------------------------------------------------------------------------------
FROM ${BASE}
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="murmurate" \
      org.opencontainers.image.description="Train one model across a flock of unequal machines" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.murmurate.sbom="/opt/murmurate/sbom.cdx.json"

RUN command -v python3 >/dev/null \
    || { apt-get update -q && apt-get install -qy --no-install-recommends python3 \
      && rm -rf /var/lib/apt/lists/* /var/cache/apt/*; }; \
    groupadd --gid 10001 murmurate \
    && useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin \
      murmurate \
    && install -d -o 10001 -g 10001 -m 0750 /var/lib/murmurate \
    && install -d /etc/murmurate/tls

COPY --from=build /opt/murmurate /opt/murmurate
COPY container/node.toml container/coordinator.toml /etc/murmurate/
COPY container/health.py /opt/murmurate/

# glibc keeps what a message was in for the next one: gradients come and go by the megabyte.
# Both thresholds are needed, and a node sets them itself too; the coordinator takes them from here.
ENV PATH=/opt/murmurate/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=2000000000 MALLOC_TOP_PAD_=67108864

USER 10001:10001
WORKDIR /tmp
VOLUME ["/var/lib/murmurate"]
EXPOSE 7000 7100 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python3", "-I", "/opt/murmurate/health.py"]
# In this form the program is process 1 itself, and gets the signals.
ENTRYPOINT ["murmurate"]
CMD ["node", "--config", "/etc/murmurate/node.toml"]
