# The package and its demo in a clean system, on the CPU.
#   docker build -t outsize . && docker run --rm -v "$PWD/runs:/outsize/runs" outsize
FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /outsize
COPY pyproject.toml README.md LICENSE Makefile ./
COPY src src
RUN make setup
CMD ["make", "demo"]
