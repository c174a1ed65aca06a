# The server without torch. Build: docker build -t roundoff .
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE ./
# The optimizer's C step is of no use to a server.
ENV ROUNDOFF_PURE=1
COPY client client
COPY server server
COPY dashboards dashboards
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /wheels
RUN python -m venv /opt/roundoff \
 && /opt/roundoff/bin/pip install --no-cache-dir "$(echo /wheels/*.whl)[server]"

FROM python:3.12-slim
LABEL org.opencontainers.image.title="roundoff" \
      org.opencontainers.image.description="Precision diagnostics for 16-bit training: the server" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 10001 --create-home --home-dir /home/roundoff roundoff \
 && install -d -o roundoff -g roundoff /data
COPY --from=build /opt/roundoff /opt/roundoff
ENV PATH=/opt/roundoff/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    ROUNDOFF_HOST=0.0.0.0 \
    ROUNDOFF_PORT=8765 \
    ROUNDOFF_DATABASE_URL=sqlite:////data/roundoff.db
USER roundoff
WORKDIR /home/roundoff
VOLUME /data
EXPOSE 8765
# The port may be another in the environment, so it is read from there.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
  CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ['ROUNDOFF_PORT']}/readyz\", timeout=2)"]
# It stops within 5 seconds of SIGTERM, open event streams included.
STOPSIGNAL SIGTERM
CMD ["roundoff", "serve"]
