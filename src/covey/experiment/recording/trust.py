"""Which run directories may import code: those that this user made or trusted.

A run's config.yaml can name modules to import (`imports`, `hooks`, `callbacks`, fields of tasks) and a folder to find
them in (`code_dir`), so whoever wrote it can run code here. It is trusted if this file beside it

    config.trust      a line for each user who trusts config.yaml: HMAC-SHA256 of its bytes

has a line that was made with the key in this user's home, `~/.config/covey/key` (or below $XDG_CONFIG_HOME), which the
first run that needs one makes. So all hosts that share the home trust the same runs, runs can be moved and copied, and
a change of config.yaml ends the trust. Runs that import nothing need none of this.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import re
import secrets
import time
import uuid
from pathlib import Path

from covey.errors import UsageError
from covey.files import check_regular, link_exclusively, write_atomically

FILE = "config.trust"
KEY_BYTES = 32
MOST_LINES = 16  # of config.trust: the newest stay
MOST_CHARACTERS = 65_536  # of config.trust


class Untrusted(UsageError):
    """A run directory wants to import code and is not trusted."""


def is_trusted(folder: Path, content: bytes) -> bool:
    """Whether this user made or trusts a run directory whose config.yaml has this content."""
    try:
        key = read_key()
    except OSError:
        return False
    return key is not None and any(hmac.compare_digest(line, digest(content, key)) for line in _read_lines(folder))


def add_trust(folder: Path, content: bytes) -> None:
    """Trusts config.yaml with this content; raises OSError where there is no key or the folder cannot be written."""
    lines, own = _read_lines(folder), digest(content, read_or_make_key())
    if own not in lines:
        write_atomically(folder / FILE, "".join(f"{line}\n" for line in [*lines, own][-MOST_LINES:]))


def digest(content: bytes, key: bytes) -> str:
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def _read_lines(folder: Path) -> list[str]:
    """The digests in config.trust."""
    try:
        check_regular(folder / FILE)
        with open(folder / FILE, encoding="ascii") as file:
            return re.findall(r"^[0-9a-f]{64}$", file.read(MOST_CHARACTERS), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return []


# -------------------------------------------------------------------------------------------------------------- key


def key_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        folder = Path(base) if os.path.isabs(base) else Path.home() / ".config"
    except RuntimeError as error:  # a user without a home
        raise OSError(errno.ENOENT, str(error)) from error
    return folder / "covey" / "key"


def read_key() -> bytes | None:
    """This user's key; None where there is none yet."""
    path = key_file()
    for _ in range(20):
        try:
            text = path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            text = ""
        if re.fullmatch(rf"[0-9a-f]{{{2 * KEY_BYTES}}}", text):
            return bytes.fromhex(text)
        time.sleep(0.05)  # without links, another process may be writing it right now
    raise OSError(errno.EINVAL, f"{path} is damaged; remove it, and trust your runs again")


def read_or_make_key() -> bytes:
    """This user's key. Processes that make it at the same time all return the same one."""
    known = read_key()
    if known is not None:
        return known
    path = key_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".key.{uuid.uuid4().hex}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(KEY_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        link_exclusively(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    made = read_key()
    if made is None:
        raise OSError(errno.ENOENT, f"{path} was removed")
    return made
