# An image that certifies and serves, without the tools for development:
#   docker build -t rs-keras .
#   docker run --rm rs-keras doctor
# The folder that is mounted is where the command reads and writes:
#   docker run --rm -v "$PWD:/work" --user "$(id -u):$(id -g)" rs-keras \
#     certify fashion_mini --model runs/fashion --skip 100 --out fashion.tsv
#   docker run --rm -v "$PWD:/work:ro" --user "$(id -u):$(id -g)" \
#     -p 127.0.0.1:8500:8500 rs-keras serve exports/fashion --host 0.0.0.0
# Exports hold a secret that only their owner and group may read: hence --user.
FROM python:3.11-slim AS build
WORKDIR /source
ENV PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/rs-keras
# The dependencies, each file held against its hash, in a layer of their own.
COPY requirements.lock ./
RUN sed '/^# For development/,$d' requirements.lock > run.lock \
    && /opt/rs-keras/bin/pip install --no-deps --require-hashes -r run.lock
COPY setup.py pyproject.toml README.md LICENSE ./
COPY rs_keras rs_keras
COPY trainers trainers
COPY export export
COPY serving serving
RUN /opt/rs-keras/bin/pip install . && /opt/rs-keras/bin/pip check

FROM python:3.11-slim
COPY --from=build /opt/rs-keras /opt/rs-keras
RUN useradd --create-home --uid 10001 smoothing && install -d -o 10001 /work
ENV PATH=/opt/rs-keras/bin:$PATH \
    KERAS_HOME=/tmp/keras \
    MPLCONFIGDIR=/tmp/matplotlib \
    PYTHONUNBUFFERED=1
# A number, so that Kubernetes can see that it is not root.
USER 10001
WORKDIR /work
EXPOSE 8500
ENTRYPOINT ["rs-keras"]
CMD ["--help"]
