# The service in an image: built from source, run by a user without rights, SQLite in the volume /data by default.
#
#   docker build -t precis .
#   docker run --rm -p 127.0.0.1:8080:8080 -v precis:/data -e PRECIS_ADMIN_KEY precis

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
# What Cargo has downloaded and compiled outlives a change of the sources, and of Cargo.lock too, which a layer with the
# dependencies alone would not. The binary is copied out, because a cache is no part of the layer.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin precis \
    && cp target/release/precis /usr/local/bin/precis

FROM debian:bookworm-slim
# Certificates for calls to models over https.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --system --gid 10001 precis \
    && useradd --system --uid 10001 --gid precis --home-dir /data --shell /usr/sbin/nologin precis \
    && install -d -o precis -g precis -m 0750 /data
COPY --from=build /usr/local/bin/precis /usr/local/bin/precis

# Within the container only; what can be reached from outside is decided where the port is published. Without
# PRECIS_ADMIN_KEY, or a key in the database, the service refuses to start on such an address.
ENV PRECIS_LISTEN=0.0.0.0:8080 \
    PRECIS_DATABASE_URL=sqlite:///data/precis.db
WORKDIR /data
VOLUME /data
EXPOSE 8080
USER 10001:10001
STOPSIGNAL SIGTERM

# Bash speaks enough HTTP for this, so that no further program has to be in the image.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["bash", "-c", "exec 3<>\"/dev/tcp/127.0.0.1/${PRECIS_LISTEN##*:}\" && printf 'GET /health/ready HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3 && read -r -t 4 version status rest <&3 && [ \"$status\" = 200 ]"]

ENTRYPOINT ["precis"]
CMD ["serve"]
