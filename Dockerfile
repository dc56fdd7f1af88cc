# docker build -t servesim .
# docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" servesim run --trace log.csv --model qwen3-14b --gpu h100 --out r
# docker run --rm -p 8000:8000 servesim serve --host 0.0.0.0 --model qwen3-14b --gpu h100
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
COPY . /source
WORKDIR /source
ENV PIP_CONSTRAINT=/source/requirements.lock PIP_BUILD_CONSTRAINT=/source/requirements.lock
RUN python -m venv /servesim && SERVESIM_COMPILE=1 /servesim/bin/pip install --no-cache-dir '.[explore,serve]'

FROM python:3.12-slim
COPY --from=build /servesim /servesim
# Any user (--user) may write to both; a folder mounted on /work belongs to the host's user.
RUN useradd --create-home servesim && mkdir /work && chmod 1777 /work /home/servesim
USER servesim
WORKDIR /work
ENV PATH=/servesim/bin:$PATH HOME=/home/servesim
EXPOSE 8000
ENTRYPOINT ["servesim"]
CMD ["--help"]
