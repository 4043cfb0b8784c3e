"""What the demonstrations share: the small model and the service as processes, and calls to them."""

import contextlib, json, os, pathlib, signal, socket, subprocess, sys, tempfile, time, urllib.error, urllib.request

HERE = pathlib.Path(__file__).resolve().parent
TARGET = HERE.parent.parent / "target"
PORTS = range(18400, 18500)
# The model is small: it follows one plain sentence, and none of the rules of the built-in prompt.
PROMPT = ("Provide a concise, objective summary of the input text in up to three sentences, focusing on key actions and "
          "intentions without using second or third person pronouns.")
# The addresses are of this machine: no proxy.
WEB = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def call(url, body=None, method=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with WEB.open(request, timeout=600) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        sys.exit(f"{request.get_method()} {url}: {error.code}\n{error.read().decode()}")


def built(chosen):
    """The precis that was named, or the one that was built last."""
    there = [path for path in (TARGET / "release/precis", TARGET / "debug/precis") if path.is_file()]
    precis = chosen or max(there, key=lambda path: path.stat().st_mtime, default=None)
    if precis is None or not precis.is_file():
        sys.exit("there is no built precis; run `cargo build --release`, or name one")
    return precis.resolve()


@contextlib.contextmanager
def served(precis, context, settings=(), files=()):
    """The service's address, and the folder it runs in, with these files. Without a context size there is no model."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PRECIS_")} | dict(settings)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in dict(files).items():
            pathlib.Path(folder, name).write_text(text)
        try:
            port = free_port()
            if context is not None:
                command = [HERE / "start", "--port", str(port), "--context", str(context)]
                started.append(start(command, stdout=subprocess.DEVNULL))
                model = f"http://127.0.0.1:{port}/v1"
                ready(started[-1], f"{model}/models", "the model", 600)
                name = call(f"{model}/models")["data"][0]["id"]
                environment |= {"PRECIS_MODEL_BASE_URL": model, "PRECIS_MODEL": name}
            port = free_port({port})
            environment |= {"PRECIS_LISTEN": f"127.0.0.1:{port}", "PRECIS_DATABASE_URL": f"sqlite://{folder}/demo.db"}
            log = pathlib.Path(folder, "log")
            with log.open("w") as file:
                started.append(start([precis], env=environment, cwd=folder, stdout=file, stderr=file))
            ready(started[-1], f"http://127.0.0.1:{port}/health/ready", "the service", 30, log)
            yield f"http://127.0.0.1:{port}", pathlib.Path(folder)
        finally:
            for process in reversed(started):
                stop(process)


def free_port(taken=()):
    for port in PORTS:
        with socket.socket() as probe:
            if port not in taken and probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    sys.exit("no port is free")


def start(command, **options):
    # In a group of its own: an installation that still runs is stopped with its script.
    return subprocess.Popen(command, start_new_session=True, **options)


def ready(process, url, name, seconds, log=None):
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        try:
            return WEB.open(url, timeout=5).close()
        except OSError:
            time.sleep(0.2)
    sys.exit(f"{name} did not start\n{log.read_text() if log else ''}")


def stop(process):
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(40)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
