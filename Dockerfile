# docker build -t servesim . && docker run --rm -v "$PWD:/work" servesim run --trace trace.csv --model qwen3-14b --gpu h100
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
COPY . /source
WORKDIR /source
ENV PIP_CONSTRAINT=/source/requirements.lock PIP_BUILD_CONSTRAINT=/source/requirements.lock
RUN python -m venv /servesim && SERVESIM_COMPILE=1 /servesim/bin/pip install --no-cache-dir '.[explore]'

FROM python:3.12-slim
COPY --from=build /servesim /servesim
RUN useradd --create-home servesim && mkdir /work && chown servesim /work
USER servesim
WORKDIR /work
ENV PATH=/servesim/bin:$PATH
ENTRYPOINT ["servesim"]
CMD ["--help"]
