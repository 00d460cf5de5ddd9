"""Other ways to ask a model about a picture in one Python process: what the first token is compared with.

`python -m benchmarks.peers TEXT MMPROJ THREADS CONTEXT` serves one of them, xllamacpp, over a pipe: it brings a
llama.cpp of its own, which must not meet that of llama-cpp-python in one process. One JSON object a line: requests on
standard input, a line when it is ready and replies on standard output; everything that is printed besides goes to
standard error. Times are taken on its side of the pipe.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, cast

__all__ = ["Mtmd", "Peer", "Reply", "Turn", "Xllamacpp", "gguf_pair", "messages"]

_INSTALL = "pip install xllamacpp"
_END_TIMEOUT_S = 20.0
_ROOT = Path(__file__).resolve().parent.parent

Turn = tuple[str, str]
"""A question and its answer."""

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Reply:
    """What an answer took.

    Attributes:
        first_token_s: seconds from the request, the picture as encoded bytes in it, to the first token.
        text: the answer.
        prompt_tokens: cache entries of the whole prompt.
        kept_tokens: those of them that were there before.
    """

    first_token_s: float
    text: str
    prompt_tokens: int
    kept_tokens: int


class Peer(Protocol):
    """Something else that answers questions about a picture. One thread at a time."""

    def first_token(self, prompt: Messages) -> Reply:
        """Answer greedily with one token.

        Args:
            prompt: from `messages`.
        """
        ...

    def close(self) -> None:
        """Give everything back. May be called twice."""
        ...


def gguf_pair(folder: Path, text_dtype: str, mmproj_dtype: str) -> tuple[Path, Path]:
    """Return the text model and the mmproj file of a model folder.

    Raises:
        FileNotFoundError: there is not exactly one of each.
    """
    files = sorted((folder / "gguf").glob("*.gguf"))
    texts = [file for file in files if file.stem.endswith(f"-{text_dtype}") and "mmproj" not in file.stem]
    mmprojs = [file for file in files if file.stem.endswith(f"-{mmproj_dtype}") and "mmproj" in file.stem]
    if len(texts) != 1 or len(mmprojs) != 1:
        raise FileNotFoundError(
            f"{folder / 'gguf'}: wanted one text model in {text_dtype} and one mmproj file in {mmproj_dtype}, found "
            f"{', '.join(file.name for file in files) or 'nothing'}"
        )
    return texts[0], mmprojs[0]


def messages(png: bytes, question: str, turns: Sequence[Turn] = ()) -> Messages:
    """Write a conversation about one picture in the form of OpenAI's chat API, the picture as a data URL.

    Args:
        png: the encoded picture; it stands before the first question.
        question: the last one, to be answered.
        turns: what was asked and answered before.
    """
    url = "data:image/png;base64," + base64.b64encode(png).decode()
    said = [pair for asked, answered in turns for pair in (("user", asked), ("assistant", answered))]
    prompt: Messages = [
        {"role": role, "content": [{"type": "text", "text": text}]} for role, text in (*said, ("user", question))
    ]
    prompt[0]["content"].insert(0, {"type": "image_url", "image_url": {"url": url}})
    return prompt


class Mtmd:
    """llama-cpp-python with its `MTMDChatHandler`, as its documentation shows it. It computes every prompt anew."""

    def __init__(self, text: Path, mmproj: Path, *, threads: int, context_length: int) -> None:
        """Load both files."""
        from llama_cpp import Llama
        from llama_cpp.llama_chat_format import MTMDChatHandler

        self._llama: Any = Llama(
            str(text),
            chat_handler=MTMDChatHandler(clip_model_path=str(mmproj), verbose=False, use_gpu=False),
            n_ctx=context_length,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )

    def first_token(self, prompt: Messages) -> Reply:
        """Answer with one token; the whole call counts."""
        started_s = time.perf_counter()
        answer = self._llama.create_chat_completion(prompt, max_tokens=1, temperature=0.0)
        took_s = time.perf_counter() - started_s
        return Reply(took_s, str(answer["choices"][0]["message"]["content"]), answer["usage"]["prompt_tokens"], 0)

    def close(self) -> None:
        """Give both files back."""
        self._llama.close()


class Xllamacpp:
    """xllamacpp's server, which keeps the beginning of the last prompt, in a process of its own."""

    def __init__(self, text: Path, mmproj: Path, *, threads: int, context_length: int) -> None:
        """Start the process and wait until it has loaded both files.

        Raises:
            RuntimeError: the package is not installed, or it cannot load them.
        """
        if importlib.util.find_spec("xllamacpp") is None:
            raise RuntimeError(f"xllamacpp is not installed: {_INSTALL}")
        self._folder = tempfile.TemporaryDirectory()
        self._chatter = Path(self._folder.name) / "stderr"
        with self._chatter.open("wb") as chatter:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.peers", text, mmproj, str(threads), str(context_length)],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=chatter,
            )
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def first_token(self, prompt: Messages) -> Reply:
        """Answer with one token; raises what `ask` does."""
        return self.ask(prompt, max_tokens=1)

    def ask(self, prompt: Messages, *, max_tokens: int) -> Reply:
        """Answer greedily; the first piece of text that it streams counts.

        Raises:
            RuntimeError: it reports an error, or its process has ended.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # reading says what became of it
            self._process.stdin.write(json.dumps({"messages": prompt, "max_tokens": max_tokens}).encode() + b"\n")
            self._process.stdin.flush()
        return Reply(**self._read())

    def close(self) -> None:
        """End the process: it leaves when nothing more can come."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what a dead process has not read
                    pipe.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._chatter.read_text(encoding="utf-8", errors="replace").strip()
            raise RuntimeError(f"the process of xllamacpp has ended: {said[-1000:] or 'it said nothing'}")
        reply = cast("dict[str, Any]", json.loads(line))
        if "error" in reply:
            raise RuntimeError(f"xllamacpp: {reply['error']}")
        return reply


def _serve(text: str, mmproj: str, threads: int, context_length: int) -> None:
    """Answer requests until there are none."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # llama.cpp may print what it likes
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path, settings.mmproj.path = text, mmproj
    settings.n_ctx = context_length
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    settings.mmproj_use_gpu = False
    settings.n_gpu_layers = 0
    settings.verbosity = 0
    server = xllamacpp.Server(settings)
    _tell(replies, {})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            _tell(replies, asdict(_answered(server, request["messages"], request["max_tokens"])))
        except (RuntimeError, ValueError) as error:
            _tell(replies, {"error": str(error)})


def _answered(server: Any, prompt: Messages, max_tokens: int) -> Reply:
    """Ask the server and read its stream.

    Raises:
        RuntimeError: it answers with an error.
    """
    first_s: float | None = None
    text = ""
    prompt_tokens = kept_tokens = 0
    error = ""

    def hear(part: dict[str, Any]) -> None:
        nonlocal first_s, text, prompt_tokens, kept_tokens, error
        if "choices" not in part:
            error = json.dumps(part)
            return
        for choice in part["choices"]:
            text += choice["delta"].get("content") or ""
            if first_s is None and (text or choice["finish_reason"]):
                first_s = time.perf_counter() - started_s
        usage = part.get("usage")
        if usage:
            prompt_tokens = usage["prompt_tokens"]
            kept_tokens = usage["prompt_tokens_details"]["cached_tokens"]

    request = {
        "messages": prompt,
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started_s = time.perf_counter()
    server.handle_chat_completions(request, hear)
    if first_s is None:
        raise RuntimeError(error or "it sent no token")
    return Reply(first_s, text, prompt_tokens, kept_tokens)


def _tell(replies: Any, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
